"""Derivative penalties of which no example counts more than a multiple of the running mean."""

import pytest
import torch

from smoothtune import CrossHolder, DoubleBackprop, JacHess, Jacobian, Objective
from smoothtune.testing import all_in_float64, fixed_draws, tiny_batch, tiny_model

METHODS = [
    (JacHess, {"c": 2.0, "smoothness": [1.5, 0.5]}),
    (JacHess, {"factors": "logits", "reduction": "token_mean", "c": 1.0}),
    (Jacobian, {}),
    (CrossHolder, {}),
    (CrossHolder, {"norm": "op"}),
    (DoubleBackprop, {}),
]
CLIP = 0.9
ROWS = 4


def rows(start, stop):
    return tiny_batch(rows=slice(start, stop))


def still(model):
    return torch.optim.SGD(model.parameters(), lr=0.0)


def fresh():
    return tiny_model("bert", dtype=torch.float64)


def gradient(model):
    found = [torch.zeros_like(w) if w.grad is None else w.grad for w in model.parameters()]
    return torch.cat([g.flatten() for g in found])


def term(method, batch):
    """Value and gradient of a method's term with weight 1 on a batch."""
    model = fresh()
    objective = Objective(method).attach(model)
    objective(model, batch)
    objective.calls = 0  # the same draws once more
    plain = Objective()(model, batch)
    (objective(model, batch) - plain).backward()
    return objective.terms[f"loss/{method.name}"], gradient(model)


@pytest.mark.parametrize(
    ("make", "fields", "pieces"),
    [  # fast: every case as one batch or as two, in turn
        pytest.param(*case, pieces, marks=() if number % 2 == pieces - 1 else pytest.mark.slow)
        for number, case in enumerate(METHODS)
        for pieces in (1, 2)
    ],
)
def test_the_gradient_is_that_of_the_clipped_examples(make, fields, pieces):
    """1/B sum_i min(1, clip m / v_i) grad v_i, m the geometric mean; each example by itself."""
    with fixed_draws(), all_in_float64():
        single = [term(make(weight=1.0, **fields), rows(i, i + 1)) for i in range(ROWS)]
        values = torch.stack([value for value, _ in single])
        bounds = CLIP * values.log().mean().exp()
        expected = sum(min(1, bounds / v) * g for v, g in single) / ROWS
        assert 0 < (values > bounds).sum() < ROWS

        model, method = fresh(), make(weight=1.0, clip=CLIP, **fields)
        objective = Objective(method)
        objective.bind(model, optimizer := still(model))
        size = ROWS // pieces
        for update in range(2):
            optimizer.zero_grad()
            for start in range(0, ROWS, size):
                loss = objective(model, rows(start, start + size))
                task = Objective()(model, rows(start, start + size))
                ((loss - task) / pieces).backward()
            if update == 0:
                assert not gradient(model).abs().max() > 1e-12
            optimizer.step()
    exact = method.traits.derivative_order > 1  # second differences round to 1e-8
    assert (gradient(model) - expected).norm() < (1e-10 if exact else 1e-6) * expected.norm()


@pytest.mark.parametrize("make", [JacHess, Jacobian, CrossHolder, DoubleBackprop])
def test_there_is_none_unless_it_is_given(make):
    """With one the term begins in its second update."""
    first = {}  # update in which the term is there
    for clip in (None, 2.0):
        model = fresh()
        objective = Objective(make(share=0.3, **({} if clip is None else {"clip": clip})))
        objective.bind(model, optimizer := still(model))
        for update in range(4):
            objective(model, rows(0, ROWS)).backward()
            optimizer.step()
            if objective.terms[f"loss/{make.name}"] > 0:
                first.setdefault(clip, update)
    assert first == {None: 0, 2.0: 1}


def test_a_resumed_run_has_the_same_bound():
    losses = []
    for resumed in (False, True):
        model = fresh()
        objective = Objective(Jacobian(weight=1.0, clip=0.5))
        objective.bind(model, optimizer := still(model))
        for start in (0, 2):
            objective(model, rows(start, start + 2)).backward()
            optimizer.step()
        if resumed:
            state = objective.state_dict()
            objective.detach()
            objective = Objective(Jacobian(weight=1.0, clip=0.5)).bind(model, optimizer)
            objective.load_state_dict(state)
        objective(model, rows(0, ROWS))
        losses.append(objective.terms["loss/jacobian"].item())
    assert losses[0] == losses[1] > 0


@pytest.mark.parametrize("clip", [0.0, 2.0])
def test_a_loop_whose_updates_it_does_not_see_is_refused_where_it_needs_them(clip):
    """Else there would be no mean, and the term would stay 0."""
    model = fresh()
    objective = Objective(Jacobian(weight=1.0, clip=clip)).attach(model)
    objective(model, rows(0, ROWS)).backward()
    still(model).step()
    if clip:
        with pytest.raises(RuntimeError, match="jacobian cannot act"):
            objective(model, rows(0, ROWS))
    else:
        objective(model, rows(0, ROWS))
        assert objective.terms["loss/jacobian"] > 0


def test_another_run_begins_without_a_mean():
    objective = Objective(Jacobian(weight=1.0, clip=2.0))
    for _ in range(2):
        objective.bind(model := fresh(), optimizer := still(model))
        values = []
        for _ in range(2):
            objective(model, rows(0, ROWS)).backward()
            optimizer.step()
            values.append(objective.terms["loss/jacobian"].item())
        objective.detach()
        assert values[0] == 0 < values[1]
