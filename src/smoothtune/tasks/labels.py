"""Classes, tags and scores of a label column."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from datasets import ClassLabel, Dataset

from smoothtune.data.arrow import distinct, stored_column
from smoothtune.data.columns import IGNORE_INDEX, rows_with_problems
from smoothtune.data.label_names import ALL_IGNORED, MISSING, is_missing, text_classes
from smoothtune.data.label_types import is_number
from smoothtune.errors import DataError
from smoothtune.tasks.class_lookup import ClassLookup

LARGEST_SCORE = float(np.finfo(np.float32).max)


def tag_names(
    dataset: Dataset, column: str, where: str, *, merge: bool | None = None
) -> tuple[str, ...]:
    """Names of the tags in a column with lists of tags, as `class_names`."""
    where = f"{where}, column {column!r}"
    item = getattr(dataset.features[column], "feature", None)
    if isinstance(item, ClassLabel):
        return tuple(item.names)
    tags = Counter(tag for tags in dataset[column][:] for tag in tags or ())
    if tags and all(isinstance(tag, str) for tag in tags):
        return text_classes(tags, where, merge)
    if set(tags) != set(range(len(tags))) or len(tags) < 2:
        shown = ", ".join(map(repr, list(tags)[:10]))
        raise DataError(
            f"{where}: tags are lists of names, or of numbers 0, 1, 2, ... "
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
    lookup = ClassLookup(names)
    if hasattr(feature, "feature"):
        labels = {tag for tags in dataset[column][:] for tag in tags or ()}
    else:
        labels = set(distinct(stored_column(dataset, column))[0])
    return all(type(x) in (int, str) and lookup.index(x) is not None for x in labels)


def real_scores(dataset: Dataset, column: str) -> tuple[np.ndarray, list[str]]:
    """(N,) float32 scores of a label column, and its problems; texts may be numbers."""
    values, rows = distinct(stored_column(dataset, column))
    problems = _all_ignored(column, values) or _wrong_rows(
        dataset, column, values, rows, _score_problem
    )
    if problems:
        return np.empty(0, np.float32), problems
    return np.array(list(map(float, values)), dtype=np.float32)[rows], []


def class_ids(
    dataset: Dataset, column: str, names: Sequence[str], *, merge: bool | None = None
) -> tuple[np.ndarray, list[str]]:
    """(N,) int64 class ids of a label column, and its problems.

    Args:
        dataset: a raw split.
        column: its label column, see `ClassLookup`.
        names: of the task's classes.
        merge: look texts up without regard to blanks, case and unseen characters.
    """
    values, rows = distinct(stored_column(dataset, column))
    if problems := _all_ignored(column, values):
        return np.empty(0), problems
    lookup = ClassLookup(names, merge=bool(merge), feature=dataset.features[column])
    if problems := _wrong_rows(dataset, column, values, rows, lookup.problem):
        return np.empty(0), problems
    return np.array(lookup.indices(values), dtype=np.int64)[rows], []


def _wrong_rows(
    dataset: Dataset,
    column: str,
    values: Sequence[Any],
    rows: np.ndarray,
    problem: Callable[[Any], str],
) -> list[str]:
    """Problems of a column with these distinct values, and (N,) the number of every row's."""
    problems = [problem(value) for value in values]
    if not any(problems):
        return []
    return rows_with_problems(
        dataset, column, [values[row] for row in rows], (problems[row] for row in rows)
    )


def tag_ids(
    dataset: Dataset, column: str, names: Sequence[str], *, merge: bool | None = None
) -> tuple[list[list[int]], list[str]]:
    """Lists of tags as class ids, and for every row its problem, or ""."""
    item = getattr(dataset.features[column], "feature", None)
    lookup = ClassLookup(names, merge=bool(merge), feature=item)
    rows = [list(tags or ()) for tags in dataset[column][:]]
    known = {tag: (lookup.index(tag), lookup.problem(tag)) for tags in rows for tag in tags}
    problems = [
        next((f"holds {x!r}, which {known[x][1]}" for x in tags if known[x][0] is None), "")
        for tags in rows
    ]
    return [[known[tag][0] or 0 for tag in tags] for tags in rows], problems


def _all_ignored(column: str, values: Sequence[Any]) -> list[str]:
    ignored = all(value == IGNORE_INDEX for value in values)
    return [f"column {column!r}: {ALL_IGNORED}"] if ignored else []


def _score_problem(value: object) -> str:
    if is_missing(value):
        return f"is {MISSING}"
    if isinstance(value, str) and not is_number(value):
        return "is no number; fill it in, or drop the row"
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return f"is of type {type(value).__name__}, but the label must be a number"
    return "" if abs(float(value)) <= LARGEST_SCORE else "is not a finite number in 32 bits"
