"""Predictions of every head in one shape, and means over them."""

import pytest
import torch
import torch.nn.functional as F
from transformers import (
    BertForSequenceClassification,
    BertForTokenClassification,
    GPT2ForTokenClassification,
    LlamaForTokenClassification,
)

from helpers.causal import language_batch, tiny_language_model
from helpers.literal import span_batch, tiny_span_model
from smoothtune import ForwardPass, LabelSmoothing, Objective
from smoothtune.core.predictions import Head, head_mean, heads, masked_mean, prediction_mean
from smoothtune.testing import ARCHITECTURES, tiny_batch, tiny_model
from smoothtune.testing.tiny import random_model

LENGTHS = [6, 4, 5, 3]


def ran(model, batch):
    return ForwardPass(model, batch).run()


def without_labels(batch):
    return {name: value for name, value in batch.items() if name != "labels"}


def test_a_classifier_predicts_once_for_an_example():
    run = ran(tiny_model("bert"), tiny_batch())
    (head,) = heads(run)
    assert torch.equal(head.logits, run.logits.view(4, 1, 3))
    assert head.mask.tolist() == [[True]] * 4
    assert (head.regression, head.share) == (False, 1.0)


@pytest.mark.parametrize("architecture", ["bert", "deberta"])
def test_one_score_is_a_regression(architecture):
    run = ran(tiny_model(architecture, num_labels=1), tiny_batch(num_labels=1))
    (head,) = heads(run)
    assert head.logits.shape == (4, 1, 1)
    assert torch.equal(head.logits.flatten(), run.logits.flatten())
    assert head.regression


def test_several_scores_are_a_regression_if_the_model_says_so():
    model = tiny_model("bert")
    batch = without_labels(tiny_batch())
    assert not heads(ran(model, batch))[0].regression
    model.config.problem_type = "regression"
    (head,) = heads(ran(model, batch))
    assert head.regression
    assert head.logits.shape == (4, 1, 3)


def test_several_labels_are_as_many_bernoulli_distributions():
    model = tiny_model("bert")
    model.config.problem_type = "multi_label_classification"
    run = ran(model, without_labels(tiny_batch()))
    (head,) = heads(run)
    assert head.logits.shape == (4, 3, 2)
    torch.testing.assert_close(head.logits.softmax(-1)[..., 0], run.logits.sigmoid())
    assert head.mask.tolist() == [[True] * 3] * 4
    assert not head.regression


def test_spans_are_distributions_over_real_tokens():
    run = ran(tiny_span_model(), span_batch(tiny_batch()))
    both = heads(run)
    for head, name in zip(both, ("start_logits", "end_logits"), strict=True):
        assert head.logits.shape == (4, 1, 6)
        assert head.mask.tolist() == [[True]] * 4
        assert not head.regression
        for row, length in enumerate(LENGTHS):
            p = head.logits[row, 0].softmax(0)
            torch.testing.assert_close(p[:length], run.outputs[name][row, :length].softmax(0))
            assert not p[length:].any()


@pytest.mark.parametrize("labeled", [True, False])
@pytest.mark.parametrize(
    ("architecture", "cls"),
    [
        ("bert", BertForTokenClassification),
        ("gpt2", GPT2ForTokenClassification),
        ("llama", LlamaForTokenClassification),
    ],
)
def test_tokens_that_have_a_label_count(labeled, architecture, cls):
    model = random_model(cls, ARCHITECTURES[architecture]())
    batch = tiny_batch()
    labels = torch.full((4, 6), -100)
    labels[1, 2], labels[3, 0] = 0, 1
    run = ran(model, without_labels(batch) | ({"labels": labels} if labeled else {}))
    (head,) = heads(run)
    assert torch.equal(head.logits, run.logits)
    expected = [(1, 2), (3, 0)] if labeled else batch["attention_mask"].nonzero().tolist()
    assert head.mask.nonzero().tolist() == [list(place) for place in expected]


def test_one_label_for_several_predictions_is_refused():
    model = random_model(BertForTokenClassification, ARCHITECTURES["bert"]())
    run = ForwardPass(model, without_labels(tiny_batch()))
    run.run().batch = {**run.batch, "labels": torch.tensor([0, 1, 1, 0])}
    with pytest.raises(ValueError, match=r"logits of shape \(4, 6, 2\) .* are not supported"):
        heads(run)


