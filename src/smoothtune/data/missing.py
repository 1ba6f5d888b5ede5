"""Rows without a text or a label, which are left out where the user says so."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from datasets import Dataset

from smoothtune.console import progress_bars
from smoothtune.data.arrow import distinct, stored_column
from smoothtune.data.columns import rows_with_problems
from smoothtune.data.label_names import MISSING, is_marked_missing, is_missing
from smoothtune.data.locations import first_of, keep_locations, left_out
from smoothtune.errors import counted


@dataclass(frozen=True)
class RequiredColumns:
    """The columns of which a row must have a value."""

    inputs: Sequence[str]
    """Texts, or lists of words."""
    labels: Sequence[str] = ()
    markers: bool = True
    """Whether `nan`, `null` and the like are no labels."""
    blank_labels: bool = False
    """Whether a blank text is a label: that of a row with none of several labels."""

    def missing(self, split: Dataset, column: str) -> np.ndarray:
        """(N,) whether a row has no value in a column."""
        values, codes = distinct(stored_column(split, column))
        lacks = self._lacks_label if column in self.labels else _lacks_input
        return np.array([lacks(value) for value in values], bool)[codes]

    def _lacks_label(self, value: Any) -> bool:
        if self.blank_labels:
            return value is None
        return is_missing(value) or (self.markers and is_marked_missing(value))


def _lacks_input(value: Any) -> bool:
    return is_missing(value) or (isinstance(value, Sequence) and not value)


def complete_rows(split: Dataset, required: RequiredColumns | None) -> Dataset:
    """The rows of a split that have all values that are needed; messages still name their lines."""
    if required is None:
        return split
    complete = np.ones(len(split), bool)
    for column in {*required.inputs, *required.labels} & set(split.column_names):
        complete &= ~required.missing(split, column)
    if complete.all():
        return split
    with progress_bars(shown=False):
        remaining = split.select(np.flatnonzero(complete), keep_in_memory=True)
        remaining = remaining.flatten_indices(keep_in_memory=True)
    return keep_locations(remaining, split, complete)


def left_out_message(split: Dataset) -> str:
    """How many rows were left out of a split, and where the first of them stand; "" if none."""
    locations = left_out(split)
    rows = f"{counted(len(locations), 'row')} without a text or a label left out"
    return f"{rows}: {first_of(locations)}" if locations else ""


def missing_labels(split: Dataset, required: RequiredColumns) -> list[str]:
    """The first rows without a label, by column, as messages; markers such as nan left out."""
    messages, required = list[str](), replace(required, markers=False)
    for column in required.labels:
        values = split[column][:]
        problems = ["is " + MISSING if absent else "" for absent in required.missing(split, column)]
        messages += rows_with_problems(split, column, values, problems)
    return messages
