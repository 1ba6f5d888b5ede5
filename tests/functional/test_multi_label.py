"""Several labels of an example: each is a yes or no, and terms are means over labels."""

import pytest
import torch

from helpers.heads import multi_label
from helpers.literal import added, gradient
from smoothtune import METHODS, ForwardPass, Objective
from smoothtune.functional.divergences import (
    divergence,
    ensemble_divergence,
    kl,
    squared_error,
    symmetric_kl,
    symmetric_kl_detached,
)
from smoothtune.methods.r_drop import half_symmetric_kl
from smoothtune.testing import with_weight


def bernoulli_kl(a, b):
    """KL of yes with probability sigmoid(a) from yes with probability sigmoid(b)."""
    p, q = 1 / (1 + torch.exp(-a)), 1 / (1 + torch.exp(-b))
    return p * torch.log(p / q) + (1 - p) * torch.log((1 - p) / (1 - q))


def both_ways(a, b):
    return bernoulli_kl(a, b) + bernoulli_kl(b, a)


def jensen_shannon(a, b):
    p, q = 1 / (1 + torch.exp(-a)), 1 / (1 + torch.exp(-b))
    m, total = (p + q) / 2, 0
    for x in (p, q):
        total = total + x * torch.log(x / m) + (1 - x) * torch.log((1 - x) / (1 - m))
    return total / 2


def passes():
    model, batch = multi_label(0.0)
    clean = ForwardPass(model, batch).run()
    generator = torch.Generator().manual_seed(3)
    noise = torch.randn(4, 6, 8, dtype=torch.float64, generator=generator)
    return model, clean, clean.at(noise)


@pytest.mark.parametrize(
    ("found", "literal"),
    [
        (lambda p, q: divergence(p, q, kl), bernoulli_kl),
        (lambda p, q: divergence(p, q, symmetric_kl), both_ways),
        (lambda p, q: divergence(p, q, half_symmetric_kl), lambda a, b: both_ways(a, b) / 2),
        (
            lambda p, q: divergence(p, q, symmetric_kl_detached),
            lambda a, b: bernoulli_kl(a.detach(), b) + bernoulli_kl(b.detach(), a),
        ),
        (
            lambda p, q: divergence(p, q, kl, detach_p=True),
            lambda a, b: bernoulli_kl(a.detach(), b),
        ),
        (lambda p, q: divergence(p, q, squared_error), lambda a, b: (a - b) ** 2),
        (lambda p, q: ensemble_divergence([p, q]), jensen_shannon),
    ],
)
def test_divergences_are_those_of_the_sigmoids(found, literal):
    model, clean, noisy = passes()
    value = found(clean, noisy)
    terms = [
        literal(clean.logits[row, label], noisy.logits[row, label])
        for row in range(4)
        for label in range(3)
    ]
    expected = sum(terms) / 12
    assert expected > 1e-4
    torch.testing.assert_close(value, expected, rtol=1e-9, atol=0)
    torch.testing.assert_close(
        gradient(value, [model]), gradient(expected, [model]), rtol=1e-8, atol=1e-12
    )


def slopes(model, batch):
    """(4,) sum over labels of the squared norm of a logit's gradient in the word embeddings."""
    delta = torch.zeros(4, 6, 8, dtype=torch.float64, requires_grad=True)
    with added(model, delta):
        logits = model(**batch).logits
    found = torch.zeros(4, dtype=torch.float64)
    for label in range(3):
        (slope,) = torch.autograd.grad(logits[:, label].sum(), delta, retain_graph=True)
        found += slope.square().flatten(1).sum(1)
    return found


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("jacobian", {"num_probes": -1}),
        # yes and no: 1 / K^2 sum_ij |grad(f_i - f_j)|^2 of K = 2 is half the square, too
        ("cross_holder", {"gamma": 0, "units": "absolute", "estimator": "exact"}),
    ],
)
def test_derivatives_are_those_of_every_logit(name, fields):
    model, batch = multi_label(0.0)
    method = METHODS[name](weight=1.0, **fields)
    objective = Objective(method).attach(model)
    objective(model, batch)
    objective.detach()
    expected = slopes(model, batch).mean() / 2
    assert expected > 1e-6
    torch.testing.assert_close(objective.terms[f"loss/{name}"].double(), expected.detach())


@pytest.mark.parametrize("kind", ["float64", "int64"])
def test_a_loss_of_ones_own_must_say_what_its_labels_are(kind):
    """Labels of several outputs may be labels, scores or shares; none is the default."""
    model, batch = multi_label(0.0)
    model.config.problem_type = None
    batch = batch | {"labels": batch["labels"].to(getattr(torch, kind))}

    def loss(model, batch):
        inputs = {name: value for name, value in batch.items() if name != "labels"}
        outputs = model(**inputs)
        labels = batch["labels"].double()
        bce = torch.nn.functional.binary_cross_entropy_with_logits(outputs.logits, labels)
        return bce, outputs

    objective = Objective(METHODS["r_drop"]()).attach(model)
    with pytest.raises(ValueError, match='set model.config.problem_type to "multi_label_class'):
        objective(model, batch, compute_loss=loss)
    model.config.problem_type = "multi_label_classification"
    assert objective(model, batch, compute_loss=loss).isfinite()
    objective.detach()


@pytest.mark.parametrize("name", ["alice", "cross_holder", "r3f", "r_drop", "sift", "smart", "vat"])
def test_what_labels_are_must_be_known_before_class_scores_are_compared(name):
    """Terms of one label and of several differ, and a batch without labels says neither."""
    model, batch = multi_label(0.2)
    batch = {key: batch[key] for key in ("input_ids", "attention_mask")}
    objective = Objective(with_weight(METHODS[name]())).attach(model)
    terms = []
    for declared in (None, "single_label_classification", "multi_label_classification"):
        model.config.problem_type = declared
        torch.manual_seed(0)
        if declared is None:
            with pytest.raises(ValueError, match=r"set model\.config\.problem_type"):
                objective(model, batch)
            continue
        terms.append(objective(model, batch).item())
    objective.detach()
    assert terms[0] != pytest.approx(terms[1], rel=0.01)
