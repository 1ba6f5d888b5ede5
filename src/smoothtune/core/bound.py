"""The two gradients of an update, the task's and that of the terms beside it, put together.

A loop may sum batches into `.grad`, scale them, and clip the sum. So every backward pass leaves
`.grad` right for the batches so far: it adds its own batch, and corrects the terms of those before
by how their coefficients have changed. What the loop clips is what it applies.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from torch import Tensor, nn

from smoothtune.nn.gradients import Gradients, norms, plus, times
from smoothtune.nn.stored_gradient import with_deferred_gradient

Coefficients = Callable[[Tensor, dict[str, Tensor], Tensor], dict[str, Tensor]]
"""(norm of the task's gradient, those of the terms', sum of scales), all (), -> () by term"""


class UpdateGradients:
    """Sums over the batches of one update, as the loop scales them.

    Args:
        coefficients: by what the terms' gradients are multiplied, from the norms of these sums.

    Attributes:
        keeps: whether more batches may come before the update; if not, nothing is kept.
        measured: norms of the sums so far, task's first, and their scale, for who counts updates.
    """

    def __init__(self, coefficients: Coefficients):
        self.coefficients = coefficients
        self.keeps = True
        self.clear()

    def clear(self) -> None:
        """Before the first batch of an update."""
        self.weights: Sequence[nn.Parameter] = ()
        self.task: Gradients = []
        self.terms: dict[str, Gradients] = {}
        self.measured: tuple[Tensor, dict[str, Tensor], Tensor] | None = None
        self._applied: dict[str, Tensor] = {}  # coefficients that `.grad` has been made with
        self._scale: Tensor | None = None

    def loss(
        self,
        value: Tensor,
        weights: Sequence[nn.Parameter],
        task: Gradients,
        terms: dict[str, Gradients],
        sizes: Tensor,
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
            sizes: (1 + N,) norms of task's and terms', of this process.
            mean: norms are those of the mean over processes.
            skips: an update may be left out without a word, as gradient scalers do.
        """
        if self._begins(skips):
            self.clear()
        parts = [task, *terms.values(), *self.terms.values()]
        reached = [i for i in range(len(weights)) if any(part[i] is not None for part in parts)]

        def make(scale: Tensor) -> list[Tensor | None]:
            gradient = self._add(scale, weights, task, terms, None if mean else sizes)
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
        sizes: Tensor | None,
    ) -> Gradients:
        """What a batch adds to `.grad`."""
        first = self._scale is None
        total = scale if self._scale is None else self._scale + scale
        gradient = times(task, scale)
        # norms of the update so far
        if first and sizes is not None:
            measured, sums = sizes * scale.abs(), {}
        else:
            sums = {name: times(part, scale) for name, part in terms.items()}
            of_task = gradient if first else plus(self.task, gradient)
            for name, part in self.terms.items():
                sums[name] = plus(part, sums[name]) if name in sums else part
            measured = norms([of_task, *sums.values()], weights, mean=sizes is None)
        by_name = dict(zip(sums or terms, measured[1:], strict=True))
        coefficients = self.coefficients(measured[0], by_name, total.abs())
        # this batch, and the correction of those before it
        result = gradient
        for name, part in terms.items():
            result = plus(result, part, coefficients[name] * scale)
        for name, part in self.terms.items():
            result = plus(result, part, coefficients[name] - self._applied[name])
        self.measured = measured[0], by_name, total.abs()
        if self.keeps:
            self._keep(weights, gradient, sums or terms, scale if not sums else None, first)
            self._applied, self._scale = coefficients, total
        return result

    def _keep(
        self,
        weights: Sequence[nn.Parameter],
        task: Gradients,
        terms: Mapping[str, Gradients],
        scale: Tensor | None,
        first: bool,
    ) -> None:
        self.weights = weights
        self.task = task if first else plus(self.task, task)
        self.terms = {n: part if scale is None else times(part, scale) for n, part in terms.items()}
