"""The table of cells: it stands for records that have not changed, and for no other."""

import io
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from rich.console import Console

from helpers.study_files import finished
from smoothtune.study import records as records_module
from smoothtune.study.config import load_study
from smoothtune.study.description import write_description
from smoothtune.study.forecast import show_forecast
from smoothtune.study.plan import Plan
from smoothtune.study.records import Cell, Records
from smoothtune.study.status import show_status
from smoothtune.study.table import TABLE, read_table, row_of

SILENT = Console(file=io.StringIO())
FILE = "methods: [{name: lnsr, weight: 0.5}]\nseeds: [0, 1]\n"


def write_record(folder: Path, cell: Cell, score: float, seconds_old: int = 10) -> Path:
    """A record as it is some time after it was written."""
    Records(folder).write(cell, finished(score))
    path = folder / "cells" / f"{cell.id}.json"
    time = path.stat().st_mtime_ns - seconds_old * 1_000_000_000
    os.utime(path, ns=(time, time))
    return path


@pytest.fixture
def cells(write, tmp_path: Path) -> list[Cell]:
    """Six cells, of which the last one is not done, in the folder `out`."""
    study, out = load_study(write(FILE)), tmp_path / "out"
    found = Plan(study, out).final({})
    out.mkdir()
    write_description(study, found, {}, [], [], Records(out))
    for number, cell in enumerate(found[:-1]):
        write_record(out, cell, 0.5 + number / 100)
    return found


