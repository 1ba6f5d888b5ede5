"""Which splits of a source, and which of their rows, train and evaluate."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from datasets import Dataset

from smoothtune.data.arrow import distinct, stored_column
from smoothtune.data.columns import column_problem
from smoothtune.errors import DataError
from smoothtune.tasks.base import Task

HELD_OUT = 0.1
"""Share of the train split held out where the source has no validation split."""


def choose_rows(
    splits: Mapping[str, Dataset],
    task: Task,
    source: str | Path,
    max_train_samples: int | None,
    max_eval_samples: int | None,
    seed: int,
) -> tuple[dict[str, tuple[str, np.ndarray]], str]:
    """The split and rows that train and validation use, and a note about the latter.

    A `DataError` tells that there is no split to evaluate on, or too few rows to hold some out.
    """
    train = np.arange(len(splits["train"]))
    name, note = validation_split(splits, task, source), ""
    if name == "train":
        if len(train) < 2:
            raise DataError(
                f"{source}: has no validation split, and too few rows to hold some out from train"
            )
        # A fixed seed: runs with different seeds must be evaluated on the same examples.
        held_out = np.random.default_rng(0).permutation(train)[: max(1, int(HELD_OUT * len(train)))]
        repeated = _same_texts(splits["train"], task, held_out)
        validation, train = np.sort(held_out), np.setdiff1d(train, repeated)
        note = "held out from train"
        if more := len(repeated) - len(held_out):
            note += f"; {more} more rows with the same texts left out"
        if not len(train):
            raise DataError(
                f"{source}: has no validation split, and so few different texts that none is left "
                "to train on after some are held out"
            )
    else:
        validation = np.arange(len(splits[name]))
    train = sampled(train, max_train_samples, seed)
    return {"train": ("train", train), "validation": (name, validation[:max_eval_samples])}, note


def sampled(rows: np.ndarray, count: int | None, seed: int) -> np.ndarray:
    """At most `count` of the rows, drawn at random; a smaller draw is a part of a larger one."""
    if count is None or count >= len(rows):
        return rows
    return np.random.default_rng(seed).permutation(rows)[:count]


def evaluation_split(splits: Mapping[str, Dataset], task: Task, source: str | Path) -> str:
    """The split that a model is evaluated on which was not trained on the source."""
    for name in (task.validation_split, "validation", "test"):
        if name in splits:
            return name
    if len(splits) == 1:
        return next(iter(splits))
    raise DataError(
        f"{source}: has neither a validation nor a test split to evaluate on; it has "
        f"{', '.join(map(repr, sorted(splits)))}: give the file of one of them as the source"
    )


def validation_split(splits: Mapping[str, Dataset], task: Task, source: str | Path) -> str:
    """The split that a training is evaluated on; train, where a part of it is held out.

    Raises DataError if there are others alone.
    """
    for name in (task.validation_split, "validation"):
        if name in splits:
            return name
    if set(splits) <= {"train", "test"} and task.validation_split == "validation":
        return "train"
    raise DataError(
        f"{source}: has no split {task.validation_split!r} to evaluate on; it has "
        f"{', '.join(map(repr, sorted(splits)))}"
    )


def _same_texts(raw: Dataset, task: Task, rows: np.ndarray) -> np.ndarray:
    """All rows with the same texts as one of `rows`, including those."""
    if column_problem(raw, task.text_columns):
        return rows  # `Reader.check` reports the problem
    texts = np.zeros(len(raw), np.int64)
    for column in task.text_columns:
        values, numbers = distinct(stored_column(raw, column))
        _, texts = np.unique(texts * len(values) + numbers, return_inverse=True)
    return np.flatnonzero(np.isin(texts, texts[rows]))
