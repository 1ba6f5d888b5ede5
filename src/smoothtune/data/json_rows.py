"""What a file of JSON rows must not be, and the lines of its rows."""

from __future__ import annotations

import json
import mmap
import re
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
        DataError: there are such rows, or no rows, or a name stands twice in a row.
    """
    with file.open("rb") as opened:
        if not file.stat().st_size:
            raise DataError(f"{file}: cannot be read as JSON: it has no rows")
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
        opened.seek(0)
        for number, text in zip(range(1, _LOOKED_AT + 1), opened, strict=False):
            _refuse_repeated_names(text, f"{file}: line {number}")


def _refuse_repeated_names(text: bytes, where: str) -> None:
    outermost: list[str] = []

    def noted(pairs: list[tuple[str, Any]]) -> None:
        outermost[:] = [name for name, _ in pairs]  # the outermost object is ended last

    try:
        json.loads(text, object_pairs_hook=noted)
    except (ValueError, RecursionError):  # which the reader says better
        return
    refuse_repeated(outermost, where)


def lines_of_rows(file: Path) -> np.ndarray:
    """(N,) the line, from 1, of every row; of one JSON value over several lines there are none."""
    with file.open("rb") as opened:
        lines = [number for number, text in enumerate(opened, 1) if text.strip()]
        opened.seek(0)
        first = opened.read(1000).lstrip(b"\xef\xbb\xbf \t\r\n")
    whole = first[:1] == b"[" or first.split(b"\n")[0].strip() == b"{"
    return np.array([] if whole else lines, np.int64)
