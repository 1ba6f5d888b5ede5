"""Every recipe draws what it says, from records that are made up."""

from pathlib import Path

import pytest

from smoothtune.study.config import load_study
from smoothtune.study.files import recipes
from smoothtune.study.layout import TableLayout

DRAWN = [name for name, path in recipes().items() if "\nlayout:" in path.read_text("utf-8")]
FAST = ("lnsr-table-iv", "lnsr-figure-1", "jachess-calibration", "sift-table-1")
CASES = [n if n in FAST else pytest.param(n, marks=pytest.mark.slow) for n in DRAWN]


@pytest.mark.parametrize("name", CASES)
def test_all_that_a_recipe_prints_is_drawn(name: str, reproduced, tmp_path: Path) -> None:
    study = load_study(recipes()[name], scale="smoke")
    content = reproduced(study)
    assert content["runs"]["done"] == content["runs"]["planned"]
    tables = [each for each in study.config.layout if isinstance(each, TableLayout)]
    for layout, table in zip(tables, content["tables"], strict=True):
        cells = [cell for cell in table["cells"] if cell["ours"]]
        first = layout is tables[0]
        assert cells or not first, f"{layout.table}: no cell has a number"
    assert all(figure["file"] for figure in content["figures"])
    endings = {path.suffix for path in tmp_path.glob("0*")}
    assert endings >= ({".csv", ".tex"} if tables else {".csv", ".svg", ".pdf"})
    page = (tmp_path / "reproduce.html").read_text()
    assert all(layout.table in page.replace("&#39;", "'") for layout in tables)
