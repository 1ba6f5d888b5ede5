"""Columns of raw splits: their problems, their texts and their fingerprint."""

import hashlib
import json
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from datasets import Dataset, Features, Value
from datasets import Sequence as ListOf

from smoothtune.data.csv_format import SEPARATORS

IGNORE_INDEX = -100
"""Label that PyTorch's cross entropy skips."""


TEXTS = ("text", "text_pair")
"""Columns of the text, or of the two texts, of an example."""


def column_problem(dataset: Dataset, columns: Iterable[str]) -> str:
    """Message for a split that has no rows or lacks some of the columns; "" if neither."""
    if not len(dataset):
        return "has no rows"
    missing = [column for column in columns if column not in dataset.column_names]
    if not missing:
        return ""
    only = dataset.column_names[0] if len(dataset.column_names) == 1 else ""
    inside = [sep for sep in SEPARATORS if sep in only]
    hint = f"; they seem to be separated by {SEPARATORS[inside[0]]}: give sep" if inside else ""
    return (
        f"has no column {', '.join(map(repr, missing))}; its columns are "
        f"{', '.join(map(repr, dataset.column_names))}{hint}"
    )


def rows_with_problems(column: str, values: list[Any], problems: Iterable[str]) -> list[str]:
    """The first row of each kind of problem in a column, with the number of rows that have it.

    Args:
        column: its name.
        values: its values.
        problems: for every row its problem, or "".
    """
    rows: dict[str, list[int]] = {}
    for row, problem in enumerate(problems):
        if problem:
            rows.setdefault(problem, []).append(row)
    return [
        f"row {first}, column {column!r}: {_shown(values[first])} {problem}"
        + (f" (and {len(others)} more rows)" if others else "")
        for problem, (first, *others) in rows.items()
    ]


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def text_problems(dataset: Dataset, columns: Iterable[str]) -> list[str]:
    """Problems of text columns: missing, empty or non-text values."""
    problems = []
    for column in columns:
        values = dataset[column][:]
        problems += rows_with_problems(column, values, map(_text_problem, values))
    return problems


def _text_problem(value: object) -> str:
    if value is None:
        return "is a missing text; drop the row or fill it in"
    if not isinstance(value, str):
        return f"is of type {type(value).__name__}, not text"
    return "" if value.strip() else "is an empty text; drop the row or fill it in"


def select_texts(
    raw: Dataset, columns: Sequence[str], rows: np.ndarray, labels: np.ndarray | None = None
) -> Dataset:
    """The chosen rows of one or two text columns, in memory.

    Args:
        raw: a split.
        columns: its text columns.
        rows: (E,) numbers of the rows.
        labels: (N,) int64 or float32, or (N, L), for all rows of the split.

    Returns:
        Columns text, for pairs text_pair, labels if given, and example_id, the row's number.
    """
    chosen = raw.select_columns(list(columns)).select(rows, keep_in_memory=True)
    texts = {
        name: (Value("string"), chosen[column][:])
        for name, column in zip(TEXTS, columns, strict=False)
    }
    labeled = {}
    if labels is not None:
        kind: Any = Value(str(labels.dtype))
        labeled["labels"] = (kind if labels.ndim == 1 else ListOf(kind), labels[rows].tolist())
    return typed_columns(**texts, **labeled, example_id=(Value("int64"), rows))


def typed_columns(**columns: tuple[Any, Any]) -> Dataset:
    """A data set in memory from (type, values) of each column."""
    types = {name: type_ for name, (type_, _) in columns.items()}
    values = {name: values for name, (_, values) in columns.items()}
    return Dataset.from_dict(values, features=Features(types))


def fingerprint(texts: Dataset) -> str:
    """Hexadecimal sha256 of the rows."""
    digest = hashlib.sha256()
    for row in zip(*(texts[name][:] for name in texts.column_names), strict=True):
        digest.update(json.dumps(row).encode() + b"\n")
    return digest.hexdigest()
