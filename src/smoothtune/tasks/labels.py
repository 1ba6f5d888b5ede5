"""Classes, scores, lists of tags and sets of labels in a column of a raw split."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from datasets import ClassLabel, Dataset

from smoothtune.data.arrow import distinct, stored_column
from smoothtune.data.columns import IGNORE_INDEX, rows_with_problems
from smoothtune.data.label_names import ALL_IGNORED, MISSING, is_missing, text_classes
from smoothtune.data.label_types import is_number
from smoothtune.errors import DataError
from smoothtune.tasks.class_lookup import ClassLookup

LARGEST_SCORE = float(np.finfo(np.float32).max)
LISTS = "write JSON Lines or Parquet with lists of words and of tags; CSV holds no lists"
FORMS = (
    "give label_separator, such as ;, for texts that hold several labels, or label_columns for "
    "columns of 0 and 1"
)


@dataclass(frozen=True)
class LabelColumn:
    """A column of labels, or of lists of them; what it cannot read are problems of its rows."""

    split: Dataset
    """Raw rows."""
    name: str
    """Of the column."""
    merge: bool | None = None
    """As `class_names`."""
    separator: str | None = None
    """What stands between two labels of a text; None: a text is one label."""

    def _item(self) -> Any:
        """The type of the labels of the column, or of its lists."""
        feature = self.split.features[self.name]
        return getattr(feature, "feature", feature)

    def _lookup(self, names: Sequence[str]) -> ClassLookup:
        return ClassLookup(names, merge=bool(self.merge), feature=self._item())

    def lists(self) -> list[Any]:
        """The labels of every row as a list; what holds no several labels stays as it is."""
        values = self.split[self.name][:]
        if self.separator is None:
            return values
        return [
            [part.strip() for part in value.split(self.separator) if part.strip()]
            if isinstance(value, str)
            else value
            for value in values
        ]

    def names_in_lists(self, where: str) -> tuple[str, ...]:
        """Names of the labels in lists, or in texts with a separator, as `class_names`.

        Raises:
            DataError: there are no lists, labels are neither texts nor the numbers from 0 without
                gaps, or texts differ in blanks or case only.
        """
        where, item = f"{where}, column {self.name!r}", self._item()
        if isinstance(item, ClassLabel):
            return tuple(item.names)
        rows = [row for row in self.lists() if isinstance(row, list)]
        if not rows:
            raise DataError(f"{where}: holds no lists of tags; {LISTS}")
        counts = Counter(label for row in rows for label in row if not is_missing(label))
        kinds = set(map(type, counts))
        if kinds == {str}:
            return text_classes(counts, where, self.merge)
        if kinds != {int} or set(counts) != set(range(len(counts))):
            shown = ", ".join(map(repr, sorted(counts, key=repr)[:10])) or "none"
            names = "; if they are names, give label_type: text (--label-type text)"
            raise DataError(
                f"{where}: labels are names, or numbers 0, 1, 2, ... without gaps, found {shown}"
                f"{names if kinds == {int} else ''}"
            )
        return tuple(map(str, range(len(counts))))

    def are_of(self, names: Sequence[str]) -> bool:
        """Whether every label is one of a model's with these outputs, by name or number."""
        item = self._item()
        if len(names) < 2 or isinstance(item, ClassLabel):
            return False  # a score, or labels with names of their own
        if item is not self.split.features[self.name] or self.separator is not None:
            labels = {x for row in self.lists() for x in (row if isinstance(row, list) else [row])}
        else:
            labels = set(distinct(stored_column(self.split, self.name))[0])
        lookup = self._lookup(names)
        return all(type(x) in (int, str) and lookup.index(x) is not None for x in labels)

    def scores(self) -> tuple[np.ndarray, list[str]]:
        """(N,) float32 scores, and the problems; texts may be numbers."""
        values, rows, problems = self._checked(_score_problem)
        if problems:
            return np.empty(0, np.float32), problems
        return np.array(list(map(float, values)), dtype=np.float32)[rows], []

    def class_ids(self, names: Sequence[str]) -> tuple[np.ndarray, list[str]]:
        """(N,) int64 ids of classes with these names, see `ClassLookup`, and the problems."""
        lookup = self._lookup(names)
        values, rows, problems = self._checked(lookup.problem)
        if problems:
            return np.empty(0), problems
        return np.array(lookup.indices(values), dtype=np.int64)[rows], []

    def _checked(self, problem: Callable[[Any], str]) -> tuple[list[Any], np.ndarray, list[str]]:
        """The distinct values, (N,) the number of every row's, and the problems."""
        values, rows = distinct(stored_column(self.split, self.name))
        if all(value == IGNORE_INDEX for value in values):
            return values, rows, [f"column {self.name!r}: {ALL_IGNORED}"]
        problems = [problem(value) for value in values]
        if not any(problems):
            return values, rows, []
        return values, rows, self._messages([values[i] for i in rows], [problems[i] for i in rows])

    def _messages(self, values: Sequence[Any], problems: Sequence[str]) -> list[str]:
        return rows_with_problems(self.split, self.name, values, problems)

    def tag_ids(self, names: Sequence[str]) -> tuple[list[list[int]], list[str]]:
        """Lists of tags as class ids, and for every row its problem, or ""."""
        lookup = self._lookup(names)
        rows = [list(tags or ()) for tags in self.split[self.name][:]]
        ids = {tag: lookup.index(tag) for tags in rows for tag in tags}
        problems = [
            next((f"holds {x!r}, which {lookup.problem(x)}" for x in tags if ids[x] is None), "")
            for tags in rows
        ]
        return [[ids[tag] or 0 for tag in tags] for tags in rows], problems

    def sets(self, names: Sequence[str]) -> tuple[np.ndarray, list[str]]:
        """(N, L) float32, 1 where a row has the label, and the problems."""
        lookup, rows = self._lookup(names), self.lists()
        problems = [_set_problem(row, lookup, self.separator) for row in rows]
        if any(problems):
            return np.empty((0, len(names))), self._messages(self.split[self.name][:], problems)
        multi_hot = np.zeros((len(rows), len(names)), np.float32)
        for row, labels in enumerate(rows):
            multi_hot[row, lookup.indices(labels)] = 1
        return multi_hot, []

    def answers(self) -> tuple[np.ndarray, list[str]]:
        """(N,) float32 answers, 0 or 1, to one question, and the problems."""
        values = self.split[self.name][:]
        problems = list(map(_answer_problem, values))
        if any(problems):
            return np.zeros(len(values), np.float32), self._messages(values, problems)
        return np.array(list(map(float, values)), np.float32), []


