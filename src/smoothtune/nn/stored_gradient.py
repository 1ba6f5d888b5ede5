"""Loss values whose own backward returns a gradient that is known, or made only then.

An adversarial step needs the gradient of its loss at the perturbation, to climb, and at the
weights, to train. One backward gives both and frees the graph; the loss goes on as a scalar whose
own backward returns the stored gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

Make = Callable[[Tensor], Sequence[Tensor | None]]
"""() scale of a loss in its backward pass -> its gradient, of that scale, at the weights"""


class _Deferred(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor, make: Make, *weights: Tensor) -> Tensor:
        ctx.make = make
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> Any:
        make, ctx.make = ctx.make, None
        if make is None:
            raise RuntimeError("the gradient is used up: back-propagate this loss once")
        return (None, None, *make(upstream[0]))


def with_deferred_gradient(value: Tensor, make: Make, weights: Sequence[Tensor]) -> Tensor:
    """() the value; its backward, once, returns what `make` gives for the scale that it gets."""
    return _Deferred.apply(value, make, *weights)


def with_gradient(
    value: Tensor, gradients: Sequence[Tensor | None], weights: Sequence[Tensor]
) -> Tensor:
    """() the value; its backward, once, returns gradients that are known, None where there is none.

    >>> w, v = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    >>> (3 * with_gradient(torch.tensor(5.0), [torch.tensor([1.0, 2.0]), None], [w, v])).backward()
    >>> w.grad, v.grad
    (tensor([3., 6.]), None)
    """
    reached = [(g, w) for g, w in zip(gradients, weights, strict=True) if g is not None]
    stored = [gradient for gradient, _ in reached]

    def scaled(scale: Tensor) -> list[Tensor]:
        for i, gradient in enumerate(stored):  # one by one, so that there are never two sets
            stored[i] = scale * gradient
        return stored

    return with_deferred_gradient(value, scaled, [weight for _, weight in reached])


class AccumulatedLoss:
    """A sum of losses, each differentiated as soon as it is added.

    >>> w = torch.tensor(3.0, requires_grad=True)
    >>> x = torch.tensor(2.0, requires_grad=True)
    >>> losses = AccumulatedLoss([w])
    >>> [losses.add(loss, x)[0].item() for loss in (w * x, w * w * x)]
    [3.0, 9.0]
    >>> total = losses.total()
    >>> total.backward()
    >>> total.item(), w.grad.item()  # w x + w^2 x, x + 2 w x
    (24.0, 14.0)
    """

    def __init__(self, weights: Sequence[Tensor]):
        """Differentiate with respect to these weights."""
        self.weights = list(weights)
        self.gradients: list[Tensor | None] = [None] * len(self.weights)
        self.value: Tensor | None = None

    def add(self, loss: Tensor, *inputs: Tensor, keep_graph: bool = False) -> tuple[Tensor, ...]:
        """Add a scalar loss, and return its gradients at the inputs.

        Args:
            loss: ().
            inputs: where it is differentiated beside the weights.
            keep_graph: do not free its graph, of which another loss needs a part.
        """
        gradients = torch.autograd.grad(
            loss, [*inputs, *self.weights], allow_unused=True, retain_graph=keep_graph
        )
        for i, gradient in enumerate(gradients[len(inputs) :]):
            sum_so_far = self.gradients[i]
            if gradient is not None:  # not in place: weights that are added up share one tensor
                self.gradients[i] = gradient if sum_so_far is None else sum_so_far + gradient
        self.value = loss.detach() if self.value is None else self.value + loss.detach()
        return gradients[: len(inputs)]

    def total(self) -> Tensor:
        """() the sum of the losses; its backward, once, returns the stored gradients."""
        assert self.value is not None
        return with_gradient(self.value, self.gradients, self.weights)
