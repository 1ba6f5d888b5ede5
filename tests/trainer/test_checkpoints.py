"""Checkpoints are complete or absent: deaths, changed files, other runs, full disks."""

import errno
import json
import os
import resource
import shutil
import warnings
from pathlib import Path

import pytest
import safetensors.torch
import torch
from safetensors.torch import load_file
from transformers import Trainer

from helpers.training import Rows, arguments
from helpers.versions import SEQUENTIAL
from smoothtune import L2SP, LNSR, NonFiniteLoss, SmoothTrainer
from smoothtune.errors import CheckpointError, OutputError
from smoothtune.testing import tiny_model
from smoothtune.trainer import checkpoints
from smoothtune.trainer.manifest import MANIFEST, REMOVED, newest, why_unusable

FILES = (
    "model.safetensors",
    "optimizer.pt",
    "scheduler.pt",
    "rng_state.pth",
    "smoothtune.safetensors",
    "trainer_state.json",
)
LAST = "checkpoint-3/model.safetensors"


class Death(BaseException):
    """The process ends here; nothing may catch it."""


ORDER = "sequential" if SEQUENTIAL else "random"


def trainer_in(folder: Path, methods=None, **changes) -> SmoothTrainer:
    settings = {
        "max_steps": 3,
        "per_device_train_batch_size": 8,
        "optim": "adamw_torch",
        "learning_rate": 0.01,
        "save_strategy": "steps",
        "save_steps": 1,
        "save_total_limit": 2,
        "seed": 42,
    }
    return SmoothTrainer(
        model=tiny_model("bert", dropout=0.1),
        args=arguments(folder, **settings | changes),
        train_dataset=Rows(32),
        regularizers=methods or [LNSR(weight=1.0), L2SP()],
    )


def weights(trainer: Trainer) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in trainer.model.state_dict().items()}


def same(first, second) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[k], second[k]) for k in first)


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> tuple[Path, dict[str, torch.Tensor]]:
    """A folder with checkpoint-2 and checkpoint-3, and the weights at the end."""
    folder = tmp_path_factory.mktemp("finished")
    trainer = trainer_in(folder)
    trainer.train()
    return folder, weights(trainer)


@pytest.fixture
def copy(finished, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished[0], tmp_path / "run"))


def test_only_complete_checkpoints_are_kept_and_old_ones_go(finished) -> None:
    folder = finished[0]
    assert sorted(p.name for p in folder.iterdir()) == ["checkpoint-2", "checkpoint-3"]
    manifest = json.loads((folder / "checkpoint-3" / MANIFEST).read_text())
    names = {p.name for p in (folder / "checkpoint-3").iterdir()} - {MANIFEST}
    assert set(manifest["files"]) == names
    assert set(FILES) < names
    assert (manifest["run"]["learning_rate"], manifest["run"]["lnsr.weight"]) == (0.01, 1.0)
    saved = torch.load(folder / "checkpoint-3" / "training_args.bin", weights_only=False)
    assert saved.save_total_limit == 2


def test_what_a_kill_left_behind_goes_when_nothing_is_left_to_train(copy: Path) -> None:
    last, before = copy / "checkpoint-3", copy / "checkpoint-2"
    trainer_in(copy, save_total_limit=1).train(resume_from_checkpoint=str(before))
    shutil.copytree(last, before)  # written anew: the older one is resumed from, so nothing goes
    trainer_in(copy, save_total_limit=1, max_steps=2).train(resume_from_checkpoint=str(before))
    assert last.exists()
    trainer_in(copy, save_total_limit=1).train(resume_from_checkpoint=str(last))
    assert [path.name for path in copy.iterdir()] == ["checkpoint-3"]


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_named(copy: Path, name: str) -> None:
    (copy / "checkpoint-3" / name).unlink()
    with pytest.raises(CheckpointError, match=f"{name} is missing"):
        trainer_in(copy).train(resume_from_checkpoint=str(copy / "checkpoint-3"))


