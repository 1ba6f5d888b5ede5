"""How strong a term is, and the bound that holds its gradient in every update.

A fixed weight is right for one model, one reduction and one data set. With a *share* the weight is

    share * exp(mean log(||grad task|| / ||grad term||))

over the last updates: a mean of logarithms, since the norms of these terms are heavy-tailed and a
mean of squares would be that of one update; of the last `MEMORY` updates or so, since the ratio
moves while a model learns. What is applied never exceeds the *bound*:

    sum of ||weight grad term|| <= max_share * ||grad task||      in every update

Norms are those of whole updates, over all batches and processes. An update without labels is held
to the task's usual norm. A fixed weight without a bound is the papers' own training, and counts as
a part of the task here.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.optim import Optimizer

from smoothtune.core.bound import UpdateGradients
from smoothtune.core.regularizer import Regularizer
from smoothtune.nn.architecture import trained_weights
from smoothtune.nn.fsdp import put_away, shards
from smoothtune.nn.gradients import Gradients, gradients_of, norms, plus
from smoothtune.nn.stored_gradient import with_gradient

MEMORY = 20  # updates that a mean of logarithms remembers
LOOKS = (2, 50)  # updates with a term of fixed weight, in which it is compared with the task
NEXT_TO_NOTHING = 0.01
MOSTLY = 0.9  # of the updates, in which a term was held by the bound
ENOUGH = 8  # updates that a term had
TASK = "task"

logger = logging.getLogger(__name__)


class Applied(NamedTuple):
    """What was applied of a term that has a bound, over the updates that it acted in."""

    updates: int
    share: float
    """Mean of ||weight grad term|| / ||grad task||."""
    largest: float
    """The largest of them."""
    bounded: float
    """Part of the updates in which the bound held it."""


class Held(NamedTuple):
    """A batch with bounded terms."""

    loss: Tensor
    """() whose backward, once, gives the gradient."""
    weighed: dict[str, Tensor]
    """() losses, times what they are multiplied with."""
    weights: dict[str, Tensor]
    """() by what the terms are multiplied, if this batch is alone in its update."""
    shares: dict[str, Tensor]
    """() ||weight grad term|| / ||grad task|| of these terms."""
    bounded: Tensor
    """() whether the bound held them."""


class _MeanLog(NamedTuple):
    """A mean of logarithms, and of how many values; both ().

    An ordinary mean of the first `MEMORY` values, then an exponential one with as much memory.
    """

    mean: Tensor
    values: Tensor

    @classmethod
    def none(cls, like: Tensor) -> _MeanLog:
        return cls(torch.zeros_like(like), torch.zeros_like(like))

    def with_value(self, x: Tensor) -> _MeanLog:
        """With one more, unless it is 0, infinite or none."""
        mean, count = self.mean.to(x), self.values.to(x)
        counts = (x > 0) & x.isfinite()
        log = x.clamp(min=torch.finfo(x.dtype).tiny).log()
        new = mean + (log - mean) / (count + 1).clamp(max=MEMORY)
        return _MeanLog(torch.where(counts, new, mean), count + counts)


class _Solution(NamedTuple):
    """What one update applies."""

    task: Tensor
    terms: dict[str, Tensor]
    weights: dict[str, Tensor]
    held: Tensor

    def coefficients(self) -> dict[str, Tensor]:
        return {name: self.held * weight for name, weight in self.weights.items()}

    def shares(self) -> dict[str, Tensor]:
        applied = {name: c * self.terms[name] for name, c in self.coefficients().items()}
        return {n: torch.where(self.task > 0, a / self.task, 0.0) for n, a in applied.items()}


class Strengths:
    """Weights of all terms, and the gradients of the update at hand.

    Args:
        regularizers: methods by name; those with a loss beside the task's are looked at.

    Attributes:
        step: number of updates seen.
        update: sums of the update at hand.
    """

    def __init__(self, regularizers: dict[str, Regularizer]):
        self.regularizers = regularizers
        terms = {n: r for n, r in regularizers.items() if r.has_loss and not r.replaces_task_loss}
        self.bounded = {n: r for n, r in terms.items() if r.max_share is not None}
        self.fixed = {n: r for n, r in terms.items() if r.max_share is None}
        self.bound = max((r.max_share or 0.0 for r in self.bounded.values()), default=math.inf)
        self.step = 0
        self.update = UpdateGradients(self.coefficients)
        self._told: set[str] = set()
        self._reset()

    def _reset(self) -> None:
        self.update.clear()
        self.seen: dict[str, int] = {}  # updates in which a term of fixed weight was there
        self._counted: set[str] = set()  # those that this update has had
        self.logs: dict[str, _MeanLog] = {}  # of the task's norm, and of task's over a term's
        # (updates, sum of shares, largest, updates in which the bound acted)
        self.sums: dict[str, Tensor] = {}

    # --- weights -----------------------------------------------------------------------------

    def ramp(self, method: Regularizer) -> float:
        """Part of a term's weight or share that holds in this update."""
        return method.ramp(self.step)

    def factor(self, name: str) -> float:
        """By what a loss without a bound is multiplied; 1 for the task's."""
        if name == TASK:
            return 1.0
        method = self.regularizers[name]
        assert method.weight is not None  # a share has a bound
        return self.ramp(method) * method.weight * method.every

    def usual(self, name: str) -> float | Tensor:
        """By what a loss is multiplied where no bound acts; 0 before a share was measured."""
        if name not in self.bounded or self.bounded[name].share is None:
            return self.factor(name)
        method = self.bounded[name]
        if name not in self.logs:
            return 0.0
        share = self.ramp(method) * method.every * (method.share or 0.0)
        return share * self.logs[name].mean.exp()

    def coefficients(
        self, task: Tensor, terms: Mapping[str, Tensor], scale: Tensor
    ) -> dict[str, Tensor]:
        """By what the bounded terms are multiplied in this update, () each.

        Args:
            task: () norm of the task's gradient; 0 of an update without labels.
            terms: () norms by name.
            scale: () the number of batches, as the loop weighs them.
        """
        return self._solve(task, terms, scale).coefficients()

    def _solve(self, task: Tensor, terms: Mapping[str, Tensor], scale: Tensor) -> _Solution:
        if TASK in self.logs:  # an update without labels is held to the task's usual norm
            task = torch.where(task > 0, task, self.logs[TASK].mean.exp().to(task) * scale)
        weights = {name: self._weight(name, task, norm) for name, norm in terms.items()}
        applied = [weights[name] * norm for name, norm in terms.items()]
        total = torch.stack([*applied, torch.zeros_like(task)]).sum()
        # 0 / 0, of terms that have no gradient, holds nothing
        held = torch.where(total > 0, (self.bound * task / total).clamp(max=1.0), 1.0)
        return _Solution(task, dict(terms), weights, held)

    def _weight(self, name: str, task: Tensor, norm: Tensor) -> Tensor:
        method = self.bounded[name]
        factor = self.ramp(method) * method.every
        if method.share is None:
            return norm.new_tensor(factor * (method.weight or 0.0))
        mean = self._ratio_with(name, task, norm).mean
        return torch.where((task > 0) & (norm > 0), factor * method.share * mean.exp(), 0.0)

    def _ratio_with(self, name: str, task: Tensor, norm: Tensor) -> _MeanLog:
        """Of the task's norm over a term's, with this update."""
        return self.logs.get(name, _MeanLog.none(norm)).with_value(task / norm)

    # --- a batch -----------------------------------------------------------------------------

    def holds(self) -> bool:
        """Whether a term with a bound may act on a batch of this update."""
        methods = self.bounded.values()
        return any(self.step % r.every == 0 and self.ramp(r) > 0 for r in methods)

    def looked_at(self, losses: Iterable[str]) -> set[str]:
        """The terms of fixed weight that are compared with the task in this update."""
        for name in losses:
            if name in self.fixed and name not in self._counted:
                self._counted.add(name)
                self.seen[name] = self.seen.get(name, 0) + 1
        return {name for name in losses if self.seen.get(name, 0) - 1 in LOOKS}

    def hold(
        self,
        model: nn.Module,
        losses: Mapping[str, Tensor],
        optimizer: Optimizer | None,
        *,
        mean: bool,
        skips: bool,
    ) -> Held:
        """Differentiate the losses of a batch, the bounded terms' apart from the rest.

        Args:
            model: unwrapped.
            losses: () without factors, by name of the method or "task"; their graphs are used up.
            optimizer: may hold weights of a loss beside the model's.
            mean: norms are those of the mean over processes.
            skips: an update may be left out without a word, as gradient scalers do.
        """
        units = shards(model)
        put_away(units)
        weights = trained_weights(model, optimizer)
        apart = [name for name in losses if name in self.bounded]
        rest = {name: loss for name, loss in losses.items() if name not in self.bounded}
        terms: dict[str, Gradients] = {}
        for left, name in enumerate(apart, 1 - len(apart)):
            shared = not self.bounded[name].has_own_graph and bool(left or rest)
            terms[name] = gradients_of(losses[name], weights, units, keep_graph=shared)
        task = self._gradient_of_rest(rest, weights, units)
        sizes = norms([task, *terms.values()], weights, mean=False)
        alone = self._solve(sizes[0], dict(zip(apart, sizes[1:], strict=True)), sizes.new_ones(()))
        given = alone.coefficients()
        weighed = {name: self.factor(name) * loss.detach() for name, loss in rest.items()}
        weighed |= {name: given[name] * losses[name].detach() for name in apart}
        value = torch.stack([weighed[name] for name in sorted(weighed)]).sum()
        loss = self.update.loss(value, weights, task, terms, sizes, mean=mean, skips=skips)
        return Held(loss, weighed, given, alone.shares(), alone.held < 1)

    def _gradient_of_rest(
        self, losses: Mapping[str, Tensor], weights: Sequence[nn.Parameter], units: list[FSDPModule]
    ) -> Gradients:
        """The gradient of the task's loss and of terms with a fixed weight."""
        if not losses:
            return [None] * len(weights)
        looked = self.looked_at(losses)
        if looked < set(losses):
            return self._compared(losses, weights, units, looked)
        total = torch.stack([self.factor(name) * loss for name, loss in losses.items()]).sum()
        return gradients_of(total, weights, units, keep_graph=False)

    def compare(
        self,
        model: nn.Module,
        total: Tensor,
        losses: Mapping[str, Tensor],
        looked: set[str],
        optimizer: Optimizer | None,
    ) -> Tensor:
        """() the total of a batch without bounded terms, some of which are compared with the task.

        Its backward, once, gives the gradient.

        Args:
            model: unwrapped.
            total: () the sum of all losses times their factors.
            losses: () without factors; their graphs are used up.
            looked: names of the terms that are compared.
            optimizer: may hold weights of a loss beside the model's.
        """
        units = shards(model)
        put_away(units)
        weights = trained_weights(model, optimizer)
        return with_gradient(
            total.detach(), self._compared(losses, weights, units, looked), weights
        )

    def _compared(
        self,
        losses: Mapping[str, Tensor],
        weights: Sequence[nn.Parameter],
        units: list[FSDPModule],
        looked: set[str],
    ) -> Gradients:
        """The gradient of the sum; warns of terms that are next to nothing beside the task."""
        apart = [name for name in losses if name in looked or name not in self.fixed]
        parts = [(name, losses[name], self.factor(name)) for name in apart]
        if others := [self.factor(n) * loss for n, loss in losses.items() if n not in apart]:
            parts.append(("", torch.stack(others).sum(), 1.0))
        gradient: Gradients = [None] * len(weights)
        sizes: dict[str, float] = {}
        for left, (name, loss, factor) in enumerate(parts, 1 - len(parts)):
            found = gradients_of(loss, weights, units, keep_graph=left < 0)
            gradient = plus(gradient, found, factor)
            if looked:
                size = norms([found], weights, mean=False).item()
                sizes[name if name in looked else TASK] = size
        for name in sorted(looked):
            self._warn_of_little(name, sizes[name], sizes.get(TASK, 0.0))
        return gradient

    # --- an update ---------------------------------------------------------------------------

    def finish(self) -> None:
        """Before an update: take up what was applied in it."""
        self._counted.clear()
        found = self.update.found
        self.update.clear()
        if found is None:
            return
        task, terms, scale = found
        applied = self._solve(task, terms, scale)
        none = _MeanLog.none(task)
        self.logs[TASK] = self.logs.get(TASK, none).with_value(task / scale)
        for name, share in applied.shares().items():
            if self.bounded[name].share is not None:
                self.logs[name] = self._ratio_with(name, applied.task, terms[name])
            acted = (share > 0).float()
            now = torch.stack([acted, share, share, acted * (applied.held < 1)]).float()
            before = self.sums.get(name, torch.zeros_like(now))
            largest = torch.maximum(before, now)
            self.sums[name] = torch.where(now.new_tensor([0, 0, 1, 0]) > 0, largest, before + now)
            self._warn_of_nothing(name)

    def applied(self) -> dict[str, Applied]:
        """What was applied of every bounded term in the updates so far."""
        found = {}
        for name, sums in self.sums.items():
            updates, total, largest, bounded = sums.tolist()
            count = max(updates, 1.0)
            found[name] = Applied(round(updates), total / count, largest, bounded / count)
        return found

    def remarks(self) -> list[str]:
        """A sentence on every term that was bounded nearly always, or next to nothing."""
        found = []
        for name, of in self.applied().items():
            if of.updates and of.share < NEXT_TO_NOTHING:
                found.append(
                    f"{name} was {100 * of.share:.2g} % of the task's gradient: it changed almost "
                    "nothing. Give it a larger share or weight."
                )
            elif of.updates and of.bounded > MOSTLY:
                found.append(
                    f"{name} was held by its bound in {100 * of.bounded:.0f} % of the updates: it "
                    f"was {of.share:.2g} times the task's gradient. A smaller share, or a larger "
                    "max_share, gives it room."
                )
        return found

    def _warn_of_nothing(self, name: str) -> None:
        self.seen[name] = self.seen.get(name, 0) + 1
        if self.seen[name] == ENOUGH and not self.sums[name][0]:
            logger.warning(_NO_GRADIENT, name, ENOUGH)

    def _warn_of_little(self, name: str, term: float, task: float) -> None:
        if name in self._told:
            return
        weight = (self.regularizers[name].weight or 0.0) * self.regularizers[name].every
        if not term:
            self._told.add(name)
            logger.warning(_NO_GRADIENT, name, self.seen[name])
        elif task and weight * term < NEXT_TO_NOTHING * task:
            self._told.add(name)
            logger.warning(
                "%s is %.2g %% of the task gradient: it changes almost nothing. share=0.3 makes "
                "it 30 %%",
                name,
                100 * weight * term / task,
            )

    # --- state -------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Tensor]:
        """Means, counts and sums, by name."""
        state = {f"logs.{name}": torch.stack(log).double() for name, log in self.logs.items()}
        state |= {f"sums.{name}": sums for name, sums in self.sums.items()}
        return state | {f"seen.{name}": torch.tensor(count) for name, count in self.seen.items()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore what `state_dict` returned; what came after it is forgotten."""
        self._reset()
        for key, value in state.items():
            kind, name = key.split(".", 1)
            if kind == "logs":
                self.logs[name] = _MeanLog(*value.clone())
            elif kind == "sums":
                self.sums[name] = value.clone()
            else:
                self.seen[name] = int(value)


_NO_GRADIENT = (
    "%s had no gradient in a trained weight in %d updates: it changes nothing. Train the part of "
    "the model that it is about, or leave it out"
)
