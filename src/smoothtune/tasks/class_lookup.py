"""Which class a label means: one rule for classes, tags and sets of labels, wherever rows are read.

A name wins over a number. A number counts the classes from 0, unless these are named by numbers
that count otherwise: then 1 may be the name or the number of a class, and only the name is taken.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from datasets import ClassLabel

from smoothtune.data.label_names import ALIKE, MERGE, MISSING, is_missing
from smoothtune.data.label_types import is_integer, is_number
from smoothtune.data.unseen import spelled_alike


def is_numbered(names: Sequence[str]) -> bool:
    """Whether a number can be that of a class: no name is a number, or each is its own."""
    return all(not looks_like_a_number(name) or name == str(i) for i, name in enumerate(names))


def looks_like_a_number(name: str) -> bool:
    """Whether a name is a number, or a code such as 007."""
    return is_number(name) or name.strip().isdecimal()


class ClassLookup:
    """The classes of a task, looked up by name or number."""

    def __init__(self, names: Sequence[str], *, merge: bool = False, feature: Any = None) -> None:
        """Look up the classes of these names, in the order of their ids.

        With `merge`, texts that differ only in blanks, case or unseen characters are one name.
        Numbers in a column that has the hub's class labels as its feature are names if one of
        these is a class of the task.
        """
        self.names = tuple(names)
        self.ids = {name: index for index, name in enumerate(names)}
        self.alike = {spelled_alike(name): index for index, name in enumerate(names)}
        self.merge, self.numbered = merge, is_numbered(names)
        self.stored: tuple[str, ...] = ()
        if isinstance(feature, ClassLabel) and set(feature.names) & set(names):
            self.stored = tuple(feature.names)

    def index(self, label: Any) -> int | None:
        """The class that a label means, from 0; None if it means none, see `problem`."""
        label = self._as_name(label)
        spellings = [str(label)] if isinstance(label, str | bool | int | float) else []
        number = whole_number(label)
        if number is not None and not isinstance(label, str):
            spellings.append(str(number))  # 1.0 is 1 where a label is missing
        for text in spellings:
            if text in self.ids:
                return self.ids[text]
            if self.merge and spelled_alike(text) in self.alike:
                return self.alike[spelled_alike(text)]
        in_range = number is not None and self.numbered and 0 <= number < len(self.names)
        return number if in_range else None

    def indices(self, labels: Iterable[Any]) -> list[int]:
        """The classes that labels mean; those with a problem are left out."""
        return [index for label in labels if (index := self.index(label)) is not None]

    def problem(self, label: Any) -> str:
        """What is wrong with a label; "" if it means a class."""
        if is_missing(label):
            return f"is {MISSING}"
        if self.index(label) is not None:
            return ""
        label = self._as_name(label)
        numbered = ", ".join(f"{index} {name!r}" for name, index in list(self.ids.items())[:20])
        if isinstance(label, str) and spelled_alike(label) in self.alike:
            name = self.names[self.alike[spelled_alike(label)]]
            return f"differs from the label {name!r} in {ALIKE} only; give {MERGE}"
        if whole_number(label) is not None and not self.numbered:
            return (
                "is no name of a class, and no number of one, since numbers are names here: "
                f"{', '.join(map(repr, self.names[:20]))}"
            )
        if isinstance(label, str | bool):
            return f"is no label of this task; they are {numbered}"
        if whole_number(label) is None:
            return f"is no class number; the labels are {numbered}"
        return f"is out of range; the labels are {numbered}"

    def _as_name(self, label: Any) -> Any:
        stored = type(label) is int and 0 <= label < len(self.stored)
        return self.stored[label] if stored else label


def whole_number(label: Any) -> int | None:
    """A whole number, which may be stored as a real one or, in CSV, as text."""
    if isinstance(label, str):
        return int(label) if is_integer(label) else None
    if isinstance(label, bool) or not isinstance(label, int | float):
        return None
    return int(label) if float(label).is_integer() else None
