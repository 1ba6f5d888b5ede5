"""The best checkpoint and the last one: neither is lost, and the one is not taken for the other."""

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from helpers.training import Rows, arguments
from smoothtune import L2SP, LNSR, SmoothTrainer
from smoothtune.errors import CheckpointError
from smoothtune.testing import tiny_model
from smoothtune.trainer.manifest import why_unusable
from smoothtune.trainer.model_record import last_scores

BEST, STEPS = 2, 4


def trainer_in(folder: Path, methods=None, **changes) -> SmoothTrainer:
    """One whose score is best after step `BEST`."""
    settings = {
        "max_steps": STEPS,
        "per_device_train_batch_size": 8,
        "learning_rate": 0.01,
        "save_strategy": "steps",
        "save_steps": 1,
        "eval_strategy": "steps",
        "eval_steps": 1,
        "save_total_limit": 1,
        "load_best_model_at_end": True,
        "metric_for_best_model": "nearness",
        "greater_is_better": True,
    }
    trainer = SmoothTrainer(
        model=tiny_model("bert", dropout=0.1),
        args=arguments(folder, **settings | changes),
        train_dataset=Rows(32),
        eval_dataset=Rows(8),
        compute_metrics=lambda _: {"nearness": -abs(trainer.state.global_step - BEST)},
        regularizers=methods or [L2SP()],
    )
    return trainer


def weights(folder: Path, step: int) -> dict[str, torch.Tensor]:
    return load_file(folder / f"checkpoint-{step}" / "model.safetensors")


def same(model, expected: dict[str, torch.Tensor]) -> bool:
    found = model.state_dict()
    return all(torch.equal(found[name], value) for name, value in expected.items())


@pytest.fixture(scope="module")
def every(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All checkpoints of the run."""
    folder = tmp_path_factory.mktemp("every") / "run"
    trainer_in(folder, save_total_limit=None).train()
    return folder


def test_the_last_checkpoint_is_there_when_the_best_is_loaded(tmp_path: Path, every: Path) -> None:
    trainer = trainer_in(tmp_path)
    trainer.train()
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == [f"checkpoint-{BEST}", f"checkpoint-{STEPS}"]
    assert not any(why_unusable(path) for path in tmp_path.iterdir())
    assert same(trainer.model, weights(every, BEST))
    last, expected = weights(tmp_path, STEPS), weights(every, STEPS)
    assert all(torch.equal(last[name], expected[name]) for name in expected)


def test_the_best_is_loaded_where_checkpoints_hold_weights_alone(
    tmp_path: Path, every: Path
) -> None:
    trainer = trainer_in(tmp_path, save_only_model=True)
    trainer.train()
    assert same(trainer.model, weights(every, BEST))
    with pytest.raises(CheckpointError, match=r"optimizer.pt is missing"):
        trainer_in(tmp_path).train(resume_from_checkpoint=True)


def test_the_scores_of_a_record_are_those_of_the_weights_beside_it(tmp_path: Path) -> None:
    trainer = trainer_in(tmp_path / "run")
    trainer.train()
    assert last_scores(trainer)["nearness"] == 0  # the best, and not the last
    trainer.compute_metrics = lambda _: {"nearness": 5}
    trainer.evaluate()  # of what was loaded
    assert last_scores(trainer)["nearness"] == 5
    last = trainer_in(tmp_path / "last", load_best_model_at_end=False)
    last.train()
    assert last_scores(last)["nearness"] == BEST - STEPS


def test_a_term_that_acted_in_an_earlier_training_has_acted(tmp_path: Path) -> None:
    trainer = trainer_in(tmp_path, [LNSR(weight=1.0, ramp_start=2)], load_best_model_at_end=False)
    trainer.compute_metrics = lambda _: {"nearness": -trainer.state.global_step}
    trainer.train()
    assert trainer.state.best_global_step == 3
    trainer.train()
    assert trainer.state.best_global_step == 1


@pytest.mark.parametrize("leaves_old", [False, True])
def test_a_run_that_was_moved_keeps_its_own_best(
    tmp_path: Path, every: Path, leaves_old: bool
) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    shutil.copytree(every, old)
    state = old / f"checkpoint-{STEPS}" / "trainer_state.json"
    assert str(every) in state.read_text()  # a path of the place where it was written
    shutil.copytree(old, new) if leaves_old else old.rename(new)
    trainer = trainer_in(new)
    trainer.train(resume_from_checkpoint=True)
    assert same(trainer.model, weights(every, BEST))
    assert trainer.state.best_model_checkpoint == str(new / f"checkpoint-{BEST}")


@pytest.mark.parametrize(
    ("scores", "best", "kept"), [([3, 0, 2, 1], None, 1), ([0, 2, 3, 1], "checkpoint-2", 2)]
)
def test_a_best_evaluation_without_a_checkpoint_is_none(
    tmp_path: Path, scores: list[float], best: str | None, kept: float
) -> None:
    """Where every second evaluation has one: a resumed run ends as one that was not stopped."""

    def trained(name: str, *, resume: bool = False, steps: int = STEPS) -> SmoothTrainer:
        trainer = trainer_in(tmp_path / name, save_steps=2, save_total_limit=None, max_steps=steps)
        trainer.compute_metrics = lambda _: {"nearness": scores[trainer.state.global_step - 1]}
        trainer.train(resume_from_checkpoint=resume)
        return trainer

    whole, _ = trained("whole"), trained("stopped", steps=2)
    resumed = trained("stopped", resume=True)
    for trainer in (whole, resumed):
        found = trainer.state.best_model_checkpoint
        assert (Path(found).name if found else None) == best
        assert last_scores(trainer)["nearness"] == kept
    assert same(resumed.model, whole.model.state_dict())


@pytest.mark.parametrize("step", [STEPS, STEPS - 1])
def test_a_best_checkpoint_that_is_damaged_is_not_loaded(
    tmp_path: Path, every: Path, step: int
) -> None:
    folder = Path(shutil.copytree(every, tmp_path / "run"))
    file = folder / f"checkpoint-{BEST}" / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(CheckpointError, match=f"checkpoint-{BEST} has the best score.*changed"):
        trainer_in(folder).train(resume_from_checkpoint=str(folder / f"checkpoint-{step}"))
