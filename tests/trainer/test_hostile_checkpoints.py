"""Checkpoints of others whose files run code when they are opened carelessly."""

import shutil
from pathlib import Path

import pytest
import torch

from helpers.training import Rows, arguments
from smoothtune import LNSR, SmoothTrainer
from smoothtune.errors import CheckpointError
from smoothtune.testing import tiny_model
from smoothtune.trainer.manifest import MANIFEST, read_json, write_manifest


class Bomb:
    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self):
        return Path.touch, (self.trace,)


def trainer_in(folder: Path) -> SmoothTrainer:
    return SmoothTrainer(
        model=tiny_model("bert"),
        args=arguments(folder, max_steps=2, save_strategy="steps", save_steps=1),
        train_dataset=Rows(),
        regularizers=[LNSR()],
    )


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    trainer_in(folder).train()
    return folder / "checkpoint-1"


@pytest.mark.parametrize("name", ["optimizer.pt", "scheduler.pt", "rng_state.pth"])
def test_a_pickle_is_not_executed(trained: Path, tmp_path: Path, name: str) -> None:
    """Nor is it where the manifest fits, which whoever made the file can write too."""
    checkpoint = Path(shutil.copytree(trained, tmp_path / "checkpoint-1"))
    run, trace = read_json(checkpoint / MANIFEST)["run"], tmp_path / "trace"
    torch.save({"state": Bomb(trace)}, checkpoint / name)
    (checkpoint / MANIFEST).unlink()
    write_manifest(checkpoint, run)
    with pytest.raises(CheckpointError, match=f"{name}.* was not opened"):
        trainer_in(tmp_path).train(resume_from_checkpoint=str(checkpoint))
    assert not trace.exists()
