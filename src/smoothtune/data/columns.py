"""Columns of raw splits: their problems, their texts and their fingerprint."""

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from datasets import Dataset, DatasetInfo, Features, Json, Value
from datasets import Sequence as ListOf
from datasets.table import InMemoryTable

from smoothtune.data.arrow import CHUNK, json_values, stored_column
from smoothtune.data.csv_format import SEPARATORS
from smoothtune.data.locations import FIRST, row_locator
from smoothtune.data.unseen import visible
from smoothtune.errors import counted

IGNORE_INDEX = -100
"""Label that PyTorch's cross entropy skips."""


ONE_TYPE = (
    "write all values in one type; labels that name classes can be read with label_type: text"
)
TEXTS = ("text", "text_pair")
"""Columns of the text, or of the two texts, of an example."""


def column_problem(dataset: Dataset, columns: Iterable[str]) -> str:
    """Message for a split without rows or some of the columns, or with columns of mixed types."""
    if not len(dataset):
        return "has no rows"
    columns = tuple(columns)
    missing = [column for column in columns if column not in dataset.column_names]
    if not missing:
        return "; ".join(filter(None, (_mixed_types(dataset, column) for column in columns)))
    only = dataset.column_names[0] if len(dataset.column_names) == 1 else ""
    inside = [sep for sep in SEPARATORS if sep in only]
    hint = f"; they seem to be separated by {SEPARATORS[inside[0]]}: give sep" if inside else ""
    return (
        f"has no column {', '.join(map(repr, missing))}; its columns are "
        f"{', '.join(map(repr, dataset.column_names))}{hint}"
    )


def _mixed_types(dataset: Dataset, column: str) -> str:
    """Message for a column of JSON that holds values of several types; "" for others."""
    if not isinstance(dataset.features[column], Json):
        return ""
    values = json_values(dataset, column)
    kinds = Counter(type(value) for value in values if value is not None)
    if kinds.keys() <= {list, dict}:
        return f"column {column!r} holds lists or mappings with values of several types: {ONE_TYPE}"
    if len(kinds) == 1:  # datasets stores the text "1" as it stores the number 1
        return (
            f"column {column!r} holds texts that look like values of another type beside such "
            f"values: {ONE_TYPE}"
        )
    usual, count = max(kinds.items(), key=lambda kind: kind[1])
    problems = [
        "" if value is None or type(value) is usual else f"is of type {type(value).__name__}"
        for value in values
    ]
    messages = "; ".join(rows_with_problems(dataset, column, values, problems))
    return f"{messages}; {counted(count, 'row')} hold {usual.__name__}: {ONE_TYPE}"


def rows_with_problems(
    dataset: Dataset, column: str, values: Sequence[Any], problems: Iterable[str]
) -> list[str]:
    """The first rows of each kind of problem in a column, and how many more have it.

    `problems` has for every value its problem, or "".
    """
    rows_by_problem: dict[str, list[tuple[int, Any]]] = {}
    for row, (value, problem) in enumerate(zip(values, problems, strict=True)):
        if problem:
            rows_by_problem.setdefault(problem, []).append((row, value))
    locate = row_locator(dataset)
    messages = [
        f"{locate(row)}, column {column!r}: {_shortened(value)} {problem}"
        + _likewise(locate, value, others)
        for problem, ((row, value), *others) in list(rows_by_problem.items())[:FIRST]
    ]
    if len(rows_by_problem) > FIRST:
        messages.append(f"column {column!r}: {len(rows_by_problem) - FIRST} more kinds of problems")
    return messages


def _likewise(locate: Callable[[int], str], value: Any, others: list[tuple[int, Any]]) -> str:
    """The next rows that have a problem, with their values where these are others."""
    shown = [
        locate(row) if repr(other) == repr(value) else f"{locate(row)}: {_shortened(other)}"
        for row, other in others[: FIRST - 1]
    ]
    if len(others) >= FIRST:
        shown.append(f"and {len(others) - FIRST + 1} more rows")
    return f" (likewise {', '.join(shown)})" if shown else ""


def _shortened(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def text_problems(dataset: Dataset, columns: Iterable[str]) -> list[str]:
    """Problems of text columns: missing, empty or non-text values."""
    problems = []
    for column in columns:
        texts = stored_column(dataset, column).to_pylist()
        problems += rows_with_problems(dataset, column, texts, map(_text_problem, texts))
    return problems


def _text_problem(value: object) -> str:
    if value is None:
        return "is a missing text; drop the row (--drop-missing) or fill it in"
    if not isinstance(value, str):
        return f"is of type {type(value).__name__}, not text"
    empty = "is an empty text; drop the row (--drop-missing) or fill it in"
    return "" if visible(value) else empty


def select_texts(
    raw: Dataset, columns: Sequence[str], rows: np.ndarray, labels: np.ndarray | None = None
) -> Dataset:
    """The chosen rows (E,) of one or two text columns, in memory.

    With the labels (N,) int64 or float32, or (N, L), of all rows of the split, if they are given.

    Returns:
        Columns text, for pairs text_pair, labels, and example_id, the row's number.
    """
    selected = raw.select_columns(list(columns)).select(rows, keep_in_memory=True)
    arrays: dict[str, pa.ChunkedArray | pa.Array] = {
        name: stored_column(selected, column).cast(pa.string())
        for name, column in zip(TEXTS, columns, strict=False)
    }
    kinds: dict[str, Any] = dict.fromkeys(arrays, Value("string"))
    if labels is not None:
        kinds["labels"] = Value(str(labels.dtype))
        arrays["labels"] = pa.array(labels[rows].ravel())
        if labels.ndim == 2:
            starts = pa.array(np.arange(len(rows) + 1, dtype=np.int32) * labels.shape[1])
            kinds["labels"] = ListOf(kinds["labels"])
            arrays["labels"] = pa.ListArray.from_arrays(starts, arrays["labels"])
    kinds["example_id"], arrays["example_id"] = Value("int64"), pa.array(rows, pa.int64())
    return Dataset(InMemoryTable(pa.table(arrays)), DatasetInfo(features=Features(kinds)))


def typed_columns(**columns: tuple[Any, Any]) -> Dataset:
    """A data set in memory from (type, values) of each column."""
    types = {name: type_ for name, (type_, _) in columns.items()}
    values = {name: values for name, (_, values) in columns.items()}
    return Dataset.from_dict(values, features=Features(types))


def fingerprint(texts: Dataset) -> str:
    """Hexadecimal sha256 of the rows, each as the JSON of the list of its values."""
    digest = hashlib.sha256()
    for table in texts.with_format("arrow").iter(CHUNK):
        rows = zip(*(column.to_pylist() for column in table.columns), strict=True)
        digest.update("".join(f"{json.dumps(row)}\n" for row in rows).encode())
    return digest.hexdigest()
