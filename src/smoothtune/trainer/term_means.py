"""What a training's log says of the losses: means over updates, as they were applied."""

from collections import defaultdict

import torch
from accelerate import Accelerator
from torch import Tensor

from smoothtune.core.objective import Objective


class TermMeans:
    """Means of an objective's terms since the last log of a training; on the device till then."""

    def __init__(self, objective: Objective):
        self.objective = objective
        bounded = objective.strengths.bounded
        self._of_updates = {f"{name}/{kind}" for name in bounded for kind in ("share", "bounded")}
        self.sums: dict[str, Tensor] = {}
        self.counts: dict[str, float] = defaultdict(float)  # of updates
        self._counted: set[str] = set()  # the losses of the update at hand
        self._part = 0.0  # of its batches that have been added
        # sums of what bounded terms had before this training, and up to the last log
        self.begun = self.applied = dict(objective.strengths.sums)
        self.first_step = self.step = objective.step

    def add(self, terms: dict[str, Tensor], of_update: float, of_kind: float) -> None:
        """Add the terms () of a batch; an update counts once, however many batches it has.

        Args:
            terms: by name.
            of_update: part of its update's batches that it is, by which losses add up.
            of_kind: part of those of its kind, over which diagnostics are means.
        """
        for name, value in terms.items():
            if name == "loss" or name in self._of_updates:
                continue
            weight = updates = of_kind
            if name.startswith("loss/"):  # of batches of both kinds, but applied in one update
                weight, updates = of_update, float(name not in self._counted)
                self._counted.add(name)
            weighed = value if weight == 1 else weight * value
            self.sums[name] = self.sums[name] + weighed if name in self.sums else weighed
            self.counts[name] += updates
        self._part += of_update
        if self._part > 1 - of_update / 2:  # the last batch of the update
            self._counted.clear()
            self._part = 0.0

    def read(self, loss: float, accelerator: Accelerator) -> dict[str, float]:
        """The means, over processes too; of `loss`, what the batches have returned, as well.

        Terms with a bound are as they were applied, and the loss, too: what a batch has returned
        knows nothing of the other batches and processes of its update.
        """
        logs, names = {"loss": loss}, sorted(self.sums)
        if names:
            means = torch.stack([self.sums[name].float() / self.counts[name] for name in names])
            values = accelerator.reduce(means, reduction="mean").tolist()
            logs |= dict(zip(names, values, strict=True))
        self.sums.clear()
        self.counts.clear()
        strengths = self.objective.strengths
        steps, self.step = strengths.step - self.step, strengths.step
        new, self.applied = self._since(self.applied, accelerator), dict(strengths.sums)
        for name, (updates, share, _, bounded, weight, applied, returned) in new.items():
            if updates:
                logs |= {f"{name}/share": share / updates, f"{name}/bounded": bounded / updates}
                logs |= {f"{name}/weight": weight / updates, f"loss/{name}": applied / updates}
                logs["loss"] += (applied - returned) / max(steps, 1)
        return logs

    def read_excess(self, accelerator: Accelerator) -> float:
        """What was applied of bounded terms, less what batches returned; a mean over updates."""
        steps = self.objective.strengths.step - self.first_step
        whole = self._since(self.begun, accelerator).values()
        return sum(applied - returned for *_, applied, returned in whole) / max(steps, 1)

    def _since(self, before: dict[str, Tensor], accelerator: Accelerator) -> dict[str, list[float]]:
        """What came to the sums of the bounded terms; means over processes."""
        sums = self.objective.strengths.sums
        new = {name: x - before[name].to(x) if name in before else x for name, x in sums.items()}
        return {name: accelerator.reduce(x, reduction="mean").tolist() for name, x in new.items()}
