"""The type of a label column: what its cells say in CSV, or what the user says of it."""

import re
from collections.abc import Sequence
from typing import Any, Literal

from datasets import Dataset, Features, Json, List, Value

from smoothtune.data.arrow import distinct, json_values, stored_column
from smoothtune.data.locations import keep_locations
from smoothtune.data.unseen import visible

LabelType = Literal["text", "integer", "float"]
_STORED = {"text": Value("string"), "integer": Value("int64"), "float": Value("float64")}
_INTEGER = re.compile(r"0|-?[1-9]\d{0,17}")
_NUMBER = re.compile(r"[-+]?((0|[1-9]\d*)(\.\d*)?|\.\d+)([eE][-+]?\d{1,3})?")
_DECIMAL_COMMA = re.compile(r"[-+]?\d+,\d+")


def is_integer(text: str) -> bool:
    """Whether a text is a whole number as it is written: 007, +1 and 1.0 are not."""
    return _INTEGER.fullmatch(text.strip()) is not None


def is_number(text: str) -> bool:
    """Whether a text is a finite number; 007 is a code, and nan is none."""
    return _NUMBER.fullmatch(text.strip()) is not None


def has_decimal_comma(text: str) -> bool:
    """Whether a text is a number with a comma, as 4,5."""
    return _DECIMAL_COMMA.fullmatch(text.strip()) is not None


def typed_by_cells(split: Dataset, column: str | None) -> Dataset:
    """A split of texts whose label column is one of numbers if all its cells are that or empty.

    CSV says no types. Without a column, or with one that is not of texts, the split stays as it is.
    """
    if column is None or split.features.get(column) != Value("string"):
        return split
    values, _ = distinct(stored_column(split, column))
    present = [value for value in values if value and visible(value)]
    return _converted(split, column, "integer" if all(map(is_integer, present)) else "float")


def of_type(split: Dataset, column: str, label_type: LabelType | None) -> Dataset:
    """A split whose label column, or the items of whose lists of labels, have a type, if any.

    The column stays as it is if a value is not of the type, for the check of labels to name; so
    does one with the hub's class labels.
    """
    feature = split.features.get(column)
    item = getattr(feature, "feature", feature)
    if label_type == "text" and isinstance(feature, Json):
        return _as_texts(split, column, json_values(split, column))
    if label_type is None or not isinstance(item, Value):
        return split
    if item is not feature:
        return split if label_type != "text" else _as_texts(split, column, split[column][:])
    return _converted(split, column, label_type)


def _as_texts(split: Dataset, column: str, values: list[Any]) -> Dataset:
    """A split with other labels, or lists of them, as texts."""
    if not all(isinstance(value, list | None) for value in values):
        return _with_column(split, column, list(map(_as_text, values)), _STORED["text"])
    texts = [value and [_as_text(label) for label in value] for value in values]
    return _with_column(split, column, texts, List(_STORED["text"]))


def _converted(split: Dataset, column: str, label_type: LabelType) -> Dataset:
    """A split with values of a type, missing ones as None; as it is if one is not of it."""
    values, rows = distinct(stored_column(split, column))
    converted = _of_type(values, label_type)
    if converted is None:
        return split
    return _with_column(split, column, [converted[row] for row in rows], _STORED[label_type])


def _of_type(values: Sequence[Any], label_type: LabelType) -> list[Any] | None:
    """Values of a type; None if one is not of it, or all are missing."""
    if label_type == "text":
        return [_as_text(value) for value in values]
    fits, convert = (is_integer, int) if label_type == "integer" else (is_number, float)
    converted = list[Any]()
    for value in values:
        text = _as_text(value) or ""
        if is_number(text) and not is_integer(text) and float(text).is_integer():
            text = str(int(float(text)))  # 1.0 is 1
        if isinstance(value, bool) or (visible(text) and not fits(text)):
            return None
        converted.append(convert(text) if visible(text) else None)
    return converted if any(value is not None for value in converted) else None


def _as_text(value: Any) -> str | None:
    """A value as text, a stored 1.0 as 1; None if it is missing, which NaN is, too."""
    if value is None or value != value:
        return None
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _with_column(split: Dataset, column: str, values: list[Any], feature: Any) -> Dataset:
    """A split with other values, of this type, in a column."""
    names = split.column_names
    if names == [column]:
        other = Dataset.from_dict({column: values}, Features({column: feature}))
    else:
        other = split.remove_columns(column).add_column(column, values, feature=feature)
    return keep_locations(other.select_columns(names), split)
