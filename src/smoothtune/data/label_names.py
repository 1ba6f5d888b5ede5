"""Names of the classes in a column of labels; labels that are missing, or spelled in two ways."""

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import numpy as np
from datasets import ClassLabel, Dataset, Value

from smoothtune.data.arrow import distinct, stored_column
from smoothtune.data.columns import IGNORE_INDEX, rows_with_problems
from smoothtune.data.label_types import LabelType, has_decimal_comma, is_integer, is_number
from smoothtune.data.locations import FIRST
from smoothtune.data.unseen import spelled_alike, visible
from smoothtune.errors import DataError, counted

ALL_IGNORED = f"every label is {IGNORE_INDEX}, the index that the loss ignores: nothing to learn"
MISSING = "a missing label; fill it in, or drop the row (--drop-missing)"
ALIKE = "blanks, case or characters that are not printed"
MERGE = "merge_labels: true, or spell it so"
MOST_WHOLE = 20
"""Different whole numbers among real ones, up to which they may be classes as well as scores."""
_MARKERS = ("nan", "null", "<na>", "#n/a")
"""What programs write, in lower case, for a value that is missing."""


def class_names(
    dataset: Dataset,
    column: str,
    where: str,
    *,
    merge: bool | None = None,
    label_type: LabelType | None = None,
) -> tuple[str, ...]:
    """Names of the classes in a label column, in the order of their ids; none for regression.

    Text (or the hub's ClassLabel) and booleans are classes; integers are classes that must be
    numbered 0, 1, ...; real numbers are regression.

    Args:
        dataset: the raw train split.
        column: its label column.
        where: source and split, for the error.
        merge: whether texts that differ only in blanks, case or characters that are not printed
            are one class, under their most frequent spelling; None: an error.
        label_type: what the user says that labels are; None: nothing.

    Raises:
        DataError: the values have no usable type, or leave it open whether they are classes or
            scores; there is only one class; integers do not count from 0; texts are spelled alike.
    """
    if label_type == "float":
        return ()
    names = _class_names(dataset, column, where, merge, label_type)
    if len(names) == 1:
        raise DataError(
            f"{where}, column {column!r}: every label is {names[0]!r}; classification needs at "
            "least two classes"
        )
    return names


def _class_names(
    dataset: Dataset, column: str, source: str, merge: bool | None, label_type: LabelType | None
) -> tuple[str, ...]:
    where = f"{source}, column {column!r}"
    feature = dataset.features[column]
    if isinstance(feature, ClassLabel):
        return tuple(feature.names)
    unusable = f"{where}: is of type {feature}; labels are text, integers or real numbers"
    if hasattr(feature, "feature"):
        several = "where a row has several labels, give --task-type multi-label-classification"
        raise DataError(f"{unusable}; {several}")
    if not isinstance(feature, Value):
        raise DataError(unusable)
    labels, rows = distinct(stored_column(dataset, column))
    numbers = np.bincount(rows, minlength=len(labels)).tolist()
    counts = {v: n for v, n in zip(labels, numbers, strict=True) if not is_missing(v)}
    kinds = {type(value) for value in counts}
    if not kinds:
        raise DataError(f"{where}: has no label in any row")
    if kinds == {bool}:
        return ("False", "True")
    if kinds == {str}:
        reasons = _ambiguous_texts(counts, label_type) if label_type != "text" else {}
        if reasons:
            values = [labels[row] for row in rows]
            problems = [reasons.get(value, "") for value in values]
            messages = rows_with_problems(dataset, column, values, problems)
            raise DataError("\n".join(f"{source}: {message}" for message in messages))
        return text_classes(counts, where, merge)
    if kinds == {float} and label_type == "integer":
        raise DataError(f"{where}: labels are real numbers, and label_type says integer")
    if kinds == {float}:
        _refuse_whole(counts, where)
        return ()
    if kinds != {int}:
        raise DataError(f"{unusable}; give label_type: text for classes, float for scores")
    return _numbered(set(counts), where)


