"""Peak memory of training with methods, and the largest batch that stays within a budget."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from smoothtune.core.objective import Objective
from smoothtune.core.regularizer import Penalty, Regularizer
from smoothtune.memory import peak, reset_peak
from smoothtune.trainer.step_cost import STEPS

SPARE = 0.05
"""Share of a budget that is left free: rows differ, and allocators keep more than is in use."""


@dataclass(frozen=True)
class PeakOfTraining:
    """Peak memory of a process that trains, by the number of rows in a batch."""

    bytes_by_rows: dict[int, int]
    """Of two numbers of rows, the smaller one first."""

    @property
    def bytes_per_row(self) -> float:
        """What one more row takes."""
        (small, low), (large, high) = self.bytes_by_rows.items()
        return (high - low) / (large - small)

    def largest_batch(self, budget: int) -> int | None:
        """The most rows whose peak stays below a budget, less `SPARE`; 0 if not even one does.

        Memory is taken to grow by the same number of bytes with every row, as activations do.

        Args:
            budget: in bytes.

        Returns:
            The rows; None where a row takes too little to be seen in the measurement.
        """
        if self.bytes_per_row <= 0:
            return None
        rows, measured = next(iter(self.bytes_by_rows.items()))
        free = (1 - SPARE) * budget - measured
        return max(0, int(rows + free // self.bytes_per_row))


def peak_of_training(
    model: nn.Module,
    regularizers: Sequence[Regularizer],
    make_batch: Callable[[int], Mapping[str, Tensor]],
    rows: tuple[int, int],
) -> PeakOfTraining:
    """Take updates with AdamW at two batch sizes, and read the peak memory of each.

    On a GPU the peak is that of its allocations, without the CUDA context; else it is the resident
    size of this process, with Python and all libraries, so the process should do nothing else.

    Args:
        model: in training mode, on its device; its weights change.
        regularizers: attached to it.
        make_batch: makes a batch of so many rows.
        rows: a smaller and a larger number of rows.

    Raises:
        ValueError: a method does not work on this model.
    """
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-6, fused=True)
    for regularizer in regularizers:
        if isinstance(regularizer, Penalty):
            regularizer.ramp_start = regularizer.ramp_steps = 0  # the steps after them count
    objective = Objective(*regularizers).bind(model, optimizer, STEPS)
    device = trained[0].device
    peaks = {}
    for count in rows:
        batch = {name: value.to(device) for name, value in make_batch(count).items()}
        for _ in range(2):  # the first makes the optimizer's state and the methods' memory
            reset_peak()
            objective(model, batch).backward()
            optimizer.step()
            optimizer.zero_grad()
        peaks[count] = peak()
    objective.detach()
    return PeakOfTraining(peaks)
