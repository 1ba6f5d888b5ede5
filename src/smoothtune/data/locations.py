"""Where rows stand: in which line of their file, or as which row of a data set."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import compress
from weakref import WeakKeyDictionary

import numpy as np
from datasets import Dataset

FIRST = 10
"""Rows of one kind of problem that a message names."""
_LINES: WeakKeyDictionary[Dataset, Callable[[], list[str]]] = WeakKeyDictionary()
_LEFT_OUT: WeakKeyDictionary[Dataset, list[str]] = WeakKeyDictionary()
_SOURCE_ROWS: WeakKeyDictionary[Dataset, np.ndarray] = WeakKeyDictionary()


def remember(split: Dataset, lines: Callable[[], list[str]]) -> None:
    """Keep where the rows of a split stand.

    `lines` gives the location of every row, as ``line 9``, when a message needs it.
    """
    _LINES[split] = lines


def keep_locations(split: Dataset, before: Dataset, mask: np.ndarray | None = None) -> Dataset:
    """A split with rows of another one in the same order; its rows keep their locations.

    `mask` (N,) says which of the other's rows they are; None: all.
    """
    gaps = left_out(before)
    _SOURCE_ROWS[split] = source_rows(before)[slice(None) if mask is None else mask]
    if mask is not None:
        locate = row_locator(before)
        gaps = [*gaps, *map(locate, np.flatnonzero(~mask).tolist())]
        lines = _LINES.get(before) or (lambda: [f"row {row}" for row in range(len(mask))])
        _LINES[split] = lambda: list(compress(lines(), mask))
    elif before in _LINES:
        _LINES[split] = _LINES[before]
    if gaps:
        _LEFT_OUT[split] = gaps
    return split


def source_rows(split: Dataset) -> np.ndarray:
    """(N,) number in the source of every row, those counted that were left out."""
    return _SOURCE_ROWS.get(split, np.arange(len(split)))


def left_out(split: Dataset) -> list[str]:
    """The locations of the rows that were left out of a split."""
    return list(_LEFT_OUT.get(split, ()))


def row_locator(split: Dataset) -> Callable[[int], str]:
    """A function from the number of a row, from 0, to its location: ``line 9``, or ``row 7``."""

    @cache
    def lines() -> list[str]:
        locations = _LINES[split]() if split in _LINES else []
        return locations if len(locations) == len(split) else []  # rows that are not one in a line

    return lambda row: lines()[row] if lines() else f"row {row}"


def numbered(lines: np.ndarray, file: str) -> list[str]:
    """``line 9`` for every line (N,); `file`, unless it is empty, stands before it."""
    return [f"{file} line {line}".strip() for line in lines.tolist()]
