"""How much each batch counts in its update, over accumulation steps and processes.

The Trainer takes the plain mean over the batches of an update. A mean over all their rows needs a
factor for each: its rows, divided by the mean number of rows of the batches. An update of labeled
and unlabeled batches is the sum of the two means.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import Trainer

from smoothtune.nn.model_facts import IGNORED

logger = logging.getLogger(__name__)


class Size(NamedTuple):
    """Of one batch, or of all batches of its kind in an update."""

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
        unlabeled: whether such a batch has no task loss.
    """

    def __init__(
        self,
        trainer: Trainer,
        size: Callable[[Mapping[str, Any]], Size],
        unlabeled: Callable[[Mapping[str, Any]], bool],
    ):
        self.trainer, self.size, self.unlabeled = trainer, size, unlabeled
        self.original = trainer.get_batch_samples
        self.totals: tuple[Size, Size] | None = None  # of labeled and of unlabeled batches
        self.batches = 1  # of the update here, times the number of processes
        self.kinds: list[bool] = []  # of the batches here, whether unlabeled

    def get_batch_samples(
        self, epoch_iterator: Iterator[Any], num_batches: int, device: torch.device
    ) -> tuple[list[Any], Any]:
        """Count the batches of an update before the first of them is used."""
        drawn = list(islice(epoch_iterator, num_batches))
        labeled = [batch for batch in drawn if not self.unlabeled(batch)]
        # the Trainer counts labels in every batch, if the first one has some
        samples, num_items = self.original(iter(labeled or drawn), num_batches, device)
        if labeled and len(labeled) < len(drawn):
            samples = drawn
        if self.totals is None and samples and not labeled:
            self._warn(samples)
        counts = torch.zeros(2, 2, device=device)  # of one type in every process
        self.kinds = [self.unlabeled(batch) for batch in samples]
        for kind, batch in zip(self.kinds, samples, strict=True):
            counts[int(kind)] += counts.new_tensor(self.size(batch))
        counts = self.trainer.accelerator.reduce(counts, reduction="sum")
        of_labeled, of_unlabeled = (Size(*count) for count in counts.tolist())
        self.totals = of_labeled, of_unlabeled
        self.batches = len(samples) * self.trainer.accelerator.num_processes
        return samples, num_items

    def _warn(self, batches: list[Any]) -> None:
        """Say that a first update without labels, unless it is marked so, has no task loss."""
        if not any(batch.get("unlabeled") for batch in batches):
            logger.warning(
                "the first update has no labels, so there is no task loss, and the terms of the "
                "methods are all that is trained: its batches hold %s, and the model takes %s. "
                "Rename the column of the labels; remove_unused_columns drops others",
                ", ".join(batches[0]),
                ", ".join(self.trainer.label_names),
            )

    def shares(self, batch: Mapping[str, Any]) -> tuple[float, float]:
        """Factors of a batch's mean over rows and over items; 1 outside the Trainer's loop."""
        if self.totals is None:
            return 1.0, 1.0
        sums = zip(self.size(batch), self.totals[int(self.unlabeled(batch))], strict=True)
        rows, items = (part * self.batches / (total or 1) for part, total in sums)
        return rows, items

    def mean_items(self, batch: Mapping[str, Any]) -> float:
        """Items of the update's batches of this kind, divided by the number of all its batches."""
        if self.totals is None:
            return self.size(batch).items
        return self.totals[int(self.unlabeled(batch))].items / self.batches

    def part_of_kind(self, batch: Mapping[str, Any]) -> float:
        """Part of the update's batches here that are of this kind; 1 outside the loop."""
        if not self.kinds:
            return 1.0
        return self.kinds.count(self.unlabeled(batch)) / len(self.kinds)
