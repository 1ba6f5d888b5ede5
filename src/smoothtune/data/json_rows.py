"""What a file of JSON rows must not be, and the lines of its rows."""

from __future__ import annotations

import json
import mmap
import re
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from smoothtune.data.csv_rows import refuse_repeated
from smoothtune.errors import DataError

_TOKEN, _NULL = re.compile(rb"[^\s\xef\xbb\xbf]"), re.compile(rb"(?m)^[ \t]*null[ \t\r]*$")
_LOOKED_AT = 100
"""Lines in which repeated names are looked for."""


def check_json(file: Path) -> None:
    """Refuse rows that are ``null``, on which the reader of JSON can crash with the process.

    Raises:
        DataError: there are such rows, or no rows, a name stands twice in a row, or the file is not
            UTF-8, of which the reader of JSON sometimes makes other characters.
    """
    with file.open("rb") as opened:
        if not file.stat().st_size:
            raise DataError(f"{file}: cannot be read as JSON: it has no rows")
        _refuse_other_encodings(file)
        with mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as content:
            wrong = start = _TOKEN.search(content)
            if start and start[0] in b"{[":  # a null inside a list of the whole file is no row
                wrong = _NULL.search(content) if start[0] == b"{" else None
            if wrong:
                line = content[: wrong.start()].count(b"\n") + 1
                raise DataError(
                    f"{file}: cannot be read as JSON: line {line} holds no row; write "
                    '{"column": value, ...} in every line'
                )
    refuse_repeated_names(file, _LOOKED_AT)


def _refuse_other_encodings(file: Path) -> None:
    with file.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            try:
                line.decode("utf-8")
            except UnicodeDecodeError as error:
                raise DataError(
                    f"{file}: line {number} is not UTF-8 (byte {error.start + 1} of the line); "
                    "write the file again as UTF-8"
                ) from error


def refuse_repeated_names(file: Path, lines: int | None = None) -> None:
    """Refuse rows in which a name stands twice.

    Args:
        file: of a row in a line, or of one value that holds all rows.
        lines: how many of its lines are looked at; None: all.

    Raises:
        DataError: there is such a row.
    """
    with file.open("rb") as opened:
        if opened.read(1000).lstrip(b"\xef\xbb\xbf \t\r\n")[:1] == b"[":
            opened.seek(0)
            _refuse_in(opened.read(), f"{file}: a row")
            return
        opened.seek(0)
        for number, text in enumerate(islice(opened, lines), 1):
            _refuse_in(text, f"{file}: line {number}")


def _refuse_in(text: bytes, where: str) -> None:
    repeated: list[list[str]] = []

    def record_repeated(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        row = dict(pairs)
        if len(row) < len(pairs):
            repeated.append([name for name, _ in pairs])
        return {}

    try:
        json.loads(text, object_pairs_hook=record_repeated)
    except (ValueError, RecursionError):  # which the reader says better
        return
    for names in repeated:
        refuse_repeated(names, where)


def refuse_broken_lines(file: Path) -> None:
    """Name the first line that is no JSON, which readers of many rows at once cannot.

    Raises:
        DataError: there is one.
    """
    content = file.read_bytes()
    for number, text in enumerate([content] if _is_one_value(file) else content.split(b"\n")):
        try:
            json.loads(text if text.strip() else b"null")
        except json.JSONDecodeError as error:
            raise DataError(
                f"{file}: cannot be read as JSON: line {number + error.lineno}, character "
                f"{error.colno}: {error.msg}; get the file again, or write the line anew"
            ) from error


def lines_of_rows(file: Path) -> np.ndarray:
    """(N,) the line, from 1, of every row; of one JSON value over several lines there are none."""
    with file.open("rb") as opened:
        lines = [number for number, text in enumerate(opened, 1) if text.strip()]
    return np.array([] if _is_one_value(file) else lines, np.int64)


def rows_of(file: Path) -> list[dict[str, Any]]:
    """The rows of a file that can be read, as they stand there."""
    text = file.read_text("utf-8-sig")
    if _is_one_value(file):
        rows = json.loads(text)
        return rows if isinstance(rows, list) else [rows]
    return [json.loads(line) for line in text.split("\n") if line.strip()]


def _is_one_value(file: Path) -> bool:
    """Whether a file holds one JSON value over several lines, not a row in each."""
    with file.open("rb") as opened:
        first = opened.read(1000).lstrip(b"\xef\xbb\xbf \t\r\n")
    return first[:1] == b"[" or first.split(b"\n")[0].strip() == b"{"
