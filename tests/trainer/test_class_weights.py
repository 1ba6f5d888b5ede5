"""Class weights: a weighted mean over all rows of an update, however it is cut."""

from unittest import mock

import pytest
import torch
from torch import Tensor
from transformers import Trainer

from helpers.training import Rows, arguments, collate
from smoothtune import FGM, L2SP, Plain, SmoothTrainer
from smoothtune.testing import tiny_model
from smoothtune.trainer.weighted_losses import ClassWeightedLoss

WEIGHTS = [0.1, 0.5, 3.0]


def trained(tmp_path, methods=(), *, weights=WEIGHTS, **changes) -> dict[str, Tensor]:
    """The weights after one step of SGD on six rows."""
    model = tiny_model("bert", num_labels=3, dtype=torch.float64).eval()
    trainer = SmoothTrainer(
        model=model,
        args=arguments(tmp_path, **{"per_device_train_batch_size": 6} | changes),
        regularizers=[*methods] or Plain(),
        train_dataset=Rows(6),
        compute_loss_func=ClassWeightedLoss(weights),
    )
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    trainer.train()
    return {name: weight.detach().clone() for name, weight in model.named_parameters()}


def literal() -> dict[str, Tensor]:
    """theta - 0.1 d/dtheta of sum_i w(y_i) (-log p_i(y_i)) / sum_i w(y_i), row by row."""
    model = tiny_model("bert", num_labels=3, dtype=torch.float64).eval()
    rows, total, divisor = Rows(6), torch.zeros((), dtype=torch.float64), 0.0
    for i in range(6):
        row = rows[i]
        logits = model(row["input_ids"][None], row["attention_mask"][None]).logits[0]
        label = int(row["labels"])
        log_p = logits[label] - torch.log(torch.exp(logits).sum())
        total = total - WEIGHTS[label] * log_p
        divisor += WEIGHTS[label]
    (total / divisor).backward()
    return {
        n: (w - 0.1 * w.grad).detach() for n, w in model.named_parameters() if w.grad is not None
    }


CUTS = [{}, {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 3}]
CUTS += [{"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2}]


@pytest.mark.parametrize("cut", CUTS)
def test_a_step_is_that_of_the_weighted_mean(tmp_path, cut: dict) -> None:
    found, expected = trained(tmp_path, **cut), literal()
    for name, weight in expected.items():
        torch.testing.assert_close(found[name], weight, rtol=1e-6, atol=1e-8)
    plain = trained(tmp_path, weights=[1, 1, 1], **cut)
    assert any((found[name] - plain[name]).abs().max() > 1e-4 for name in expected)


@pytest.mark.parametrize("method", [FGM(), L2SP(alpha=1.0, beta=1.0)])
def test_with_methods_the_cut_does_not_matter(tmp_path, method) -> None:
    whole = trained(tmp_path, [method])
    for cut in CUTS[1:]:
        for name, weight in trained(tmp_path, [method], **cut).items():
            torch.testing.assert_close(weight, whole[name], rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("cut", CUTS[:2])
def test_a_trainer_without_methods_adds_up_parts_of_an_update(tmp_path, cut: dict) -> None:
    """It divides no loss that takes the count of labels, so three batches weighed three times."""
    model = tiny_model("bert", num_labels=3, dtype=torch.float64)
    Trainer(
        model=model,
        args=arguments(tmp_path, **{"per_device_train_batch_size": 6} | cut),
        train_dataset=Rows(6),
        data_collator=lambda rows: {k: v for k, v in collate(rows).items() if k != "example_id"},
        compute_loss_func=ClassWeightedLoss([1, 1, 1]),
    ).train()
    expected = trained(tmp_path, weights=[1, 1, 1])
    for name, weight in model.named_parameters():
        torch.testing.assert_close(weight.detach(), expected[name], rtol=1e-6, atol=1e-8)


def test_weights_are_positive() -> None:
    with pytest.raises(ValueError, match="must be above 0"):
        ClassWeightedLoss([1, 0])


def test_the_loss_of_an_evaluation_is_that_of_its_rows_whatever_the_processes(tmp_path):
    """The Trainer takes a loss that could use the count of labels for a share of a sum."""
    model = tiny_model("bert", num_labels=3, dtype=torch.float64).eval()
    trainer = SmoothTrainer(
        model=model,
        args=arguments(tmp_path),
        regularizers=Plain(),
        train_dataset=Rows(6),
        compute_loss_func=ClassWeightedLoss(WEIGHTS),
    )
    batch = collate([Rows(6)[i] for i in range(6)])
    rows = {name: value for name, value in batch.items() if name != "example_id"}
    logits, weights = model(**rows).logits, torch.tensor(WEIGHTS).double()[rows["labels"]]
    losses = -logits.log_softmax(1)[torch.arange(6), rows["labels"]]
    expected = (weights * losses).sum() / weights.sum()
    two = mock.PropertyMock(return_value=2)
    with mock.patch.object(type(trainer.accelerator), "num_processes", two):
        found = trainer.compute_loss(model, dict(rows), num_items_in_batch=torch.tensor(12))
    torch.testing.assert_close(found, expected)
