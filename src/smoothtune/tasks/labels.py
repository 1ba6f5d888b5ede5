"""classes and scores of a label column."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from datasets import ClassLabel, Dataset, Value

from smoothtune.data.columns import IGNORE_INDEX, missing_columns, rows_with_problems, text_problems
from smoothtune.data.summary import SplitReport, lengths_of
from smoothtune.errors import DataError
from smoothtune.tasks.base import Task


def infer_labels(task: Task, dataset: Dataset, source: str) -> Task:
    """Completes a task whose kind of labels is not known, from its train split.

    Text (or the hub's ClassLabel) and booleans are classes; integers are classes that must be
    numbered 0, 1, ...; real numbers are regression.

    Args:
        task: the task; returned as it is when its `label_names` are known.
        dataset: the raw train split.
        source: where the data came from, for the error.

    Returns:
        The task with `label_names` and `metrics`.

    Raises:
        DataError: If the label column is missing, its values are of no usable kind, there is one
            class only, or integer labels do not count from 0.
    """
    if task.label_names is not None:
        return task
    if task.label_column not in dataset.column_names:
        raise DataError(f"{source}: {missing_columns([task.label_column], dataset)}")
    where = f"{source}, split 'train', column {task.label_column!r}"
    names = _label_names(dataset, task.label_column, where)
    if len(names) == 1:
        raise DataError(
            f"{where}: every label is {names[0]!r}; classification needs at least two classes"
        )
    return replace(task, label_names=names, metrics=default_metrics(names))


def _label_names(dataset: Dataset, column: str, where: str) -> tuple[str, ...]:
    feature = dataset.features[column]
    if isinstance(feature, ClassLabel):
        return tuple(feature.names)
    unusable = f"{where}: is of type {feature}; labels are text, integers or real numbers"
    if not isinstance(feature, Value):
        raise DataError(unusable)
    values = {value for value in dataset[column][:] if value is not None and value != ""}
    kinds = {type(value) for value in values}
    if not kinds:
        raise DataError(f"{where}: has no label in any row")
    if kinds == {bool}:
        return ("False", "True")
    if kinds == {str}:
        return tuple(sorted(values))
    if kinds == {float}:
        return ()
    if kinds != {int}:
        raise DataError(unusable)
    if values == {IGNORE_INDEX}:
        raise DataError(f"{where}: {_ALL_IGNORED}")
    if values != set(range(len(values))):
        shown = ", ".join(map(str, sorted(values)[:10]))
        raise DataError(
            f"{where}: integer labels must count 0, 1, 2, ... without gaps, found {shown}; "
            "renumber them, or store them as text if they name classes, as real numbers for "
            "regression"
        )
    return tuple(str(value) for value in range(len(values)))


def check_splits(splits: Mapping[str, Dataset], task: Task, source: str) -> dict[str, np.ndarray]:
    """Checks raw splits and gives their labels as the model wants them.

    Args:
        splits: raw splits by name.
        task: the task, with known labels.
        source: where the data came from, for the error.

    Returns:
        For each split its labels, (N,): int64 class ids, or float32 scores. Labels that are text
        are looked up in the task's label names.

    Raises:
        DataError: With everything that is wrong in any of the splits: missing columns, no rows,
            text that is missing, empty or not text, labels that are missing, not finite, of the
            wrong kind or out of range. Rows count from 0.
    """
    labels: dict[str, np.ndarray] = {}
    problems: list[str] = []
    for name, dataset in splits.items():
        labels[name], found = _check_split(dataset, task)
        problems += [f"{source}, split {name!r}: {problem}" for problem in found]
    if problems:
        raise DataError("\n".join(problems))
    return labels


def check_texts(dataset: Dataset, task: Task, where: str) -> None:
    """Checks the text columns of a split whose labels do not matter.

    Args:
        dataset: a raw split.
        task: names the text columns.
        where: source and split, for the error.

    Raises:
        DataError: With everything that is wrong: missing columns, no rows, text that is missing,
            empty or not text.
    """
    if problems := _text_problems(dataset, task, task.text_columns):
        raise DataError("\n".join(f"{where}: {problem}" for problem in problems))


def _text_problems(dataset: Dataset, task: Task, wanted: Sequence[str]) -> list[str]:
    if not len(dataset):
        return ["has no rows"]
    missing = [column for column in wanted if column not in dataset.column_names]
    problems = [missing_columns(missing, dataset)] if missing else []
    for column in task.text_columns:
        if column not in missing:
            problems += text_problems(column, dataset[column][:])
    return problems


def _check_split(dataset: Dataset, task: Task) -> tuple[np.ndarray, list[str]]:
    problems = _text_problems(dataset, task, (*task.text_columns, task.label_column))
    if not len(dataset) or task.label_column not in dataset.column_names:
        return np.empty(0), problems
    labels, wrong = _labels(dataset, task)
    return labels, problems + wrong


_ALL_IGNORED = f"every label is {IGNORE_INDEX}, the index that the loss ignores: nothing to learn"


def _labels(dataset: Dataset, task: Task) -> tuple[np.ndarray, list[str]]:
    values = dataset[task.label_column][:]
    if all(value == IGNORE_INDEX for value in values):
        return np.empty(0), [f"column {task.label_column!r}: {_ALL_IGNORED}"]
    if task.regression:
        problems = rows_with_problems(task.label_column, values, map(_score_problem, values))
        return np.array([] if problems else values, dtype=np.float32), problems
    names = task.label_names or ()
    feature = dataset.features[task.label_column]
    # The same classes in another order, as some copies of a data set have them, go by name.
    if isinstance(feature, ClassLabel) and set(feature.names) == set(names):
        stored = dict(enumerate(feature.names))
        values = [stored.get(value, value) for value in values]
    ids = {name: index for index, name in enumerate(names)}
    values = [str(value) if isinstance(value, bool) else value for value in values]
    found = (_class_problem(value, ids) for value in values)
    problems = rows_with_problems(task.label_column, values, found)
    if problems:
        return np.empty(0), problems
    encoded = [ids[value] if isinstance(value, str) else int(value) for value in values]
    return np.array(encoded, dtype=np.int64), []


def _score_problem(value: object) -> str:
    if value is None:
        return "is a missing label"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return f"is of type {type(value).__name__}, but the label must be a number"
    return "" if math.isfinite(value) else "is not a finite number"


def _class_problem(value: object, ids: Mapping[str, int]) -> str:
    known = ", ".join(f"{index} {name!r}" for name, index in list(ids.items())[:20])
    if value is None or value == "":
        return "is a missing label"
    if isinstance(value, str):
        return "" if value in ids else f"is no label of this task; they are {known}"
    # Integers are real numbers in files where one is missing, so 1.0 is class 1.
    if not isinstance(value, int | float) or not float(value).is_integer():
        return f"is no class number; the labels are {known}"
    return "" if 0 <= value < len(ids) else f"is out of range; the labels are {known}"


def report_split(
    task: Task,
    labels: np.ndarray,
    lengths: np.ndarray,
    *,
    source_rows: int,
    truncated: int,
    note: str = "",
) -> SplitReport:
    """Counts one split.

    Args:
        task: the task.
        labels: class ids or scores of the examples used, (N,).
        lengths: their numbers of tokens, (N,).
        source_rows: examples the source has.
        truncated: examples that were cut.
        note: what is unusual about the split.

    Returns:
        The numbers.
    """
    if task.regression:
        counts = {"min": labels.min(), "mean": labels.mean(), "max": labels.max()}
    else:
        names = task.label_names or ()
        counts = dict(zip(names, np.bincount(labels, minlength=len(names)), strict=True))
    return SplitReport(
        rows=len(labels),
        source_rows=source_rows,
        labels={name: value.item() for name, value in counts.items()},
        lengths=lengths_of(lengths),
        truncated=truncated,
        note=note,
    )


def default_metrics(label_names: tuple[str, ...]) -> tuple[str, ...]:
    """Metrics of a task that names none.

    Args:
        label_names: names of the classes; empty for regression.

    Returns:
        Pearson and Spearman correlation for regression, accuracy and F1 otherwise.
    """
    return ("accuracy", "f1") if label_names else ("pearson", "spearman")