@pytest.fixture
def verified(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the records that were read and verified."""
    seen: list[str] = []
    verify = records_module._verified

    def counted(path: Path):
        seen.append(path.stem)
        return verify(path)

    monkeypatch.setattr(records_module, "_verified", counted)
    return seen


def test_it_holds_a_row_for_every_cell(cells: list[Cell], tmp_path: Path) -> None:
    failed = cells[-1]
    Records(tmp_path / "out").fail(failed, "out of memory", "too much")
    path = tmp_path / "out" / "failures" / f"{failed.id}.json"
    path.write_text(path.read_text().replace("too", r"too \ud800"))  # half a character
    show_status(tmp_path / "out", SILENT)
    table = pd.read_parquet(tmp_path / "out" / TABLE).set_index("cell")
    assert table.index.tolist() == [cell.id for cell in cells]
    assert table["status"].tolist() == ["done"] * 5 + ["out of memory"]
    assert table["message"].iloc[-1] == "too ? much"
    first, cell = table.loc[cells[2].id], cells[2]
    for name, value in cell.described.items():
        assert first[name] == value or (value is None and pd.isna(first[name]))
    assert (first["score"], first["train_score"], first["steps"]) == (0.52, 1.0, 3)
    assert (first["train_seconds"], first["evaluation_seconds"]) == (1.0, 0.5)
    assert json.loads(first["metrics"]) == {"accuracy": 0.52}
    assert pd.isna(table.loc[failed.id, "score"])
    assert table["asked"].all()


def test_what_has_not_changed_is_not_read_again(
    write, cells: list[Cell], tmp_path: Path, verified: list[str]
) -> None:
    counts = show_status(tmp_path / "out", SILENT)
    assert counts == {"done": 5, "running": 0, "failed": 0, "open": 1}
    assert sorted(verified) == sorted(cell.id for cell in cells[:-1])
    verified.clear()
    assert show_status(tmp_path / "out", SILENT) == counts
    show_forecast(load_study(write(FILE)), tmp_path / "out", 1, SILENT)
    assert verified == []


def test_a_record_wins_over_its_row(cells: list[Cell], tmp_path: Path, verified: list[str]) -> None:
    out = tmp_path / "out"
    show_status(out, SILENT)
    verified.clear()
    deleted, redone, edited, touched = cells[:4]
    (out / "cells" / f"{deleted.id}.json").unlink()
    write_record(out, redone, 0.9, seconds_old=5)
    path = out / "cells" / f"{edited.id}.json"
    before = path.stat()
    text = path.read_text().replace('"accuracy": 0.52', '"accuracy": 0.99')
    path.write_text(text)  # of the same length and time, and no longer what its checksum says
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    os.utime(out / "cells" / f"{touched.id}.json", ns=(1, 1))
    assert show_status(out, SILENT)["done"] == 3
    assert set(verified) == {cell.id for cell in (redone, edited)}
    rows = read_table(out)
    assert [rows[cell.id]["status"] for cell in cells[:4]] == ["missing", "done", "missing", "done"]
    assert rows[redone.id]["score"] == 0.9
    assert rows[deleted.id]["score"] is None


@pytest.mark.parametrize("damage", ["missing", "cut", "flipped", "other columns", "older", "text"])
def test_a_table_that_cannot_be_used_is_made_anew(
    cells: list[Cell], tmp_path: Path, verified: list[str], monkeypatch, damage: str
) -> None:
    out = tmp_path / "out"
    show_status(out, SILENT)
    path, rows = out / TABLE, read_table(out)
    whole = path.read_bytes()
    if damage == "missing":
        path.unlink()
    elif damage == "cut":
        path.write_bytes(whole[: len(whole) // 2])
    elif damage == "flipped":
        place = whole.index(cells[0].id.encode())
        path.write_bytes(whole[:place] + b"0" * 16 + whole[place + 16 :])
    elif damage == "other columns":
        pd.read_parquet(path).drop(columns="sha256").to_parquet(path)
    elif damage == "older":
        with monkeypatch.context() as earlier:
            earlier.setattr("smoothtune.study.table.FORMAT", "0")
            path.unlink()
            show_status(out, SILENT)
    else:
        path.write_text("cell,score\n")
    assert damage in ("missing", "older") or not read_table(out)
    verified.clear()
    assert show_status(out, SILENT)["done"] == 5
    assert len(verified) == 5
    assert read_table(out) == rows


def test_cells_that_are_not_asked_for_stay_in_it(cells: list[Cell], tmp_path: Path) -> None:
    out = tmp_path / "out"
    Records(out).save((cell.id, cell.described) for cell in cells)
    Records(out).save((cell.id, cell.described) for cell in cells[1:])
    rows = read_table(out)
    assert {cell_id for cell_id, row in rows.items() if not row["asked"]} == {cells[0].id}
    assert rows[cells[0].id]["score"] == 0.5


@pytest.mark.slow
def test_processes_that_write_it_at_once_leave_a_whole_one(
    cells: list[Cell], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    code = (
        "import io, sys; from pathlib import Path; from rich.console import Console\n"
        "from smoothtune.study.status import show_status\n"
        "from smoothtune.study.table import TABLE\n"
        "for _ in range(20):\n"
        "    (Path(sys.argv[1]) / TABLE).unlink(missing_ok=True)\n"
        "    assert show_status(Path(sys.argv[1]), Console(file=io.StringIO()))['done'] == 5\n"
        "assert 'torch' not in sys.modules\n"
    )
    command = [sys.executable, "-c", code, str(out)]
    processes = [subprocess.Popen(command, stderr=subprocess.PIPE) for _ in range(2)]
    assert [(p.communicate()[1], p.returncode) for p in processes] == [(b"", 0)] * 2
    show_status(out, SILENT)
    assert len(read_table(out)) == len(cells)
    assert [path.name for path in out.iterdir() if "partial" in path.name] == []


def test_a_folder_that_cannot_be_written_has_a_status_too(
    cells: list[Cell], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from smoothtune.errors import OutputError

    def refuse(*_: object) -> None:
        raise OutputError("read-only")

    monkeypatch.setattr("smoothtune.study.table.write_atomic", refuse)
    assert show_status(tmp_path / "out", SILENT)["done"] == 5
    assert not (tmp_path / "out" / TABLE).exists()


def test_the_records_of_a_copied_study_are_known_by_their_content(
    cells: list[Cell], tmp_path: Path, verified: list[str]
) -> None:
    show_status(tmp_path / "out", SILENT)
    shutil.copytree(tmp_path / "out", tmp_path / "copy", copy_function=shutil.copyfile)
    verified.clear()
    assert show_status(tmp_path / "copy", SILENT)["done"] == 5
    assert verified == []


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        ({"ood: a": 0.6, "ood: b": 0.9, "ood: a after 10% of it": 0.1, "drift": 0.2}, 0.75),
        ({"ood: a": 0.6, "ood: b": None}, None),  # one of them could not be scored
        ({"drift": 0.2}, None),
        ({}, None),
    ],
)
def test_the_score_on_other_data_is_the_mean_over_the_sets(
    scores: dict[str, float | None], expected: float | None
) -> None:
    record = {"id": "1", "status": "done", **finished(0.5)}
    metric = record["result"]["headline"]
    record["extras"] = {
        "parts": {
            name: {"numbers": {"metrics": {metric: {"value": value}} if value else {}}}
            for name, value in scores.items()
        }
    }
    assert row_of(record, "")["ood"] == (expected and pytest.approx(expected))
