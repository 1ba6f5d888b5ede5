"""Which losses of a trainer are compared with that of a constant answer, while terms wait."""

import pytest
import torch

from helpers.training import Rows, arguments
from smoothtune import LNSR, SmoothTrainer
from smoothtune.testing import tiny_model
from smoothtune.trainer.class_weights import ClassWeightedLoss

pytestmark = pytest.mark.waits


def labels_seen(tmp_path, *, loss=None, **changes):
    """Numbers of labels and of every class, after an epoch of six rows."""
    trainer = SmoothTrainer(
        model=tiny_model("bert", num_labels=3, dtype=torch.float32),
        args=arguments(tmp_path, num_train_epochs=1, max_steps=-1, **changes),
        regularizers=LNSR(),
        train_dataset=Rows(6),
        compute_loss_func=loss,
    )
    trainer.train()
    return trainer.objective.strengths._learning.labels.tolist()


@pytest.mark.parametrize(
    "cut",
    [
        {"per_device_train_batch_size": 2},
        {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2},
    ],
)
def test_the_models_own_loss_is(tmp_path, cut):
    rows = torch.stack([Rows(6)[i]["labels"] for i in range(6)])
    expected = [6, 0, *torch.bincount(rows, minlength=3).tolist()]
    assert labels_seen(tmp_path, **cut) == expected


@pytest.mark.parametrize(
    "changes", [{"label_smoothing_factor": 0.1}, {"loss": ClassWeightedLoss([1, 1, 1])}]
)
def test_other_losses_are_not(tmp_path, changes):
    assert labels_seen(tmp_path, per_device_train_batch_size=2, **changes) == []
