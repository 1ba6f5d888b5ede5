"""How much each batch counts in its update, over accumulation steps and processes.

The Trainer takes the plain mean over the batches of an update. A mean over all their rows needs a
factor for each: its rows, divided by the mean number of rows of the batches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import Trainer

from smoothtune.core.declarations import IGNORED


class Size(NamedTuple):
    """Of one batch, or of all batches of an update."""

    rows: int  # examples, over which the terms are means
    items: float  # what the task loss is a mean over: labels, rows, or weights of rows


def rows_of(batch: Mapping[str, Any]) -> int:
    """Number of examples of a batch."""
    first = batch.get("input_ids")
    tensors = (x for x in batch.values() if isinstance(x, Tensor) and x.ndim)
    return len(first if isinstance(first, Tensor) else next(tensors, (None,)))


def refuse_parts(batch: Mapping[str, Any], whole: Mapping[str, Any], trainer: str) -> None:
    """Refuse some rows of a batch to a loss that compares rows with one another.

    Raises:
        ValueError: `batch` has fewer rows than `whole`.
    """
    if rows_of(batch) < rows_of(whole):
        raise ValueError(
            f"rows below 1 does not work with {trainer}, whose loss compares rows of a batch: "
            "leave rows at 1, or give the method every=k"
        )


def labels_in(batch: Mapping[str, Any], names: list[str], *, shifted: bool) -> int:
    """Number of labels over which a model's own loss is a mean.

    Those of the one integer tensor of labels that are not -100; rows, if labels are numbers, spans,
    several tensors or absent.

    Args:
        batch: model inputs.
        names: of the label tensors.
        shifted: the labels predict the next token, so the first position has none.
    """
    found = [batch[name] for name in names if batch.get(name) is not None]
    labels = found[0] if len(found) == 1 else None
    if not isinstance(labels, Tensor) or labels.is_floating_point():
        return rows_of(batch)
    if shifted and labels.ndim > 1:
        labels = labels[:, 1:]
    return int((labels != IGNORED).sum())


class UpdateParts:
    """Sizes of the batches of the update at hand.

    Args:
        trainer: whose batches are counted.
        size: of a batch as the trainer's loader gives it.
    """

    def __init__(self, trainer: Trainer, size: Callable[[Mapping[str, Any]], Size]):
        self.trainer, self.size = trainer, size
        self.original = trainer.get_batch_samples
        self.total: Size | None = None
        self.batches = 1  # of the update here, times the number of processes

    def get_batch_samples(
        self, epoch_iterator: Iterator[Any], num_batches: int, device: torch.device
    ) -> tuple[list[Any], Any]:
        """Count the batches of an update before the first of them is used."""
        samples, num_items = self.original(epoch_iterator, num_batches, device)
        sizes = [self.size(batch) for batch in samples]
        counts = torch.tensor(  # of one type in every process
            [[*size] for size in sizes] or [[0, 0]], dtype=torch.float32, device=device
        ).sum(0)
        counts = self.trainer.accelerator.reduce(counts, reduction="sum")
        self.total = Size(*counts.tolist())
        self.batches = len(samples) * self.trainer.accelerator.num_processes
        return samples, num_items

    def shares(self, batch: Mapping[str, Any]) -> tuple[float, float]:
        """Factors of a batch's mean over rows and over items; 1 outside the Trainer's loop."""
        if self.total is None:
            return 1.0, 1.0
        size = self.size(batch)
        rows, items = (
            part * self.batches / (total or 1) for part, total in zip(size, self.total, strict=True)
        )
        return rows, items

    def mean_items(self, batch: Mapping[str, Any]) -> float:
        """Items of the update, divided by its number of batches."""
        if self.total is None:
            return self.size(batch).items
        return self.total.items / self.batches
