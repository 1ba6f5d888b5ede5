"""Several labels of an example in a Trainer: stock, and with a loss of the user's own."""

import pytest
import torch
import torch.nn.functional as F
from transformers import Trainer, default_data_collator

from helpers.training import Rows, arguments
from smoothtune import Plain, RDrop, regularize
from smoothtune.testing import tiny_model
from smoothtune.trainer.weighted_losses import LabelWeightedLoss

CUT = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2}


class Several(Rows):
    """Three labels of every row, yes or no."""

    def __getitem__(self, i):
        row = super().__getitem__(i)
        return row | {"labels": (row["input_ids"][:3] % 2).float()}


def own_loss(outputs, labels, num_items_in_batch=None):
    return F.binary_cross_entropy_with_logits(outputs["logits"].float(), labels)


def trained(tmp_path, problem, loss=None):
    torch.manual_seed(0)
    model = tiny_model("bert", dropout=0.1, dtype=torch.float32)
    model.config.problem_type = problem
    trainer = Trainer(
        model=model,
        args=arguments(tmp_path, max_steps=2, per_device_train_batch_size=4),
        train_dataset=Several(8),
        compute_loss_func=loss,
    )
    regularize(trainer, RDrop())
    torch.manual_seed(1)
    trainer.train()
    return {name: weight.detach().clone() for name, weight in model.named_parameters()}


def test_what_transformers_finds_out_is_what_is_declared(tmp_path):
    """Labels of several outputs that are real numbers, where the model computes the loss."""
    found = trained(tmp_path / "a", None)
    declared = trained(tmp_path / "b", "multi_label_classification")
    own = trained(tmp_path / "c", "multi_label_classification", own_loss)
    for name, weight in declared.items():
        assert torch.equal(found[name], weight)
        torch.testing.assert_close(own[name], weight, rtol=1e-4, atol=1e-6)


def test_with_a_loss_of_ones_own_the_model_must_say_it(tmp_path):
    with pytest.raises(ValueError, match='problem_type to "multi_label_classification"'):
        trained(tmp_path, None, own_loss)


def normalized(outputs, labels, num_items_in_batch):
    total = F.binary_cross_entropy_with_logits(outputs["logits"], labels, reduction="sum")
    return total / num_items_in_batch


class Normalized(Trainer):
    """Divides by what the Trainer counts: every label of every row."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.model_accepts_loss_kwargs = True  # as BERT does since transformers 5: labels count

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        outputs = model(inputs["input_ids"], inputs["attention_mask"])
        loss = normalized(outputs, inputs["labels"], num_items_in_batch)
        return (loss, outputs) if return_outputs else loss


def without_number(rows):
    return default_data_collator([{k: v for k, v in r.items() if k != "example_id"} for r in rows])


@pytest.mark.skipif(
    not hasattr(Trainer, "_get_num_items_in_batch"), reason="this Trainer evaluates without a count"
)
@pytest.mark.parametrize("cut", [{}, CUT])
@pytest.mark.parametrize(("cls", "function"), [(Trainer, normalized), (Normalized, None)])
def test_a_loss_over_the_count_is_that_of_its_own_trainer(tmp_path, cls, function, cut):
    moved, losses = [], []
    for ours in (False, True):
        model = tiny_model("bert", dtype=torch.float32)
        model.config.problem_type = "multi_label_classification"
        trainer = cls(
            model=model,
            args=arguments(tmp_path, **{"per_device_train_batch_size": 6} | cut),
            train_dataset=Several(6),
            eval_dataset=Several(6),
            data_collator=without_number,
            compute_loss_func=function,
        )
        if ours:
            regularize(trainer, Plain())
        losses.append(trainer.evaluate()["eval_loss"])
        trainer.train()
        moved.append(dict(model.named_parameters()))
    assert losses[0] == losses[1]
    for name, weight in moved[0].items():
        torch.testing.assert_close(moved[1][name], weight, rtol=1e-5, atol=1e-7)


def test_label_weights_count_rows_that_have_the_label():
    """-w y log p - (1 - y) log(1 - p), a mean over labels and rows; no division by weights."""
    weights = [0.5, 3.0, 20.0]
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(4, 3, dtype=torch.float64, generator=generator)
    labels = (torch.rand(4, 3, generator=generator) < 0.5).double()
    total = 0.0
    for row in range(4):
        for label in range(3):
            p, y = 1 / (1 + torch.exp(-logits[row, label])), labels[row, label]
            total += -weights[label] * y * torch.log(p) - (1 - y) * torch.log(1 - p)
    found = LabelWeightedLoss(weights)({"logits": logits}, labels.float())
    torch.testing.assert_close(found, total / 12)
    with pytest.raises(ValueError, match="must be above 0"):
        LabelWeightedLoss([1, 0])


def test_label_weights_count_the_same_however_an_update_is_cut(tmp_path):
    def weights_after(folder, **cut):
        model = tiny_model("bert", dtype=torch.float64)
        model.config.problem_type = "multi_label_classification"
        trainer = Trainer(
            model=model,
            args=arguments(folder, **{"per_device_train_batch_size": 6} | cut),
            train_dataset=Several(6),
            compute_loss_func=LabelWeightedLoss([0.5, 3.0, 20.0]),
        )
        regularize(trainer, Plain())
        trainer.train()
        return {name: weight.detach().clone() for name, weight in model.named_parameters()}

    whole = weights_after(tmp_path / "a")
    cut = weights_after(tmp_path / "b", **CUT)
    for name, weight in whole.items():
        torch.testing.assert_close(cut[name], weight, rtol=1e-6, atol=1e-8)
