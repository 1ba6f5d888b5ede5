"""Where rows stand: in which line of their file, or as which row of a data set."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from weakref import WeakKeyDictionary

import numpy as np
from datasets import Dataset

FIRST = 10
"""Rows of one kind of problem that a message names."""


@dataclass(frozen=True)
class _Origin:
    """Where the rows of a split come from."""

    rows: np.ndarray
    """(N,) number of every row in its source, from 0."""
    count: int
    """Number of rows of the source."""
    locate: Callable[[int], str]
    """From the number of a row in the source to where it stands."""


_ORIGINS: WeakKeyDictionary[Dataset, _Origin] = WeakKeyDictionary()


def _origin(split: Dataset) -> _Origin:
    rows = np.arange(len(split))
    return _ORIGINS.get(split) or _Origin(rows, len(rows), lambda row: f"row {row}")


def remember(split: Dataset, lines: Callable[[], list[str]]) -> None:
    """Keep where the rows of a source stand.

    `lines` gives the location of every row, as ``line 9``, when a message needs it; those of
    another number are none of rows.
    """
    count, lines = len(split), cache(lines)

    def locate(row: int) -> str:
        return lines()[row] if len(lines()) == count else f"row {row}"

    _ORIGINS[split] = _Origin(np.arange(count), count, locate)


def keep_locations(split: Dataset, before: Dataset, mask: np.ndarray | None = None) -> Dataset:
    """A split with rows of another one in the same order; its rows keep their locations.

    `mask` (N,) says which of the other's rows they are; None: all.
    """
    origin = _origin(before)
    rows = origin.rows if mask is None else origin.rows[mask]
    _ORIGINS[split] = _Origin(rows, origin.count, origin.locate)
    return split


def source_rows(split: Dataset) -> np.ndarray:
    """(N,) number in the source of every row, those counted that were left out."""
    return _origin(split).rows


def left_out(split: Dataset) -> list[str]:
    """The locations of the rows that were left out of a split."""
    origin = _origin(split)
    return [origin.locate(row) for row in np.setdiff1d(np.arange(origin.count), origin.rows)]


def row_locator(split: Dataset) -> Callable[[int], str]:
    """A function from the number of a row, from 0, to its location: ``line 9``, or ``row 7``."""
    origin = _origin(split)
    return lambda row: origin.locate(int(origin.rows[row]))


def first_of(shown: Sequence[str]) -> str:
    """The first things of a list, and how many more there are."""
    more = f" and {len(shown) - FIRST} more" if len(shown) > FIRST else ""
    return ", ".join(shown[:FIRST]) + more
