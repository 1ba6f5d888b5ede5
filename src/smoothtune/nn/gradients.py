"""Gradients taken aside: sums of them, their norms, and losses whose own backward returns them.

An adversarial step needs the gradient of its loss at the perturbation, to climb, and at the
weights, to train. One backward gives both and frees the graph; the loss goes on as a scalar whose
own backward returns the stored gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from smoothtune.nn.distributed import sharded_gradients, sharded_norm
from smoothtune.nn.low_bit import HALF

if TYPE_CHECKING:
    from torch.distributed.fsdp import FSDPModule

Gradients = list[Tensor | None]
"""One for each weight; None where the loss does not reach it."""
Make = Callable[[Tensor], Sequence[Tensor | None]]
"""() scale of a loss in its backward pass -> its gradient, of that scale, at the weights"""


def gradients_of(
    loss: Tensor, weights: Sequence[nn.Parameter], units: list[FSDPModule], *, keep_graph: bool
) -> Gradients:
    """The gradient of a scalar loss, of this process; with FSDP2 its part of the mean over all.

    Args:
        loss: ().
        weights: where it is differentiated.
        units: of a model that FSDP2 shards.
        keep_graph: whether another loss needs a part of its graph.
    """
    if not loss.requires_grad:
        return [None] * len(weights)
    if units:
        return sharded_gradients(loss, weights, units, keep_graph=keep_graph)
    with without_hooks(weights):
        parts = torch.autograd.grad(loss, weights, retain_graph=keep_graph, allow_unused=True)
    return list(parts)


@contextmanager
def without_hooks(weights: Sequence[Tensor]) -> Iterator[None]:
    """Leave out hooks of weights, which act on what is made of the parts, and would act twice."""
    left_out = [(hooks, dict(hooks)) for w in weights if (hooks := w._backward_hooks)]
    for hooks, _ in left_out:
        hooks.clear()
    try:
        yield
    finally:
        for hooks, before in left_out:
            hooks.update(before)


def plus(total: Gradients, added: Iterable[Tensor | None], factor: float | Tensor = 1) -> Gradients:
    """Total + factor * added, None where neither is."""
    pairs = list(zip(total, added, strict=True))
    both = [(old, new) for old, new in pairs if old is not None and new is not None]
    old_ones, new_ones = [old for old, _ in both], [new for _, new in both]
    sums = iter(_sums(old_ones, new_ones, factor) if both else [])
    return [
        old if new is None else factor * new if old is None else next(sums) for old, new in pairs
    ]


def _sums(old: list[Tensor], new: list[Tensor], factor: float | Tensor) -> list[Tensor]:
    """In few operations, and in one pass over memory where that is what takes the time."""
    pairs = zip(old, new, strict=True)
    if _sharded(old):
        return [one + factor * other for one, other in pairs]
    if not isinstance(factor, Tensor):
        return list(torch._foreach_add(old, new, alpha=factor))
    if old[0].device.type == "cpu":
        return list(torch._foreach_addcmul(old, new, [factor.to(old[0].dtype)] * len(old)))
    sums = torch._foreach_mul(new, factor.to(new[0].dtype))
    torch._foreach_add_(sums, old)
    return list(sums)


def multiplied(part: Gradients, factor: Tensor) -> Gradients:
    """The product with () a factor; itself where that is seen to be 1, which only a CPU sees."""
    present = [gradient for gradient in part if gradient is not None]
    if not present or (factor.device.type == "cpu" and factor == 1):
        return part
    if _sharded(present):
        return [None if gradient is None else factor * gradient for gradient in part]
    products = iter(torch._foreach_mul(present, factor.to(present[0].dtype)))
    return [None if gradient is None else next(products) for gradient in part]


def reduces_now(model: nn.Module) -> bool:
    """Whether gradients are averaged over processes in the next backward pass.

    DDP, as the loop holds it, may be told to wait for the last batch of an update.
    """
    if not (dist.is_available() and dist.is_initialized()):
        return False
    return not isinstance(model, DistributedDataParallel) or model.require_backward_grad_sync


def norms(parts: Sequence[Gradients], weights: Sequence[nn.Parameter], *, mean: bool) -> Tensor:
    """(N,) l2 norms of N gradients at these weights.

    Args:
        parts: the gradients.
        weights: at which they are.
        mean: of the mean over processes, which all call this together.
    """
    return torch.stack([_norm(part, weights, mean=mean) for part in parts])


def _norm(part: Gradients, weights: Sequence[nn.Parameter], *, mean: bool) -> Tensor:
    present = [gradient for gradient in part if gradient is not None]
    if _sharded(present):
        return sharded_norm(present)
    if mean and not _sharded(weights[:1]):
        pairs = zip(part, weights, strict=True)
        flat = torch.cat([(torch.zeros_like(w) if g is None else g).flatten() for g, w in pairs])
        dist.all_reduce(flat)
        wide = flat.float() if flat.dtype in HALF else flat
        return torch.linalg.vector_norm(wide / dist.get_world_size())
    if not present:
        return torch.zeros((), device=weights[0].device)
    each = torch._foreach_norm([g.float() if g.dtype in HALF else g for g in present])
    return torch.linalg.vector_norm(torch.stack(each))


def _sharded(tensors: Sequence[Tensor]) -> bool:
    """Whether every process has a part of them, as `DTensor`, alone."""
    return any(hasattr(kind, "to_local") for kind in {*map(type, tensors)})


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


def need_gradients() -> None:
    """Refuse what takes gradients inside of a forward where they are off.

    Raises:
        RuntimeError: they are.
    """
    if not torch.is_grad_enabled():
        raise RuntimeError(
            "the method follows gradients, and they are off (torch.no_grad): call the objective "
            "with gradients on, or take the model's own loss for validation"
        )


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
        """Add a scalar loss (), and return its gradients at the inputs.

        Args:
            loss: ().
            inputs: where it is differentiated beside the weights.
            keep_graph: do not free its graph, of which another loss needs a part.

        Raises:
            RuntimeError: gradients are off.
        """
        need_gradients()
        with without_hooks(self.weights):
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
