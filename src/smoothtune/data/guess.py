"""What a file of rows seems to hold: its columns, and the task that they describe."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from datasets import Dataset

from smoothtune.data.guess_sets import answer_columns, list_column, separated_column

LABEL_NAMES = ["label", "labels", "class", "category", "target", "sentiment", "score", "rating"]
LABEL_NAMES += ["stars", "gold", "y", "klasse", "kategorie", "bewertung", "etikett"]
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


def guess(rows: Dataset) -> Guess:
    """Guess which columns are texts and labels, and the type of the task.

    Args:
        rows: raw rows of a train split.

    Returns:
        The guess; without text columns or label column where none is likely.
    """
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
    label = _label_column(values)
    texts = _text_columns({name: v for name, v in values.items() if name != label})
    alone = label if label is not None and label.strip().lower() in LABEL_NAMES else None
    rest = {name: column for name, column in values.items() if name not in texts}
    if texts and (several := _several_labels(rest, texts, alone)):
        return several
    return Guess("text-classification", texts, label, _without(names, [*texts, label]))


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


def _label_column(values: dict[str, list[Any]]) -> str | None:
    """A usual name; else the last of the columns with the fewest values."""
    counts = {name: len(_distinct(column)) for name, column in values.items()}
    few = {name: n for name, n in counts.items() if n > 1 and _is_label(values[name], n)}
    for name in values:
        if name.strip().lower() in LABEL_NAMES and (name in few or counts[name] <= MAX_CLASSES):
            return name
    return min(reversed(few), key=lambda name: few[name]) if few else None


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
