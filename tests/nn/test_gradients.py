"""Loss values that carry gradients computed before."""

import pytest
import torch
from torch import nn

from smoothtune.nn.gradients import AccumulatedLoss


def weights(*values):
    return [torch.tensor(value, dtype=torch.float64, requires_grad=True) for value in values]


def test_losses_are_summed_and_the_gradient_at_the_input_is_each_ones_own():
    w, unused, x = weights(3.0, 1.0, 2.0)
    losses = AccumulatedLoss([w, unused])
    assert [g.item() for g in losses.add(w * x, x)] == [3]  # d(wx)/dx = w
    assert [g.item() for g in losses.add(w**2 * x, x)] == [9]
    assert [g.item() for g in losses.add(x**3, x)] == [12]  # no weight in it
    assert losses.add(5 * w) == ()
    assert (w.grad, unused.grad, x.grad) == (None, None, None)
    total = losses.total()
    assert total.item() == 6 + 18 + 8 + 15
    (3 * total).backward()
    assert w.grad.item() == 3 * (2 + 2 * 3 * 2 + 5)  # x + 2 w x + 5
    assert (unused.grad, x.grad) == (None, None)


def test_weights_that_are_added_up_have_the_same_gradient():
    u, v = weights([1.0, 2.0], [3.0, 4.0])
    losses = AccumulatedLoss([u, v])
    for _ in range(3):
        losses.add(((u + v) ** 2).sum())  # autograd returns one tensor for both
    losses.total().backward()
    assert u.grad.tolist() == v.grad.tolist() == [3 * 2 * 4, 3 * 2 * 6]


def test_a_second_backward_says_why_it_fails():
    (w,) = weights(1.0)
    losses = AccumulatedLoss([w])
    losses.add(5 * w)
    total = losses.total()
    total.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="back-propagate this loss once"):
        total.backward()
    assert w.grad.item() == 5


def test_the_value_is_that_of_the_moment():
    (w,) = weights(1.0)
    losses = AccumulatedLoss([w])
    losses.add(5 * w)
    total = losses.total()
    losses.add(2 * w)
    assert total.item() == 5
    assert losses.total().item() == 7


def test_what_does_not_train_gets_no_gradient():
    model = nn.Linear(2, 1, dtype=torch.float64)
    model.bias.requires_grad_(False)
    losses = AccumulatedLoss([w for w in model.parameters() if w.requires_grad])
    assert len(losses.weights) == 1
    x = torch.tensor([[2.0, 5.0]], dtype=torch.float64, requires_grad=True)
    losses.add(model(x).sum(), x)
    losses.total().backward()
    assert model.weight.grad.tolist() == [[2, 5]]
    assert model.bias.grad is None
