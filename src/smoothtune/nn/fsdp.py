"""A model that FSDP2 shards, and its gradients: every process gets its part of their mean."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from torch import Tensor, nn
from torch.nn.utils import get_total_norm

from smoothtune.nn.low_bit import HALF

if TYPE_CHECKING:  # a second, which commands that read fields do not need
    from torch.distributed.fsdp import FSDPModule


def shards(model: nn.Module) -> list[FSDPModule]:
    """The units that FSDP2 shards."""
    fsdp = sys.modules.get("torch.distributed.fsdp")  # not imported: nothing is sharded
    return [each for each in model.modules() if isinstance(each, fsdp.FSDPModule)] if fsdp else []


def casts(unit: FSDPModule) -> bool:
    """Whether a unit has 16 bits for its weights, its outputs or the reduction of gradients."""
    policy = unit._get_fsdp_state()._mp_policy
    return any(t in HALF for t in (policy.param_dtype, policy.output_dtype, policy.reduce_dtype))


def put_away(units: Sequence[FSDPModule]) -> None:
    """Leave every process its parts: after a forward the outermost unit holds whole weights."""
    for unit in units:
        unit.reshard()


def sharded_gradients(
    loss: Tensor, weights: Sequence[nn.Parameter], units: Sequence[FSDPModule], *, keep_graph: bool
) -> list[Tensor | None]:
    """Parts of the gradient of a loss, averaged over processes; None where it does not reach.

    `torch.autograd.grad` would give a process the gradient of its own batch, whole: the reduction
    is a part of `backward`. What `.grad` holds is as before.

    Args:
        loss: () of this process, whose graph all processes have.
        weights: parts, after `put_away`.
        units: of the model. They reduce gradients from now on, also where they were told to wait
            for the last batch of an update. Those around others are gathered here, as FSDP2 does
            so for their outputs alone, and a loss may be of hidden states within.
        keep_graph: whether another loss needs it.
    """
    for unit in units:
        unit.set_requires_gradient_sync(True, recurse=False)
        if _encloses(unit):
            unit.unshard()
    held = [weight.grad for weight in weights]
    for weight in weights:
        weight.grad = None
    try:
        loss.backward(retain_graph=keep_graph)
        return [weight.grad for weight in weights]
    finally:
        for weight, gradient in zip(weights, held, strict=True):
            weight.grad = gradient


def _encloses(unit: FSDPModule) -> bool:
    return len(shards(cast(nn.Module, unit))) > 1


def sharded_norm(gradients: Sequence[Tensor]) -> Tensor:
    """() l2 norm of gradients of which every process has parts."""
    norm = get_total_norm(gradients)
    return norm.full_tensor() if hasattr(norm, "full_tensor") else norm
