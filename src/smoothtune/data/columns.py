"""Checks of raw data against a task, before the first step, with every problem in one error."""

import hashlib
import json
from collections.abc import Iterable
from typing import Any

from datasets import Dataset

IGNORE_INDEX = -100
"""Label that PyTorch's cross entropy skips."""


def missing_columns(missing: list[str], dataset: Dataset) -> str:
    """What to say about columns that are not there."""
    return (
        f"has no column {', '.join(map(repr, missing))}; its columns are "
        f"{', '.join(map(repr, dataset.column_names))}"
    )


def rows_with_problems(column: str, values: list[Any], problems: Iterable[str]) -> list[str]:
    """The first row of each kind of problem in a column, with the number of rows that have it.

    Args:
        column: its name.
        values: its values.
        problems: for every row what is wrong with it, or "".
    """
    rows: dict[str, list[int]] = {}
    for row, problem in enumerate(problems):
        if problem:
            rows.setdefault(problem, []).append(row)
    return [
        f"row {found[0]}, column {column!r}: {_shown(values[found[0]])} {problem}"
        + (f" (and {len(found) - 1} more rows)" if len(found) > 1 else "")
        for problem, found in rows.items()
    ]


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def text_problems(column: str, values: list[Any]) -> list[str]:
    """What is wrong with a column of texts."""
    return rows_with_problems(column, values, map(_text_problem, values))


def _text_problem(value: object) -> str:
    if value is None:
        return "is a missing text; drop the row or fill it in"
    if not isinstance(value, str):
        return f"is of type {type(value).__name__}, but text is due"
    return "" if value.strip() else "is an empty text; drop the row or fill it in"


def fingerprint(texts: Dataset) -> str:
    """Sha256, in hex, of the rows."""
    digest = hashlib.sha256()
    for row in zip(*(texts[name][:] for name in texts.column_names), strict=True):
        digest.update(json.dumps(row).encode() + b"\n")
    return digest.hexdigest()
