"""The two gradients of an update, the task's and that of the terms beside it, put together.

A loop may sum batches into `.grad`, scale them, and clip the sum. So every backward pass leaves
`.grad` right for the batches so far: it adds its own batch, and corrects the terms of those before
by how their coefficients have changed. What the loop clips is what it applies.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from smoothtune.nn.gradients import Gradients, norms, plus, times, with_deferred_gradient

MEMORY = 20  # updates that a mean of logarithms remembers


class MeanLog(NamedTuple):
    """A mean of logarithms, and of how many values; both ().

    An ordinary mean of the first `MEMORY` values, then an exponential one with as much memory.
    """

    mean: Tensor
    values: Tensor

    def with_value(self, x: Tensor) -> MeanLog:
        """With one more, unless it is 0, infinite or none."""
        mean, count, log = self.mean.to(x), self.values.to(x), x.log()
        counts = log.isfinite()
        new = mean + (log - mean) / (count + 1).clamp(max=MEMORY)
        return MeanLog(torch.where(counts, new, mean), count + counts)


class Solution(NamedTuple):
    """What one update applies; tensors are ()."""

    coefficients: dict[str, Tensor]
    """By what the bounded terms are multiplied."""
    shares: dict[str, Tensor]
    """Norms of what is applied of them, over the task's."""
    held: Tensor
    """Whether the bound holds them."""
    task: Tensor
    """Norm of the task's gradient."""
    scale: Tensor
    """Number of batches, as the loop weighs them."""
    logs: dict[str, MeanLog]
    """Of the task's norm over that of a term with a share, this update included."""


Solve = Callable[[Tensor, dict[str, Tensor], Tensor], Solution]
"""(norm of the task's gradient, those of the terms', sum of scales), all () -> what is applied"""


class UpdateGradients:
    """Sums over the batches of one update, as the loop scales them.

    Args:
        solve: what is applied, from the norms of these sums.

    Attributes:
        keeps: whether more batches may come before the update; if not, nothing is kept.
        solution: of the sums so far, for who counts updates; None before the first.
    """

    def __init__(self, solve: Solve):
        self.solve = solve
        self.keeps = True
        self.clear()

    def clear(self) -> None:
        """Before the first batch of an update."""
        self.weights: Sequence[nn.Parameter] = ()
        self.task: Gradients = []
        self.terms: dict[str, Gradients] = {}
        self.solution: Solution | None = None  # that `.grad` has been made with
        self._scale: Tensor | None = None

    def loss(
        self,
        value: Tensor,
        weights: Sequence[nn.Parameter],
        task: Gradients,
        terms: dict[str, Gradients],
        alone: Solution,
        *,
        mean: bool,
        skips: bool,
    ) -> Tensor:
        """() the value of a batch; its backward, once, adds the batch to the update.

        Args:
            value: ().
            weights: that are trained.
            task: the gradient of the task's loss, and of terms with a fixed weight.
            terms: those of the terms that are bounded.
            alone: what the batch applies if no other comes before the update, by norms that are of
                this process.
            mean: norms are those of the mean over processes.
            skips: an update may be left out without a word, as gradient scalers do.
        """
        if self._begins(skips):
            self.clear()
        parts = [task, *terms.values(), *self.terms.values()]
        reached = sorted({i for part in parts for i, g in enumerate(part) if g is not None})

        def make(scale: Tensor) -> list[Tensor | None]:
            gradient = self._add(scale, weights, task, terms, None if mean else alone)
            return [gradient[i] for i in reached]

        return with_deferred_gradient(value, make, [weights[i] for i in reached])

    def _begins(self, skips: bool) -> bool:
        """Whether the loop has put gradients to zero since the last batch."""
        pairs = zip(self.weights, self.task, strict=True)
        held = next((weight for weight, gradient in pairs if gradient is not None), None)
        if held is None:
            return not self.terms
        return held.grad is None or (skips and not held.grad.any())

    def _add(
        self,
        scale: Tensor,
        weights: Sequence[nn.Parameter],
        task: Gradients,
        terms: dict[str, Gradients],
        alone: Solution | None,
    ) -> Gradients:
        """What a batch adds to `.grad`."""
        first = self._scale is None
        total = scale if self._scale is None else self._scale + scale
        gradient = of_task = times(task, scale)
        sums: dict[str, Gradients] = {}
        if self.keeps or not first or alone is None:
            sums = {name: times(part, scale) for name, part in terms.items()}
        if first and alone is not None:
            solution = alone  # whatever the scale
        else:
            of_task = gradient if first else plus(self.task, gradient)
            for name, part in self.terms.items():
                sums[name] = plus(part, sums[name]) if name in sums else part
            sizes = norms([of_task, *sums.values()], weights, mean=alone is None)
            solution = self.solve(sizes[0], dict(zip(sums, sizes[1:], strict=True)), total.abs())
        # this batch, and the correction of those before it
        result, now = gradient, solution.coefficients
        for name, part in terms.items():
            result = plus(result, part, now[name] * scale)
        if self.solution is not None:
            before = self.solution.coefficients
            for name, part in self.terms.items():
                result = plus(result, part, now[name] - before[name])
        self.solution = solution
        if self.keeps:
            self.weights, self.task, self.terms, self._scale = weights, of_task, sums, total
        return result
