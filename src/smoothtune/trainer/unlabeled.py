"""Alternate labeled and unlabeled batches, which have only the terms of methods.

This is the dual mode of JacHess, and what VAT was made for.
"""

import logging
from collections.abc import Iterator, Sequence, Sized
from itertools import cycle, islice
from typing import Any, Literal

import torch
from accelerate.data_loader import SeedableRandomSampler
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    Dataset,
    RandomSampler,
    Sampler,
)
from transformers import Trainer

from smoothtune.data.batches import LengthGroupedSampler
from smoothtune.nn.hf_versions import sampling_strategy
from smoothtune.trainer.update_batches import MarkedRow, MarkingCollator

Alternate = Literal["batch", "step", "epoch"]
logger = logging.getLogger(__name__)


class AlternatingBatches(BatchSampler):
    """Row numbers of a concatenation of labeled and unlabeled rows, in batches of one kind.

    Every labeled row comes once an epoch, in the order that training without unlabeled rows has,
    unless its sampler draws from the global generator. Unlabeled rows are drawn without replacement
    until all are used, then again; an epoch holds as many unlabeled batches as labeled ones. Unless
    `alternate` is "batch", all batches of an update, over accumulation steps and processes, are of
    one kind.

    Args:
        labeled: order of the labeled rows, which come first in the concatenation; the last update
            is filled up with the first ones.
        unlabeled: number of unlabeled rows.
        batch_size: rows of a batch.
        alternate: whether labeled and unlabeled batches take turns within an update, or updates of
            one kind in turn ("step") or one after the other ("epoch"); labeled ones come first.
        group: batches of one update: accumulation steps times processes; even with "batch".
        seed: of the order, together with the epoch.
        lengths: of the unlabeled rows, to put those of similar length into a batch; None: not to.
    """

    def __init__(
        self,
        labeled: Sampler[int],
        unlabeled: int,
        batch_size: int,
        alternate: Alternate,
        group: int,
        seed: int,
        lengths: Sequence[int] | None = None,
    ):
        self.order, self.labeled = labeled, len(labeled)  # type: ignore[arg-type]
        self.unlabeled, self.lengths, self.batch_size = unlabeled, lengths, batch_size
        self.alternate, self.seed, self.epoch = alternate, seed, 0
        self.turn = group // 2 if alternate == "batch" else group  # batches of one kind in a row
        self.drop_last = False

    def set_epoch(self, epoch: int) -> None:
        """Called by the training loop before each epoch, counted from 0."""
        self.epoch = epoch
        if hasattr(self.order, "set_epoch"):
            self.order.set_epoch(epoch)

    def __len__(self) -> int:
        return 2 * self.turn * self.updates

    def __iter__(self) -> Iterator[list[int]]:
        size, count = self.batch_size, self.turn * self.updates
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(self._seed)  # those of accelerators stay
            rows = cycle(list(self.order))  # fills the last update, so that all have one size
        labeled = [list(islice(rows, size)) for _ in range(count)]
        drawn = self._drawn(count * size)
        unlabeled = [drawn[i * size : (i + 1) * size] for i in range(count)]
        if self.alternate == "epoch":
            yield from labeled + unlabeled
            return
        for start in range(0, count, self.turn):
            yield from labeled[start : start + self.turn]
            yield from unlabeled[start : start + self.turn]

    def _drawn(self, count: int) -> list[int]:
        """Unlabeled rows of an epoch, in their order."""
        generator = torch.Generator().manual_seed(self._seed)
        rows: list[int] = []
        while len(rows) < count:
            rows += torch.randperm(self.unlabeled, generator=generator).tolist()
        rows = rows[:count]
        if self.lengths is not None:
            lengths = [self.lengths[row] for row in rows]
            grouped = LengthGroupedSampler(lengths, self.batch_size * self.turn, self._seed)
            rows = [rows[i] for i in grouped]
        return [row + self.labeled for row in rows]

    @property
    def _seed(self) -> int:
        """From 0 on, also where a run's seed has 64 bits or is below 0."""
        return (self.seed * 1_000_003 + self.epoch) % 2**63

    @property
    def updates(self) -> int:
        """Of an epoch that have labeled rows; "step" and "epoch" have as many without."""
        return -(-self.labeled // (self.batch_size * self.turn))


class WithoutLabels(Dataset):
    """A map-style dataset without its label columns."""

    def __init__(self, rows: Any, names: tuple[str, ...]):
        self.rows, self.names = rows, names

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, i: int) -> MarkedRow:
        row = self.rows[i]
        inputs = {key: row[key] for key in row if key not in self.names}
        return MarkedRow(inputs, "unlabeled")


def alternating_loader(trainer: Trainer, unlabeled: Any, alternate: Alternate) -> DataLoader:
    """A loader of the trainer's training data that alternates with unlabeled batches."""
    args, labeled = trainer.args, trainer.train_dataset
    if not isinstance(labeled, Sized) or not isinstance(unlabeled, Sized):
        raise ValueError("labeled and unlabeled data must have a length: use map-style datasets")
    if not len(unlabeled):
        raise ValueError("the unlabeled dataset has no rows")
    labels = tuple(trainer.label_names or ()) + ("labels", "label")
    if sampling_strategy(args) == "batch_rebalance":
        raise ValueError(
            "batches of labeled and unlabeled rows are not balanced over processes: set "
            "train_sampling_strategy to group_by_length or random"
        )
    seed = args.data_seed if args.data_seed is not None else args.seed
    order: Any = trainer._get_train_sampler()
    if isinstance(order, RandomSampler):  # as accelerate does for a loader of labeled rows alone
        order = SeedableRandomSampler(labeled, generator=torch.Generator(), data_seed=seed)
    sampler = AlternatingBatches(
        order,
        len(unlabeled),
        trainer._train_batch_size,
        alternate,
        args.gradient_accumulation_steps * args.world_size,
        seed,
        getattr(trainer._get_train_sampler(unlabeled), "lengths", None),  # type: ignore[arg-type]
    )
    first = {"batch": 0, "step": 1, "epoch": sampler.updates}[alternate]  # without unlabeled rows
    if 0 < args.max_steps <= first:
        logger.warning(
            "max_steps=%d ends before any unlabeled batch: the first is in update %d "
            '(alternate="%s")',
            args.max_steps,
            first + 1,
            alternate,
        )
    rows: Any = ConcatDataset([labeled, WithoutLabels(unlabeled, labels)])  # type: ignore[list-item]
    # as the Trainer does for rows of any other class than that of datasets
    collate = trainer._get_collator_with_removed_columns(trainer.data_collator, "training")
    loader = DataLoader(
        rows,
        batch_sampler=sampler,
        collate_fn=MarkingCollator(collate),
        num_workers=args.dataloader_num_workers,
        pin_memory=args.dataloader_pin_memory,
    )
    return trainer.accelerator.prepare(loader)
