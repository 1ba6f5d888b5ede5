"""What the methods cost: seconds and memory per step with and without them, side by side."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import torch
from torch import Tensor, nn

from smoothtune.core.objective import Objective
from smoothtune.core.regularizer import Regularizer
from smoothtune.memory import PeakMemory

Batch = Mapping[str, Tensor]


@dataclass
class StepCost:
    """Whole updates, plain and with methods, measured in turn."""

    plain: list[float]
    """Seconds of plain steps, one for each round."""
    methods: list[float]
    """Seconds of steps with the methods."""
    plain_memory: int | None = None
    """Bytes by which a plain step rises above the memory at rest."""
    methods_memory: int | None = None
    """The same with the methods."""

    @property
    def plain_seconds(self) -> float:
        """Median of the plain steps."""
        return median(self.plain)

    @property
    def seconds(self) -> float:
        """Median of the steps with methods."""
        return median(self.methods)

    @property
    def ratios(self) -> list[float]:
        """Cost relative to the plain step of the same round."""
        return [m / p for m, p in zip(self.methods, self.plain, strict=True)]

    @property
    def ratio(self) -> float:
        """Median cost relative to plain fine-tuning."""
        return median(self.ratios)


def measure_step_cost(
    model: nn.Module,
    regularizers: Sequence[Regularizer],
    batches: Sequence[Batch],
    *,
    memory: bool = False,
) -> StepCost:
    """Time whole updates (forward, backward, AdamW) on two copies of the model.

    Plain and regularized steps alternate on the same batches, so that load from outside hits both.
    A first round over the batches, not counted, fills caches. The model, the ambient random state
    and the given batches are left as they were.

    Args:
        model: the pre-trained model, no method attached.
        regularizers: instances for this measurement alone; they get attached.
        batches: a few real batches, each a mapping of tensors; one round each.
        memory: measure memory too (Linux or CUDA).

    Returns:
        What was measured, by round.
    """
    device = next(model.parameters()).device
    devices = [device] if device.type != "cpu" else []
    with torch.random.fork_rng(devices, device_type=device.type if devices else "cuda"):
        plain, ours = _Stepper(model, []), _Stepper(model, regularizers)
        placed = [{key: value.to(device) for key, value in batch.items()} for batch in batches]
        for number, batch in enumerate([*placed[:2], *placed]):
            for stepper in (plain, ours):
                seconds = stepper.step(batch)
                if number >= len(placed[:2]):
                    stepper.seconds.append(seconds)
        # apart from the time: to measure memory, all that was freed is given back first
        peaks = [stepper.peak(placed[0]) if memory else None for stepper in (plain, ours)]
        for stepper in (plain, ours):
            stepper.objective.detach()
    return StepCost(plain.seconds, ours.seconds, *peaks)


class _Stepper:
    """A copy of the model with an optimizer and an objective of its own."""

    def __init__(self, model: nn.Module, regularizers: Sequence[Regularizer]) -> None:
        self.model = copy.deepcopy(model).train()
        trainable = [weight for weight in self.model.parameters() if weight.requires_grad]
        self.optimizer = torch.optim.AdamW(trainable, lr=1e-6, fused=True)
        self.objective = Objective(*regularizers).bind(self.model, self.optimizer)
        self.seconds: list[float] = []

    def peak(self, batch: Batch) -> int:
        """Bytes by which an update rises above the memory at rest; holes in the heap blur it."""
        rises = []
        for _ in range(3):
            meter = PeakMemory()
            self.step(batch)
            rises.append(meter.rise())
        return sorted(rises)[1]

    def step(self, batch: Batch) -> float:
        """One update; its seconds."""
        start = time.perf_counter()
        self.objective(self.model, batch).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        # .item() waits for the device, as reading a logged loss does
        next(self.model.parameters()).detach().flatten()[0].item()
        return time.perf_counter() - start


def random_batches(
    model: nn.Module, count: int, batch_size: int, length: int, seed: int = 0
) -> list[Batch]:
    """Batches of random tokens without padding, for a sequence-classification model.

    Token ids are log-uniform, so that few are frequent and most are rare, as words are.

    Args:
        model: has a `config` with `vocab_size` and `num_labels`.
        count: number of batches.
        batch_size: B.
        length: T.
        seed: of the tokens and labels.
    """
    config: object = model.config
    vocabulary, labels = getattr(config, "vocab_size", 2), getattr(config, "num_labels", 2)
    generator = torch.Generator().manual_seed(seed)
    shape, span = (batch_size, length), math.log(vocabulary - 1)
    return [
        {
            "input_ids": vocabulary - (torch.rand(shape, generator=generator) * span).exp().long(),
            "attention_mask": torch.ones(shape, dtype=torch.long),
            "labels": torch.randint(labels, (batch_size,), generator=generator),
        }
        for _ in range(count)
    ]
