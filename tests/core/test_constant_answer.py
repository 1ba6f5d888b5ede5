"""What a constant answer would lose: beside scikit-learn's losses, and searched for."""

import numpy as np
import pytest
import torch
from sklearn.metrics import log_loss
from transformers import (
    AutoModelForCausalLM,
    AutoModelForMultipleChoice,
    AutoModelForQuestionAnswering,
    AutoModelForTokenClassification,
    BertForSequenceClassification,
)

from smoothtune.core.constant_answer import constant_loss, label_sums
from smoothtune.testing import tiny_batch, tiny_model
from smoothtune.testing.tiny import ARCHITECTURES, random_model

DRAW = np.random.default_rng(0)


def lost(model, *labels):
    """Over batches that each bring a part of the labels."""
    return constant_loss(
        model, torch.stack([label_sums(model, {"labels": part}) for part in labels]).sum(0).double()
    )


def test_one_label_of_several():
    labels = DRAW.choice(3, 40, p=[0.7, 0.2, 0.1])
    parts = np.bincount(labels, minlength=3) / 40
    expected = log_loss(labels, np.tile(parts, (40, 1)))
    found = lost(tiny_model("bert"), *torch.tensor(labels).split([10, 30]))
    assert found == pytest.approx(expected, rel=1e-6)


def test_tokens_without_a_label_do_not_count():
    config = ARCHITECTURES["bert"]()
    config.num_labels = 4
    model = random_model(AutoModelForTokenClassification.from_config, config)
    labels = torch.tensor([[0, 0, 1, -100], [3, 0, -100, -100]])
    expected = log_loss([0, 0, 1, 3, 0], [[0.6, 0.2, 1e-15, 0.2]] * 5, labels=[0, 1, 2, 3])
    assert lost(model, labels) == pytest.approx(expected, rel=1e-6)


def test_several_labels_of_a_row():
    model = tiny_model("bert")
    model.config.problem_type = "multi_label_classification"
    labels = torch.tensor([[1, 0, 1], [1, 1, 0], [0, 0, 0], [1, 0, 0.0]])
    expected = np.mean([log_loss(column, [column.mean()] * 4) for column in labels.T.numpy()])
    assert lost(model, labels[:1], labels[1:]) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("count", [1, 2])
def test_scores(count):
    model = tiny_model("bert", num_labels=count)
    model.config.problem_type = None if count == 1 else "regression"
    labels = torch.tensor(DRAW.normal(2.5, 1.3, (50, count)), dtype=torch.float32)
    shaped = labels[:, 0] if count == 1 else labels
    expected = np.var(labels.numpy(), axis=0).mean()
    assert lost(model, shaped[:20], shaped[20:]) == pytest.approx(expected, rel=1e-5)


def test_no_constant_logits_lose_less():
    model = tiny_model("bert")
    labels = torch.tensor([0, 0, 0, 1, 2, 0])
    logits = torch.zeros(3, requires_grad=True)
    optimizer = torch.optim.LBFGS([logits], max_iter=200)

    def loss():
        optimizer.zero_grad()
        value = torch.nn.functional.cross_entropy(logits.expand(6, 3), labels)
        value.backward()
        return value

    optimizer.step(loss)
    assert lost(model, labels) == pytest.approx(loss().item(), abs=1e-6)


def test_a_language_model_is_compared_with_the_frequencies_of_tokens():
    model = random_model(AutoModelForCausalLM.from_config, ARCHITECTURES["llama"]())
    labels = torch.tensor([[5, 5, 7, -100]])
    assert lost(model, labels) == pytest.approx(-(2 * np.log(2 / 3) + np.log(1 / 3)) / 3, rel=1e-6)


def test_batches_without_labels_add_nothing_and_are_as_long():
    for model, labels in (
        (tiny_model("bert"), torch.tensor([0, 1])),
        (tiny_model("bert", num_labels=1), torch.tensor([0.5, 1.0])),
    ):
        with_labels, without = label_sums(model, {"labels": labels}), label_sums(model, {})
        assert with_labels.shape == without.shape
        assert not without.any()
        assert constant_loss(model, without) is None


@pytest.mark.parametrize("make", [AutoModelForMultipleChoice, AutoModelForQuestionAnswering])
def test_what_is_not_known(make):
    model = random_model(make.from_config, ARCHITECTURES["bert"]())
    assert label_sums(model, tiny_batch()) is None
    assert label_sums(torch.nn.Linear(2, 2), {"labels": torch.tensor([1])}) is None


class HalvedForSequenceClassification(BertForSequenceClassification):
    def forward(self, **inputs):
        outputs = super().forward(**inputs)
        outputs.loss = outputs.loss / 2
        return outputs


class NamedForSequenceClassification(BertForSequenceClassification):
    pass


def test_the_name_of_a_class_does_not_say_what_a_loss_of_its_own_is():
    config, labels = tiny_model("bert").config, {"labels": torch.tensor([0, 1])}
    assert label_sums(HalvedForSequenceClassification(config), labels) is None
    assert label_sums(NamedForSequenceClassification(config), labels).tolist() == [2, 0, 1, 1, 0]
