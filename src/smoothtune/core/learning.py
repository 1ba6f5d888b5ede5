"""When a model has begun to learn its task, so that terms which wait for that may come in.

At the start the gradient of the task is mostly noise, which averages out over updates, while that
of a term pulls the same way in every batch: a small share of the norm can keep a model from
learning.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

WINDOW = 10
FALLEN = 0.9


class Learning:
    """Whether the task loss has fallen: its mean over 10 updates is 0.9 of that over the first 10.

    Attributes:
        since: number of updates before that was seen; None: not yet.
    """

    def __init__(self) -> None:
        self.since: int | None = None
        self.first: list[float] = []
        self.recent: list[float] = []
        self._batches: list[Tensor] = []

    def add(self, loss: Tensor) -> None:
        """Take up the task loss () of a batch, times the share of its rows."""
        if self.since is None:
            self._batches.append(loss.detach().float())

    def finish(self, step: int, device: torch.device) -> None:
        """Before update `step`, from 0; its loss is the mean over its batches and processes."""
        if self.since is not None:
            return
        total = torch.stack(self._batches).sum() if self._batches else torch.zeros(())
        sums = torch.tensor([float(total), len(self._batches)], device=device)
        self._batches.clear()
        if dist.is_available() and dist.is_initialized():
            dist.all_reduce(sums)
        loss, count = sums.tolist()
        if not count:  # no labels
            return
        self.recent = [*self.recent, loss / count][-WINDOW:]
        if len(self.first) < WINDOW:
            self.first.append(loss / count)
        elif sum(self.recent) <= FALLEN * sum(self.first):
            self.since = step + 1

    def state_dict(self) -> dict[str, Tensor]:
        """Losses and the update, if it is known."""
        losses = {"first": self.first, "recent": self.recent}
        state = {key: torch.tensor(x, dtype=torch.float64) for key, x in losses.items()}
        return state if self.since is None else state | {"since": torch.tensor(self.since)}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore what `state_dict` returned; a state from before there was one has learned."""
        self.since = int(state["since"]) if "since" in state else 0 if not state else None
        self.first = state["first"].tolist() if "first" in state else []
        self.recent = state["recent"].tolist() if "recent" in state else []
