"""Names of the classes in a column of labels; labels that are missing, or spelled in two ways."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping

import numpy as np
from datasets import ClassLabel, Dataset, Value

from smoothtune.data.arrow import distinct, stored_column
from smoothtune.data.columns import IGNORE_INDEX
from smoothtune.errors import DataError, counted

ALL_IGNORED = f"every label is {IGNORE_INDEX}, the index that the loss ignores: nothing to learn"
MISSING = "a missing label; fill it in, or drop the row"
MERGE = "merge_labels: true, or spell it so"
_DECIMAL_COMMA = re.compile(r"\s*[-+]?\d+(,\d+)?\s*")


def class_names(
    dataset: Dataset, column: str, where: str, *, merge: bool | None = None
) -> tuple[str, ...]:
    """Names of the classes in a label column.

    Text (or the hub's ClassLabel) and booleans are classes; integers are classes that must be
    numbered 0, 1, ...; real numbers are regression.

    Args:
        dataset: the raw train split.
        column: its label column.
        where: source and split, for the error.
        merge: whether texts that differ in blanks or case only are one class, under their most
            frequent spelling; None: an error.

    Returns:
        The names, in the order of the class ids; none for regression.

    Raises:
        DataError: the values have no usable type, there is only one class, integer labels do not
            count from 0 without gaps, or texts differ in blanks or case only.
    """
    where = f"{where}, column {column!r}"
    names = _class_names(dataset, column, where, merge)
    if len(names) == 1:
        raise DataError(
            f"{where}: every label is {names[0]!r}; classification needs at least two classes"
        )
    return names


def _class_names(dataset: Dataset, column: str, where: str, merge: bool | None) -> tuple[str, ...]:
    feature = dataset.features[column]
    if isinstance(feature, ClassLabel):
        return tuple(feature.names)
    unusable = f"{where}: is of type {feature}; labels are text, integers or real numbers"
    if not isinstance(feature, Value):
        raise DataError(unusable)
    labels, rows = distinct(stored_column(dataset, column))
    numbers = np.bincount(rows, minlength=len(labels)).tolist()
    counts = {v: n for v, n in zip(labels, numbers, strict=True) if not is_missing(v)}
    values = set(counts)
    kinds = {type(value) for value in values}
    if not kinds:
        raise DataError(f"{where}: has no label in any row")
    if kinds == {bool}:
        return ("False", "True")
    if kinds == {str}:
        return text_classes(counts, where, merge)
    if kinds == {float}:
        return ()
    if kinds != {int}:
        raise DataError(unusable)
    if values == {IGNORE_INDEX}:
        raise DataError(f"{where}: {ALL_IGNORED}")
    if values != set(range(len(values))):
        shown = ", ".join(map(str, sorted(values)[:10]))
        raise DataError(
            f"{where}: integer labels must count 0, 1, 2, ... without gaps, found {shown}; "
            "renumber them, or store them as text if they name classes, as real numbers for "
            "regression"
        )
    return tuple(map(str, range(len(values))))


def text_classes(counts: Mapping[str, int], where: str, merge: bool | None) -> tuple[str, ...]:
    """Names of classes that are texts, see `class_names`."""
    if any("," in text for text in counts) and all(map(_DECIMAL_COMMA.fullmatch, counts)):
        shown = next(text for text in counts if "," in text)
        raise DataError(
            f"{where}: {shown!r} is text; write scores with a decimal point, as "
            f"{shown.strip().replace(',', '.')}"
        )
    spellings: dict[str, list[str]] = {}
    for text in sorted(counts, key=lambda text: (-counts[text], text)):
        spellings.setdefault(spelled_alike(text), []).append(text)
    if merge:
        return tuple(sorted(texts[0].strip() for texts in spellings.values()))
    alike = [texts for texts in spellings.values() if len(texts) > 1]
    if alike and merge is None:
        shown = "; ".join(
            ", ".join(f"{text!r} ({counted(counts[text], 'row')})" for text in texts)
            for texts in alike[:10]
        )
        raise DataError(
            f"{where}: labels differ in blanks or case only: {shown}. Give merge_labels: true to "
            "make each of these one class, or false if they are different ones"
        )
    return tuple(sorted(counts))


def spelled_alike(text: str) -> str:
    """What labels that differ in blanks, case or Unicode's form only have in common."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def is_missing(value: object) -> bool:
    """Whether a label is not there: null, or a text of blanks."""
    return value is None or (isinstance(value, str) and not value.strip())
