"""Columns that seem to hold several labels of a row: lists, texts with a separator, or 0 and 1."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

MAX_LABELS = 50
SEPARATORS = ";|,/"
"""Of labels within a text, as they are looked for."""


def list_column(values: Mapping[str, Sequence[Any]], usual: Collection[str]) -> str | None:
    """A column of lists of labels, one with a usual name before others."""
    found = [
        name
        for name, column in values.items()
        if any(isinstance(value, list) for value in column)
        and _seem_labels([value if isinstance(value, list) else [] for value in column])
    ]
    named = [name for name in found if name.strip().lower() in usual]
    return next(iter(named or found), None)


def separated_column(values: Mapping[str, Sequence[Any]]) -> tuple[str, str] | None:
    """A column of texts that hold several labels, and what separates these."""
    for name, column in values.items():
        if not all(isinstance(value, str | None) for value in column):
            continue
        for separator in SEPARATORS:
            cells = [(value or "").split(separator) for value in column]
            if _seem_labels([[x.strip() for x in cell if x.strip()] for cell in cells]):
                return name, separator
    return None


def answer_columns(values: Mapping[str, Sequence[Any]]) -> list[str]:
    """The columns of 0 and 1, if there are several."""
    found = [name for name, column in values.items() if set(map(_plain, column)) == {"0", "1"}]
    return found if len(found) > 1 else []


def _plain(value: Any) -> str:
    return str(int(value)) if isinstance(value, bool) or value in (0.0, 1.0) else str(value)


def _seem_labels(rows: Sequence[Sequence[Any]]) -> bool:
    """Few labels that come again and again, in rows that have more or fewer of them."""
    if not all(isinstance(label, str | int) for row in rows for label in row):
        return False
    counts = Counter(label for row in rows for label in row)
    sizes = {len(row) for row in rows}
    many = counts.total() >= 2 * len(counts)
    return 2 <= len(counts) <= MAX_LABELS and many and len(sizes) > 1 and max(sizes) > 1
