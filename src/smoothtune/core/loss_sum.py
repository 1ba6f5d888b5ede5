"""The sum of a batch's losses, each times its weight, whose backward pass gives the gradient.

Where a term has a bound, or is compared with the task, the gradients of the losses are taken apart
here, and the backward pass of the sum returns what they make together.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.optim import Optimizer

from smoothtune.core.strength import TASK, Strengths
from smoothtune.nn.architecture import trained_weights, unwrap
from smoothtune.nn.autocast import autocast_dtype
from smoothtune.nn.fsdp import put_away, shards
from smoothtune.nn.gradients import Gradients, gradients_of, norms, plus, reduces_now
from smoothtune.nn.stored_gradient import with_gradient


class Summed(NamedTuple):
    """The losses of a batch."""

    loss: Tensor
    """() whose backward, once, gives the gradient."""
    weighed: dict[str, Tensor]
    """() losses, times what they are multiplied with."""
    strengths: dict[str, Tensor]
    """() of every bounded term `<name>/weight`, `<name>/share` (||weight grad term|| / ||grad
    task||, if this batch is alone in its update) and `<name>/bounded` (1 if the bound held it)."""


class LossSum:
    """Sums losses by name.

    Args:
        strengths: what they are multiplied with.
    """

    def __init__(self, strengths: Strengths):
        self.strengths = strengths

    def __call__(
        self,
        model: nn.Module,
        losses: Mapping[str, Tensor],
        optimizer: Optimizer | None,
        *,
        apart: bool,
    ) -> Summed:
        """The sum over one batch.

        Args:
            model: as the loop holds it.
            losses: () without factors, by name of the method or "task"; their graphs are used up.
            optimizer: may hold weights of a loss beside the model's.
            apart: whether they may be differentiated here, one by one.
        """
        strengths = self.strengths
        apart &= torch.is_grad_enabled() and any(loss.requires_grad for loss in losses.values())
        bounded = strengths.holds() or bool(strengths.bounded.keys() & losses.keys())
        if bounded and apart:
            return self._bounded(model, losses, optimizer)
        factor = strengths.usual if bounded else strengths.factor
        weighed = {name: factor(name) * loss for name, loss in losses.items()}
        total = torch.stack(list(weighed.values())).sum()
        compared = strengths.to_compare(losses) if apart else set()
        if compared and math.isfinite(total.item()):
            with torch.autocast(total.device.type, enabled=False):  # as in any backward pass
                units, weights = _units_and_weights(model, optimizer)
                gradient = self._compared(losses, weights, units, compared)
                total = with_gradient(total.detach(), gradient, weights)
        return Summed(total, weighed, {})

    def _bounded(
        self, model: nn.Module, losses: Mapping[str, Tensor], optimizer: Optimizer | None
    ) -> Summed:
        """The sum where a bound holds terms: their gradients are taken apart from the rest's."""
        device = next(iter(losses.values())).device
        scaled = autocast_dtype(model, device) == torch.float16
        bounded = self.strengths.bounded
        names = [name for name in losses if name in bounded]
        rest = {name: loss for name, loss in losses.items() if name not in bounded}
        with torch.autocast(device.type, enabled=False):
            # gradients
            units, weights = _units_and_weights(model, optimizer)
            terms: dict[str, Gradients] = {}
            for left, name in enumerate(names, 1 - len(names)):
                shared = not bounded[name].has_own_graph and bool(left or rest)
                terms[name] = gradients_of(losses[name], weights, units, keep_graph=shared)
            task = self._gradient_of_rest(rest, weights, units)
            # what this batch would apply, if it were alone in its update
            sizes = norms([task, *terms.values()], weights, mean=False)
            by_name = dict(zip(names, sizes[1:], strict=True))
            alone = self.strengths.solve(sizes[0], by_name, sizes.new_ones(()))
            applied = alone.coefficients()
            # value
            weighed = {n: self.strengths.factor(n) * loss.detach() for n, loss in rest.items()}
            weighed |= {name: applied[name] * losses[name].detach() for name in names}
            value = torch.stack([weighed[name] for name in sorted(weighed)]).sum()
            mean, update = reduces_now(model), self.strengths.update
            loss = update.loss(value, weights, task, terms, sizes, mean=mean, skips=scaled)
        shares, held = alone.shares(), alone.held < 1
        shown: dict[str, Tensor] = {}
        for name, weight in applied.items():
            shown |= {f"{name}/weight": weight, f"{name}/share": shares[name]}
            shown[f"{name}/bounded"] = held.to(weight)
        return Summed(loss, weighed, shown)

    def _gradient_of_rest(
        self, losses: Mapping[str, Tensor], weights: Sequence[nn.Parameter], units: list[FSDPModule]
    ) -> Gradients:
        """The gradient of the task's loss and of terms with a fixed weight."""
        if not losses:
            return [None] * len(weights)
        compared = self.strengths.to_compare(losses)
        if compared and compared < set(losses):
            return self._compared(losses, weights, units, compared)
        factor = self.strengths.factor
        total = torch.stack([factor(name) * loss for name, loss in losses.items()]).sum()
        return gradients_of(total, weights, units, keep_graph=False)

    def _compared(
        self,
        losses: Mapping[str, Tensor],
        weights: Sequence[nn.Parameter],
        units: list[FSDPModule],
        compared: set[str],
    ) -> Gradients:
        """The gradient of the sum, some terms of which are compared with the task."""
        strengths = self.strengths
        apart = [name for name in losses if name in compared or name not in strengths.fixed]
        parts = [(name, losses[name], strengths.factor(name)) for name in apart]
        if others := [strengths.factor(n) * loss for n, loss in losses.items() if n not in apart]:
            parts.append(("", torch.stack(others).sum(), 1.0))
        gradient: Gradients = [None] * len(weights)
        sizes: dict[str, float] = {}
        for left, (name, loss, factor) in enumerate(parts, 1 - len(parts)):
            part = gradients_of(loss, weights, units, keep_graph=left < 0)
            gradient = plus(gradient, part, factor)
            size = norms([part], weights, mean=False).item()
            sizes[name if name in compared else TASK] = size
        for name in sorted(compared):
            strengths.warn_of_little(name, sizes[name], sizes.get(TASK, 0.0))
        return gradient


def _units_and_weights(
    model: nn.Module, optimizer: Optimizer | None
) -> tuple[list[FSDPModule], list[nn.Parameter]]:
    """The units that FSDP2 shards, and what is trained, as every process holds it."""
    bare = unwrap(model)
    units = shards(bare)
    put_away(units)
    return units, trained_weights(bare, optimizer)