def _score_problem(value: object) -> str:
    if is_missing(value):
        return f"is {MISSING}"
    if isinstance(value, str) and not is_number(value):
        return "is no number; fill it in, or drop the row"
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return f"is of type {type(value).__name__}, but the label must be a number"
    return "" if abs(float(value)) <= LARGEST_SCORE else "is not a finite number in 32 bits"


def _set_problem(row: Any, lookup: ClassLookup, separator: str | None) -> str:
    if row is None:
        empty = "an empty list" if separator is None else "an empty text"
        return f"is a missing label; write {empty} for a row without labels, or drop the row"
    if not isinstance(row, list):
        return f"is no list of labels; {FORMS}"
    for label in row:
        if isinstance(label, bool):
            return f"holds {label}, and a list names the labels of its row; {FORMS}"
        if problem := lookup.problem(label):
            return f"holds {label!r}, which {problem}"
    numbers = [label for label in row if not isinstance(label, str)]
    if len(set(numbers)) < len(numbers):
        return (
            "holds a number twice, and a list has the numbers of its row's labels, each once; "
            "for a 0 or 1 for each label write them into columns: label_columns"
        )
    return ""


def _answer_problem(value: Any) -> str:
    if is_missing(value):
        return "is a missing label; write 0 or 1"
    number = value.strip() in ("0", "1") if isinstance(value, str) else value in (0, 1)
    return "" if number else "is neither 0 nor 1"
