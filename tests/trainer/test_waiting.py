"""Which losses of a trainer are compared with that of a constant answer, while terms wait."""

import pytest
import torch
from torch.utils.data import default_collate

from helpers.training import Rows, arguments
from smoothtune import LNSR, VAT, SmoothTrainer
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


@pytest.mark.parametrize("unlabeled", [False, True])
@pytest.mark.parametrize("accumulation", [2, 4])
def test_unlabeled_rows_in_the_same_update_change_no_loss_and_no_norm_of_the_task(
    tmp_path, accumulation, unlabeled
):
    rows = Rows(4 if unlabeled else 8)  # those of every update; the other half has no labels
    trainer = SmoothTrainer(
        model=tiny_model("bert", dtype=torch.float32),
        args=arguments(
            tmp_path,
            max_steps=4,
            learning_rate=0.0,
            per_device_train_batch_size=8 // accumulation,
            gradient_accumulation_steps=accumulation,
        ),
        regularizers=VAT(),
        train_dataset=rows,
        unlabeled_dataset=Rows(32, seed=9) if unlabeled else None,
        alternate="batch",
    )
    trainer.train()
    strengths, batch = trainer.objective.strengths, default_collate(list(rows))
    del batch["example_id"]
    model = tiny_model("bert", dtype=torch.float32)
    loss = model(**batch).loss
    loss.backward()
    square = sum(
        weight.grad.square().sum().item()
        for weight in model.parameters()
        if weight.grad is not None
    )
    assert strengths._learning.first == pytest.approx([loss.item()] * 4)
    assert strengths.squares["task"] == pytest.approx(square, rel=1e-4)
