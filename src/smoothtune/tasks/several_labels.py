"""Columns of rows with several labels each, told apart from those with one label."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from smoothtune.data.label_types import has_decimal_comma

LABEL_NAMES = {"label", "labels", "class", "category", "target", "sentiment", "score", "rating"}
LABEL_NAMES |= {"stars", "gold", "y", "klasse", "kategorie", "bewertung", "etikett"}
LABEL_NAMES |= {"topic", "intent"}
LABEL_SEPARATORS = ";|,/"
"""Of labels within a text, as they are looked for."""
MAX_CLASSES = 50
COMBINED = 0.02
"""Share of the rows with labels that combine several, from which on their column has sets."""


def is_usual(name: str) -> bool:
    """Whether a column has a usual name of labels."""
    return name.strip().lower() in LABEL_NAMES


def list_column(values: Mapping[str, Sequence[Any]]) -> str | None:
    """A column of lists of labels, one with a usual name before others."""
    lists = {
        name: [value if isinstance(value, list) else [] for value in column]
        for name, column in values.items()
    }
    candidates = [name for name, rows in lists.items() if any(rows) and _seem_labels(rows)]
    return min(candidates, key=lambda name: not is_usual(name), default=None)


def separated_column(values: Mapping[str, Sequence[Any]]) -> tuple[str, str] | None:
    """A column of texts that hold several labels, and what separates these."""
    for name, column in values.items():
        if not all(isinstance(value, str | None) for value in column):
            continue
        for separator in LABEL_SEPARATORS:
            holding = [value for value in column if value and separator in value]
            if all(map(has_decimal_comma, holding)):
                continue
            cells = [(value or "").split(separator) for value in column]
            rows = [[x.strip() for x in cell if x.strip()] for cell in cells]
            if _seem_labels(rows) and _are_combined(rows):
                return name, separator
    return None


def _are_combined(rows: Sequence[Sequence[str]]) -> bool:
    """Whether labels stand in rows beside others here, and alone or beside yet others there.

    This tells sets such as toxic;insult from names such as n/a, IT/Software or Berlin, DE.
    """
    sets = [frozenset(row) for row in rows if row]
    found_in = defaultdict[str, set[frozenset[str]]](set)
    for each in sets:
        for label in each:
            found_in[label].add(each)
    several = [each for each in sets if len(each) > 1 and all(len(found_in[x]) > 1 for x in each)]
    return len(several) >= max(2, COMBINED * len(sets))


def answer_columns(values: Mapping[str, Sequence[Any]]) -> list[str]:
    """The columns of 0 and 1, if there are several."""

    def plain(value: Any) -> str:
        return str(int(value)) if value in (0, 1) else str(value)

    binary = [name for name, column in values.items() if set(map(plain, column)) == {"0", "1"}]
    return binary if len(binary) > 1 else []


def _seem_labels(rows: Sequence[Sequence[Any]]) -> bool:
    """Few labels that come again and again, in rows that have more or fewer of them."""
    if not all(isinstance(label, str | int) for row in rows for label in row):
        return False
    counts = Counter(label for row in rows for label in row)
    sizes = {len(row) for row in rows}
    many = counts.total() >= 2 * len(counts)
    return 2 <= len(counts) <= MAX_CLASSES and many and len(sizes) > 1 and max(sizes) > 1
