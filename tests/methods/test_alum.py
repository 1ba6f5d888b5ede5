"""ALUM."""

import pytest
import torch

from helpers.adversary import compare, embeddings, predict, rms, rows, setting, slope
from helpers.literal import MODELS, cross_entropy, kl, probabilities, squared_error
from smoothtune import ALUM, SMART, Objective
from smoothtune.nn import rng
from smoothtune.testing import fixed_draws, tiny_batch, tiny_model


def distance(a, b):
    if len(a) == 1:
        return (a[0] - b[0]) ** 2
    p, q = probabilities(a), probabilities(b)
    return kl(p, q) + kl(q, p)


@pytest.mark.parametrize("num_labels", [3, 1])
@pytest.mark.parametrize("architecture", MODELS)
def test_equals_its_equation(architecture, num_labels):
    model, data = setting(architecture, num_labels)

    def expected(model):
        terms, clean = [], []
        for ids, _ in rows(data):
            x, target = embeddings(model, ids), predict(model, ids, 0)
            unit = rms(x)
            delta = (0.02 * unit * rng.normal_like(x)).requires_grad_()
            g = slope(distance(target.detach(), predict(model, ids, delta)), delta)
            moved = delta.detach() + 0.3 * unit * g / max(abs(v) for v in g.flatten())
            noisy = predict(model, ids, moved.clamp(-0.1 * unit, 0.1 * unit))
            if num_labels == 1:
                terms.append(distance(target, noisy))
            else:
                p, q = probabilities(target), probabilities(noisy)
                terms.append(kl([v.detach() for v in p], q) + kl([v.detach() for v in q], p))
            clean.append(target)
        task = (squared_error if num_labels == 1 else cross_entropy)(clean, data["labels"])
        return task + 2 * sum(terms) / 4

    method = ALUM(weight=2, sigma=0.02, step_size=0.3, epsilon=0.1, detach_targets=True)
    compare(Objective(method), model, data, expected)


def totals(method, steps):
    """The objective and its gradient in successive updates that change nothing."""
    model, found = tiny_model("bert"), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    objective = Objective(*method).bind(model, optimizer)
    for _ in range(steps):
        with fixed_draws():
            total = objective(model, tiny_batch())
        total.backward()
        found.append((total.item(), model.classifier.weight.grad.clone()))
        optimizer.step()
        optimizer.zero_grad()
    return found


def test_is_plain_before_the_ramp_and_smart_after_it():
    plain, smart = (totals(m, 1)[0] for m in ([], [SMART(mu=0, weight=1.0)]))
    values = totals([ALUM(ramp_start=2, ramp_steps=2, weight=1.0)], 5)
    shares = [(value - plain[0]) / (smart[0] - plain[0]) for value, _ in values]
    torch.testing.assert_close(shares, [0.0, 0.0, 0.5, 1.0, 1.0])
    assert torch.equal(values[1][1], plain[1])
    torch.testing.assert_close(values[4][1], smart[1])


def test_takes_batches_without_labels():
    model, data = tiny_model("bert"), tiny_batch()
    model.config.problem_type = "single_label_classification"
    del data["labels"]
    Objective(ALUM(weight=1.0)).attach(model)(model, data).backward()
    assert model.classifier.weight.grad.abs().max() > 0
