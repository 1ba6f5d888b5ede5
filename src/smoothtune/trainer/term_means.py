"""What a training logs of its terms."""

from __future__ import annotations

from collections import defaultdict

import torch
from accelerate import Accelerator
from torch import Tensor

from smoothtune.core.objective import Objective


class TermMeans:
    """Means of an objective's terms since the last log, kept on the device until they are read.

    Args:
        objective: whose terms are added.
    """

    def __init__(self, objective: Objective):
        self.objective = objective
        bounded = objective.strengths.bounded
        self._of_updates = {f"{name}/{kind}" for name in bounded for kind in ("share", "bounded")}
        self.sums: dict[str, Tensor] = {}
        self.counts: dict[str, int] = defaultdict(int)
        self.applied: dict[str, Tensor] = {}  # sums of what bounded terms had up to the last log

    def begin(self) -> None:
        """Leave out what bounded terms had before, in a part of the run that is resumed."""
        self.applied = dict(self.objective.strengths.sums)

    def clear(self) -> None:
        """Forget what was not read."""
        self.sums.clear()
        self.counts.clear()

    def add(self, terms: dict[str, Tensor], part: float) -> None:
        """Add the terms of a batch.

        Args:
            terms: () by name.
            part: of its update's batches that are of its kind.
        """
        for name, value in terms.items():
            if name == "loss" or name in self._of_updates:
                continue
            weighed = part * value if part != 1 and name.startswith("loss/") else value
            self.sums[name] = self.sums[name] + weighed if name in self.sums else weighed
            self.counts[name] += 1

    def read(self, accelerator: Accelerator) -> dict[str, float]:
        """The means, over processes too; empty if nothing was added."""
        if not self.sums:
            return {}
        names = sorted(self.sums)
        means = torch.stack([self.sums[name].float() / self.counts[name] for name in names])
        means = accelerator.reduce(means, reduction="mean")
        self.clear()
        return dict(zip(names, means.tolist(), strict=True)) | self._applied()

    def _applied(self) -> dict[str, float]:
        """Share of the task's gradient that bounded terms had in the updates since the last log."""
        means: dict[str, float] = {}
        for name, sums in self.objective.strengths.sums.items():
            updates, share, _, bounded = (sums - self.applied.get(name, 0)).tolist()
            if updates:
                means |= {f"{name}/share": share / updates, f"{name}/bounded": bounded / updates}
            self.applied[name] = sums
        return means
