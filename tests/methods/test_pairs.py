"""Every pair of methods, and every method twice: their sum, or refused with what to change."""

import functools
import itertools
import random

import pytest
import torch

from smoothtune import METHODS, Objective
from smoothtune.core.regularizer import Penalty, TaskLoss
from smoothtune.testing import tiny_batch, tiny_model, with_weight

PAIRS = list(itertools.combinations_with_replacement(sorted(METHODS), 2))
SAMPLE = set(random.Random(0).sample(PAIRS, 25))
# whose weights are others in the forward, so that the term beside them is another one, too
OTHER_WEIGHTS = {"mixout", "r4f", "reinit"}


def setting():
    model = tiny_model("bert", dropout=0.1, attention="eager")  # as derivatives have it
    return model, torch.optim.SGD(model.parameters(), lr=0.01)


def gradients(objective, model):
    """Raw gradients of the objective on one batch, by name, and its value."""
    torch.manual_seed(3)
    total = objective(model, tiny_batch())
    total.backward()
    found = {
        name: torch.zeros_like(weight) if weight.grad is None else weight.grad.clone()
        for name, weight in model.named_parameters()
    }
    return found, total.detach()


@functools.cache
def alone(*names):
    """Gradients and terms with methods of which all but the last are off.

    The last of two of a name has the draws that it has beside the first.
    """
    model, optimizer = setting()
    others = [name for name in names[:-1] if issubclass(METHODS[name], Penalty)]
    methods = [METHODS[name](weight=0.0) for name in others]
    methods += [with_weight(METHODS[name]()) for name in names[-1:]]
    objective = Objective(*methods).bind(model, optimizer)
    return gradients(objective, model)[0], dict(objective.terms)


def assert_sum(first, second, found, terms):
    """Gradient and terms of both are those of each alone, with one task loss."""
    twice = first == second
    plain, _ = alone()
    (a, terms_a), (b, terms_b) = alone(first), alone(*[first] * twice, second)
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, a[name] + b[name] - plain[name], rtol=1e-6, atol=1e-9)
    for key in (f"loss/{first}", f"loss/{second}" + "_2" * twice):
        expected = terms_a | terms_b
        assert (key in terms) == (key in expected)
        if key in terms:
            torch.testing.assert_close(terms[key], expected[key], rtol=1e-6, atol=1e-12)


def check(first, second):
    """Two updates with both; why they are refused, if they are."""
    model, optimizer = setting()
    keys = list(model.state_dict())
    try:
        objective = Objective(with_weight(METHODS[first]()), with_weight(METHODS[second]())).bind(
            model, optimizer
        )
        found, total = gradients(objective, model)
    except ValueError as error:
        return str(error)
    assert all(gradient.isfinite().all() for gradient in found.values())
    parts = [value for key, value in objective.terms.items() if key.startswith("loss/")]
    torch.testing.assert_close(total, torch.stack(parts).sum())
    if not OTHER_WEIGHTS & {first, second}:
        assert_sum(first, second, found, objective.terms)
    for _ in range(2):
        optimizer.step()
        optimizer.zero_grad()
        objective(model, tiny_batch()).backward()
    assert all(w.isfinite().all() for w in model.parameters())
    assert all(w.grad is None or w.grad.isfinite().all() for w in model.parameters())
    assert sorted(model.state_dict()) == sorted(keys)  # as checkpoints hold them
    objective.state_dict()
    objective.detach()
    assert list(model.state_dict()) == keys
    return ""


@pytest.mark.parametrize(
    ("first", "second"),
    [
        pytest.param(*pair, marks=() if pair in SAMPLE else pytest.mark.slow, id="-".join(pair))
        for pair in PAIRS
    ],
)
def test_a_pair_is_the_sum_of_both_or_refused(first, second):
    replace = [name for name in (first, second) if issubclass(METHODS[name], TaskLoss)]
    refused = len(replace) == 2 or (first == second and METHODS[first].declared.reparametrizes)
    reason = check(first, second)
    assert bool(reason) == refused
    assert not refused or "use one of them" in reason or "use mixout once" in reason
