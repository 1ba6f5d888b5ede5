"""An evaluation is of a method from the update in which its term first changes a weight."""

from pathlib import Path

import pytest
import torch
from transformers import TrainerCallback

from helpers.training import Rows, arguments
from smoothtune import LNSR, R3F, Plain, SmoothTrainer
from smoothtune.core.regularizer import Regularizer
from smoothtune.core.terms import all_have_acted
from smoothtune.testing import tiny_model

STEPS = 9


def weights_by_step(folder: Path, method: Regularizer) -> list[torch.Tensor]:
    """All weights after every update, beginning with the first."""
    found: list[torch.Tensor] = []

    class Keep(TrainerCallback):
        def on_step_end(self, args, state, control, model=None, **_):
            found.append(torch.cat([w.detach().flatten() for w in model.parameters()]))

    SmoothTrainer(
        model=tiny_model("bert", dropout=0.0),
        args=arguments(folder, max_steps=STEPS, learning_rate=0.01, seed=1),
        train_dataset=Rows(32),
        regularizers=method,
        callbacks=[Keep()],
    ).train()
    return found


@pytest.mark.parametrize(
    "method",
    [
        LNSR(weight=1.0),
        R3F(weight=1.0, ramp_start=3),
        R3F(weight=1.0, ramp_start=3, every=2),
        R3F(weight=1.0, ramp_start=0.5, ramp_steps=2),
        R3F(share=0.3, ramp_start=2),
        R3F(share=0.3, ramp_start=0, every=2),
    ],
    ids=str,
)
def test_a_model_like_plains_is_not_the_methods(tmp_path: Path, method: Regularizer) -> None:
    plain = weights_by_step(tmp_path / "plain", Plain())
    ours = weights_by_step(tmp_path / "ours", method)
    touched = [not torch.equal(a, b) for a, b in zip(plain, ours, strict=True)]
    counted = [all_have_acted([method], step) for step in range(1, STEPS + 1)]
    assert not any(count and not touch for count, touch in zip(counted, touched, strict=True))
    assert counted.index(True) == touched.index(True)


def test_nothing_has_begun_before_the_first_update() -> None:
    assert not all_have_acted([LNSR(weight=1.0)], 0)
    assert all_have_acted([Plain()], 0)
