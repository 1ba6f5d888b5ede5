"""What a file of rows seems to hold: its columns, and the task that they describe."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import reduce
from typing import Any

import numpy as np
from datasets import Dataset

from smoothtune.catalog import DEFAULT_TASK_TYPE
from smoothtune.data.label_types import typed_by_cells
from smoothtune.tasks.multi_label import MultiLabelClassification
from smoothtune.tasks.presets import TASK_CLASSES
from smoothtune.tasks.question_answering.task import QuestionAnswering
from smoothtune.tasks.several_labels import (
    LABEL_NAMES,
    MAX_CLASSES,
    answer_columns,
    is_usual,
    list_column,
    separated_column,
)
from smoothtune.tasks.splits import sampled
from smoothtune.tasks.token_classification import TokenClassification

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
SENTENCE = 4
"""Words of a cell, on average, from which on a column is one of sentences."""
_SAMPLE = 5000
"""Rows that are looked at."""


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
    more_texts: list[str] = field(default_factory=list)
    """Other columns of sentences, of which one may be the second text of a pair."""


def with_types(texts: Dataset) -> Dataset:
    """Rows of CSV, which says no types: columns whose cells are all numbers become numbers."""
    return reduce(typed_by_cells, texts.column_names, texts)


def guess(
    rows: Dataset, *, text_columns: Sequence[str] = (), label_column: str | None = None
) -> Guess:
    """Guess the text and label columns of a train split that are not known, and the task's type.

    There are none in the guess where none is likely.
    """
    names = rows.column_names
    # not the first rows, which have one label where a file is sorted by it
    sample = np.sort(sampled(np.arange(len(rows)), _SAMPLE, 0))
    values = rows.select(sample, keep_in_memory=True).to_dict()
    if not text_columns and label_column is None and (columns := _not_of_texts(values)):
        return columns
    candidates = {name: column for name, column in values.items() if name not in text_columns}
    few = _few_values(candidates)
    label = label_column or _label_column(candidates, few)
    unlabeled = {name: column for name, column in values.items() if name != label}
    texts = list(text_columns) or _text_columns(unlabeled)
    usual = label is not None and is_usual(label)
    alone = label if usual or label_column is not None else None
    rest = {name: column for name, column in values.items() if name not in texts}
    columns = _several_labels(rest, texts, alone) if texts else None
    columns = columns or Guess(DEFAULT_TASK_TYPE, texts, label)
    used = [*texts, columns.label_column, *columns.label_columns]
    columns = replace(columns, others=_without(names, used))
    if len(texts) == 1 and not text_columns:
        unread = {name: values[name] for name in columns.others if name not in few}
        columns = replace(columns, more_texts=list(_sentences(unread)))
    if label_column is not None:
        return columns
    usual_names = [name for name in candidates if is_usual(name)]
    rivals = few | {name: _by_frequency(candidates[name]) for name in usual_names}
    return replace(columns, rivals={name: rivals[name] for name in rivals if name not in used})


def usual_fields(task_type: str) -> dict[str, Any]:
    """Fields of a task on columns with their usual names."""
    of_type = {} if task_type == DEFAULT_TASK_TYPE else {"task_type": task_type}
    return of_type | dict(TASK_CLASSES[task_type].usual_columns)


def likely_fields(columns: Guess, task_type: str) -> Iterator[dict[str, Any]]:
    """Fields of a task for every column that may be the label, and every way to read it."""
    cls, usual = TASK_CLASSES[task_type], usual_fields(task_type)
    names = {each.name for each in fields(cls)}
    texts = {"text_columns": columns.text_columns} if columns.text_columns else {}
    if not cls.one_sequence:
        yield usual | (texts if task_type == columns.task_type else {})
        return
    labels: list[dict[str, Any]] = []
    if columns.label_column:
        labels.append({"label_column": columns.label_column})
    if columns.label_separator and "label_separator" in names:
        labels[0] |= {"label_separator": columns.label_separator}
    if columns.label_columns and "label_columns" in names:
        usual.pop("label_column")
        labels = [{"label_columns": columns.label_columns}]
    labels += [{"label_column": rival} for rival in columns.rivals]
    ways: list[dict[str, Any]] = [{}, {"drop_missing": True}]
    typed = [{"label_type": x} | way for x in ("text", "integer") for way in ways]
    ways += [{"merge_labels": True}] * bool(cls.label_types)
    ways += typed * ("integer" in cls.label_types)
    for label in labels or [{}]:
        for way in ways:
            yield usual | texts | label | way


def _not_of_texts(values: Mapping[str, list[Any]]) -> Guess | None:
    """A guess where the columns are those of question answering or token classification."""
    names, used = list(values), ["question", "context", "answers"]
    if set(used) <= set(names):
        return Guess(QuestionAnswering.task_type, others=_without(names, used))
    lists = [name for name in names if any(isinstance(value, list) for value in values[name])]
    if "tokens" in lists and len(lists) > 1:
        tags = "tags" if "tags" in lists else next(name for name in lists if name != "tokens")
        return Guess(
            TokenClassification.task_type, ["tokens"], tags, _without(names, ["tokens", tags])
        )
    return None


def _several_labels(
    values: dict[str, list[Any]], texts: list[str], label: str | None
) -> Guess | None:
    """A guess where the columns that are no texts seem to hold several labels of a row.

    `label` is a column with a usual name of labels; no other one is then looked at.
    """
    task_type, candidates = MultiLabelClassification.task_type, values
    if label is not None:
        candidates = {label: values[label]}
    if column := list_column(candidates):
        return Guess(task_type, texts, column)
    if match := separated_column(candidates):
        return Guess(task_type, texts, match[0], label_separator=match[1])
    if columns := answer_columns(candidates):
        return Guess(task_type, texts, label_columns=columns)
    return None


def _few_values(values: Mapping[str, list[Any]]) -> dict[str, list[str]]:
    """The columns that may hold labels, each with its values, the most frequent first."""
    by_name = {name: _by_frequency(column) for name, column in values.items()}
    return {
        name: labels
        for name, labels in by_name.items()
        if len(labels) > 1 and _is_label(values[name], len(labels))
    }


def _label_column(values: Mapping[str, list[Any]], few: Mapping[str, list[str]]) -> str | None:
    """A usual name, or one with a usual word; else the last of the columns with fewest values.

    A usual name may have many values that come again, as intents have, unless another one has few.
    Columns with a name of `UNLIKELY` come after all others.
    """
    usual = {name: len(_distinct(values[name])) for name in values if is_usual(name)}
    for name, distinct in usual.items():
        if name in few or distinct <= MAX_CLASSES:
            return name
    words = {name: set(re.split(r"[\W_]+", name.lower())) for name in few}
    for name in few:
        if words[name] & LABEL_NAMES:
            return name
    for name, distinct in usual.items():
        if distinct <= len(values[name]) / 2:
            return name
    ranks = {name: (bool(words[name] & UNLIKELY), len(few[name])) for name in few}
    return min(reversed(list(few)), key=lambda name: ranks[name]) if few else None


def _is_label(column: list[Any], distinct: int) -> bool:
    """Few different values that come again and again, or real numbers."""
    if any(isinstance(value, list | dict) for value in column):
        return False
    if any(isinstance(value, float) and not value.is_integer() for value in column):
        return True
    return distinct <= min(MAX_CLASSES, max(2, len(column) // 2))


def _text_columns(values: dict[str, list[Any]]) -> list[str]:
    """A pair with usual names; else a usual name; else the longest texts, and their twin."""
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
    longest = sorted(texts, key=lambda name: -texts[name])[:1]
    return next((pair for pair in _twins(list(texts)) if set(longest) & set(pair)), longest)


def _twins(names: Sequence[str]) -> Iterator[list[str]]:
    """Pairs of names that differ by a last 1 and 2, or A and B: Question A, Question B."""
    for name in names:
        for first, second in (("1", "2"), ("a", "b"), ("A", "B")):
            if name.endswith(first) and (twin := name[:-1] + second) in names:
                yield [name, twin]


def _sentences(values: Mapping[str, list[Any]]) -> Iterator[str]:
    """The columns of texts that have some words each, more than names and dates have."""
    for name, column in values.items():
        if all(isinstance(value, str | None) for value in column):
            words = sum(len((value or "").split()) for value in column)
            if words >= SENTENCE * len(column):
                yield name


def _distinct(column: Iterable[Any]) -> Counter[str]:
    return Counter(str(value) for value in column if value is not None and value != "")


def _by_frequency(column: Iterable[Any]) -> list[str]:
    """The different values, the most frequent first."""
    return [value for value, _ in _distinct(column).most_common()]


def _without(names: Iterable[str], used: Iterable[str | None]) -> list[str]:
    return [name for name in names if name not in set(used)]
