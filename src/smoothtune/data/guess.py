"""What a file of rows seems to hold: its columns, and the task that they describe."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any

from datasets import Dataset

from smoothtune.data.guess_sets import answer_columns, list_column, separated_column
from smoothtune.data.label_types import typed_by_cells

LABEL_NAMES = ["label", "labels", "class", "category", "target", "sentiment", "score", "rating"]
LABEL_NAMES += ["stars", "gold", "y", "klasse", "kategorie", "bewertung", "etikett"]
LABEL_NAMES += ["topic", "intent"]
UNLIKELY = {"priority", "prio", "lang", "language", "locale", "country", "split", "fold", "source"}
UNLIKELY |= {"channel", "status", "gender", "year", "month", "day", "user", "author", "id"}
"""Words in the names of columns of few values that are seldom the label."""
TEXT_NAMES = ["text", "sentence", "review", "comment", "message", "content", "body", "tweet"]
TEXT_NAMES += ["document", "kommentar", "satz", "texte", "texto", "title"]
PAIRS = (
    ("sentence1", "sentence2"),
    ("premise", "hypothesis"),
    ("text_a", "text_b"),
    ("text1", "text2"),
    ("question1", "question2"),
    ("question", "answer"),
    ("question", "sentence"),
    ("query", "passage"),
)
MAX_CLASSES = 50
_SAMPLE = 5000


@dataclass(frozen=True)
class Guess:
    """Columns of a data set by what they seem to be."""

    task_type: str
    text_columns: list[str] = field(default_factory=list)
    label_column: str | None = None
    others: list[str] = field(default_factory=list)
    """Columns that are not read."""
    label_separator: str | None = None
    """What separates several labels in a text."""
    label_columns: list[str] = field(default_factory=list)
    """Columns of 0 and 1, one for each of several labels."""
    rivals: dict[str, list[str]] = field(default_factory=dict)
    """Other columns that may be the label column, each with its values, the most frequent first."""


def with_types(texts: Dataset) -> Dataset:
    """Rows of CSV, which says no types: columns whose cells are all numbers become numbers."""
    return reduce(typed_by_cells, texts.column_names, texts)


def guess(
    rows: Dataset, *, text_columns: Sequence[str] = (), label_column: str | None = None
) -> Guess:
    """Guess which columns are texts and labels, and the type of the task.

    Args:
        rows: raw rows of a train split.
        text_columns: the text columns, if they are known.
        label_column: the label column, if it is known.

    Returns:
        The guess; without text columns or label column where none is likely.
    """
    names = rows.column_names
    if not text_columns and label_column is None and (found := _not_of_texts(rows)):
        return found
    values = {name: rows[name][:_SAMPLE] for name in names}
    candidates = {name: column for name, column in values.items() if name not in text_columns}
    few = _few_values(candidates)
    label = label_column or _label_column(candidates, few)
    texts = list(text_columns)
    texts = texts or _text_columns({name: v for name, v in values.items() if name != label})
    usual = label is not None and label.strip().lower() in LABEL_NAMES
    alone = label if usual or label_column is not None else None
    rest = {name: column for name, column in values.items() if name not in texts}
    found = _several_labels(rest, texts, alone) if texts else None
    found = found or Guess("text-classification", texts, label, _without(names, [*texts, label]))
    if label_column is not None:
        return found
    used = {found.label_column, *found.label_columns, *texts}
    rivals = {name: list(values) for name, values in few.items() if name not in used}
    return replace(found, rivals=rivals)


def _not_of_texts(rows: Dataset) -> Guess | None:
    """A guess where the columns are those of question answering or token classification."""
    names = rows.column_names
    if {"question", "context", "answers"} <= set(names):
        used = ["question", "context", "answers"]
        return Guess("question-answering", others=_without(names, used))
    values = {name: rows[name][:_SAMPLE] for name in names}
    lists = [name for name in names if any(isinstance(value, list) for value in values[name])]
    if "tokens" in lists and len(lists) > 1:
        tags = "tags" if "tags" in lists else next(name for name in lists if name != "tokens")
        others = _without(names, ["tokens", tags])
        return Guess("token-classification", ["tokens"], tags, others)
    return None


def _several_labels(
    values: dict[str, list[Any]], texts: list[str], label: str | None
) -> Guess | None:
    """A guess where rows seem to have several labels.

    Args:
        values: columns that are no texts.
        texts: the text columns.
        label: a column with a usual name of labels; no other one is then looked at.
    """
    task_type, looked_at = "multi-label-classification", values
    if label is not None:
        looked_at = {label: values[label]}
    if column := list_column(looked_at, LABEL_NAMES):
        return Guess(task_type, texts, column, _without(values, [column]))
    if found := separated_column(looked_at):
        column, separator = found
        return Guess(task_type, texts, column, _without(values, [column]), separator)
    if columns := answer_columns(looked_at):
        return Guess(task_type, texts, None, _without(values, columns), None, columns)
    return None


def _few_values(values: Mapping[str, list[Any]]) -> dict[str, Counter[str]]:
    """The columns that may hold labels, each with its values and their numbers of rows."""
    counts = {name: _distinct(column) for name, column in values.items()}
    return {
        name: Counter(dict(found.most_common()))
        for name, found in counts.items()
        if len(found) > 1 and _is_label(values[name], len(found))
    }


def _label_column(values: Mapping[str, list[Any]], few: Mapping[str, Counter[str]]) -> str | None:
    """A usual name, or one with a usual word; else the last of the columns with fewest values.

    Columns with a name of `UNLIKELY` come after all others.
    """
    for name in values:
        usual = name.strip().lower() in LABEL_NAMES
        if usual and (name in few or len(_distinct(values[name])) <= MAX_CLASSES):
            return name
    words = {name: set(re.split(r"[\W_]+", name.lower())) for name in few}
    for name in few:
        if words[name] & set(LABEL_NAMES):
            return name
    ranks = {name: (bool(words[name] & UNLIKELY), len(found)) for name, found in few.items()}
    return min(reversed(list(few)), key=lambda name: ranks[name]) if few else None


def _is_label(column: list[Any], distinct: int) -> bool:
    """Few different values that come again and again, or real numbers."""
    if any(isinstance(value, list | dict) for value in column):
        return False
    if any(isinstance(value, float) and not value.is_integer() for value in column):
        return True
    return distinct <= min(MAX_CLASSES, max(2, len(column) // 2))


def _text_columns(values: dict[str, list[Any]]) -> list[str]:
    """A pair with usual names; else a usual name; else the column with the longest texts."""
    texts = {
        name: sum(map(len, filter(None, column))) / len(column)
        for name, column in values.items()
        if all(isinstance(value, str | None) for value in column) and any(column)
    }
    lower = {name.strip().lower(): name for name in texts}
    for first, second in PAIRS:
        if first in lower and second in lower:
            return [lower[first], lower[second]]
    for usual in TEXT_NAMES:
        if usual in lower:
            return [lower[usual]]
    return [max(texts, key=lambda name: texts[name])] if texts else []


def _distinct(column: Iterable[Any]) -> Counter[str]:
    return Counter(str(value) for value in column if value is not None and value != "")


def _without(names: Iterable[str], used: Iterable[str | None]) -> list[str]:
    return [name for name in names if name not in set(used)]
