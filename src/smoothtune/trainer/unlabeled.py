"""Alternate labeled and unlabeled batches, for methods that need no labels.

A batch without labels has no task loss, only the terms of methods that need none. This is
the dual mode of JacHess, and what VAT was made for. Updates on terms alone, which
`alternate="step"` and `"epoch"` have, are hardly smaller than the others under Adam, which divides
by the size of the gradient.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sized
from itertools import cycle, islice
from typing import Any, Literal

import torch
from torch.utils.data import BatchSampler, ConcatDataset, DataLoader, Dataset
from transformers import Trainer

Alternate = Literal["batch", "step", "epoch"]
logger = logging.getLogger(__name__)


class AlternatingBatches(BatchSampler):
    """Row numbers of a concatenation of labeled and unlabeled rows, in batches of one kind.

    Every labeled row comes once an epoch, in random order. Unlabeled rows are drawn without
    replacement until all have come, then anew; an epoch holds as many unlabeled batches as labeled
    ones. Unless `alternate` is "batch", all batches of an update, over accumulation steps and
    processes, are of one kind.

    Args:
        labeled: number of labeled rows, which come first in the concatenation.
        unlabeled: number of unlabeled rows.
        batch_size: rows of a batch.
        alternate: "batch": in every update labeled batches come first, then as many unlabeled ones;
            "step": labeled and unlabeled updates take turns; "epoch": an epoch's labeled updates
            come first, then its unlabeled ones.
        group: batches of one update: accumulation steps times processes; even with "batch".
        seed: decides the order, together with the epoch.
    """

    def __init__(
        self,
        labeled: int,
        unlabeled: int,
        batch_size: int,
        alternate: Alternate,
        group: int,
        seed: int,
    ):
        self.labeled, self.unlabeled, self.batch_size = labeled, unlabeled, batch_size
        self.alternate, self.seed, self.epoch = alternate, seed, 0
        self.turn = group // 2 if alternate == "batch" else group  # batches of one kind in a row
        self.drop_last = False

    def set_epoch(self, epoch: int) -> None:
        """Called by the training loop before each epoch, counted from 0."""
        self.epoch = epoch

    def __len__(self) -> int:
        return 2 * self.turn * self.updates

    def __iter__(self) -> Iterator[list[int]]:
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + self.epoch)
        size, count = self.batch_size, self.turn * self.updates
        order = torch.randperm(self.labeled, generator=generator).tolist()
        rows = cycle(order)  # fills the last update, so that all have the same size
        labeled = [list(islice(rows, size)) for _ in range(count)]
        drawn: list[int] = []
        while len(drawn) < count * size:
            drawn += (torch.randperm(self.unlabeled, generator=generator) + self.labeled).tolist()
        unlabeled = [drawn[i * size : (i + 1) * size] for i in range(count)]
        if self.alternate == "epoch":
            yield from labeled + unlabeled
            return
        for start in range(0, count, self.turn):
            yield from labeled[start : start + self.turn]
            yield from unlabeled[start : start + self.turn]

    @property
    def updates(self) -> int:
        """Updates of an epoch that have labeled rows; "step" and "epoch" have as many without."""
        return -(-self.labeled // (self.batch_size * self.turn))


class UnlabeledRow(dict[str, Any]):
    """A row whose batch has no task loss."""


class WithoutLabels(Dataset):
    """A dataset without its label columns.

    Args:
        rows: a map-style dataset of mappings.
        names: names of the label columns.
    """

    def __init__(self, rows: Any, names: tuple[str, ...]):
        self.rows, self.names = rows, names

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, i: int) -> UnlabeledRow:
        row = self.rows[i]
        return UnlabeledRow({key: row[key] for key in row if key not in self.names})


class MarkingCollator:
    """Collates rows, and marks a batch of unlabeled ones by `unlabeled`: True.

    Args:
        collate: the trainer's own.
    """

    def __init__(self, collate: Callable[[list[Any]], Any]):
        self.collate = collate

    def __call__(self, rows: list[Any]) -> dict[str, Any]:
        """A batch of one kind."""
        unlabeled = isinstance(rows[0], UnlabeledRow)
        batch = dict(self.collate([dict(row) for row in rows] if unlabeled else rows))
        return batch | {"unlabeled": True} if unlabeled else batch


def alternating_loader(trainer: Trainer, unlabeled: Any, alternate: Alternate) -> DataLoader:
    """A loader of the trainer's training data that alternates with unlabeled batches.

    Args:
        trainer: has a map-style `train_dataset`.
        unlabeled: map-style dataset of the same columns; its labels, if any, are not used.
        alternate: within every update, after every update, or once an epoch.

    Raises:
        ValueError: one of the datasets has no length, or the unlabeled one has no rows.
    """
    args, labeled = trainer.args, trainer.train_dataset
    if not isinstance(labeled, Sized) or not isinstance(unlabeled, Sized):
        raise ValueError("labeled and unlabeled data must have a length: use map-style datasets")
    if not len(unlabeled):
        raise ValueError("the unlabeled dataset has no rows")
    labels = tuple(trainer.label_names or ()) + ("labels", "label")
    sampler = AlternatingBatches(
        len(labeled),
        len(unlabeled),
        trainer._train_batch_size,
        alternate,
        args.gradient_accumulation_steps * args.world_size,
        args.data_seed if args.data_seed is not None else args.seed,
    )
    first = {"batch": 0, "step": 1, "epoch": sampler.updates}[alternate]  # without unlabeled rows
    if 0 < args.max_steps <= first:
        logger.warning(
            "max_steps=%d ends before any unlabeled batch: the first comes in update %d "
            '(alternate="%s")',
            args.max_steps,
            first + 1,
            alternate,
        )
    rows: Any = ConcatDataset([labeled, WithoutLabels(unlabeled, labels)])  # type: ignore[list-item]
    loader = DataLoader(
        rows,
        batch_sampler=sampler,
        collate_fn=MarkingCollator(trainer.data_collator),
        num_workers=args.dataloader_num_workers,
        pin_memory=args.dataloader_pin_memory,
    )
    return trainer.accelerator.prepare(loader)
