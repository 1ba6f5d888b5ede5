"""How strong a term is: the norm of its gradient beside that of the task's.

A fixed weight is right for one model, one reduction and one data set. A *share* is right for all:
the weight is then share * ||grad task|| / ||grad term||, with norms that are averaged over updates.

Norms cost a backward pass of their own, so few updates are measured: of a term with a share the
first `FIRST` and then every `PERIOD`-th, of others the two in `LOOKS`, to tell a term that changes
nothing. With accumulation the first batch of an update stands for all.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping

import torch
import torch.distributed as dist
from torch import Tensor, nn

from smoothtune.core.regularizer import Regularizer

FIRST, PERIOD = 8, 64
LOOKS = (2, 50)
DECAY = 0.9
NEXT_TO_NOTHING = 0.01

TASK = "task"

logger = logging.getLogger(__name__)


class Strengths:
    """Gradient norms of the task and of every term, as moving averages of their squares.

    Args:
        regularizers: methods by name; those with a loss beside the task's are looked at.
    """

    def __init__(self, regularizers: dict[str, Regularizer]):
        self.regularizers = regularizers
        self.shares = {
            name: r.share
            for name, r in regularizers.items()
            if r.has_loss and not r.replaces_task_loss
        }
        self.measurable = not any(r.stores_gradient for r in regularizers.values())
        self.squares: dict[str, float] = {}
        self.seen: dict[str, int] = {}  # updates in which it was there
        self.measured: dict[str, int] = {}
        self._update: dict[str, int] = {}  # in which it was seen last
        self._told: set[str] = set()

    def weighed(
        self, model: nn.Module, losses: dict[str, Tensor], step: int, *, measure: bool
    ) -> dict[str, Tensor]:
        """Terms times their weights, after looking at their gradients where that is due.

        Args:
            model: unwrapped.
            losses: () terms without weights by method, and the task loss.
            step: number of updates seen.
            measure: whether gradients can be taken before the backward pass.
        """
        if measure and self.measurable:
            self._look(model, losses, step)
        return {
            name: loss if name == TASK else self.weight(name) * self.regularizers[name].every * loss
            for name, loss in losses.items()
        }

    def _look(self, model: nn.Module, losses: dict[str, Tensor], step: int) -> None:
        terms = {name: loss for name, loss in losses.items() if name in self.shares}
        for name, loss in losses.items():
            if name not in self.shares:  # the task's own, or what replaces it
                terms[TASK] = loss
        weights = [weight for weight in model.parameters() if weight.requires_grad]
        for name, loss in terms.items():
            if loss.requires_grad and self.due(name, step):
                self.measure(name, loss, weights)
        for name in terms:
            self.warn(name)

    def due(self, name: str, step: int) -> bool:
        """Whether to measure a term, or the task, in this update; at most once in an update."""
        if self._update.get(name) == step:
            return False
        self._update[name] = step
        count = self.seen.get(name, 0)
        self.seen[name] = count + 1
        if self._follows(name):
            return count < FIRST or count % PERIOD == 0
        return bool(self.shares) and count in LOOKS

    def _follows(self, name: str) -> bool:
        if name == TASK:
            return any(share is not None for share in self.shares.values())
        return self.shares.get(name) is not None

    def measure(self, name: str, value: Tensor, weights: Iterable[nn.Parameter]) -> None:
        """Add the gradient of a value to the average of its name.

        Args:
            name: of a term, without its weight, or "task".
            value: () with graph, which stays.
            weights: all that is trained.
        """
        square = squared_norm(value, list(weights))
        count = self.measured[name] = self.measured.get(name, 0) + 1
        rate = max(1 - DECAY, 1 / count)
        before = self.squares.get(name, 0.0)
        self.squares[name] = before + rate * (square - before)

    def ratio(self, name: str) -> float | None:
        """||grad term|| / ||grad task||; None before both were measured."""
        term, task = self.squares.get(name), self.squares.get(TASK)
        return None if term is None or not task else math.sqrt(term / task)

    def weight(self, name: str) -> float:
        """The weight of a term: fixed, or what its share asks for, 0 before that is known."""
        share = self.shares.get(name)
        if share is None:
            return self.regularizers[name].weight
        ratio = self.ratio(name)
        return share / ratio if ratio else 0.0

    def warn(self, name: str) -> None:
        """Say once that a term with a fixed weight changes next to nothing."""
        ratio = self.ratio(name)
        if name == TASK or ratio is None or name in self._told or self.shares[name] is not None:
            return
        found = self.weight(name) * ratio
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
        return {
            f"{kind}.{name}": torch.tensor(float(value), dtype=torch.float64)
            for kind, values in numbers.items()
            for name, value in values.items()
        }

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore what `state_dict` returned."""
        for key, value in state.items():
            kind, name = key.split(".", 1)
            if kind == "squares":
                self.squares[name] = value.item()
            else:
                getattr(self, kind)[name] = int(value)


def squared_norm(value: Tensor, weights: list[nn.Parameter]) -> float:
    """Squared l2 norm of the gradient of a value, averaged over processes; its graph stays."""
    found = torch.autograd.grad(value, weights, retain_graph=True, allow_unused=True)
    if dist.is_available() and dist.is_initialized():
        pairs = zip(found, weights, strict=True)
        flat = torch.cat([(torch.zeros_like(w) if g is None else g).flatten() for g, w in pairs])
        dist.all_reduce(flat)
        return (flat / dist.get_world_size()).float().square().sum().item()
    norms = torch._foreach_norm([gradient.float() for gradient in found if gradient is not None])
    return torch.stack(norms).square().sum().item() if norms else 0.0
