"""A run writes into the folder that it began in, and removes what is its own."""

import json
import shutil
from pathlib import Path

import pytest
from rich.console import Console

from smoothtune.config.run import RunConfig
from smoothtune.errors import OutputError
from smoothtune.files import LOCK, check_owned, owned
from smoothtune.run import train as train_module
from smoothtune.run.train import train
from smoothtune.run.trainer import RunTrainer

SILENT = Console(quiet=True)


def config_of(inputs: Path, folder: Path, **changes) -> RunConfig:
    settings = {
        "task": "quality",
        "data": str(inputs / "data"),
        "text_columns": ["text"],
        "model": str(inputs / "model"),
        "methods": {"plain": {}},
        "output_dir": str(folder),
        "max_steps": 2,
        "cost_steps": 0,
    }
    return RunConfig(**settings | changes)


def content(folder: Path) -> dict[str, bytes]:
    found = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


@pytest.mark.parametrize(
    ("owner", "name"),
    [(RunTrainer, "training_step"), (RunTrainer, "evaluate"), (train_module.Trained, "save")],
)
def test_a_folder_that_another_run_has_by_now_is_left_alone(
    inputs: Path, tmp_path: Path, monkeypatch, owner, name: str
) -> None:
    out, moved = tmp_path / "out", tmp_path / "moved"
    original = getattr(owner, name)

    def move_first(*args, **kwargs):
        if not moved.exists():
            out.rename(moved)
            out.mkdir()  # by a second run
            for name in ("run.json", LOCK):
                (out / name).write_text("{}")
        return original(*args, **kwargs)

    saving = {"save_strategy": "steps", "save_steps": 1}
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, move_first)
        with pytest.raises(OutputError, match="was moved or replaced while this process wrote it"):
            train(config_of(inputs, out, **saving), console=SILENT)
    left = {name for name in content(out) if not name.startswith(".unfinished")}
    assert left == {"run.json", LOCK}
    (moved / LOCK).unlink(missing_ok=True)
    if name != "training_step":  # before the first checkpoint
        train(config_of(inputs, moved, **saving), resume=True, console=SILENT)
        assert (moved / "result.json").exists()


def test_check_owned(tmp_path: Path) -> None:
    check_owned(tmp_path)  # nobody's
    with owned(tmp_path / "out") as folder:
        check_owned(folder)
        folder.rename(tmp_path / "moved")
        with pytest.raises(OutputError, match="moved or replaced"):
            check_owned(folder)
        with pytest.raises(OutputError, match="is being written"), owned(tmp_path / "moved"):
            pass
    check_owned(tmp_path / "out")


def test_an_overwriting_run_removes_its_checkpoints_alone(inputs: Path, tmp_path: Path) -> None:
    saving = {"save_strategy": "steps", "save_steps": 1}
    train(config_of(inputs, tmp_path / "out", **saving), console=SILENT)
    checkpoints = tmp_path / "out" / "checkpoints"
    mine = [
        "notes.txt",
        "my-model/model.safetensors",
        "checkpoint-2/notes.txt",
        "checkpoint-x/a.pt",
    ]
    for name in mine:
        (checkpoints / name).parent.mkdir(exist_ok=True)
        (checkpoints / name).write_text("mine")
    train(config_of(inputs, tmp_path / "out", seed=1, overwrite_output_dir=True), console=SILENT)
    assert content(checkpoints) == dict.fromkeys(mine, b"mine")
    result = json.loads((tmp_path / "out" / "result.json").read_text())
    assert result["seed"] == 1
    shutil.rmtree(checkpoints)
    train(config_of(inputs, tmp_path / "out", seed=2, overwrite_output_dir=True), console=SILENT)
    assert not checkpoints.exists()


@pytest.mark.parametrize(
    "record",
    [
        {"config": None},
        {},
        {"config": []},
        {"config": {"methods": None}},
        {"config": {"methods": {"plain": 1}}},
        {"config": {"per_device_train_batch_size": "many"}},
        {"config": {}, "world_size": "two"},
        {"config": {}, "method_versions": [1]},
    ],
)
@pytest.mark.parametrize("name", ["run.json", "result.json"])
def test_a_record_that_is_none_of_ours(
    inputs: Path, tmp_path: Path, record: dict, name: str
) -> None:
    (tmp_path / name).write_text(json.dumps(record))
    with pytest.raises(OutputError, match=f"{name}: .*; it is not as smoothtune train writes it"):
        train(config_of(inputs, tmp_path), console=SILENT)
