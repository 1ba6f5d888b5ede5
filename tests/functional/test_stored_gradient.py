"""Loss values that carry gradients computed before."""

import pytest
import torch
from torch import nn

from smoothtune.functional.stored_gradient import Accumulated, known


def weights(*values):
    return [torch.tensor(value, dtype=torch.float64, requires_grad=True) for value in values]


def test_the_stored_gradient_is_scaled_by_what_comes_from_above():
    a, b, c = weights(1.0, 2.0, 3.0)
    value = known(torch.tensor(7.0), [torch.tensor(5.0), None, torch.tensor(-1.0)], [a, b, c])
    assert value.item() == 7
    (3 * value).backward()
    assert (a.grad.item(), b.grad, c.grad.item()) == (15, None, -3)


def test_a_second_backward_says_why_it_fails():
    (a,) = weights(1.0)
    value = known(torch.tensor(7.0), [torch.tensor(5.0)], [a])
    value.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="back-propagate it once"):
        value.backward()
    assert a.grad.item() == 5


def test_losses_are_summed_and_the_gradient_at_the_input_is_each_ones_own():
    w, unused, x = weights(3.0, 1.0, 2.0)
    losses = Accumulated([w, unused])
    assert losses.add(w * x, x).item() == 3  # d(wx)/dx = w
    assert losses.add(w**2 * x, x).item() == 9
    assert losses.add(x**3, x).item() == 12  # no weight in it
    assert (w.grad, unused.grad, x.grad) == (None, None, None)
    total = losses.total()
    assert total.item() == 6 + 18 + 8
    total.backward()
    assert w.grad.item() == 2 + 2 * 3 * 2  # x + 2 w x
    assert (unused.grad, x.grad) == (None, None)


def test_what_does_not_train_gets_no_gradient():
    model = nn.Linear(2, 1, dtype=torch.float64)
    model.bias.requires_grad_(False)
    losses = Accumulated.over(model)
    assert len(losses.weights) == 1
    x = torch.tensor([[2.0, 5.0]], dtype=torch.float64, requires_grad=True)
    losses.add(model(x).sum(), x)
    losses.total().backward()
    assert model.weight.grad.tolist() == [[2, 5]]
    assert model.bias.grad is None
