"""Loss values that carry gradients computed before."""

import pytest
import torch
from torch import nn

from smoothtune.nn.gradients import AccumulatedLoss, multiplied, plus


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


def test_a_sum_leaves_out_what_a_loss_does_not_reach():
    one, other = torch.tensor([1.0, 2.0]), torch.tensor([3.0, 5.0])
    for factor in (4.0, torch.tensor(4.0, dtype=torch.float64)):
        (total,) = plus([one], [other], factor)
        assert (total.tolist(), total.dtype) == ([13, 22], torch.float32)
        total, first, second, none = plus(
            [one, one, None, None], [other, None, other, None], factor
        )
        assert (total.tolist(), second.tolist(), none) == ([13, 22], [12, 20], None)
        assert first is one
    assert (one.tolist(), other.tolist()) == ([1, 2], [3, 5])


def test_a_product_with_1_costs_nothing():
    part = [torch.tensor([1.0, 2.0]), None]
    assert multiplied(part, torch.tensor(1.0)) is part
    for factor in (0.0, 2.0):
        product, none = multiplied(part, torch.tensor(factor, dtype=torch.float64))
        assert (product.tolist(), none) == ([factor, 2 * factor], None)
    nothing = [None, None]
    assert multiplied(nothing, torch.tensor(2.0)) is nothing
