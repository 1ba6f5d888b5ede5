"""Several labels of a row: lists of them, texts that hold several, or a column for each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from datasets import ClassLabel, Dataset

from smoothtune.data.columns import rows_with_problems
from smoothtune.data.label_names import is_missing
from smoothtune.errors import DataError
from smoothtune.tasks.class_lookup import ClassLookup
from smoothtune.tasks.labels import listed_labels, names_in_lists

FORMS = (
    "give label_separator, such as ;, for texts that hold several labels, or label_columns for "
    "columns of 0 and 1"
)


def set_names(
    dataset: Dataset, column: str, separator: str | None, where: str, *, merge: bool | None = None
) -> tuple[str, ...]:
    """Names of the labels in a column of lists, or of texts that hold several.

    Raises:
        DataError: no row has a label, there is one label only, or as `names_in_lists`.
    """
    where = f"{where}, column {column!r}"
    item = getattr(dataset.features[column], "feature", None)
    if isinstance(item, ClassLabel):
        return tuple(item.names)
    rows = [row for row in listed_labels(dataset, column, separator) if isinstance(row, list)]
    if not rows:
        raise DataError(f"{where}: holds no lists of labels; {FORMS}")
    names = names_in_lists(rows, where, merge)
    if len(names) == 1:
        raise DataError(
            f"{where}: every label is {names[0]!r}; for one question, yes or no, use "
            "text-classification"
        )
    return names


def label_sets(
    dataset: Dataset,
    column: str,
    separator: str | None,
    names: Sequence[str],
    *,
    merge: bool | None = None,
) -> tuple[np.ndarray, list[str]]:
    """(N, L) float32, 1 where a row has the label, and the problems of the column."""
    item = getattr(dataset.features[column], "feature", None)
    lookup = ClassLookup(names, merge=bool(merge), feature=item)
    rows = listed_labels(dataset, column, separator)
    problems = [_set_problem(row, lookup) for row in rows]
    if any(problems):
        messages = rows_with_problems(dataset, column, dataset[column][:], problems)
        return np.empty((0, len(names))), messages
    multi_hot = np.zeros((len(rows), len(names)), np.float32)
    for row, labels in enumerate(rows):
        multi_hot[row, lookup.indices(labels)] = 1
    return multi_hot, []


def yes_or_no(dataset: Dataset, columns: Sequence[str]) -> tuple[np.ndarray, list[str]]:
    """As `label_sets`, from a column of 0 and 1 for each label."""
    multi_hot = np.zeros((len(dataset), len(columns)), np.float32)
    problems = []
    for index, column in enumerate(columns):
        values = dataset[column][:]
        wrong = rows_with_problems(dataset, column, values, map(_answer_problem, values))
        problems += wrong
        if not wrong:
            multi_hot[:, index] = [float(value) for value in values]
    return multi_hot, problems


def _set_problem(row: Any, lookup: ClassLookup) -> str:
    if row is None:
        return "is a missing label; write an empty list for a row without labels, or drop the row"
    if not isinstance(row, list):
        return f"is no list of labels; {FORMS}"
    for label in row:
        if isinstance(label, bool):
            return f"holds {label}, and a list names the labels of its row; {FORMS}"
        if problem := lookup.problem(label):
            return f"holds {label!r}, which {problem}"
    numbers = [label for label in row if not isinstance(label, str)]
    if len(set(numbers)) < len(numbers):
        return (
            "holds a number twice, and a list has the numbers of its row's labels, each once; "
            "for a 0 or 1 for each label write them into columns: label_columns"
        )
    return ""


def _answer_problem(value: Any) -> str:
    if is_missing(value):
        return "is a missing label; write 0 or 1"
    if isinstance(value, str):
        return "" if value.strip() in ("0", "1") else "is neither 0 nor 1"
    return "" if isinstance(value, int | float) and value in (0, 1) else "is neither 0 nor 1"
