"""Classes and scores of a label column, and the model outputs that belong to them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from datasets import ClassLabel, Dataset

from smoothtune.data.arrow import distinct, stored_column
from smoothtune.data.columns import IGNORE_INDEX, rows_with_problems
from smoothtune.data.label_names import ALL_IGNORED, MERGE, MISSING, is_missing, spelled_alike
from smoothtune.errors import DataError, ModelError

LARGEST_SCORE = float(np.finfo(np.float32).max)


def tag_names(dataset: Dataset, column: str, where: str) -> tuple[str, ...]:
    """Names of the tags in a column with lists of tags, as `class_names`."""
    item = getattr(dataset.features[column], "feature", None)
    if isinstance(item, ClassLabel):
        return tuple(item.names)
    tags = {tag for tags in dataset[column][:] for tag in tags or ()}
    if tags and all(isinstance(tag, str) for tag in tags):
        return tuple(sorted(tags))
    if tags != set(range(len(tags))) or len(tags) < 2:
        shown = ", ".join(map(repr, list(tags)[:10]))
        raise DataError(
            f"{where}, column {column!r}: tags are lists of names, or of numbers 0, 1, 2, ... "
            f"without gaps, found {shown or 'none'}"
        )
    return tuple(map(str, range(len(tags))))


def holds_labels_of(dataset: Dataset, column: str, names: Sequence[str]) -> bool:
    """Whether every label of a column, or every tag of its lists, is one of a model's.

    Args:
        dataset: a raw split.
        column: its label column.
        names: of the model's outputs, in order; labels are names or numbers.
    """
    feature = dataset.features[column]
    if len(names) < 2 or isinstance(getattr(feature, "feature", feature), ClassLabel):
        return False  # a score, or labels with names of their own
    values = dataset[column][:]
    labels = [tag for tags in values for tag in tags] if isinstance(values[0], list) else values
    known = {*names, *range(len(names))}
    return all(type(label) in (int, str) and label in known for label in labels)


def real_scores(dataset: Dataset, column: str) -> tuple[np.ndarray, list[str]]:
    """(N,) float32 scores of a label column, and its problems."""
    values, rows = distinct(stored_column(dataset, column))
    problems = _all_ignored(column, values) or _wrong_rows(column, values, rows, _score_problem)
    return np.array([] if problems else values, dtype=np.float32)[
        [] if problems else rows
    ], problems


def class_ids(
    dataset: Dataset, column: str, names: Sequence[str], *, merge: bool | None = None
) -> tuple[np.ndarray, list[str]]:
    """(N,) int64 class ids of a label column, and its problems.

    Args:
        dataset: a raw split.
        column: its label column; text is looked up in the names.
        names: of the task's classes.
        merge: look texts up without regard to blanks around them and to case.
    """
    values, rows = distinct(stored_column(dataset, column))
    if problems := _all_ignored(column, values):
        return np.empty(0), problems
    ids = {name: index for index, name in enumerate(names)}
    feature = dataset.features[column]
    if stored := stored_names(feature, names):
        values = [stored.get(value, value) for value in values]
    values = [str(value) if isinstance(value, bool) else value for value in values]
    if merge:
        named = {spelled_alike(name): name for name in names}
        values = [named.get(spelled_alike(v), v) if isinstance(v, str) else v for v in values]
    if problems := _wrong_rows(column, values, rows, lambda value: class_problem(value, ids)):
        return np.empty(0), problems
    encoded = [ids[value] if isinstance(value, str) else int(value) for value in values]
    return np.array(encoded, dtype=np.int64)[rows], []


def _wrong_rows(
    column: str, values: Sequence[Any], rows: np.ndarray, problem: Callable[[Any], str]
) -> list[str]:
    """Problems of a column with these distinct values, and (N,) the number of every row's."""
    problems = [problem(value) for value in values]
    if not any(problems):
        return []
    return rows_with_problems(
        column, [values[row] for row in rows], (problems[row] for row in rows)
    )


def tag_ids(dataset: Dataset, column: str, names: Sequence[str]) -> list[list[Any]]:
    """Lists of tags as class ids; unknown tags are left as they are."""
    ids: dict[Any, Any] = {name: index for index, name in enumerate(names)}
    stored = stored_names(getattr(dataset.features[column], "feature", None), names)
    ids |= {number: ids[name] for number, name in stored.items()}
    return [[ids.get(tag, tag) for tag in tags or ()] for tags in dataset[column][:]]


def stored_names(feature: Any, names: Iterable[str]) -> dict[int, str]:
    """Class names by stored number, for a column with the same classes in any order."""
    if isinstance(feature, ClassLabel) and set(feature.names) == set(names):
        return dict(enumerate(feature.names))
    return {}


def _all_ignored(column: str, values: Sequence[Any]) -> list[str]:
    ignored = all(value == IGNORE_INDEX for value in values)
    return [f"column {column!r}: {ALL_IGNORED}"] if ignored else []


def _score_problem(value: object) -> str:
    if is_missing(value):
        return f"is {MISSING}"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return f"is of type {type(value).__name__}, but the label must be a number"
    return "" if abs(value) <= LARGEST_SCORE else "is not a finite number in 32 bits"


def class_problem(value: object, ids: Mapping[str, int]) -> str:
    """What is wrong with a label, by name or number; "" if nothing is."""
    labels = ", ".join(f"{index} {name!r}" for name, index in list(ids.items())[:20])
    if is_missing(value):
        return f"is {MISSING}"
    if isinstance(value, str):
        if value in ids:
            return ""
        alike = next((name for name in ids if spelled_alike(name) == spelled_alike(value)), None)
        if alike is not None:
            return f"differs from the label {alike!r} in blanks or case only; give {MERGE}"
        return f"is no label of this task; they are {labels}"
    # Integers are real numbers in files where one is missing, so 1.0 is class 1.
    if not isinstance(value, int | float) or not float(value).is_integer():
        return f"is no class number; the labels are {labels}"
    return "" if 0 <= value < len(ids) else f"is out of range; the labels are {labels}"


def label_head(names: Sequence[str]) -> dict[str, Any]:
    """Number and names of the labels as fields of a model's configuration."""
    return {
        "num_labels": len(names),
        "id2label": dict(enumerate(names)),
        "label2id": {name: index for index, name in enumerate(names)},
    }


def output_names(config: Any) -> tuple[str, ...]:
    """Names of a model's outputs, in order.

    Raises:
        ModelError: two outputs have one name, or `label2id` numbers them otherwise than `id2label`.
    """
    names = tuple(str(config.id2label[index]) for index in range(config.num_labels))
    numbers = config.label2id or {}
    if len(set(names)) < len(names) or any(numbers.get(x, i) != i for i, x in enumerate(names)):
        raise ModelError(
            f"id2label and label2id of the model do not agree ({config.id2label}, {numbers}), so "
            "its outputs have no sure names; mend them in its config.json"
        )
    return names


def matched_outputs(config: Any, task: str, names: Sequence[str]) -> tuple[int, ...] | None:
    """Which output of a model belongs to each label of a task; None: the same order.

    Args:
        config: the model's.
        task: name of the task, for the error.
        names: of its labels; none for regression.

    Raises:
        ValueError: the model has another number of outputs.
    """
    needed = len(names) or 1
    if config.num_labels != needed:
        raise ValueError(f"has {config.num_labels} outputs, but task {task!r} needs {needed}")
    label2id = config.label2id
    if label2id is None or set(label2id) != set(names):
        return None
    order = tuple(label2id[name] for name in names)
    return None if order == tuple(range(len(order))) else order
