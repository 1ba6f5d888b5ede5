"""What the methods cost: seconds per step with and without them, side by side."""

from __future__ import annotations

import copy
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import torch
from torch import Tensor, nn

from smoothtune.objective import Objective
from smoothtune.regularizer import Regularizer

Batch = Mapping[str, Tensor]


@dataclass
class StepCost:
    """Medians of the measured steps."""

    plain_seconds: float
    """One update of plain fine-tuning."""
    seconds: float
    """One update with the methods."""

    @property
    def ratio(self) -> float:
        """Cost relative to plain fine-tuning."""
        return self.seconds / self.plain_seconds


def measure_step_cost(
    model: nn.Module, regularizers: Sequence[Regularizer], batches: Sequence[Batch]
) -> StepCost:
    """Time whole updates (forward, backward, AdamW) on two copies of the model.

    Plain and regularized steps alternate on the same batches, so that load from outside hits both.
    A first round over the batches, not counted, fills caches. The model, the ambient random state
    and the given batches are left as they were.

    Args:
        model: the pre-trained model, no method attached.
        regularizers: instances for this measurement alone; they get attached.
        batches: a few real batches, each a mapping of tensors.

    Returns:
        The medians over the batches.
    """
    device = next(model.parameters()).device
    devices = [device] if device.type != "cpu" else []
    with torch.random.fork_rng(devices, device_type=device.type if devices else "cuda"):
        steppers = [_Stepper(model, []), _Stepper(model, regularizers)]
        placed = [{key: value.to(device) for key, value in batch.items()} for batch in batches]
        seconds: list[list[float]] = [[], []]
        for warm in (False, True):
            for batch in placed:
                for times, stepper in zip(seconds, steppers, strict=True):
                    elapsed = stepper.step(batch)
                    if warm:
                        times.append(elapsed)
        for stepper in steppers:
            stepper.objective.detach()
    return StepCost(*map(median, seconds))


class _Stepper:
    """A copy of the model with an optimizer and an objective of its own."""

    def __init__(self, model: nn.Module, regularizers: Sequence[Regularizer]) -> None:
        self.model = copy.deepcopy(model).train()
        trainable = [weight for weight in self.model.parameters() if weight.requires_grad]
        self.optimizer = torch.optim.AdamW(trainable, lr=1e-6, fused=True)
        self.objective = Objective(*regularizers).bind(self.model, self.optimizer)

    def step(self, batch: Batch) -> float:
        """Seconds of one update."""
        start = time.perf_counter()
        self.objective(self.model, batch).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        # .item() waits for the device, as reading a logged loss does
        next(self.model.parameters()).detach().flatten()[0].item()
        return time.perf_counter() - start


def peak_memory() -> dict[str, int]:
    """Bytes: the largest resident size of this process, and of its CUDA allocations if any."""
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    peak = {"peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit}
    if torch.cuda.is_available():
        peak["peak_cuda_bytes"] = torch.cuda.max_memory_allocated()
    return peak
