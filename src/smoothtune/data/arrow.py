"""Columns of data sets in Arrow's buffers: as numbers and distinct values."""

import json
from typing import Any

import numpy as np
import pyarrow as pa
from datasets import Dataset

CHUNK = 10_000
"""Rows that are looked at together."""


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


def json_values(dataset: Dataset, column: str) -> list[Any]:
    """The values of a column that `datasets` keeps as JSON, since they are of several types."""
    return [None if text is None else json.loads(text) for text in dataset[column][:]]


def numbers(dataset: Dataset, column: str) -> np.ndarray:
    """(N,) the stored numbers of a column, or booleans, without missing ones."""
    return stored_column(dataset, column).to_numpy()


def distinct(values: pa.ChunkedArray) -> tuple[list[Any], np.ndarray]:
    """The distinct values of a column in order of appearance, and (N,) the number of each row's.

    Values are equal if they are shown alike: of lists and other nested values that is compared.
    """
    if isinstance(values.type, pa.BaseExtensionType):  # values of several types, as JSON
        values = values.cast(values.type.storage_type)
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
