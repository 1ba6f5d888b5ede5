"""Divergences against their definitions, one example at a time."""

import pytest
import torch

from helpers.literal import kl as literal_kl
from helpers.literal import probabilities, span_batch, tiny_span_model
from smoothtune import ForwardPass
from smoothtune.functional.divergences import (
    divergence,
    kl,
    squared_deviation,
    squared_error,
    symmetric_kl,
    symmetric_kl_detached,
)
from smoothtune.testing import tiny_batch, tiny_model


def logits(seed, *shape):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, dtype=torch.float64, generator=generator).requires_grad_()


def both_ways(p, q):
    return literal_kl(p, q) + literal_kl(q, p)


@pytest.mark.parametrize(
    ("function", "literal"),
    [(kl, literal_kl), (symmetric_kl, both_ways), (symmetric_kl_detached, both_ways)],
)
def test_value_sums_over_classes_and_keeps_the_other_dimensions(function, literal):
    p, q = logits(0, 2, 3, 4), logits(1, 2, 3, 4)
    found = function(p, q)
    assert found.shape == (2, 3)
    for i in range(2):
        for j in range(3):
            expected = literal(probabilities(p[i, j]), probabilities(q[i, j]))
            torch.testing.assert_close(found[i, j], expected)


def test_gradients_reach_both_arguments():
    p, q = logits(0, 5), logits(1, 5)
    for function, literal in ((kl, literal_kl), (symmetric_kl, both_ways)):
        found = torch.autograd.grad(function(p, q), [p, q])
        expected = torch.autograd.grad(literal(probabilities(p), probabilities(q)), [p, q])
        torch.testing.assert_close(found, expected)


def test_gradient_of_the_released_form():
    p, q = logits(0, 5), logits(1, 5)
    found = torch.autograd.grad(symmetric_kl_detached(p, q), [p, q])
    difference = p.softmax(0) - q.softmax(0)
    torch.testing.assert_close(found, (difference, -difference))


def deviation(p, q):
    return squared_deviation(torch.stack([p, q]))


@pytest.mark.parametrize("function", [kl, symmetric_kl, squared_error, deviation])
def test_half_precision_is_widened(function):
    p, q = logits(0, 50).bfloat16(), logits(1, 50).bfloat16()
    found = function(p, q)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), function(p.double(), q.double()), rtol=1e-5, atol=0)
    assert function(p.double(), q.double()).dtype == torch.float64


def test_squared_error_is_a_sum():
    p, q = torch.tensor([[1.0, 2.0], [0.0, 5.0]]), torch.tensor([[4.0, 2.0], [1.0, 3.0]])
    assert squared_error(p, q).tolist() == [9.0, 5.0]


def passes(model, batch):
    clean = ForwardPass(model, batch).run()
    generator = torch.Generator().manual_seed(3)
    noise = torch.randn(4, 6, 8, dtype=torch.float64, generator=generator)
    return clean, clean.at(noise)


def test_a_classifier_is_compared_by_the_mean_over_examples():
    clean, noisy = passes(tiny_model("bert"), tiny_batch())
    expected = [
        literal_kl(probabilities(p), probabilities(q))
        for p, q in zip(clean.logits, noisy.logits, strict=True)
    ]
    torch.testing.assert_close(divergence(clean, noisy, kl), sum(expected) / 4)


def test_scores_of_a_regression_are_compared_by_their_squared_error():
    clean, noisy = passes(tiny_model("bert", num_labels=1), tiny_batch(num_labels=1))
    expected = (clean.logits - noisy.logits).square().mean()
    torch.testing.assert_close(divergence(clean, noisy), expected)


def test_start_and_end_of_a_span_count_half_each():
    batch = span_batch(tiny_batch())
    clean, noisy = passes(tiny_span_model(), batch)
    values = []
    for name in ("start_logits", "end_logits"):
        for row, mask in enumerate(batch["attention_mask"].bool()):
            p, q = (run.outputs[name][row][mask] for run in (clean, noisy))
            values.append(literal_kl(probabilities(p), probabilities(q)))
    torch.testing.assert_close(divergence(clean, noisy, kl), sum(values) / 8)


def test_a_detached_target_gets_no_gradient():
    model = tiny_model("bert")
    clean, noisy = passes(model, tiny_batch())
    bias = model.classifier.bias
    p, q = clean.logits, noisy.logits
    for detach in (True, False):
        (found,) = torch.autograd.grad(
            divergence(clean, noisy, kl, detach_p=detach), [bias], retain_graph=True
        )
        target = p.detach() if detach else p
        rows = [
            literal_kl(probabilities(a), probabilities(b)) for a, b in zip(target, q, strict=True)
        ]
        (expected,) = torch.autograd.grad(sum(rows) / 4, [bias], retain_graph=True)
        torch.testing.assert_close(found, expected)


def test_squared_deviation_sums_over_scores_and_means_over_passes():
    scores = logits(0, 3, 5, 4)
    found = squared_deviation(scores)
    assert found.shape == (5,)
    for row in range(5):
        expected = 0
        for column in range(4):
            values = [scores[k, row, column] for k in range(3)]
            mean = sum(values) / 3
            expected = expected + sum((value - mean) ** 2 for value in values) / 3
        torch.testing.assert_close(found[row], expected)
