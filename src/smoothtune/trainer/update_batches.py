"""Rows spread over processes, each row once: those of every update, and those to evaluate on.

accelerate fills the last update of an epoch with rows from its beginning, so that all processes
have full batches. Here it is cut as evenly as it can be; batches weigh by their rows, so that the
update is that of one process. A process for which no row is left gets a spare one, which weighs
nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any

from torch.utils.data import BatchSampler, Dataset, Sampler

SPARE = "spare"
"""Marks a batch that weighs nothing."""


class UpdateBatches(BatchSampler):
    """Row numbers in batches, one for each process in turn; a spare row is -1 less its number.

    >>> order = range(5)  # in place of a sampler
    >>> list(UpdateBatches(order, 2, accumulation=1, processes=2))
    [[0, 1], [2, 3], [-5], [4]]

    Args:
        sampler: the order of the rows.
        size: rows of a batch.
        accumulation: batches of a process in an update.
        processes: number of processes.
    """

    batch_size: int | None = None  # type: ignore[assignment]  # accelerate: of any size
    drop_last = False

    def __init__(self, sampler: Sampler[int], size: int, *, accumulation: int, processes: int):
        self.sampler, self.size = sampler, size
        self.accumulation, self.processes = accumulation, processes

    def __len__(self) -> int:
        rows: int = len(self.sampler)  # type: ignore[arg-type]
        step = self.size * self.processes
        return -(-rows // step) * self.processes

    def __iter__(self) -> Iterator[list[int]]:
        order = iter(self.sampler)
        step = self.size * self.processes
        while update := list(islice(order, step * self.accumulation)):
            parts = -(-len(update) // step) * self.processes
            ends = [len(update) * part // parts for part in range(parts + 1)]
            for start, end in zip(ends, ends[1:], strict=False):
                yield update[start:end] or [-1 - update[-1]]


class EvaluationBatches(BatchSampler):
    """Row numbers in order, in batches of one size for all processes at a time.

    >>> list(EvaluationBatches(7, 2, processes=2))
    [[0, 1], [2, 3], [4], [5], [6], [-7]]

    Args:
        rows: number of rows.
        size: rows of a batch, at most.
        processes: number of processes.
    """

    batch_size: int | None = None  # type: ignore[assignment]  # accelerate: of any size
    drop_last = False

    def __init__(self, rows: int, size: int, *, processes: int):
        self.rows, self.processes = rows, processes
        whole, rest = divmod(rows, size * processes)
        last, left = divmod(rest, processes)
        self.sizes = [size] * whole + [last] * bool(last) + [1] * bool(left)

    def __len__(self) -> int:
        return len(self.sizes) * self.processes

    def __iter__(self) -> Iterator[list[int]]:
        start = 0
        for size in self.sizes:
            for _ in range(self.processes):
                rows = list(range(start, min(start + size, self.rows)))
                yield rows or [-self.rows]
                start += size


class SpareRow(dict[str, Any]):
    """A row whose batch weighs nothing."""


class WithSpareRows(Dataset):
    """A dataset that has its spare rows under numbers below 0.

    Args:
        rows: a map-style dataset of mappings.
    """

    def __init__(self, rows: Any):
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, number: int) -> Any:
        return SpareRow(self.rows[-1 - number]) if number < 0 else self.rows[number]

    def __getitems__(self, numbers: Sequence[int]) -> list[Any]:
        if hasattr(self.rows, "__getitems__") and min(numbers) >= 0:
            found: list[Any] = self.rows.__getitems__(numbers)  # faster than row by row
            return found
        return [self[number] for number in numbers]


class SpareCollator:
    """Collates rows, and marks a batch of a spare one.

    Args:
        collate: the trainer's own.
    """

    def __init__(self, collate: Callable[[list[Any]], Any]):
        self.collate = collate

    def __call__(self, rows: list[Any]) -> dict[str, Any]:
        """A batch of rows, or of one spare row."""
        if not isinstance(rows[0], SpareRow):
            return dict(self.collate(rows))
        return dict(self.collate([dict(row) for row in rows])) | {SPARE: True}