@pytest.mark.parametrize("name", FILES)
def test_a_flipped_bit_is_seen(copy: Path, name: str) -> None:
    file = copy / "checkpoint-3" / name
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    assert why_unusable(copy / "checkpoint-3").startswith(f"{name} was changed")
    found = newest(copy)
    assert found.folder == copy / "checkpoint-2"
    assert found.notes[0].startswith(f"checkpoint-3 is passed over: {name} was changed")


@pytest.mark.parametrize("content", ["", "{}", '{"files": {"a": 1}, "run": {}}', "[", "[1]"])
def test_a_damaged_manifest_is_no_manifest(copy: Path, content: str) -> None:
    (copy / "checkpoint-3" / MANIFEST).write_text(content)
    assert MANIFEST in why_unusable(copy / "checkpoint-3")
    assert newest(copy).folder == copy / "checkpoint-2"


def test_resume_passes_over_a_broken_one_and_ends_at_the_same_weights(copy: Path, finished) -> None:
    (copy / "checkpoint-3" / "optimizer.pt").write_bytes(b"")
    trainer = trainer_in(copy)
    with pytest.warns(UserWarning, match=r"checkpoint-3 is passed over: optimizer.pt has 0 bytes"):
        trainer.train(resume_from_checkpoint=True)
    assert same(weights(trainer), finished[1])


def test_the_record_of_a_resumed_run_says_which_updates_its_seconds_are_of(copy: Path) -> None:
    trainer = trainer_in(copy)
    trainer.train(resume_from_checkpoint=str(copy / "checkpoint-2"))
    trainer.save_model(str(copy / "model"))
    cost = json.loads((copy / "model" / "result.json").read_text())["cost"]
    assert (cost["resumed_from_step"], cost["steps"]) == (2, 3)


def test_nothing_complete_is_left(copy: Path) -> None:
    for step in (2, 3):
        (copy / f"checkpoint-{step}" / "scheduler.pt").unlink()
    with pytest.raises(CheckpointError, match="no complete checkpoint .* checkpoint-2 is "):
        trainer_in(copy).train(resume_from_checkpoint=True)


def test_a_checkpoint_without_a_manifest_is_none(copy: Path) -> None:
    zeroed = {name: torch.zeros_like(t) for name, t in load_file(copy / LAST).items()}
    safetensors.torch.save_file(zeroed, copy / LAST)
    (copy / "checkpoint-3" / MANIFEST).unlink()
    found = newest(copy)
    assert found.folder == copy / "checkpoint-2"
    assert found.notes == [
        "checkpoint-3 is passed over: it has no manifest.json, which is written when a checkpoint "
        "is complete: it is not, or a Trainer without methods wrote it"
    ]
    with pytest.raises(CheckpointError, match=r"cannot be resumed from: it has no manifest\.json"):
        trainer_in(copy).train(resume_from_checkpoint=str(copy / "checkpoint-3"))


@pytest.mark.parametrize(("name", "usable"), [("pytorch_model.bin", False), ("notes.txt", True)])
def test_what_is_put_beside_the_files_is_not_read(copy: Path, name: str, usable: bool) -> None:
    (copy / "checkpoint-3" / name).write_bytes(b"")
    why = why_unusable(copy / "checkpoint-3")
    assert why == ("" if usable else f"{name} was added after it was written: move it elsewhere")


def test_files_of_others_in_a_checkpoint_outlive_it(copy: Path) -> None:
    (copy / "checkpoint-2" / "notes.txt").write_text("mine")
    (copy / "checkpoints.csv").write_text("mine")
    trainer_in(copy, max_steps=5).train(resume_from_checkpoint=True)
    assert [p.name for p in (copy / "checkpoint-2").iterdir()] == ["notes.txt"]
    assert {"checkpoint-4", "checkpoint-5", "checkpoints.csv"} < {p.name for p in copy.iterdir()}
    assert not (copy / "checkpoint-3").exists()


