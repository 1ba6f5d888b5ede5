"""How strong a term is, and the bound that holds its gradient in every update.

A fixed weight is right for one model, one reduction and one data set. With a *share* the weight is

    share * exp(mean log(||grad task|| / ||grad term||))

over the last updates: a mean of logarithms, since the norms of these terms are heavy-tailed and a
mean of squares would be that of one update; of the last `MEMORY` updates or so, since the ratio
moves while a model learns. What is applied never exceeds the *bound*:

    sum of ||weight grad term|| <= max_share * ||grad task||      in every update

Of several terms the sum is held by the largest `max_share`, and each of them by its own. Norms are
those of whole updates, over all batches and processes. An update without labels is held to the
task's usual norm, and nothing is applied before that is known. A fixed weight without a bound is
the papers' own training, and counts as a part of the task here.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from smoothtune.core.regularizer import Penalty, Regularizer

MEMORY = 20  # updates that a mean of logarithms remembers
LOOKS = (2, 50)  # updates with a term of fixed weight, in which it is compared with the task
NEXT_TO_NOTHING = 0.01
MOSTLY = 0.9  # of the updates, in which a term was held by the bound
ENOUGH = 8  # updates that a term had
TASK = "task"

logger = logging.getLogger(__name__)


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

    def exp(self) -> Tensor:
        """() the geometric mean; 0 of no value."""
        return torch.where(self.values > 0, self.mean.exp(), 0.0)


class Solution(NamedTuple):
    """What one update applies; tensors are ()."""

    coefficients: dict[str, Tensor]
    """By what the bounded terms are multiplied."""
    shares: dict[str, Tensor]
    """Norms of what is applied of them, over the task's."""
    held: dict[str, Tensor]
    """Whether a bound holds them."""
    task: Tensor
    """Norm of the task's gradient."""
    scale: Tensor
    """Number of batches, as the loop weighs them."""
    logs: dict[str, MeanLog]
    """Of the task's norm over that of a term with a share, this update included."""
    losses: dict[str, Tensor] = {}
    """(2,) of the terms: as applied, and as in the values of the batches; means over these."""


class Applied(NamedTuple):
    """What was applied of a term that has a bound, over the updates that it acted in."""

    updates: int
    share: float
    """Mean of ||weight grad term|| / ||grad task||."""
    largest: float
    """The largest of them."""
    bounded: float
    """Part of the updates in which the bound held it."""


