"""R-Drop."""

import pytest
import torch
from torch import nn
from transformers.modeling_outputs import SequenceClassifierOutput

from helpers.conformance import CASES
from helpers.literal import (
    MODELS,
    cross_entropy,
    gradient,
    kl,
    probabilities,
    span_batch,
    squared_error,
    tiny_span_model,
)
from smoothtune import Objective, RDrop
from smoothtune.nn import rng
from smoothtune.testing import tiny_batch, tiny_model


def two_passes(model, batch, seed):
    """Outputs under the masks that the objective's two passes draw."""
    torch.manual_seed(7)
    first = model(**batch)
    with rng.stream(torch.device("cpu"), seed, "r_drop", 1):
        return first, model(**batch)


@pytest.mark.parametrize("num_labels", [3, 1])
@pytest.mark.parametrize("architecture", MODELS)
def test_equals_its_equation(architecture, num_labels):
    model = tiny_model(architecture, num_labels=num_labels, dropout=0.2)
    batch = tiny_batch(num_labels=num_labels)
    objective = Objective(RDrop(alpha=0.7))
    first, second = two_passes(model, batch, objective.seed)
    a, b = (out.logits.view(4, num_labels) for out in (first, second))
    y = batch["labels"]
    if num_labels == 1:
        task = (squared_error(a, y) + squared_error(b, y)) / 2
        expected = task + 0.7 * sum((p[0] - q[0]) ** 2 for p, q in zip(a, b, strict=True)) / 4
    else:
        task = (cross_entropy(a, y) + cross_entropy(b, y)) / 2
        pairs = [(probabilities(p), probabilities(q)) for p, q in zip(a, b, strict=True)]
        expected = task + 0.7 * sum((kl(p, q) + kl(q, p)) / 2 for p, q in pairs) / 4
    assert expected > task + 1e-4
    torch.manual_seed(7)
    total = objective(model, batch)
    torch.testing.assert_close(total, expected, rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(
        gradient(total, [model]), gradient(expected, [model]), rtol=1e-6, atol=1e-8
    )


def test_spans_take_the_mean_of_start_and_end():
    model, batch = tiny_span_model(dropout=0.2), span_batch(tiny_batch())
    objective = Objective(RDrop())
    first, second = two_passes(model, batch, objective.seed)
    lengths, terms = batch["attention_mask"].sum(1), []
    for name in ("start_logits", "end_logits"):
        for row, length in enumerate(lengths):
            p, q = (probabilities(out[name][row, :length]) for out in (first, second))
            terms.append((kl(p, q) + kl(q, p)) / 2)
    expected = (first.loss + second.loss) / 2 + sum(terms) / 8
    torch.manual_seed(7)
    total = objective(model, batch)
    torch.testing.assert_close(total, expected, rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(gradient(total, [model]), gradient(expected, [model]))


class TwoFixedPasses(nn.Module):
    """Recorded logits: those of the first pass, then those of the second."""

    def __init__(self, logits):
        super().__init__()
        self.embeddings = nn.Embedding(2, 2)
        self.logits = nn.Parameter(logits)
        self.passes = 0

    def forward(self, input_ids, labels):
        self.embeddings(input_ids)
        logits = self.logits[self.passes :: 2]
        self.passes += 1
        return SequenceClassifierOutput(nn.functional.cross_entropy(logits, labels), logits)


def test_equals_bert4torch():
    case = CASES["rdrop_bert4torch"]
    model = TwoFixedPasses(torch.tensor(case["logits"]))
    batch = {"input_ids": torch.zeros(3, 2, dtype=torch.long), "labels": torch.tensor([0, 2, 1])}
    classes = 3
    objective = Objective(RDrop(alpha=case["hyper"]["alpha"] / (2 * classes)))
    loss = objective(model, batch)
    loss.backward()
    assert loss.item() == pytest.approx(case["loss"], rel=1e-5)
    torch.testing.assert_close(
        model.logits.grad.flatten(), torch.tensor(case["grad"]), rtol=0, atol=2e-5
    )


def test_without_dropout_it_is_plain_fine_tuning():
    model = tiny_model("bert")
    total = Objective(RDrop(alpha=5))(model, tiny_batch())
    assert total.item() == pytest.approx(model(**tiny_batch()).loss.item(), rel=1e-12)


def test_unlabeled_batches_have_the_divergence_alone():
    model, batch = tiny_model("bert", dropout=0.2), tiny_batch()
    model.config.problem_type = "single_label_classification"
    del batch["labels"]
    objective = Objective(RDrop(alpha=2))
    total = objective(model, batch)
    assert total.item() == pytest.approx(2 * objective.terms["r_drop/divergence"].item())
    assert total > 0