def test_another_environment_is_told(copy: Path, monkeypatch, finished) -> None:
    threads = torch.get_num_threads()
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads + 1)
    trainer = trainer_in(copy)
    told = f"checkpoint-3 was written with threads {threads}, here {threads + 1}: the run goes on"
    with pytest.warns(UserWarning, match=told):
        trainer.train(resume_from_checkpoint=True)
    assert same(weights(trainer), finished[1])


def test_whoever_may_read_the_state_may_read_the_weights(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        trainer_in(tmp_path, max_steps=1).train()
    finally:
        os.umask(before)
    assert {p.stat().st_mode & 0o777 for p in (tmp_path / "checkpoint-1").iterdir()} == {0o666}


def test_an_old_checkpoint_that_cannot_be_removed_ends_no_run(
    tmp_path: Path, finished, monkeypatch
) -> None:
    def fails(source, target):
        if Path(target).name.startswith(REMOVED):
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))
        return replace(source, target)

    replace, trainer = os.replace, trainer_in(tmp_path)
    monkeypatch.setattr(os, "replace", fails)
    trainer.train()
    assert same(weights(trainer), finished[1])
    assert newest(tmp_path).folder == tmp_path / "checkpoint-3"
    monkeypatch.undo()
    trainer_in(tmp_path, max_steps=5).train(resume_from_checkpoint=True)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["checkpoint-4", "checkpoint-5"]


@pytest.mark.parametrize(
    ("owner", "name", "error"),
    [
        (torch, "save", RuntimeError("[enforce fail] . open file failed with strerror: No space")),
        (Trainer, "_save_rng_state", Exception("No space left on device (os error 28)")),
    ],
)
def test_no_inodes_left(copy: Path, monkeypatch, owner, name: str, error: Exception) -> None:
    def fails(*_, **__):
        raise error

    shutil.rmtree(copy / "checkpoint-3")
    monkeypatch.setattr(owner, name, fails)
    with pytest.raises(OutputError, match=r"checkpoint-3 cannot be written: .*make room"):
        trainer_in(copy).train(resume_from_checkpoint=True)
    assert [p.name for p in copy.iterdir()] == ["checkpoint-2"]


@pytest.mark.parametrize(
    ("methods", "changes", "shown"),
    [
        ([LNSR(weight=1.0)], {}, "method l2_sp, here without it"),
        ([LNSR(weight=2.0), L2SP()], {}, "lnsr.weight 1.0, here 2.0"),
        (None, {"seed": 1}, "seed 42, here 1"),
        (None, {"learning_rate": 0.5}, "learning_rate 0.01, here 0.5"),
        (None, {"optim_args": "foreach=True"}, "optim_args None, here 'foreach=True'"),
        (None, {"dataloader_drop_last": True}, "dataloader_drop_last False, here True"),
        (
            None,
            {"train_sampling_strategy": "group_by_length"},
            f"train_sampling_strategy {ORDER!r}, here 'group_by_length'",
        ),
        (None, {"per_device_train_batch_size": 4}, "per_device_train_batch_size 8, here 4"),
    ],
)
def test_another_run_is_refused(finished, methods, changes, shown: str) -> None:
    trainer = trainer_in(finished[0], methods, **changes)
    with pytest.raises(CheckpointError, match="written by a different run") as refused:
        trainer.train(resume_from_checkpoint=True)
    assert f"({shown})" in str(refused.value)


def test_another_architecture_is_refused(finished) -> None:
    trainer = trainer_in(finished[0])
    trainer.model.classifier = torch.nn.Linear(trainer.model.config.hidden_size, 5)
    with pytest.raises(CheckpointError, match=r"model 'BertFor.*, here 'BertFor"):
        trainer.train(resume_from_checkpoint=True)


def test_a_run_resumed_at_its_last_step_takes_no_other(copy: Path, finished) -> None:
    trainer = trainer_in(copy)
    trainer.train(resume_from_checkpoint=True)  # three of the four steps of an epoch
    assert trainer.state.global_step == 3
    assert same(weights(trainer), finished[1])


