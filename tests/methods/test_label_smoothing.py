"""Label smoothing."""

import pytest
import torch
from transformers import (
    BertConfig,
    BertForTokenClassification,
    ElectraConfig,
    ElectraForPreTraining,
)

from helpers.heads import multi_label
from helpers.literal import MODELS, gradient, probabilities, span_batch, tiny_span_model
from smoothtune import LabelSmoothing, Objective
from smoothtune.testing import tiny_batch, tiny_model


def smoothed(row, label, s):
    """-sum_c q_c log p_c of one row of logits."""
    p, total = probabilities(row), 0
    for c in range(len(row)):
        q = s / len(row) + (1 - s) * (c == label)
        total = total - q * torch.log(p[c])
    return total


@pytest.mark.parametrize("architecture", MODELS)
def test_equals_its_equation(architecture):
    model, batch = tiny_model(architecture), tiny_batch()
    logits = model(**batch).logits
    rows = zip(logits, batch["labels"], strict=True)
    expected = sum(smoothed(row, y, 0.2) for row, y in rows) / 4
    total = Objective(LabelSmoothing(smoothing=0.2))(model, batch)
    torch.testing.assert_close(total, expected, rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(
        gradient(total, [model]), gradient(expected, [model]), rtol=1e-6, atol=1e-8
    )


def test_without_smoothing_it_is_the_task_loss():
    model = tiny_model("bert")
    total = Objective(LabelSmoothing(smoothing=0.0))(model, tiny_batch())
    assert total.item() == pytest.approx(model(**tiny_batch()).loss.item(), rel=1e-12)


def test_examples_without_a_label_do_not_count():
    model, batch = tiny_model("bert"), tiny_batch()
    batch["labels"] = torch.tensor([0, -100, 1, -100])  # that of transformers for none
    total = Objective(LabelSmoothing(smoothing=0.0))(model, batch)
    assert total.item() == pytest.approx(model(**batch).loss.item(), rel=1e-12)

    spans, batch = tiny_span_model(), span_batch(tiny_batch())
    batch["attention_mask"] = torch.ones_like(batch["input_ids"])  # theirs counts padding
    batch["end_positions"][0] = batch["input_ids"].shape[1]  # the end of the answer is cut off
    total = Objective(LabelSmoothing(smoothing=0.0))(spans, batch)
    assert total.item() == pytest.approx(spans(**batch).loss.item(), rel=1e-6)


def test_is_what_transformers_computes():
    from transformers.trainer_pt_utils import LabelSmoother

    model, batch = tiny_model("bert"), tiny_batch()
    theirs = LabelSmoother(epsilon=0.1)(model(**batch), batch["labels"])
    torch.testing.assert_close(Objective(LabelSmoothing())(model, batch), theirs)


def test_spans_are_smoothed_over_real_tokens():
    """The softmax is that of the task loss, which runs over padding too."""
    model, batch = tiny_span_model(), span_batch(tiny_batch())
    batch["end_positions"] = torch.tensor([3, 2, 4, 6])  # the last one lies outside
    outputs, means = model(**batch), []
    for kind in ("start", "end"):
        terms = []
        for row, length in enumerate([6, 4, 5, 3]):
            surprises = -outputs[f"{kind}_logits"][row].log_softmax(0)
            label = batch[f"{kind}_positions"][row]
            if label < 6:
                terms.append(0.9 * surprises[label] + 0.1 * surprises[:length].mean())
        means.append(sum(terms) / len(terms))
    total = Objective(LabelSmoothing())(model, batch)
    torch.testing.assert_close(total, sum(means) / 2, rtol=1e-6, atol=1e-9)


def token_classifier():
    torch.manual_seed(0)
    config = BertConfig(vocab_size=40, hidden_size=8, num_hidden_layers=1, num_attention_heads=2)
    config.intermediate_size, config.num_labels = 16, 3
    config.hidden_dropout_prob = config.attention_probs_dropout_prob = 0.0
    return BertForTokenClassification(config).double()


def test_token_classification_means_over_labels():
    model = token_classifier()
    labels = torch.tensor([[0, 1, -100], [2, -100, -100]])
    batch = {"input_ids": torch.tensor([[5, 6, 7], [8, 9, 10]]), "labels": labels}
    logits = model(**batch).logits
    terms = [smoothed(logits[i, j], labels[i, j], 0.1) for i, j in ((0, 0), (0, 1), (1, 0))]
    torch.testing.assert_close(Objective(LabelSmoothing())(model, batch), sum(terms) / 3)


@pytest.mark.parametrize("make", [token_classifier, tiny_span_model])
def test_without_smoothing_every_task_has_its_loss(make):
    """Rows of unequal length, with padding, and with unequally many labels."""
    model, batch = make(), tiny_batch()
    if make is tiny_span_model:
        batch = span_batch(batch)
    else:
        batch["labels"] = (batch["input_ids"] % 3).masked_fill(batch["attention_mask"] == 0, -100)
    total, own = Objective(LabelSmoothing(smoothing=0.0))(model, batch), model(**batch).loss
    torch.testing.assert_close(total, own, rtol=1e-9, atol=0)
    torch.testing.assert_close(
        gradient(total, [model]), gradient(own, [model]), rtol=1e-6, atol=1e-12
    )


def test_each_of_several_labels_is_a_yes_or_no():
    """Binary cross entropy against (1 - s) y + s / 2, a mean over labels and examples."""
    model, batch = multi_label(0.0)
    logits, terms = model(**batch).logits, []
    for row in range(4):
        for label in range(3):
            p = 1 / (1 + torch.exp(-logits[row, label]))
            y = 0.8 * batch["labels"][row, label] + 0.1
            terms.append(-y * torch.log(p) - (1 - y) * torch.log(1 - p))
    expected = sum(terms) / 12
    total = Objective(LabelSmoothing(smoothing=0.2))(model, batch)
    torch.testing.assert_close(total, expected, rtol=1e-9, atol=0)
    torch.testing.assert_close(
        gradient(total, [model]), gradient(expected, [model]), rtol=1e-8, atol=1e-12
    )
    without = Objective(LabelSmoothing(smoothing=0.0))(model, batch)
    torch.testing.assert_close(without, model(**batch).loss, rtol=1e-12, atol=0)


@pytest.mark.parametrize("told", [None, "regression"])
def test_regression_is_refused_at_once(told):
    model = tiny_model("bert", num_labels=1)
    model.config.problem_type = told
    with pytest.raises(ValueError, match="label_smoothing needs one class number.*regression"):
        Objective(LabelSmoothing()).attach(model)


def test_labels_of_another_shape_are_refused():
    """One score and one label for every token, which is neither a class nor a number of the row."""
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = ElectraConfig(**sizes, vocab_size=40, intermediate_size=8, embedding_size=8)
    model = ElectraForPreTraining(config).double()
    batch = tiny_batch()
    objective = Objective(LabelSmoothing()).attach(model)
    with pytest.raises(ValueError, match=r"labels of shape \(4, 6\) do not fit"):
        objective(model, batch | {"labels": batch["attention_mask"].clone()})
    objective.detach()


@pytest.mark.parametrize(("dtype", "factor"), [(torch.float64, 1.01), (torch.bfloat16, 1.2)])
def test_a_model_with_another_loss_is_refused(dtype, factor):
    """In 16 bits, where two ways to the same loss differ by rounding, only one farther away."""
    model = tiny_model("bert", dtype=dtype)

    class Larger(type(model)):
        def forward(self, *args, **kwargs):
            outputs = super().forward(*args, **kwargs)
            outputs.loss = factor * outputs.loss
            return outputs

    Objective(LabelSmoothing()).attach(model)(model, tiny_batch())
    model.__class__ = Larger
    with pytest.raises(ValueError, match="the task loss is .*: leave label_smoothing out"):
        Objective(LabelSmoothing())(model, tiny_batch())
