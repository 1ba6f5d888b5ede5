"""Seconds and memory of training steps, and the largest batch that stays within a budget."""

import copy
import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from statistics import median

import torch
from torch import Tensor, nn

from smoothtune.core.objective import Objective
from smoothtune.core.regularizer import Penalty, Regularizer
from smoothtune.memory import PeakMemory, peak, reset_peak

Batch = Mapping[str, Tensor]

STEPS = 10_000
"""Updates of the run, for fields that are a fraction of it."""
HEADROOM = 0.05
"""Share of a budget that is left free: rows differ, and allocators keep more than is in use."""


@dataclass
class StepCost:
    """Seconds of whole updates by round, and their peak memory above that before, in bytes."""

    plain: list[float]
    methods: list[float]
    plain_memory: int | None = None
    methods_memory: int | None = None

    @property
    def plain_seconds(self) -> float:
        """Median."""
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
    autocast: torch.dtype | None = None,
) -> StepCost:
    """Time whole updates (forward, backward, AdamW) on two copies of the model.

    Plain and regularized steps alternate on the same batches, so that other load on the machine
    affects both. Up to two uncounted steps of each warm up. The model, the global random state and
    the batches are left unchanged.

    Args:
        model: the pre-trained model, no method attached.
        regularizers: instances for this measurement alone; they are attached to a copy.
        batches: a few batches of tensors, one round each.
        memory: measure memory too (Linux or CUDA).
        autocast: the 16-bit type that the run computes in; None: that of the weights.
    """
    device = next(model.parameters()).device
    devices = [device] if device.type != "cpu" else []
    with torch.random.fork_rng(devices, device_type=device.type if devices else "cuda"):
        plain = Stepper(copy.deepcopy(model), [], autocast)
        regularized = Stepper(copy.deepcopy(model), regularizers, autocast)
        placed = [{key: value.to(device) for key, value in batch.items()} for batch in batches]
        for number, batch in enumerate([*placed[:2], *placed]):
            for stepper in (plain, regularized):
                seconds = stepper.step(batch)
                if number >= len(placed[:2]):
                    stepper.seconds.append(seconds)
        # not while timing: measuring memory first returns freed memory to the system
        peaks = [stepper.peak(placed[0]) if memory else None for stepper in (plain, regularized)]
        for stepper in (plain, regularized):
            stepper.objective.detach()
    return StepCost(plain.seconds, regularized.seconds, *peaks)


class Stepper:
    """Takes updates of a model with AdamW, on its device."""

    def __init__(
        self,
        model: nn.Module,
        regularizers: Sequence[Regularizer],
        autocast: torch.dtype | None = None,
    ) -> None:
        self.model = model.train()
        trained = [weight for weight in model.parameters() if weight.requires_grad]
        self.optimizer = torch.optim.AdamW(trained, lr=1e-6, fused=True)
        for regularizer in regularizers:
            if isinstance(regularizer, Penalty):
                regularizer.ramp_start = regularizer.ramp_steps = 0  # the steps after them count
        self.objective = Objective(*regularizers).bind(self.model, self.optimizer, STEPS)
        self.objective.expect(STEPS, accumulates=False)
        self.autocast = autocast
        self.seconds: list[float] = []

    def peak(self, batch: Batch) -> int:
        """Peak memory of an update above that before it, in bytes; median of three updates."""
        rises = []
        for _ in range(3):
            meter = PeakMemory()
            self.step(batch)
            rises.append(meter.rise())
        return sorted(rises)[1]

    def step(self, batch: Batch) -> float:
        """Take one update and return its seconds."""
        start = time.perf_counter()
        weight = next(self.model.parameters())
        # again in every step, as its 16-bit copies of the weights stay until it ends
        narrow = torch.autocast(weight.device.type, self.autocast) if self.autocast else None
        with narrow or nullcontext():
            loss = self.objective(self.model, batch)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        # .item() waits for the device, as reading a logged loss does
        weight.detach().flatten()[0].item()
        return time.perf_counter() - start


@dataclass(frozen=True)
class MemoryEstimate:
    """Peak memory of a process that trains, by two numbers of rows, the smaller one first."""

    bytes_by_rows: dict[int, int]

    @property
    def bytes_per_row(self) -> float:
        """What one more row takes."""
        (small, low), (large, high) = self.bytes_by_rows.items()
        return (high - low) / (large - small)

    def largest_batch(self, budget: int) -> int | None:
        """The most rows whose peak stays below a budget in bytes, less `HEADROOM`; perhaps 0.

        Memory is taken to grow by the same number of bytes with every row, as activations do. None
        where a row takes too little to be seen in the measurement.
        """
        if self.bytes_per_row <= 0:
            return None
        rows, measured = next(iter(self.bytes_by_rows.items()))
        free = (1 - HEADROOM) * budget - measured
        return max(0, int(rows + free // self.bytes_per_row))


def estimate_memory(
    model: nn.Module,
    regularizers: Sequence[Regularizer],
    make_batch: Callable[[int], Mapping[str, Tensor]],
    rows: tuple[int, int],
) -> MemoryEstimate:
    """Take updates with AdamW at two batch sizes, and read the peak memory of each.

    On a GPU the peak is that of its allocations, without the CUDA context; else it is the resident
    size of this process, with Python and all libraries, so the process should do nothing else.

    Args:
        model: on its device; its weights change.
        regularizers: for this measurement alone.
        make_batch: makes a batch of so many rows.
        rows: a smaller and a larger number of rows.

    Raises:
        ValueError: a method does not work on this model.
    """
    stepper = Stepper(model, regularizers)
    stepper.objective.expect(STEPS, accumulates=True)
    device = next(model.parameters()).device
    peaks = {}
    for count in rows:
        batch = {name: value.to(device) for name, value in make_batch(count).items()}
        for _ in range(2):  # the first makes the optimizer's state and the methods' memory
            reset_peak()
            stepper.step(batch)
        peaks[count] = peak()
    stepper.objective.detach()
    return MemoryEstimate(peaks)


def random_batches(
    model: nn.Module, count: int, batch_size: int, length: int, seed: int = 0
) -> list[Batch]:
    """Batches of random tokens without padding, for a sequence-classification model.

    Token ids are log-uniform, so that few are frequent and most are rare, as in text.

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