def test_a_checkpoint_of_the_same_step_is_there_while_it_is_written_again(
    copy: Path, finished, monkeypatch
) -> None:
    shutil.rmtree(copy / "checkpoint-3")
    (copy / "checkpoint-2").rename(copy / "checkpoint-3")  # as if step 3 were saved again

    def dies(*_):
        raise Death

    monkeypatch.setattr(checkpoints, "save_file", dies)
    with pytest.raises(Death):
        trainer_in(copy, save_steps=3).train()
    found = newest(copy)
    assert found.folder == copy / ".old-checkpoint-3"
    assert not found.notes or "checkpoint-3 is passed over" in found.notes[0]
    monkeypatch.undo()
    trainer = trainer_in(copy)
    with pytest.warns(UserWarning, match="checkpoint-3 is passed over: it has no man"):
        trainer.train(resume_from_checkpoint=True)
    assert sorted(p.name for p in copy.iterdir()) == ["checkpoint-3"]
    assert same(weights(trainer), finished[1])


CALLS = {os: ("replace", "unlink", "fsync"), safetensors.torch: ("save_file",), torch: ("save",)}


def die_at(monkeypatch, point: int) -> list[str]:
    """Let the process die at the n-th operation on files of a save or a removal."""
    done: list[str] = []

    def dying(name, call):
        def wrapped(*values, **named):
            done.append(name)
            if len(done) == point:
                raise Death
            return call(*values, **named)

        return wrapped

    for module, names in CALLS.items():
        for name in names:
            monkeypatch.setattr(module, name, dying(name, getattr(module, name)))
    monkeypatch.setattr(checkpoints, "save_file", safetensors.torch.save_file)
    monkeypatch.setattr(shutil, "rmtree", dying("rmtree", shutil.rmtree))
    return done


@pytest.mark.parametrize("point", [9, 17, 31])
def test_a_death_while_saving_loses_no_complete_checkpoint(
    copy: Path, finished, monkeypatch, point: int
) -> None:
    shutil.rmtree(copy / "checkpoint-3")
    dying = trainer_in(copy, save_total_limit=1)
    with monkeypatch.context() as patch:
        die_at(patch, point)
        with pytest.raises(Death):
            dying.train(resume_from_checkpoint=True)
    trainer = trainer_in(copy, save_total_limit=1)
    with warnings.catch_warnings(record=True):
        warnings.simplefilter("always")
        trainer.train(resume_from_checkpoint=True)
    assert same(weights(trainer), finished[1])


def test_a_full_disk_keeps_the_checkpoint_before(copy: Path) -> None:
    shutil.rmtree(copy / "checkpoint-3")
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    trainer = trainer_in(copy)
    resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, limit[1]))
    try:
        with pytest.raises(OutputError, match=r"checkpoint-3 cannot be written: .* MB are free"):
            trainer.train(resume_from_checkpoint=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert [p.name for p in copy.iterdir()] == ["checkpoint-2"]
    assert not why_unusable(copy / "checkpoint-2")


def test_a_failure_that_is_none_of_writing_stays_what_it_is(tmp_path: Path, monkeypatch) -> None:
    trainer = trainer_in(tmp_path)

    def fails(*_):
        raise RuntimeError("CUDA error")

    monkeypatch.setattr(trainer, "_save_optimizer_and_scheduler", fails)
    with pytest.raises(RuntimeError, match="CUDA error"):
        trainer.train()


def test_weights_that_are_not_finite_stop_training_and_are_not_saved(tmp_path: Path) -> None:
    trainer = trainer_in(tmp_path, weight_decay=1e300, learning_rate=1e10)
    with pytest.raises(NonFiniteLoss, match=r"is not finite after update 1: lower learning_rate"):
        trainer.train()
    assert not list(tmp_path.iterdir())
