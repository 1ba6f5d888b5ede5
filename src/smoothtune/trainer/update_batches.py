"""The batches of an update: which rows they have, and how much each counts.

accelerate fills the last update of an epoch with rows from its beginning, so that all processes
have full batches. Here it is cut as evenly as it can be. A process for which no row is left gets a
padding row, which weighs nothing. The Trainer takes the plain mean over the batches: for one over
their rows, each gets its rows, divided by the mean number of rows, as a factor.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import BatchSampler, Dataset, Sampler
from transformers import Trainer

from smoothtune.nn.model_facts import IGNORED

PADDING_BATCH = "padding_batch"
"""Marks a batch that weighs nothing."""

logger = logging.getLogger(__name__)


class UpdateBatches(BatchSampler):
    """Row numbers in batches, one for each process in turn; a padding row is -1 less its number.

    >>> order = range(5)  # in place of a sampler
    >>> list(UpdateBatches(order, 2, accumulation=1, processes=2))
    [[0, 1], [2, 3], [-5], [4]]
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


class MarkedRow(dict[str, Any]):
    """A row whose batch has True under the name of a mark."""

    def __init__(self, row: Mapping[str, Any], mark: str):
        super().__init__(row)
        self.mark = mark


class WithPaddingRows(Dataset):
    """A map-style dataset that has its padding rows under numbers below 0."""

    def __init__(self, rows: Any):
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, number: int) -> Any:
        return MarkedRow(self.rows[-1 - number], PADDING_BATCH) if number < 0 else self.rows[number]

    def __getitems__(self, numbers: Sequence[int]) -> list[Any]:
        if hasattr(self.rows, "__getitems__") and min(numbers) >= 0:
            rows: list[Any] = self.rows.__getitems__(numbers)  # faster than row by row
            return rows
        return [self[number] for number in numbers]


class MarkingCollator:
    """Collates rows of one kind, and marks a batch of marked rows."""

    def __init__(self, collate: Callable[[list[Any]], Any]):
        self.collate = collate

    def __call__(self, rows: list[Any]) -> dict[str, Any]:
        """A batch."""
        if not isinstance(rows[0], MarkedRow):
            return dict(self.collate(rows))
        return dict(self.collate([dict(row) for row in rows])) | {rows[0].mark: True}


class Size(NamedTuple):
    """Of one batch, or of all batches of its kind in an update."""

    rows: int | Tensor  # examples, over which the terms are means
    items: float | Tensor  # what the task loss is a mean over: labels, rows, or weights of rows


def rows_of(batch: Mapping[str, Any]) -> int:
    """Number of examples of a batch."""
    first = batch.get("input_ids")
    tensors = (x for x in batch.values() if isinstance(x, Tensor) and x.ndim)
    return len(first if isinstance(first, Tensor) else next(tensors, (None,)))


def refuse_parts(batch: Mapping[str, Any], whole: Mapping[str, Any], trainer: str) -> None:
    """Refuse some rows of a batch to a loss that compares rows with one another."""
    if rows_of(batch) < rows_of(whole):
        raise ValueError(
            f"rows below 1 does not work with {trainer}, whose loss compares rows of a batch: "
            "leave rows at 1, or give the method every=k"
        )


def counted_labels(batch: Mapping[str, Any], names: list[str]) -> str | None:
    """Which one of the tensors of labels a model's own loss is a mean over.

    None if that is a mean over rows: labels are numbers, spans, several tensors or absent.
    """
    present = [name for name in names if batch.get(name) is not None]
    labels = batch[present[0]] if len(present) == 1 else None
    return present[0] if isinstance(labels, Tensor) and not labels.is_floating_point() else None


def are_labels(labels: Tensor, *, shifted: bool) -> Tensor:
    """Which labels (B, ...) count: not -100, nor, `shifted` to the next token, the first."""
    return (labels[..., 1:] if shifted and labels.ndim > 1 else labels) != IGNORED


