"""The sum of a batch's losses, each times its weight, whose backward pass gives the gradient.

Where a term has a bound, or is compared with the task, the gradients of the losses are taken apart
here, and the backward pass of the sum returns what they make together.

A loop may sum batches into `.grad`, scale them, and clip the sum. So every backward pass leaves
`.grad` right for the batches so far: it adds its own batch, and corrects the terms of those before
by how their coefficients have changed. What the loop clips is what it applies.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from smoothtune.core.compute_loss import times
from smoothtune.core.strength import TASK, Solution, Strengths
from smoothtune.nn.architecture import trained_weights
from smoothtune.nn.distributed import put_away
from smoothtune.nn.gradients import (
    Gradients,
    gradients_of,
    multiplied,
    norms,
    plus,
    reduces_now,
    with_deferred_gradient,
    with_gradient,
)

if TYPE_CHECKING:
    from torch.distributed.fsdp import FSDPModule


class Summed(NamedTuple):
    """The losses of a batch."""

    loss: Tensor
    """() whose backward, once, gives the gradient."""
    weighed: dict[str, Tensor]
    """() losses, times what they are multiplied with."""
    strengths: dict[str, Tensor]
    """() of every bounded term `<name>/weight`, `<name>/share` (||weight grad term|| / ||grad
    task||, if this batch is alone in its update) and `<name>/bounded` (1 if the bound held it)."""


class Parts(NamedTuple):
    """The gradients of a batch, or of the batches of an update so far."""

    task: Gradients
    """Of the task's loss, and of terms with a fixed weight."""
    terms: dict[str, Gradients]
    """Of the terms that are bounded, by name."""
    losses: dict[str, Tensor]
    """(2,) of these: without a factor, and as in the value of a batch."""


