"""When a model has begun to learn its task, so that terms which wait for that may come in.

At the start the gradient of the task is mostly noise, which averages out over updates, while that
of a term pulls the same way in every batch: a small share of the norm can keep a model from
learning. A loss that has only fallen to that of a constant answer has not: the model knows how
often every label occurs, and nothing of its input.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn

from smoothtune.core.constant_answer import constant_loss

WINDOW = 10
BELOW = 0.9


class Learning:
    """Whether the mean task loss over 10 updates is 0.9 of what a constant answer would lose.

    Where that is not known, as for losses of one's own: 0.9 of the mean over the first 10.

    Attributes:
        since: number of updates before that was seen; None: not yet.
        labels: `constant_answer.label_sums` of all updates.
    """

    def __init__(self) -> None:
        self.since: int | None = None
        self.first: list[float] = []
        self.recent: list[float] = []
        self.labels = torch.zeros(0, dtype=torch.float64)
        self._losses: list[Tensor] = []
        self._shares: list[Tensor] = []
        self._labels: list[Tensor] = []

    def add(self, loss: Tensor, row_share: float | Tensor = 1.0) -> None:
        """Take up the task loss () of a batch, times the share of its rows, and that share."""
        if self.since is None:
            self._losses.append(loss.detach().float())
            self._shares.append(torch.as_tensor(row_share, dtype=torch.float, device=loss.device))

    def add_labels(self, sums: Tensor) -> None:
        """Take up `label_sums` of a batch, as long in every batch of every process."""
        if self.since is None:
            self._labels.append(sums)

    def finish(self, step: int, model: nn.Module) -> None:
        """Before update `step`, from 0; its loss is the mean over its labeled rows.

        Shares sum to the number of batches where all have labels, to less or more where not.
        """
        if self.since is not None:
            return
        device = next(model.parameters()).device
        found = [self._losses, self._shares]
        totals = [float(torch.stack(each).sum()) if each else 0.0 for each in found]
        count = torch.tensor(totals, device=device)
        moved = [sums.to(device) for sums in self._labels]
        labels = [torch.stack(moved).sum(0)] if moved else []
        sums = torch.cat([count, *labels])
        self._forget()
        if dist.is_available() and dist.is_initialized():
            dist.all_reduce(sums)
        loss, share = sums[:2].tolist()
        if not share:  # no labels
            return
        seen = sums[2:].double().cpu()
        self.labels = seen + self.labels if len(self.labels) == len(seen) else seen
        self.recent = [*self.recent, loss / share][-WINDOW:]
        if len(self.first) < WINDOW:
            self.first.append(loss / share)
        elif sum(self.recent) <= BELOW * WINDOW * self._reference(model):
            self.since = step + 1

    def _forget(self) -> None:
        """What was taken up of an update."""
        for added in (self._losses, self._shares, self._labels):
            added.clear()

    def _reference(self, model: nn.Module) -> float:
        known = constant_loss(model, self.labels) if len(self.labels) else None
        return sum(self.first) / WINDOW if known is None else known

    def state_dict(self) -> dict[str, Tensor]:
        """Losses, labels and the update, if it is known."""
        losses = {"first": self.first, "recent": self.recent}
        state = {key: torch.tensor(x, dtype=torch.float64) for key, x in losses.items()}
        if self.since is not None:
            return state | {"since": torch.tensor(self.since)}
        return state | {"labels": self.labels}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore what `state_dict` returned; a state from before there was one has learned."""
        self.since = int(state["since"]) if "since" in state else 0 if not state else None
        self.first = state["first"].tolist() if "first" in state else []
        self.recent = state["recent"].tolist() if "recent" in state else []
        self.labels = state.get("labels", torch.zeros(0, dtype=torch.float64))
        self._forget()
