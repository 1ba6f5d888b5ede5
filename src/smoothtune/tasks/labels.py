"""Classes, tags and scores of a label column."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
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
    item = getattr(dataset.features[column], "feature", None)
    if isinstance(item, ClassLabel):
        return tuple(item.names)
    return names_in_lists(dataset[column][:], f"{where}, column {column!r}", merge)


def names_in_lists(
    rows: Iterable[Sequence[Any] | None], where: str, merge: bool | None
) -> tuple[str, ...]:
    """Names of the labels in lists, in the order of their ids; `merge` as `class_names`.

    Raises:
        DataError: labels are neither texts nor the numbers from 0 without gaps, or texts differ in
            blanks or case only.
    """
    counts = Counter(label for row in rows for label in row or () if not is_missing(label))
    kinds = set(map(type, counts))
    if kinds == {str}:
        return text_classes(counts, where, merge)
    if kinds != {int} or set(counts) != set(range(len(counts))):
        shown = ", ".join(map(repr, sorted(counts, key=repr)[:10])) or "none"
        raise DataError(
            f"{where}: labels are names, or numbers 0, 1, 2, ... without gaps, found {shown}"
        )
    return tuple(map(str, range(len(counts))))


def listed_labels(dataset: Dataset, column: str, separator: str | None = None) -> list[Any]:
    """The labels of every row as a list; what holds no several labels stays as it is."""
    values = dataset[column][:]
    if separator is None:
        return values
    return [
        [part.strip() for part in value.split(separator) if part.strip()]
        if isinstance(value, str)
        else value
        for value in values
    ]


def holds_labels_of(
    dataset: Dataset,
    column: str,
    names: Sequence[str],
    separator: str | None = None,
    *,
    merge: bool | None = None,
) -> bool:
    """Whether every label of a column, or of its lists, is one of a model's, by name or number."""
    feature = dataset.features[column]
    if len(names) < 2 or isinstance(getattr(feature, "feature", feature), ClassLabel):
        return False  # a score, or labels with names of their own
    lookup = ClassLookup(names, merge=bool(merge))
    if hasattr(feature, "feature") or separator is not None:
        rows = listed_labels(dataset, column, separator)
        labels = {label for row in rows for label in (row if isinstance(row, list) else [row])}
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
    """(N,) int64 class ids of a label column, see `ClassLookup`, and its problems."""
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
    lookups = {tag: (lookup.index(tag), lookup.problem(tag)) for tags in rows for tag in tags}
    problems = [
        next((f"holds {x!r}, which {lookups[x][1]}" for x in tags if lookups[x][0] is None), "")
        for tags in rows
    ]
    return [[lookups[tag][0] or 0 for tag in tags] for tags in rows], problems


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
