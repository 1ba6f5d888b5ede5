"""Where rows stand: in which line of their file, or as which row of a data set."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from weakref import WeakKeyDictionary

import numpy as np
from datasets import Dataset

FIRST = 10
"""Rows of one kind of problem that a message names."""
_LINES: WeakKeyDictionary[Dataset, Callable[[], list[str]]] = WeakKeyDictionary()


def remember(split: Dataset, lines: Callable[[], list[str]]) -> None:
    """Keep where the rows of a split stand.

    Args:
        split: as it was read.
        lines: gives the place of every row, as ``line 9``; called when a message needs it.
    """
    _LINES[split] = lines


def keep_places(split: Dataset, before: Dataset) -> Dataset:
    """A split with the same rows as another one in the same order; its rows have their places."""
    if before in _LINES:
        _LINES[split] = _LINES[before]
    return split


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
