"""The rows of JSON files: one in every line, or all of them in one list."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from smoothtune.data.csv_rows import refuse_repeated
from smoothtune.errors import DataError

_VALUE = re.compile(r"[^ \t\r\n]")


def read_json(files: Sequence[Path]) -> tuple[pa.Table, list[np.ndarray]]:
    """The rows of files, and for each file (N,) the lines, from 1, in which its values begin.

    These are lines of rows where every value is one; a list of rows has one line for all.

    Raises:
        DataError: a file is not UTF-8, no JSON, or holds no rows, or a name stands twice in one.
    """
    parts = [_rows(file) for file in files]
    rows = [row for part, _ in parts for row in part]
    names = dict.fromkeys(name for row in rows for name in row)
    table = pa.table({name: _column([row.get(name) for row in rows]) for name in names})
    return table, [np.array(lines, np.int64) for _, lines in parts]


def _rows(file: Path) -> tuple[list[dict[str, Any]], list[int]]:
    text = _decoded(file)
    what = f"{file}: cannot be read as JSON"
    rows, lines = list[dict[str, Any]](), list[int]()
    begins_a_list = text.lstrip().startswith("[")
    line, end = 1, 0

    def row_of(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        row = dict(pairs)
        if len(row) < len(pairs):
            where = "a row" if text[start] == "[" else f"line {line}"
            refuse_repeated([name for name, _ in pairs], f"{file}: {where}")
        return row

    decoder = json.JSONDecoder(object_pairs_hook=row_of)
    while found := _VALUE.search(text, end):
        start = found.start()
        line += text.count("\n", end, start)
        try:
            value, end = decoder.raw_decode(text, start)
        except json.JSONDecodeError as error:
            raise DataError(
                f"{what}: line {error.lineno}, character {error.colno}: {error.msg}; get the file "
                "again, or write the line anew"
            ) from error
        values = value if begins_a_list and isinstance(value, list) else [value]
        if not all(isinstance(row, dict) for row in values):
            raise DataError(
                f'{what}: line {line} holds no row; write {{"column": value, ...}} in every line'
            )
        rows += values
        lines.append(line)
        line += text.count("\n", start, end)
    if not any(rows):
        raise DataError(f"{what}: it has no rows")
    return rows, lines


def _decoded(file: Path) -> str:
    content = file.read_bytes()
    try:
        return content.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        before = content[: error.start].split(b"\n")
        raise DataError(
            f"{file}: line {len(before)} is not UTF-8 (byte {len(before[-1]) + 1} of the line); "
            "write the file again as UTF-8"
        ) from error


def _column(values: list[Any]) -> pa.Array:
    """Values in Arrow's type for them, or as JSON where they are of several types."""
    try:
        column = pa.array(values)
        if not pa.types.is_nested(column.type) or column.to_pylist() == values:
            return column
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
        pass
    texts = [None if x is None else json.dumps(x, ensure_ascii=False) for x in values]
    return pa.array(texts, pa.json_(pa.string()))