class LossSum:
    """Sums losses by name, and their gradients over the batches of one update.

    Attributes:
        keeps: whether more batches may come before the update; if not, nothing is kept.
    """

    def __init__(self, strengths: Strengths):
        self.strengths = strengths
        self.keeps = True
        self._clear()

    def _clear(self) -> None:
        """Before the first batch of an update."""
        self._weights: Sequence[nn.Parameter] = ()
        self._sums = Parts([], {}, {})  # as the loop scales them
        self._scale: Tensor | None = None
        self._solution: Solution | None = None  # that `.grad` has been made with

    def finish(self) -> Solution | None:
        """Before an update: what is applied in it; None where no bound acted."""
        solution = self._solution
        self._clear()
        return solution

    def __call__(
        self,
        model: nn.Module,
        losses: Mapping[str, Tensor],
        optimizer: Optimizer | None,
        *,
        units: list[FSDPModule],
        apart: bool,
        scaled: bool,
    ) -> Summed:
        """The sum over one batch.

        Args:
            model: as the loop holds it.
            losses: () without factors, by name of the method or "task"; their graphs are used up.
            optimizer: may hold weights of a loss beside the model's.
            units: of the model that FSDP2 shards.
            apart: whether they may be differentiated here, one by one.
            scaled: whether a gradient scaler may leave out an update.
        """
        strengths = self.strengths
        apart &= torch.is_grad_enabled() and any(loss.requires_grad for loss in losses.values())
        bounded = strengths.holds() or bool(strengths.bounded.keys() & losses.keys())
        if bounded and apart:
            return self._bounded(model, losses, optimizer, units, scaled=scaled)
        weighed = {name: times(strengths.usual(name), loss) for name, loss in losses.items()}
        total = total_of(list(weighed.values()))
        compared = strengths.to_compare(losses) if apart else set()
        if compared and math.isfinite(total.item()):
            with torch.autocast(total.device.type, enabled=False):  # as in any backward pass
                if units:
                    put_away(units)
                weights = trained_weights(model, optimizer)
                gradient = self._compared(losses, weights, units, compared)
                total = with_gradient(total.detach(), gradient, weights)
        return Summed(total, weighed, {})

    def _bounded(
        self,
        model: nn.Module,
        losses: Mapping[str, Tensor],
        optimizer: Optimizer | None,
        units: list[FSDPModule],
        *,
        scaled: bool,
    ) -> Summed:
        """The sum where a bound holds terms: their gradients are taken apart from the rest's."""
        device = next(iter(losses.values())).device
        bounded = self.strengths.bounded
        names = [name for name in losses if name in bounded]
        rest = {name: loss for name, loss in losses.items() if name not in bounded}
        with torch.autocast(device.type, enabled=False):
            # gradients
            if units:
                put_away(units)
            weights = trained_weights(model, optimizer)
            terms: dict[str, Gradients] = {}
            for left, name in enumerate(names, 1 - len(names)):
                shared = not bounded[name].has_own_graph and bool(left or rest)
                terms[name] = gradients_of(losses[name], weights, units, keep_graph=shared)
            task = self._gradient_of_rest(rest, weights, units)
            # what this batch would apply, if it were alone in its update
            one = torch.ones((), device=device)
            alone = self._solved(task, terms, weights, one, mean=False)
            # value
            weighed = {n: times(self.strengths.factor(n), x.detach()) for n, x in rest.items()}
            weighed |= {n: alone.coefficients[n] * losses[n].detach() for n in names}
            value = total_of([weighed[name] for name in sorted(weighed)])
            pairs = {n: torch.stack([losses[n].detach().to(value), weighed[n]]) for n in names}
            batch = Parts(task, terms, pairs)
            if self._begins(scaled):
                self._clear()
            loss = self._with_gradient(value, weights, batch, None if reduces_now(model) else alone)
        shown: dict[str, Tensor] = {}
        for name, weight in alone.coefficients.items():
            shown |= {f"{name}/weight": weight, f"{name}/share": alone.shares[name]}
            shown[f"{name}/bounded"] = alone.held[name].to(weight)
        return Summed(loss, weighed, shown)

    def _solved(
        self,
        task: Gradients,
        terms: dict[str, Gradients],
        weights: Sequence[nn.Parameter],
        scale: Tensor,
        *,
        mean: bool,
    ) -> Solution:
        """What is applied, by the norms of this process, or of the mean over processes."""
        sizes = norms([task, *terms.values()], weights, mean=mean)
        by_name = dict(zip(terms, sizes[1:], strict=True))
        return self.strengths.solve(sizes[0], by_name, scale)

    def _begins(self, skips: bool) -> bool:
        """Whether the loop has put gradients to zero since the last batch.

        Args:
            skips: an update may be left out without a word, as gradient scalers do.
        """
        parts = [self._sums.task, *self._sums.terms.values()]
        reached = [
            weight.grad
            for weight, *gradients in zip(self._weights, *parts, strict=True)
            if any(gradient is not None for gradient in gradients)
        ]
        if not reached:
            return not self._sums.terms
        # one weight may have a gradient of 0, as half the weights of new adapters
        return reached[0] is None or (skips and not any(g is not None and g.any() for g in reached))

    def _with_gradient(
        self, value: Tensor, weights: Sequence[nn.Parameter], batch: Parts, alone: Solution | None
    ) -> Tensor:
        """() the value of a batch; its backward, once, adds the batch to the update.

        Args:
            value: ().
            weights: that are trained.
            batch: its gradients.
            alone: what it applies if no other comes before the update; None: norms are those of the
                mean over processes.
        """
        parts = [batch.task, *batch.terms.values(), *self._sums.terms.values()]
        reached = sorted({i for part in parts for i, g in enumerate(part) if g is not None})

        def make(scale: Tensor) -> list[Tensor | None]:
            gradient = self._add(scale, weights, batch, alone)
            return [gradient[i] for i in reached]

        return with_deferred_gradient(value, make, [weights[i] for i in reached])

    def _add(
        self, scale: Tensor, weights: Sequence[nn.Parameter], batch: Parts, alone: Solution | None
    ) -> Gradients:
        """What a batch adds to `.grad`."""
        first, before = self._scale is None, self._sums
        total = scale if self._scale is None else self._scale + scale
        result = task = multiplied(batch.task, scale)
        terms: dict[str, Gradients] = {}
        if self.keeps or not first or alone is None:
            terms = {name: multiplied(part, scale) for name, part in batch.terms.items()}
        for name, part in before.terms.items():
            terms[name] = plus(part, terms[name]) if name in terms else part
        task = task if first else plus(before.task, task)
        losses = {name: scale * pair for name, pair in batch.losses.items()}
        for name, pair in before.losses.items():
            losses[name] = pair + losses[name] if name in losses else pair
        if first and alone is not None:
            solution = alone  # whatever the scale
        else:
            solution = self._solved(task, terms, weights, total.abs(), mean=alone is None)
        # this batch, and the correction of those before it
        now = solution.coefficients
        for name, part in batch.terms.items():
            result = plus(result, part, now[name] * scale)
        if self._solution is not None:
            for name, part in before.terms.items():
                result = plus(result, part, now[name] - self._solution.coefficients[name])
        means = {name: pair / total for name, pair in losses.items()}
        applied = {n: torch.stack([now[n] * mean[0], mean[1]]) for n, mean in means.items()}
        self._solution = solution._replace(losses=applied)
        if self.keeps:
            self._weights, self._sums, self._scale = weights, Parts(task, terms, losses), total
        return result

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
        total = total_of([times(factor(name), loss) for name, loss in losses.items()])
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


def total_of(losses: Sequence[Tensor]) -> Tensor:
    """() the sum of losses ()."""
    return reduce(torch.add, losses)
