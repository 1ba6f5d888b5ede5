"""Several labels of an example in a Trainer: stock, and with a loss of the user's own."""

import pytest
import torch
import torch.nn.functional as F
from transformers import Trainer

from helpers.training import Rows, arguments
from smoothtune import RDrop, regularize
from smoothtune.testing import tiny_model


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
