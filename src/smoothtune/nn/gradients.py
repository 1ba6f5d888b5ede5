"""Gradients of a loss at the trained weights, taken aside: nothing reaches `.grad`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from smoothtune.nn.fsdp import sharded_gradients, sharded_norm

Gradients = list[Tensor | None]
"""One for each weight; None where the loss does not reach it."""


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
    parts = torch.autograd.grad(loss, weights, retain_graph=keep_graph, allow_unused=True)
    return list(parts)


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
    if any(isinstance(gradient, DTensor) for gradient in old):
        return [one + factor * other for one, other in pairs]
    if not isinstance(factor, Tensor):
        return list(torch._foreach_add(old, new, alpha=factor))
    if old[0].device.type == "cpu":
        return [torch.addcmul(one, other, factor.to(one.dtype)) for one, other in pairs]
    sums = torch._foreach_mul(new, factor.to(new[0].dtype))
    torch._foreach_add_(sums, old)
    return list(sums)


def times(part: Gradients, factor: Tensor) -> Gradients:
    """The product with () a factor; itself where that is seen to be 1, which only a CPU sees."""
    present = [gradient for gradient in part if gradient is not None]
    if not present or (factor.device.type == "cpu" and factor == 1):
        return part
    if any(isinstance(gradient, DTensor) for gradient in present):
        return [None if gradient is None else factor * gradient for gradient in part]
    products = iter(torch._foreach_mul(present, factor.to(present[0].dtype)))
    return [None if gradient is None else next(products) for gradient in part]


def reduces_now(model: nn.Module) -> bool:
    """Whether gradients are averaged over processes in the next backward pass.

    Args:
        model: as the loop holds it; DDP may be told to wait for the last batch of an update.
    """
    if not (dist.is_available() and dist.is_initialized()):
        return False
    return not isinstance(model, DistributedDataParallel) or model.require_backward_grad_sync


def norms(parts: Sequence[Gradients], weights: Sequence[nn.Parameter], *, mean: bool) -> Tensor:
    """(N,) l2 norms of N gradients.

    Args:
        parts: the gradients.
        weights: at which they are.
        mean: of the mean over processes, which all call this together.
    """
    return torch.stack([_norm(part, weights, mean=mean) for part in parts])


def _norm(part: Gradients, weights: Sequence[nn.Parameter], *, mean: bool) -> Tensor:
    present = [gradient for gradient in part if gradient is not None]
    if any(isinstance(gradient, DTensor) for gradient in present):
        return sharded_norm(present)
    if mean and not isinstance(weights[0], DTensor):
        pairs = zip(part, weights, strict=True)
        flat = torch.cat([(torch.zeros_like(w) if g is None else g).flatten() for g, w in pairs])
        dist.all_reduce(flat)
        return torch.linalg.vector_norm(_wide(flat) / dist.get_world_size())
    if not present:
        return torch.zeros((), device=weights[0].device)
    each = torch._foreach_norm([_wide(gradient) for gradient in present])
    return torch.linalg.vector_norm(torch.stack(each))


def _wide(x: Tensor) -> Tensor:
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
