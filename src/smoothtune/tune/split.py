"""Parts of the training rows: one is held out to score on, the others are trained on.

Rows with the same texts stay in one part, so that nothing is scored on what was trained on.
Classes, or scores in regression, are spread evenly over the parts. Evaluation rows are in none.
"""

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from datasets import ClassLabel, Dataset, Value
from datasets import Sequence as ListOf
from sklearn.preprocessing import MultiLabelBinarizer

from smoothtune.config.run import RunConfig
from smoothtune.config.task import configured_task
from smoothtune.errors import DataError
from smoothtune.models.load import load_base
from smoothtune.study.inputs import data_at_hand, write_numbered
from smoothtune.tasks.base import Task
from smoothtune.tasks.class_lookup import is_numbered
from smoothtune.tasks.prepare import prepare

FEWEST = 4
"""Rows that are held out at least, and trained on at least."""


@dataclass(frozen=True)
class TrainingRows:
    """The raw rows that a run would train on."""

    rows: Dataset
    texts: list[str]
    """(N,) what the model reads of each row."""
    labels: np.ndarray | None
    """(N,) int64 class or float32 score of each row; None for other types of tasks."""
    fingerprint: str
    """sha256, in hex, of the rows."""
    label_sets: np.ndarray | None = None
    """(N, L) which labels, or tags, each row has, where it may have several."""

    @property
    def has_classes(self) -> bool:
        """Whether each row has one class."""
        return self.labels is not None and self.labels.dtype.kind == "i"


def training_rows(config: RunConfig) -> TrainingRows:
    """The rows that `smoothtune train` would train on, its evaluation rows left out.

    Raises:
        ConfigError, DataError, ModelError: the run could not read its data or its tokenizer.
    """
    task = configured_task(config)
    base = load_base(config.model, trust_remote_code=config.trust_remote_code)
    source = data_at_hand(config) or task.hub_id or ""
    prepared = prepare(
        source,
        task,
        base.tokenizer,
        max_train_samples=config.max_train_samples,
        max_eval_samples=1,
        max_seq_length=config.max_seq_length,
        seed=config.seed,
    )
    numbers = np.unique(prepared.train["example_id"][:])  # question answering has several windows
    rows = task.load_splits(source)["train"].select(numbers, keep_in_memory=True)
    reader = prepared.task.rows
    columns = (rows[name][:] for name in reader.unlabeled_columns if name in rows.column_names)
    texts = [json.dumps(values, default=str) for values in zip(*columns, strict=True)]
    labels = reader.check({"train": rows}, source)["train"]
    used = [column for column in reader.columns if column in rows.column_names]
    content = json.dumps([[column, rows[column][:]] for column in used], default=str).encode()
    fingerprint = hashlib.sha256(content).hexdigest()
    rows = _numbers_named(rows, prepared.task)
    if isinstance(labels, np.ndarray) and labels.ndim == 1:
        return TrainingRows(rows, texts, labels, fingerprint)
    if not isinstance(labels, np.ndarray | None):
        known = range(prepared.task.num_labels)
        labels = MultiLabelBinarizer(classes=known).fit_transform(labels)
    sets = None if labels is None else labels > 0
    return TrainingRows(rows, texts, None, fingerprint, sets)


def _numbers_named(rows: Dataset, task: Task) -> Dataset:
    """The rows, numbered labels with their names where a number is absent.

    Without names numbers must have no gaps, and a sample of the rows may lack some.
    """
    column = getattr(task, "label_column", "")
    if column not in task.rows.columns or column not in rows.column_names or not task.label_names:
        return rows
    feature = rows.features[column]
    item = getattr(feature, "feature", feature)
    if not isinstance(item, Value) or not item.dtype.startswith(("int", "uint")):
        return rows
    values = rows[column][:]
    numbers = set(values if item is feature else (number for each in values for number in each))
    if numbers == set(range(len(numbers))) or not is_numbered(task.label_names):
        return rows
    named = ClassLabel(names=list(task.label_names))
    return rows.cast_column(column, named if item is feature else ListOf(named))


def parts_of(
    texts: Sequence[str], labels: Sequence[Any] | np.ndarray | None, count: int, seed: int
) -> np.ndarray:
    """(N,) the part, from 0, that each row is in.

    Args:
        texts: (N,) rows with the same text share a part.
        labels: (N,) classes or scores that are spread evenly; None: spread at random.
        count: number of parts.
        seed: of the draw.
    """
    draw = np.random.default_rng(seed)
    by_text: dict[str, list[int]] = {}
    for row, text in enumerate(texts):
        by_text.setdefault(text, []).append(row)
    groups = list(by_text.values())
    order = list(draw.permutation(len(groups)))
    if labels is not None:
        order.sort(key=lambda group: labels[groups[group][0]])  # stable: at random within a class
    parts = np.empty(len(texts), np.int64)
    for start in range(0, len(order), count):  # every part gets one of each block
        block = order[start : start + count]
        for group, part in zip(block, draw.permutation(count), strict=False):
            parts[groups[group]] = part
    return parts


def check_parts(training: TrainingRows, count: int, chosen: Iterable[tuple[int, int]]) -> None:
    """Refuse rows that are too few, before anything is trained.

    Raises:
        DataError: too few rows are held out or trained on in one of them.
    """
    cuts: dict[int, np.ndarray] = {}
    for seed, part in chosen:
        if seed not in cuts:
            cuts[seed] = parts_of(training.texts, training.labels, count, seed)
        scored_rows(training, cuts[seed], part)


def scored_rows(training: TrainingRows, parts: np.ndarray, held_out: int) -> np.ndarray:
    """(N,) whether each row is scored on; the others are trained on.

    Rows of a class, or with a label or a tag, that no other part has stay in training, as it would
    be unknown there.

    Raises:
        DataError: there are too few rows.
    """
    out = parts == held_out
    labels = training.labels
    if labels is not None and np.issubdtype(labels.dtype, np.integer):
        out &= np.isin(labels, labels[~out])
    if training.label_sets is not None:
        absent = ~training.label_sets[~out].any(axis=0)
        out &= ~training.label_sets[:, absent].any(axis=1)
    if min(out.sum(), (~out).sum()) < FEWEST:
        raise DataError(
            f"{len(out)} training rows are too few: a held-out part has {out.sum()} that can be "
            f"scored, and {(~out).sum()} are left to train on; {FEWEST} of each are needed, and "
            "rows with a label that no other part has are not scored. Give more rows, or a larger "
            "held_out"
        )
    return out


def write_split(training: TrainingRows, parts: np.ndarray, held_out: int, folder: Path) -> None:
    """Write ``train.parquet`` and ``validation.parquet``, the latter the scored rows of one part.

    Files that are there stay.

    Raises:
        DataError: there are too few rows.
    """
    out = scored_rows(training, parts, held_out)
    if not (folder / "validation.parquet").exists():
        write_numbered(training.rows, np.flatnonzero(~out), np.flatnonzero(out), folder)