def test_labels_of_a_decoders_tokens_are_smoothed_at_the_token():
    model = random_model(LlamaForTokenClassification, ARCHITECTURES["llama"]()).eval()
    labels = torch.full((4, 6), -100)
    labels[:, 1:3] = torch.tensor([[0, 1], [1, 1], [0, 0], [1, 0]])  # as many in every row
    batch = without_labels(tiny_batch()) | {"labels": labels}
    objective = Objective(LabelSmoothing(smoothing=0.2)).attach(model)
    objective(model, batch)
    logits = model(**without_labels(batch)).logits
    expected = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), label_smoothing=0.2)
    torch.testing.assert_close(objective.terms["loss/label_smoothing"], expected)


def test_label_tokens_of_a_language_model_share_the_tokens_of_an_update():
    batch = language_batch()
    run = ran(tiny_language_model("gpt2"), batch | {"num_items_in_batch": torch.tensor(40.0)})
    (head,) = heads(run)
    labels = batch["labels"][:, 1:] != -100
    torch.testing.assert_close(head.logits[:, 0], run.logits[:, :-1][labels])
    assert head.mask.tolist() == [[True]] * 10
    assert head.share == 10 / 40
    assert not head.regression
    sums = torch.arange(10.0)
    assert prediction_mean(run, sums).item() == 45 / 40


def test_an_embedding_is_compared_like_scores():
    embedding = torch.randn(4, 8)
    run = ForwardPass(
        tiny_model("bert"),
        tiny_batch(),
        points=(),
        hidden_states=False,
        compute_loss=lambda model, batch: (None, {"sentence_embedding": embedding}),
    ).run()
    (head,) = heads(run)
    assert torch.equal(head.logits, embedding.view(4, 1, 8))
    assert head.mask.tolist() == [[True]] * 4
    assert head.regression


@pytest.mark.parametrize(("architecture", "ndim"), [("gpt2", 3), ("bert", 4)])
def test_other_outputs_are_refused(architecture, ndim):
    logits = torch.zeros(4, 6, 2, 2)[(..., *[0] * (4 - ndim))]
    run = ForwardPass(
        tiny_model(architecture),
        tiny_batch(),
        points=(),
        hidden_states=False,
        compute_loss=lambda model, batch: (None, {"logits": logits}),
    ).run()
    with pytest.raises(ValueError, match="are not supported"):
        heads(run)


def test_means():
    x = torch.tensor([[1.0, 2.0, 6.0], [4.0, 5.0, 9.0], [7.0, 8.0, 9.0]])
    mask = torch.tensor([[True, True, True], [True, False, False], [False, False, False]])
    assert masked_mean(x, mask).tolist() == [3, 4, 0]
    head = Head(x[..., None], mask, False)
    assert head_mean(x, head).item() == pytest.approx(7 / 3)
    assert head_mean(x, head._replace(share=0.5)).item() == pytest.approx(7 / 6)
    assert head_mean(x[:0], head._replace(mask=mask[:0])).item() == 0
    assert prediction_mean(ran(tiny_model("bert"), tiny_batch()), torch.arange(4.0)).item() == 1.5


@pytest.mark.parametrize("count", [2, 3])
def test_several_labels_in_a_loss_of_ones_own_need_a_problem_type(count):
    """A model's own loss would say in its configuration what it takes them for."""
    config = ARCHITECTURES["bert"]()
    config.num_labels = count
    model = random_model(BertForSequenceClassification, config)
    batch = tiny_batch() | {"labels": torch.rand(4, count)}

    def of_ones_own(model, batch):
        logits = model(**without_labels(batch)).logits
        return logits.square().mean(), {"logits": logits}

    def predicted():
        return heads(ForwardPass(model, batch, compute_loss=of_ones_own).run())

    with pytest.raises(ValueError, match='model.config.problem_type to "multi_label_class'):
        predicted()
    model.config.problem_type = "regression"
    assert predicted()[0].regression
    batch["labels"] = torch.tensor([0, 1, 1, 0])
    model.config.problem_type = None
    assert not predicted()[0].regression
