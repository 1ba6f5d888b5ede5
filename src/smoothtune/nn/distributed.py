"""Gradients over several processes: parts of FSDP2's shards, weights that DDP waits for.

FSDP2: every process gets its part of the gradients' mean.

DDP: an unlabeled batch has terms alone, and those on hidden states do not reach the head. DDP would
then raise in the next forward, or leave gradients that differ between processes.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import get_total_norm

from smoothtune.nn.low_bit import HALF

if TYPE_CHECKING:  # a second, which commands that read fields do not need
    from torch.distributed.fsdp import FSDPModule


@contextmanager
def buffers_copied_once(model: nn.Module) -> Iterator[None]:
    """Let DDP copy the first process's buffers before the first forward within a ``with``, alone.

    It does so in place before every forward, and the backward of an earlier one may need them.
    """
    passes = 0

    def before_forward(ddp: nn.Module, inputs: object) -> None:
        nonlocal passes
        if passes:
            cast(DistributedDataParallel, ddp).require_forward_param_sync = False
        passes += 1  # DDP sets the flag again after each

    handle = model.register_forward_pre_hook(before_forward)
    try:
        yield
    finally:
        handle.remove()


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
    """Parts of the gradient of a loss (), averaged over processes; None where it does not reach.

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
        if len(shards(cast(nn.Module, unit))) > 1:
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


def sharded_norm(gradients: Sequence[Tensor]) -> Tensor:
    """() l2 norm of gradients of which every process has parts."""
    norm = get_total_norm(gradients)
    return norm.full_tensor() if hasattr(norm, "full_tensor") else norm


def unreached(value: Tensor, weights: Iterable[nn.Parameter]) -> set[nn.Parameter]:
    """The weights to which a backward from a value brings no gradient.

    >>> w, v = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    >>> unreached((2 * w).sum(), [w, v]) == {v}
    True
    """
    reached, seen, waiting = set(), set(), [value.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if type(node).__name__ == "AccumulateGrad":
            reached.add(node.variable)  # type: ignore[attr-defined]
        waiting += [below for below, _ in node.next_functions]
    return {weight for weight in weights if weight not in reached}


class UnusedWeights:
    """Lets every weight of a DDP model take part in a backward, and be as if it had not.

    Attributes:
        weights: that no batch of the update has reached so far; None before the first.
    """

    def __init__(self) -> None:
        self.weights: set[nn.Parameter] | None = None

    def zero_gradients(self, model: nn.Module, total: Tensor) -> Tensor:
        """() the same value, with a gradient of zero for weights that it does not reach.

        Args:
            model: as the loop holds it.
            total: () what will be back-propagated, without the task loss, which would reach all.
        """
        if not torch.is_grad_enabled():
            return total
        trained = [weight for weight in model.parameters() if weight.requires_grad]
        unused = unreached(total, trained)
        for weight in trained:  # in one order in every process
            if weight in unused:
                total = total + 0 * weight.flatten()[:1].sum()
        self.weights = unused if self.weights is None else self.weights & unused
        return total

    def zero_loss(self, model: nn.Module) -> Tensor:
        """() zero, for a batch that is to move no weight; the forward of DDP has run.

        DDP and gradient scalers wait for gradients: these, which are zero, are gone before the
        update, unless another of its batches has some.
        """
        weights = [weight for weight in model.parameters() if weight.requires_grad]
        self.weights = set(weights) if self.weights is None else self.weights
        return torch.stack([0 * weight.flatten()[:1].sum().float() for weight in weights]).sum()

    def forget(self) -> None:
        """Before an update: weights that no batch reached have no gradient, as without DDP."""
        for weight in self.weights or ():
            weight.grad = None  # else momentum and weight decay would move them
