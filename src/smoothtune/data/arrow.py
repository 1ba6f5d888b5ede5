"""Columns of data sets in Arrow's buffers: as numbers, distinct values and JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset

CHUNK = 10_000
"""Rows that are looked at together."""
_ESCAPED = r"[^ !#-\[\]-~]"
"""Characters that JSON in ASCII writes in another way."""


def tables(dataset: Dataset) -> Iterator[pa.Table]:
    """The rows of a data set as they are stored, without its format, some at a time."""
    yield from dataset.with_format("arrow").iter(CHUNK)


def stored_column(dataset: Dataset, column: str) -> pa.ChunkedArray:
    """A column as it is stored, without its format."""
    values = dataset.data.column(column)
    if dataset._indices is None:
        return values
    rows, kind = dataset._indices.column(0), values.type
    if pa.types.is_string(kind):  # whose offsets end at 2 GiB
        values = values.cast(pa.large_string())
    flat = values.combine_chunks()
    parts = (rows.slice(start, CHUNK) for start in range(0, len(rows), CHUNK))
    return pa.chunked_array([flat.take(part.combine_chunks()).cast(kind) for part in parts], kind)


def numbers(dataset: Dataset, column: str) -> np.ndarray:
    """(N,) the stored numbers of a column, or booleans, without missing ones."""
    return stored_column(dataset, column).to_numpy()


def distinct(values: pa.ChunkedArray) -> tuple[list[Any], np.ndarray]:
    """The distinct values of a column in order of appearance, and (N,) the number of each row's.

    Values are equal if they are shown alike: of lists and other nested values that is compared.
    """
    if pa.types.is_nested(values.type) or pa.types.is_dictionary(values.type):
        numbered: dict[str, tuple[int, Any]] = {}
        rows = (numbered.setdefault(str(v), (len(numbered), v)) for v in values.to_pylist())
        codes = np.array([number for number, _ in rows], dtype=np.int64)
        return [value for _, value in numbered.values()], codes
    if pa.types.is_string(values.type):  # whose offsets end at 2 GiB
        values = values.cast(pa.large_string())
    if pa.types.is_null(values.type):
        return [None] * bool(len(values)), np.zeros(len(values), np.int64)
    encoded = values.dictionary_encode(null_encoding="encode")  # one dictionary
    if not encoded.num_chunks:
        return [], np.zeros(0, np.int64)
    codes = np.concatenate([chunk.indices.to_numpy() for chunk in encoded.chunks])
    return encoded.chunk(0).dictionary.to_pylist(), codes


def is_text(kind: pa.DataType) -> bool:
    """Whether values are texts."""
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


def has_visible_ascii(texts: pa.ChunkedArray) -> np.ndarray:
    """(N,) whether a text holds a character of ASCII that is seen; others may be blank, or not."""
    return pc.match_substring_regex(texts, "[!-~]").fill_null(False).to_numpy()


def json_lines(table: pa.Table) -> memoryview:
    """Every row of a table as `json.dumps` writes the list of its values, and a newline."""
    if not len(table) or not all(_is_plain(column) for column in table.columns):
        return memoryview(_dumped(table).encode())
    other, parts = np.zeros(len(table), bool), ["["]
    for column in table.columns:
        if pa.types.is_integer(column.type):
            parts += [column.cast(pa.string()), ", "]
        else:
            other |= pc.match_substring_regex(column, _ESCAPED).to_numpy()
            parts += ['"', column, '"', ", "]
    lines = pc.binary_join_element_wise(*parts[:-1], "]\n", "").combine_chunks()
    if other.any():
        dumped = _dumped(table.filter(pa.array(other))).splitlines(keepends=True)
        lines = pc.replace_with_mask(lines, pa.array(other), pa.array(dumped))
    _, _, content = lines.buffers()
    return memoryview(content)[: pc.sum(pc.binary_length(lines)).as_py()]


def _is_plain(column: pa.ChunkedArray) -> bool:
    return (is_text(column.type) or pa.types.is_integer(column.type)) and not column.null_count


def _dumped(table: pa.Table) -> str:
    rows = zip(*(column.to_pylist() for column in table.columns), strict=True)
    return "".join(f"{json.dumps(row)}\n" for row in rows)