class UpdateParts:
    """Sizes of the batches of the update at hand, as the trainer's loader gives them."""

    def __init__(
        self,
        trainer: Trainer,
        size: Callable[[Mapping[str, Any]], Size],
        unlabeled: Callable[[Mapping[str, Any]], bool],
    ):
        self.trainer, self.size, self.unlabeled = trainer, size, unlabeled
        self.totals: tuple[Size, Size] | None = None  # of labeled and of unlabeled batches
        self.batches = 1  # of the update here, times the number of processes
        self.kinds: list[bool] = []  # of the batches here, whether unlabeled

    def get_batch_samples(
        self,
        draw: Callable[..., tuple[list[Any], Any]],
        epoch_iterator: Iterator[Any],
        num_batches: int,
        device: torch.device,
    ) -> tuple[list[Any], Any]:
        """Count the batches of an update, as `draw`, the trainer's own method, takes them."""
        drawn = list(islice(epoch_iterator, num_batches))
        labeled = [batch for batch in drawn if not self.unlabeled(batch)]
        # the Trainer counts labels in every batch, if the first one has some
        samples, num_items = draw(iter(labeled or drawn), num_batches, device)
        if labeled and len(labeled) < len(drawn):
            samples = drawn
        if self.totals is None and samples and not labeled:
            self._warn(samples)
        self.kinds = [self.unlabeled(batch) for batch in samples]
        self.totals = self._totals(samples, device)
        self.batches = len(samples) * self.trainer.accelerator.num_processes
        return samples, num_items

    def _totals(self, samples: list[Any], device: torch.device) -> tuple[Size, Size]:
        """Sizes of all labeled and all unlabeled batches, over processes too."""
        totals = [Size(0, 0), Size(0, 0)]
        for kind, batch in zip(self.kinds, samples, strict=True):
            rows, items = self.size(batch)
            items = items.to(device) if isinstance(items, Tensor) else items
            totals[kind] = Size(totals[kind].rows + rows, totals[kind].items + items)
        if self.trainer.accelerator.num_processes > 1:
            numbers = [number for size in totals for number in size]
            counts = torch.stack([torch.as_tensor(n, device=device).double() for n in numbers])
            counts = self.trainer.accelerator.reduce(counts, reduction="sum")
            totals = [Size(*counts[:2]), Size(*counts[2:])]
        return totals[0], totals[1]

    def _warn(self, batches: list[Any]) -> None:
        """Say that a first update without labels, unless it is marked so, has no task loss."""
        if not any(batch.get("unlabeled") for batch in batches):
            logger.warning(
                "the first update has no labels, so there is no task loss. Terms with a weight are "
                "all that is trained, and a term with a share or max_share alone moves nothing. "
                "Its batches hold %s, and the model takes %s. Rename the column of the labels; "
                "remove_unused_columns drops others",
                ", ".join(batches[0]),
                ", ".join(self.trainer.label_names),
            )

    def shares(
        self, batch: Mapping[str, Any], unlabeled: bool
    ) -> tuple[float | Tensor, float | Tensor]:
        """Factors of a batch's mean over rows and over items; 1 outside the Trainer's loop."""
        if self.totals is None:
            return 1.0, 1.0
        size, total = self.size(batch), self.totals[int(unlabeled)]
        if self.batches == 1 and size.rows == total.rows:  # the batch is all the update
            return 1.0, size.items > 0
        rows, items = (
            _double(part) * self.batches / _or_1(whole)
            for part, whole in zip(size, total, strict=True)
        )
        return rows, items

    def mean_items(self, batch: Mapping[str, Any], unlabeled: bool) -> float | Tensor:
        """Items of the update's batches of this kind, divided by the number of all its batches."""
        if self.totals is None:
            return self.size(batch).items
        return _double(self.totals[int(unlabeled)].items) / self.batches

    def log_weights(self, unlabeled: bool) -> tuple[float, float]:
        """Parts that a batch is of its update's, and of those of its kind; 1 outside the loop."""
        if not self.kinds:
            return 1.0, 1.0
        return 1 / len(self.kinds), 1 / self.kinds.count(unlabeled)


def _double(number: float | Tensor) -> float | Tensor:
    """With 64 bits, as numbers on the host; not on MPS, which has no such type."""
    if not isinstance(number, Tensor) or number.device.type == "mps":
        return number
    return number.double()


def _or_1(number: float | Tensor) -> float | Tensor:
    """1 in place of 0, to divide by."""
    if not isinstance(number, Tensor):
        return number or 1
    return _double(torch.where(number == 0, 1, number))
