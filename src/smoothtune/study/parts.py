"""Held-out parts of the rows that a run trains on, which settings are chosen by.

Evaluation rows are in none. Rows of a class that the other rows lack stay in training.
"""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from datasets import ClassLabel, Dataset, Value
from datasets import Sequence as ListOf
from sklearn.preprocessing import MultiLabelBinarizer

from smoothtune.config.run import RunConfig
from smoothtune.config.task import configured_task
from smoothtune.console import progress_bars
from smoothtune.errors import DataError
from smoothtune.files import make_folder, replacing
from smoothtune.models.load import load_base
from smoothtune.study.inputs import data_at_hand
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

    def scored(self, held_out: np.ndarray) -> np.ndarray:
        """(N,) whether each row is scored on; the others are trained on.

        Rows of a class, or with a label or a tag, that no other row has stay in training, as it
        would be unknown there.

        Args:
            held_out: (N,) whether a row is in the part that is held out.

        Raises:
            DataError: there are too few rows.
        """
        out = held_out.copy()
        if self.labels is not None and self.has_classes:
            out &= np.isin(self.labels, self.labels[~out])
        if self.label_sets is not None:
            absent = ~self.label_sets[~out].any(axis=0)
            out &= ~self.label_sets[:, absent].any(axis=1)
        if min(out.sum(), (~out).sum()) < FEWEST:
            raise DataError(
                f"{len(out)} training rows are too few: a held-out part has {out.sum()} that can "
                f"be scored, and {(~out).sum()} are left to train on; {FEWEST} of each are needed, "
                "and rows with a label that no other part has are not scored. Give more rows, or "
                "hold out a larger share"
            )
        return out


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


def write_parts(config: RunConfig, share: float, folder: Path) -> None:
    """Write two parts of the rows that a run trains on, which its seed and size choose.

    A `share` of them is the validation split.

    Raises:
        DataError: there are too few rows.
        OutputError: the files cannot be written.
    """
    training = training_rows(config)
    order = np.random.default_rng(config.seed).permutation(len(training.rows))
    held_out = np.zeros(len(order), bool)
    held_out[order[: round(share * len(order))]] = True
    write_split(training, held_out, folder)


def write_split(training: TrainingRows, held_out: np.ndarray, folder: Path) -> None:
    """Write ``train.parquet`` and ``validation.parquet``, the latter the rows that are scored on.

    Files that are there stay. Arguments and errors as `TrainingRows.scored`.
    """
    out = training.scored(held_out)
    if (folder / "validation.parquet").exists():
        return
    make_folder(folder)
    for name, chosen in (("train", ~out), ("validation", out)):
        part = training.rows.select(np.flatnonzero(chosen), keep_in_memory=True)
        with replacing(folder / f"{name}.parquet") as partial, progress_bars(shown=False):
            part.to_parquet(str(partial))