class Strengths:
    """Weights of all terms.

    Args:
        regularizers: methods by name; the penalties are looked at.

    Attributes:
        step: number of updates seen.
    """

    def __init__(self, regularizers: dict[str, Regularizer]):
        terms = {n: r for n, r in regularizers.items() if isinstance(r, Penalty)}
        self.penalties = terms
        self.bounded = {n: r for n, r in terms.items() if r.max_share is not None}
        self.fixed = {n: r for n, r in terms.items() if r.max_share is None}
        self.bound = max((r.max_share or 0.0 for r in self.bounded.values()), default=math.inf)
        self.step = 0
        self._warned: set[str] = set()
        self._reset()

    def _reset(self) -> None:
        self.seen: dict[str, int] = {}  # updates in which a term of fixed weight was there
        self._counted: set[str] = set()  # those that this update has had
        self.logs: dict[str, MeanLog] = {}  # of the task's norm, and of task's over a term's
        # (updates, sum of shares, largest, updates in which the bound acted, sums of weights, of
        # losses as applied, and of losses in the values of batches)
        self.sums: dict[str, Tensor] = {}

    # --- weights -----------------------------------------------------------------------------

    def factor(self, name: str) -> float:
        """By what a loss without a bound is multiplied; 1 for the task's, or one in its place."""
        if name not in self.penalties:
            return 1.0
        method = self.penalties[name]
        assert method.weight is not None  # a share has a bound
        return method.ramp(self.step) * method.weight * method.every

    def usual(self, name: str) -> float | Tensor:
        """By what a loss is multiplied where no bound acts; 0 before a share was measured."""
        if name not in self.bounded or self.bounded[name].share is None:
            return self.factor(name)
        method = self.bounded[name]
        if name not in self.logs:
            return 0.0
        share = method.ramp(self.step) * method.every * (method.share or 0.0)
        return share * self.logs[name].exp()

    def solve(self, task: Tensor, terms: Mapping[str, Tensor], scale: Tensor) -> Solution:
        """What an update applies.

        Args:
            task: () norm of the task's gradient; 0 of an update without labels.
            terms: () norms of those of the bounded terms, by name.
            scale: () the number of batches, as the loop weighs them.
        """
        against = task  # an update without labels is held to the task's usual norm
        if TASK in self.logs:
            against = torch.where(task > 0, task, self.logs[TASK].exp().to(task) * scale)
        weights: dict[str, Tensor] = {}
        logs: dict[str, MeanLog] = {}
        for name, norm in terms.items():
            method = self.bounded[name]
            factor = method.ramp(self.step) * method.every
            if method.share is None:
                weights[name] = torch.full_like(norm, factor * (method.weight or 0.0))
                continue
            logs[name] = self._log(name, task).with_value(against / norm)
            weight = factor * method.share * logs[name].exp()
            weights[name] = torch.where((against > 0) & (norm > 0), weight, 0.0)
        # each by its own bound, where that of the sum is larger
        held = {}
        for name, norm in terms.items():
            bound = self.bounded[name].max_share or self.bound
            if bound < self.bound:
                part = _part_within(bound * against, weights[name] * norm)
                weights[name], held[name] = part * weights[name], part < 1
        # their sum
        total = torch.zeros_like(task)
        for name, norm in terms.items():
            total = total + weights[name] * norm
        part = _part_within(self.bound * against, total)
        held = {name: (part < 1) | held[name] if name in held else part < 1 for name in terms}
        coefficients = {name: part * weight for name, weight in weights.items()}
        shares = {
            name: torch.where(against > 0, coefficient * terms[name] / against, 0.0)
            for name, coefficient in coefficients.items()
        }
        return Solution(coefficients, shares, held, task, scale, logs)

    def _log(self, name: str, like: Tensor) -> MeanLog:
        return self.logs.get(name) or MeanLog(torch.zeros_like(like), torch.zeros_like(like))

    # --- a batch -----------------------------------------------------------------------------

    def holds(self) -> bool:
        """Whether a term with a bound may act on a batch of this update."""
        methods = self.bounded.values()
        return any(r.has_turn(self.step) and r.ramp(self.step) > 0 for r in methods)

    def to_compare(self, losses: Iterable[str]) -> set[str]:
        """The terms of fixed weight that are compared with the task in this update."""
        for name in losses:
            if name in self.fixed and name not in self._counted:
                self._counted.add(name)
                self.seen[name] = self.seen.get(name, 0) + 1
        return {name for name in losses if self.seen.get(name, 0) - 1 in LOOKS}

    # --- an update ---------------------------------------------------------------------------

    def finish(self, solution: Solution | None) -> None:
        """Before an update: record what was applied in it; None: no bound acted."""
        self._counted.clear()
        if solution is None:
            return
        of_task = self._log(TASK, solution.task)
        self.logs |= solution.logs
        self.logs[TASK] = of_task.with_value(solution.task / solution.scale)
        for name, share in solution.shares.items():
            acted = (share > 0).float()
            weight, losses = solution.coefficients[name], solution.losses[name]
            held = acted * solution.held[name]
            now = torch.stack([acted, share, share, held, weight, *losses]).float()
            if (before := self.sums.get(name)) is not None:
                before = before.to(now)  # those of a state are on the host
                largest = torch.maximum(before[2], now[2])
                now = before + now
                now[2] = largest
            self.sums[name] = now
            self._warn_of_nothing(name)

    def applied(self) -> dict[str, Applied]:
        """What was applied of every bounded term in the updates so far."""
        applied = {}
        for name, sums in self.sums.items():
            updates, total, largest, bounded = sums[:4].tolist()
            count = max(updates, 1.0)
            applied[name] = Applied(round(updates), total / count, largest, bounded / count)
        return applied

    def remarks(self) -> list[str]:
        """A sentence on every term that was bounded nearly always, or next to nothing."""
        sentences = []
        for name, of in self.applied().items():
            if of.updates and of.share < NEXT_TO_NOTHING:
                sentences.append(
                    f"{name} was {100 * of.share:.2g} % of the task's gradient: it changed almost "
                    "nothing. Give it a larger share or weight."
                )
            elif of.updates and of.bounded > MOSTLY:
                sentences.append(
                    f"{name} was held by its bound in {100 * of.bounded:.0f} % of the updates: it "
                    f"was {of.share:.2g} times the task's gradient. A smaller share, or a larger "
                    "max_share, gives it room."
                )
        return sentences

    def _warn_of_nothing(self, name: str) -> None:
        self.seen[name] = self.seen.get(name, 0) + 1
        if self.seen[name] == ENOUGH and not self.sums[name][0]:
            has_task = self.logs[TASK].values > 0
            logger.warning(_NO_GRADIENT if has_task else _NO_TASK, name, ENOUGH)

    def warn_of_little(self, name: str, term: float, task: float) -> None:
        """Say once that a term of fixed weight is next to nothing, by norms of both gradients."""
        if name in self._warned:
            return
        weight = (self.penalties[name].weight or 0.0) * self.penalties[name].every
        if not term:
            self._warned.add(name)
            logger.warning(_NO_GRADIENT, name, self.seen[name])
        elif task and weight * term < NEXT_TO_NOTHING * task:
            self._warned.add(name)
            logger.warning(
                "%s is %.2g %% of the task gradient: it changes almost nothing. share=0.3 makes "
                "it 30 %%",
                name,
                100 * weight * term / task,
            )

    # --- state -------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Tensor]:
        """Means, counts and sums, by name."""
        state = {f"logs.{name}": torch.stack(log) for name, log in self.logs.items()}
        state |= {f"sums.{name}": sums for name, sums in self.sums.items()}
        return state | {f"seen.{name}": torch.tensor(count) for name, count in self.seen.items()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore what `state_dict` returned; what came after it is forgotten."""
        self._reset()
        for key, value in state.items():
            kind, name = key.split(".", 1)
            if kind == "logs":
                self.logs[name] = MeanLog(*value.clone())
            elif kind == "sums":
                self.sums[name] = value.clone()
            else:
                self.seen[name] = int(value)


def _part_within(bound: Tensor, norm: Tensor) -> Tensor:
    """() the largest factor, at most 1, that keeps a norm within a bound; 1 of a norm of 0."""
    return torch.where(norm > 0, (bound / norm).clamp(max=1.0), 1.0)


_NO_GRADIENT = (
    "%s had no gradient in a trained weight in %d updates: it changes nothing. Train the part of "
    "the model that it is about, or leave it out"
)
_NO_TASK = (
    "%s has changed nothing in %d updates: its gradient is held to the task's, and no batch had "
    "labels yet. Give them labels, or the term a weight without max_share"
)
