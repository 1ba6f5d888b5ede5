"""How strong a term is: the norm of its gradient beside that of the task's.

A fixed weight is right for one model, one reduction and one data set. A *share* is right for all:
the weight is then share * ||grad task|| / ||grad term||, with norms that are averaged over updates.

Norms need a backward pass for each loss in place of one for their sum, so few updates are measured:
the 1st, 2nd, 4th and 8th in which a loss is there, every 16th and after 128 every 32nd; of a task
and terms with fixed weights the two in `LOOKS`, to tell a term that changes nothing. Terms on
predictions may grow fifty-fold in the first hundred updates, as the head does: looking less often
lets them. The gradients are those of whole updates, over all batches and processes. A weight holds
for a whole update and follows from those before it, so a term begins in its second update, or in
its third where examples are clipped at their running mean. Some wait until the model has begun to
learn.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from smoothtune.core.architecture import trained_weights
from smoothtune.core.constant_answer import label_sums
from smoothtune.core.learning import Learning
from smoothtune.core.regularizer import Regularizer, entries_under
from smoothtune.core.sharded_gradients import put_away, sharded_gradients, sharded_norm, shards
from smoothtune.core.stored_gradient import with_gradient

PERIOD = 16
LATE, LATE_PERIOD = 128, 32
LOOKS = (2, 50)
DECAY = 0.9
NEXT_TO_NOTHING = 0.01
ENOUGH = 8  # updates that a term had

TASK = "task"
LEARNING = "learning"

Gradients = list[Tensor | None]

logger = logging.getLogger(__name__)


class Strengths:
    """Gradient norms of the task and of every term, as moving averages of their squares.

    Args:
        regularizers: methods by name; those with a loss beside the task's are looked at.

    Attributes:
        step: number of updates seen.
    """

    def __init__(self, regularizers: dict[str, Regularizer]):
        self.regularizers = regularizers
        self.shares = {
            name: r.share
            for name, r in regularizers.items()
            if r.has_loss and not r.replaces_task_loss
        }
        self.step = 0
        self._weights: Sequence[nn.Parameter] = ()  # at which gradients are summed
        self._told: set[str] = set()
        waiting = any(r.waits for r in regularizers.values())
        self._learning = Learning() if waiting else None
        self._reset()

    def _reset(self) -> None:
        self.squares: dict[str, float] = {}
        self.seen: dict[str, int] = {}  # updates in which it was there
        self.measured: dict[str, int] = {}
        self._batches = 0  # of this update
        self._due: dict[str, bool] = {}  # what this update has, and whether it is measured
        self._sums: dict[str, Gradients] = {}  # over its batches

    def factor(self, name: str) -> float:
        """By which a loss is multiplied; 1 for the task's."""
        return self.weight(name) * self.regularizers[name].every if name != TASK else 1.0

    def weight(self, name: str) -> float:
        """The weight of a term: fixed, or what its share asks for, 0 before that is known."""
        share, method = self.shares.get(name), self.regularizers[name]
        if share is None:
            assert method.weight is not None  # a method has the one or the other
            return self.ramp(method) * method.weight
        ratio = self.ratio(name)
        return self.ramp(method) * share / ratio if ratio else 0.0

    def ramp(self, method: Regularizer) -> float:
        """Part of a term's weight or share that holds in this update."""
        return method.ramp(self.step, self._learning.since if self._learning else None)

    def see(self, losses: Mapping[str, Tensor], row_share: float | Tensor) -> None:
        """Take up the losses () of a batch, if any, times its share of rows, without factors."""
        self._batches += 1
        for name, loss in losses.items():
            if self._learning and self._quantity(name) == TASK:
                self._learning.add(loss, row_share)

    def see_labels(self, model: nn.Module, batch: Mapping[str, Any]) -> None:
        """Take up the labels of a batch, if any, for a task loss that the unwrapped model declares.

        Needed while a term waits; what replaces the task loss is compared with itself.
        """
        waits = self._learning is not None and self._learning.since is None
        if not waits or any(r.replaces_task_loss for r in self.regularizers.values()):
            return
        sums = label_sums(model, batch)
        if sums is not None:
            assert self._learning is not None
            self._learning.add_labels(sums)

    def ratio(self, name: str) -> float | None:
        """||grad term|| / ||grad task||; None before both were measured."""
        term, task = self.squares.get(name), self.squares.get(TASK)
        return None if term is None or not task else math.sqrt(term / task)

    def due(self, names: Iterable[str]) -> set[str]:
        """Which losses of a batch are measured in this update, as in its other batches."""
        for name in names:
            if self._quantity(name) not in self._due:
                self._due[self._quantity(name)] = self._count(self._quantity(name))
        return {name for name in names if self._due[self._quantity(name)]}

    def is_measured(self, name: str) -> bool:
        """Whether a term, if it is there, is measured in this update."""
        quantity = self._quantity(name)
        found = self._due.get(quantity)
        return self._is_due(quantity, self.seen.get(quantity, 0) + 1) if found is None else found

    def _quantity(self, name: str) -> str:
        return name if name in self.shares else TASK  # its own, or what replaces it

    def _count(self, name: str) -> bool:
        self.seen[name] = self.seen.get(name, 0) + 1
        return self._is_due(name, self.seen[name])

    def _is_due(self, name: str, count: int) -> bool:
        """Whether the update in which a loss is there for the count-th time is measured."""
        shares = self.shares.values() if name == TASK else [self.shares[name]]
        if any(share is not None for share in shares):
            if count < PERIOD:
                return count & (count - 1) == 0
            return count % (PERIOD if count <= LATE else LATE_PERIOD) == 0
        return bool(self.shares) and count - 1 in LOOKS

    def measure(
        self,
        model: nn.Module,
        total: Tensor,
        losses: Mapping[str, Tensor],
        due: set[str],
        optimizer: Optimizer | None = None,
    ) -> Tensor:
        """Differentiate the losses of a batch one by one.

        Args:
            model: unwrapped.
            total: () the sum of all losses times their factors.
            losses: () without factors, by name of the method or "task"; their graphs are used up.
            due: those to be measured.
            optimizer: may hold weights of a loss beside the model's.

        Returns:
            () the total; its backward, once, gives the gradient that has been computed.
        """
        units = shards(model)
        put_away(units)
        weights = self._weights = trained_weights(model, optimizer)
        each = [name for name in losses if name in due]
        rest = [self.factor(name) * loss for name, loss in losses.items() if name not in due]
        parts = [(self._quantity(name), losses[name], self.factor(name)) for name in each]
        if rest:
            parts.append(("", torch.stack(rest).sum(), 1.0))
        parts = [part for part in parts if part[1].requires_grad]
        gradient: Gradients = [None] * len(weights)
        for left, (name, loss, factor) in enumerate(parts, 1 - len(parts)):
            found = _gradients(loss, weights, units, keep_graph=left < 0)
            gradient = _sum(gradient, found, factor)
            if name:
                self._sums[name] = _sum(self._sums.get(name, [None] * len(weights)), found)
        return with_gradient(total.detach(), gradient, weights)

    def finish(self, model: nn.Module) -> None:
        """Before an update of the unwrapped model: take up what was measured in it."""
        for name in sorted(self._sums):
            # of the mean over its batches: the last update of an epoch may have fewer
            square = squared_norm(self._sums.pop(name), self._weights) / self._batches**2
            if square and math.isfinite(square):  # L2-SP's first gradient is 0
                count = self.measured[name] = self.measured.get(name, 0) + 1
                before = self.squares.get(name, 0.0)
                self.squares[name] = before + max(1 - DECAY, 1 / count) * (square - before)
        self._due.clear()
        self._batches = 0
        if self._learning:
            self._learning.finish(self.step, model)
            if self._learning.since is None:
                self._warn_of_latest()
        for name in self.shares:
            self._warn(name)

    def _warn_of_latest(self) -> None:
        """Say that terms come in, in the next update, for a model that has learned nothing yet."""
        latest = [
            name
            for name, method in self.regularizers.items()
            if method.waits and not method.ramp(self.step) and method.ramp(self.step + 1)
        ]
        if latest:
            logger.warning(
                "%s waits no longer than %d updates, and the model has hardly begun to learn: its "
                "term may keep it from that. Train for more updates, or at another learning rate",
                " and ".join(latest),
                self.step + 1,
            )

    def _warn(self, name: str) -> None:
        """Say once that a term changes nothing, or with its fixed weight next to nothing."""
        if name in self._told:
            return
        if name not in self.squares and self.seen.get(name, 0) >= ENOUGH:
            self._told.add(name)
            logger.warning(
                "%s had no gradient in a trained weight in %d updates: it changes nothing. Train "
                "the part of the model that it is about, or leave it out",
                name,
                ENOUGH,
            )
        ratio = self.ratio(name)
        if ratio is None or self.shares[name] is not None:
            return
        found = (self.regularizers[name].weight or 0.0) * ratio  # once it has risen
        if found < NEXT_TO_NOTHING:
            self._told.add(name)
            logger.warning(
                "%s is %.2g %% of the task gradient: it changes almost nothing. share=0.3 makes "
                "it 30 %%",
                name,
                100 * found,
            )

    def state_dict(self) -> dict[str, Tensor]:
        """Averages and counts, by name."""
        numbers: dict[str, Mapping[str, float]] = {
            "squares": self.squares,
            "seen": self.seen,
            "measured": self.measured,
        }
        learning = self._learning.state_dict() if self._learning else {}
        return {f"{LEARNING}.{name}": value for name, value in learning.items()} | {
            f"{kind}.{name}": torch.tensor(float(value), dtype=torch.float64)
            for kind, values in numbers.items()
            for name, value in values.items()
        }

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore what `state_dict` returned; what came after it is forgotten."""
        self._reset()
        if self._learning:
            self._learning.load_state_dict(entries_under(f"{LEARNING}.", state))
        for key, value in state.items():
            kind, name = key.split(".", 1)
            if kind == LEARNING:
                continue
            if kind == "squares":
                self.squares[name] = value.item()
            else:
                getattr(self, kind)[name] = int(value)


def _gradients(
    loss: Tensor, weights: Sequence[nn.Parameter], units: list[FSDPModule], *, keep_graph: bool
) -> Iterable[Tensor | None]:
    if units:
        return sharded_gradients(loss, weights, units, keep_graph=keep_graph)
    return torch.autograd.grad(loss, weights, retain_graph=keep_graph, allow_unused=True)


def _sum(total: Gradients, found: Iterable[Tensor | None], factor: float = 1.0) -> Gradients:
    """A sum of gradients and a factor times others, None where neither is."""
    pairs = zip(total, found, strict=True)
    return [
        old if new is None else factor * new if old is None else old + factor * new
        for old, new in pairs
    ]


def squared_norm(gradients: Gradients, weights: Sequence[nn.Parameter]) -> float:
    """Squared l2 norm of the gradients of weights, averaged over processes."""
    known = [gradient for gradient in gradients if gradient is not None]
    if any(isinstance(gradient, DTensor) for gradient in known):
        return sharded_norm(known) ** 2
    if dist.is_available() and dist.is_initialized():
        pairs = zip(gradients, weights, strict=True)
        flat = torch.cat([(torch.zeros_like(w) if g is None else g).flatten() for g, w in pairs])
        dist.all_reduce(flat)
        return (flat / dist.get_world_size()).float().square().sum().item()
    if not known:
        return 0.0
    norms = torch._foreach_norm([gradient.float() for gradient in known])
    return torch.stack(norms).square().sum().item()
