"""The type of a label column: what its cells say in CSV, or what the user says of it."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, Literal

from datasets import Dataset, Json, List, Value

from smoothtune.data.arrow import distinct, stored_column
from smoothtune.data.places import keep_places

LabelType = Literal["text", "integer", "float"]
_STORED = {"text": "string", "integer": "int64", "float": "float64"}
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

    Args:
        split: of CSV, which says no types.
        column: the label column; None, or one that is not there: the split stays as it is.
    """
    if column not in split.column_names:
        return split
    values, rows = distinct(stored_column(split, column))
    for label_type in ("integer", "float"):
        converted = _converted(values, label_type)
        if converted is not None:
            return _replaced(split, column, [converted[row] for row in rows], label_type)
    return split


def of_type(split: Dataset, column: str, label_type: LabelType) -> Dataset:
    """A split whose label column, or the items of whose lists of labels, have a type.

    Args:
        split: raw rows.
        column: the label column. It stays as it is if a value is not of the type, for the check of
            labels to name; so does one with the hub's class labels.
        label_type: what the user says.
    """
    feature = split.features.get(column)
    if isinstance(feature, Json) and label_type == "text":  # of JSON: values of several types
        values = [value and json.loads(value) for value in split[column][:]]
        return _replaced(split, column, list(map(_as_text, values)), label_type)
    item = getattr(feature, "feature", feature)
    if not isinstance(item, Value):
        return split
    if item is not feature:
        if label_type != "text":
            return split
        texts = [row and [_as_text(label) for label in row] for row in split[column][:]]
        return _replaced(split, column, texts, label_type, lists=True)
    values, rows = distinct(stored_column(split, column))
    converted = _converted(values, label_type)
    if converted is None:
        return split
    return _replaced(split, column, [converted[row] for row in rows], label_type)


def _converted(values: Sequence[Any], label_type: LabelType) -> list[Any] | None:
    """Distinct values as values of a type, missing ones as None; None if one is not of it."""
    if label_type == "text":
        return [_as_text(value) for value in values]
    fits, convert = (is_integer, int) if label_type == "integer" else (is_number, float)
    converted = list[Any]()
    for value in values:
        text = _as_text(value)
        if text is not None and isinstance(value, float) and value.is_integer():
            text = str(int(value))
        if isinstance(value, bool) or (text is not None and text.strip() and not fits(text)):
            return None
        converted.append(convert(text) if text is not None and text.strip() else None)
    return converted if any(value is not None for value in converted) else None


def _as_text(value: Any) -> str | None:
    """A value as text; None if it is missing, which not a number (NaN) is, too."""
    return None if value is None or value != value else str(value)


def _replaced(
    split: Dataset, column: str, values: list[Any], label_type: LabelType, *, lists: bool = False
) -> Dataset:
    feature: Any = Value(_STORED[label_type])
    names = split.column_names
    other = split.remove_columns(column)
    other = other.add_column(column, values, feature=List(feature) if lists else feature)
    return keep_places(other.select_columns(names), split)