def _numbered(values: set[int], where: str) -> tuple[str, ...]:
    """Names of classes that are numbers."""
    if values == {IGNORE_INDEX}:
        raise DataError(f"{where}: {ALL_IGNORED}")
    if values != set(range(len(values))):
        shown = ", ".join(map(str, sorted(values)[:10]))
        raise DataError(
            f"{where}: integer labels must count 0, 1, 2, ... without gaps, found {shown}; "
            "if they name classes, give label_type: text (--label-type text); if they are scores, "
            "label_type: float"
        )
    return tuple(map(str, range(len(values))))


def _refuse_whole(values: Collection[float], where: str) -> None:
    """Refuse real numbers that are all whole and few, as programs write classes beside a gap."""
    if len(values) <= MOST_WHOLE and all(value.is_integer() for value in values):
        shown = ", ".join(map(str, sorted(values)[:10]))
        is_gapless = {int(value) for value in values} == set(range(len(values)))
        classes = "integer" if is_gapless else "text"
        raise DataError(
            f"{where}: labels are {shown}, whole numbers that are written as real ones, as "
            "programs write classes where one is missing. "
            f"If they are classes, give label_type: {classes} (--label-type {classes}); if they "
            "are scores, label_type: float"
        )


def _ambiguous_texts(counts: Mapping[str, int], label_type: LabelType | None) -> dict[str, str]:
    """Of texts that leave open what they, or the whole column, mean: why.

    Missing labels are not among `counts`, rows by label.
    """
    if label_type == "integer":
        reason = "is no integer; mend it, or drop the row"
        return {text: reason for text in counts if not is_integer(text)}
    numbers = [text for text in counts if is_number(text)]
    others = [text for text in counts if not is_number(text)]
    if numbers and not others:
        reason = "is a number that is stored as text; give label_type: float for scores, text for "
        return {} if all(map(is_integer, numbers)) else dict.fromkeys(numbers, f"{reason}classes")
    rows, total = sum(counts[text] for text in numbers), sum(counts.values())
    few = max(total / len(counts), 2)
    if all(map(has_decimal_comma, others)) or not all(map(is_integer, numbers)):
        odd = others
    elif 2 * rows > total:  # numbers that may be scores; what names a class has as many rows
        odd = [x for x in others if counts[x] < few and not x.strip().isdecimal()]
    else:
        reason = "seems to be a missing label; fill it in, or drop the row; give label_type: text "
        odd = [x for x in others if is_marked_missing(x) and counts[x] < few]
        return dict.fromkeys(odd, f"{reason}if it names a class")
    rest = f", and {counted(rows, 'row')} hold one" if rows else ""
    return {text: f"is no number{rest}; {_mend(text)}" for text in odd}


def _mend(text: str) -> str:
    if has_decimal_comma(text):
        return f"write it with a decimal point, as {text.strip().replace(',', '.')}"
    return "fill it in, or drop the row; give label_type: text if labels name classes"


def text_classes(counts: Mapping[str, int], where: str, merge: bool | None) -> tuple[str, ...]:
    """Names of classes that are texts, see `class_names`; whole numbers in their order."""
    spellings: dict[str, list[str]] = {}
    for text in sorted(counts, key=lambda text: (-counts[text], text)):
        spellings.setdefault(spelled_alike(text), []).append(text)
    if merge:
        return in_order(visible(texts[0]) for texts in spellings.values())
    alike = [texts for texts in spellings.values() if len(texts) > 1]
    if alike and merge is None:
        shown = "; ".join(
            ", ".join(f"{text!r} ({counted(counts[text], 'row')})" for text in texts)
            for texts in alike[:FIRST]
        )
        raise DataError(
            f"{where}: labels differ in {ALIKE} only: {shown}. Give merge_labels: true to make "
            "each of these one class, or false if they are different ones"
        )
    return in_order(counts)


def in_order(names: Iterable[str]) -> tuple[str, ...]:
    """Names of classes in the order of their ids: by number if all are whole numbers."""
    ordered = sorted(names)
    return tuple(sorted(ordered, key=int) if all(map(is_integer, ordered)) else ordered)


def is_missing(value: Any) -> bool:
    """Whether a label is not there: null, not a number (NaN), or a text of blanks."""
    return value is None or value != value or (isinstance(value, str) and not visible(value))


def is_marked_missing(value: Any) -> bool:
    """Whether a label is what programs write for one that is not there: nan, null, <NA>, #N/A."""
    return isinstance(value, str) and value.strip().lower() in _MARKERS
