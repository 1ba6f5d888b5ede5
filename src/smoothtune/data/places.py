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


def remember(split: Dataset, lines: Callable[[], list[str]]) -> None:
    """Keep where the rows of a split stand.

    Args:
        split: as it was read.
        lines: gives the place of every row, as ``line 9``; called when a message needs it.
    """
    _LINES[split] = lines


def keep_places(split: Dataset, before: Dataset, kept: np.ndarray | None = None) -> Dataset:
    """A split with rows of another one in the same order; its rows have their places.

    Args:
        split: the rows.
        before: the other split.
        kept: (N,) which of its rows they are; None: all.
    """
    gone = left_out(before)
    if kept is not None:
        place = places(before)
        gone = [*gone, *map(place, np.flatnonzero(~kept).tolist())]
        lines = _LINES.get(before) or (lambda: [f"row {row}" for row in range(len(kept))])
        _LINES[split] = lambda: list(compress(lines(), kept))
    elif before in _LINES:
        _LINES[split] = _LINES[before]
    if gone:
        _LEFT_OUT[split] = gone
    return split


def left_out(split: Dataset) -> list[str]:
    """The places of the rows that were left out of a split."""
    return list(_LEFT_OUT.get(split, ()))


def places(split: Dataset) -> Callable[[int], str]:
    """A function from the number of a row, from 0, to its place: ``line 9``, or ``row 7``."""

    @cache
    def lines() -> list[str]:
        found = _LINES[split]() if split in _LINES else []
        return found if len(found) == len(split) else []  # rows that are not one in a line

    return lambda row: lines()[row] if lines() else f"row {row}"


def numbered(lines: np.ndarray, file: str) -> list[str]:
    """``line 9`` for every line (N,); `file`, unless it is empty, stands before it."""
    return [f"{file} line {line}".strip() for line in lines.tolist()]
