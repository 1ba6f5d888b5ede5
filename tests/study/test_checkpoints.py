"""Cells that keep checkpoints, and go on from them."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from smoothtune.results import CellContent
from smoothtune.run.callbacks import Stopwatch
from smoothtune.run.trainer import RunTrainer
from smoothtune.study.config import load_study
from smoothtune.study.plan import Plan
from smoothtune.study.records import Cell, forget
from smoothtune.study.worker import attempt

STUDY = "methods: [r3f]\nmore_epochs: null\nseeds: [0]\n"
SAVING = "save_strategy: steps\nsave_steps: 1\n"


def one_cell(write, tmp_path: Path, text: str) -> Cell:
    cells = Plan(load_study(write(text)), tmp_path).final({})
    return next(cell for cell in cells if cell.label == "r3f")


def broken_off(cell: Cell, tmp_path: Path, steps: int, monkeypatch) -> tuple[Any, Any]:
    """A cell that has no memory left after some steps."""
    step, done = RunTrainer.training_step, []

    def training_step(self, *args, **kwargs):
        if len(done) == steps:
            raise MemoryError
        done.append(1)
        return step(self, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(RunTrainer, "training_step", training_step)
        return attempt(cell, tmp_path / "work", tmp_path / "kept")


def told(record: CellContent) -> tuple:
    result = record.result
    losses = [entry["loss"] for entry in result.log_history if "loss" in entry]
    return result.metrics, result.train_metrics, losses


def test_a_cell_goes_on_from_its_checkpoint(write, tmp_path: Path, monkeypatch) -> None:
    cell = one_cell(write, tmp_path, STUDY + SAVING)
    status, _ = broken_off(cell, tmp_path, 2, monkeypatch)
    assert status == "out of memory"
    status, found = attempt(cell, tmp_path / "work", tmp_path / "kept")
    assert (status, found.result.cost.resumed_from_step) == ("done", 2)
    _, whole = attempt(cell, tmp_path / "work", tmp_path / "other")
    assert whole.result.cost.resumed_from_step == 0
    assert told(found) == told(whole)

    forget(cell, "out of memory", tmp_path / "kept")
    assert (tmp_path / "kept" / cell.id).is_dir()
    (tmp_path / "kept" / "of another").mkdir()
    forget(cell, "done", tmp_path / "kept")
    assert [path.name for path in (tmp_path / "kept").iterdir()] == ["of another"]
    forget(cell, "nan", tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_without_a_save_strategy_nothing_is_kept(write, tmp_path: Path, monkeypatch) -> None:
    broken_off(one_cell(write, tmp_path, STUDY), tmp_path, 2, monkeypatch)
    assert not (tmp_path / "kept").exists()


def test_a_checkpoint_of_another_version_is_not_taken(
    write, tmp_path: Path, monkeypatch, capsys
) -> None:
    cell = one_cell(write, tmp_path, STUDY + SAVING)
    broken_off(cell, tmp_path, 2, monkeypatch)
    (manifest,) = tmp_path.glob("kept/*/checkpoints/checkpoint-2/manifest.json")
    content = json.loads(manifest.read_text())
    content["run"]["r3f.version"] = -1
    manifest.write_text(json.dumps(content))
    status, found = attempt(cell, tmp_path / "work", tmp_path / "kept")
    assert (status, found.result.cost.resumed_from_step) == ("done", 0)
    assert "the run begins again" in capsys.readouterr().out


def test_checkpoints_do_not_make_another_cell(write, tmp_path: Path) -> None:
    assert one_cell(write, tmp_path, STUDY + SAVING).id == one_cell(write, tmp_path, STUDY).id


def test_the_time_before_a_checkpoint_counts() -> None:
    state = SimpleNamespace(global_step=0, stateful_callbacks={})
    stopwatch = Stopwatch()
    stopwatch.on_train_begin(None, state, None)
    assert stopwatch.seconds < 100
    held = stopwatch.state() | {"attributes": {"before": 100.0}}
    later = SimpleNamespace(global_step=7, stateful_callbacks={"Stopwatch": held})
    resumed = Stopwatch()
    resumed.on_train_begin(None, later, None)
    assert resumed.resumed_from == 7
    assert 100 < resumed.seconds < 200
    assert resumed.state()["attributes"]["before"] > 100
