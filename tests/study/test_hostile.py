"""A study in a hostile folder, with hostile names."""

import csv
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

SHADOWS = ("bisect", "numbers", "json", "smoothtune_none", "torch", "numpy", "secrets")
"""Modules that Python, or the packages that cells use, import by these names."""
HOSTILE = r'"=HYPERLINK(\"http://evil\")\e[31m\u202E@<b>|"'
"""A label as YAML writes it: a formula, a color, text from right to left, markup."""


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Folder of a finished study, started where modules lie that must not run; what it printed."""
    from helpers.tiny_folder import tiny_bert, tiny_data

    folder = tmp_path_factory.mktemp("hostile")
    tiny_bert(folder / "model")
    tiny_data(folder / "data")
    for name in SHADOWS:
        trace = folder / f"{name}.ran"
        (folder / f"{name}.py").write_text(f"open({str(trace)!r}, 'w')\nraise SystemExit(9)\n")
    (folder / "study.yaml").write_text(
        f"""
data: {folder / "data"}
model: {folder / "model"}
task: quality
text_columns: [text]
max_steps: 1
eval_strategy: "no"
seeds: [0, 1]
more_epochs: null
methods: [{{name: l2_sp, label: {HOSTILE}}}]
"""
    )
    main = [sys.executable, "-m", "smoothtune", "study", "study.yaml", "--output-dir", "out"]
    secret = {"WANDB_API_KEY": "s3cr3t-key", "HF_TOKEN": "s3cr3t-token"}
    found = subprocess.run(
        [*main, "--jobs", "1"], cwd=folder, env=os.environ | secret, capture_output=True, text=True
    )
    assert found.returncode == 0, found.stdout + found.stderr
    return folder, found.stdout + found.stderr


@pytest.mark.slow
def test_workers_import_nothing_from_the_current_directory(started: tuple[Path, str]) -> None:
    assert [path.name for path in started[0].glob("*.ran")] == []


@pytest.mark.slow
def test_no_cell_of_a_table_is_a_formula(started: tuple[Path, str]) -> None:
    tables = list((started[0] / "out").glob("*.csv"))
    assert {"results.csv"} < {table.name for table in tables}
    for table in tables:
        with table.open(newline="") as lines:
            cells = [cell for row in csv.reader(lines) for cell in row]
        assert not any(re.match(r"\s*[=+@]|\s*-[^0-9]", cell) for cell in cells), table
    assert "'=HYPERLINK" in (started[0] / "out" / "results.csv").read_text()


@pytest.mark.slow
def test_nothing_of_the_terminal_or_of_a_page_is_controlled(started: tuple[Path, str]) -> None:
    folder, said = started
    pages = [(folder / "out" / name).read_text() for name in ("report.html", "report.md")]
    for text in (said, *pages):
        assert "HYPERLINK" in text
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]", text)
        assert r"\x1b" in text or r"\\x1b" in text
    assert "<b>" not in pages[0]
    assert "http://evil" not in pages[1]


@pytest.mark.slow
def test_no_secret_of_the_environment_is_written(started: tuple[Path, str]) -> None:
    written = [path for path in (started[0] / "out").rglob("*") if path.is_file()]
    assert len(written) > 10
    for path in written:
        assert b"s3cr3t" not in path.read_bytes(), path
    label = json.loads((started[0] / "out" / "results.json").read_text())["methods"][1]["method"]
    assert label.startswith("=HYPERLINK")


@pytest.mark.parametrize("start", [["-m", "smoothtune"], ["-P", "-m", "smoothtune"]])
def test_the_command_imports_nothing_from_the_current_directory(
    start: list[str], tmp_path: Path
) -> None:
    for name in ("typer", "yaml", "pydantic", "json"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit(9)\n")
    command = [sys.executable, *start, "--version"]
    found = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert (found.returncode, found.stdout) == (0, "smoothtune 0.1.0\n"), found.stderr
