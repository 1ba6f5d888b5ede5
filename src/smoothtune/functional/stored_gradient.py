"""Scalars whose gradient is known before anyone asks for it.

An adversarial step needs the gradient of its loss at the perturbation, to climb, and at the
weights, to train. One backward gives both and frees the graph; the loss then goes on as a scalar
that hands the stored gradient out when the objective is back-propagated.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn


class _Known(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, value: Tensor, gradients: list[Tensor | None], *weights: Tensor
    ) -> Tensor:
        ctx.gradients = gradients
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> Any:
        gradients, ctx.gradients = ctx.gradients, None
        if gradients is None:
            raise RuntimeError("this loss has handed out its gradients: back-propagate it once")
        for i, gradient in enumerate(gradients):  # one by one, so that there are never two sets
            gradients[i] = None if gradient is None else upstream[0] * gradient
        return (None, None, *gradients)


def known(value: Tensor, gradients: Sequence[Tensor | None], weights: Sequence[Tensor]) -> Tensor:
    """() a value that carries the given gradients to the weights.

    >>> w = torch.tensor(3.0, requires_grad=True)
    >>> known(torch.tensor(7.0), [torch.tensor(5.0)], [w]).backward()
    >>> w.grad
    tensor(5.)
    """
    return _Known.apply(value, list(gradients), *weights)


class Accumulated:
    """A sum of losses, each differentiated as soon as it is added.

    >>> w = torch.tensor(3.0, requires_grad=True)
    >>> x = torch.tensor(2.0, requires_grad=True)
    >>> losses = Accumulated([w])
    >>> losses.add(w * x, x).item(), losses.add(w * w * x, x).item()
    (3.0, 9.0)
    >>> total = losses.total()
    >>> total.backward()
    >>> total.item(), w.grad.item()  # w x + w^2 x, x + 2 w x
    (24.0, 14.0)
    """

    def __init__(self, weights: list[Tensor]):
        """Differentiate with respect to these weights."""
        self.weights = weights
        self.gradients: list[Tensor | None] = [None] * len(weights)
        self.value: Tensor | None = None

    @classmethod
    def over(cls, model: nn.Module) -> Accumulated:
        """Over all trained weights of a model."""
        return cls([weight for weight in model.parameters() if weight.requires_grad])

    def add(self, loss: Tensor, x: Tensor) -> Tensor:
        """Add a scalar loss, free its graph, and return its gradient at x."""
        at_x, *gradients = torch.autograd.grad(loss, [x, *self.weights], allow_unused=True)
        for i, gradient in enumerate(gradients):
            known = self.gradients[i]
            if gradient is not None:
                self.gradients[i] = gradient if known is None else known.add_(gradient)
        self.value = loss.detach() if self.value is None else self.value + loss.detach()
        return at_x

    def total(self) -> Tensor:
        """() the sum of the losses, with their gradient."""
        assert self.value is not None
        return known(self.value, self.gradients, self.weights)
