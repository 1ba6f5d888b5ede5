"""The file that predictions are written to: CSV, JSON Lines or Parquet."""

import codecs
import json
import os
from collections.abc import Iterator, Mapping
from datetime import date, time
from pathlib import Path
from typing import Any

from datasets import Dataset, Json

from smoothtune.config.evaluation import Prediction
from smoothtune.console import quiet
from smoothtune.errors import OutputError
from smoothtune.files import replacing, write_atomic
from smoothtune.report.curves import csv_text

SUFFIXES = (".csv", ".jsonl", ".parquet")


def target_file(settings: Prediction) -> Path:
    """The file to write, checked before the work begins."""
    to = Path(os.path.expanduser(settings.to))
    if to.suffix not in SUFFIXES:
        raise OutputError(f"{to} must end in {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}")
    if os.path.isdir(to) or os.path.realpath(to) == os.path.realpath(
        os.path.expanduser(settings.data)
    ):
        raise OutputError(f"{to} is a folder or the data itself; choose another name")
    if os.path.lexists(to) and not settings.overwrite:
        raise OutputError(f"{to} exists; choose another name or replace it with --overwrite")
    try:
        to.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"{to.parent} cannot be made: {error.strerror}") from error
    return to


def unusual_form(sep: str, encoding: str) -> str:
    """What is unusual about the form of a CSV file; "" if nothing is."""
    parts = [f"separated by {sep!r}"] * (sep != ",")
    parts += [f"in {encoding}"] * (codecs.lookup(encoding).name != "utf-8")
    return " and ".join(parts)


def write_rows(
    to: Path,
    raw: Dataset,
    columns: Mapping[str, list[Any]],
    *,
    sep: str = ",",
    encoding: str = "utf-8",
) -> None:
    """Write rows with further columns, atomically; the ending of the file is its format.

    In CSV, of the given form, lists are JSON, and texts that a spreadsheet would run begin with an
    apostrophe.
    """
    if to.suffix == ".parquet":
        for name, values in columns.items():
            raw = raw.add_column(name, values)
        with replacing(to) as partial, quiet():
            raw.to_parquet(str(partial))
        return
    rows = enumerate(_rows(raw, columns))
    if to.suffix == ".jsonl":
        write_atomic(to, "".join(f"{_json(row, f'{to}: row {i}')}\n" for i, row in rows))
        return
    cells = (
        [_cell(value, f"{to}: row {i}, column {name!r}") for name, value in row.items()]
        for i, row in rows
    )
    text = csv_text([*raw.column_names, *columns], cells, sep=sep)
    try:
        write_atomic(to, text.encode(encoding))
    except UnicodeEncodeError as error:
        raise OutputError(
            f"{to}: {text[error.start]!r} cannot be written in {encoding}; "
            "choose a .jsonl or .parquet file"
        ) from error


def _rows(raw: Dataset, columns: Mapping[str, list[Any]]) -> Iterator[dict[str, Any]]:
    nested = [name for name, feature in raw.features.items() if isinstance(feature, Json)]
    for index, row in enumerate(raw):
        decoded = {name: json.loads(row[name]) for name in nested if row[name] is not None}
        yield row | decoded | {name: values[index] for name, values in columns.items()}


def _cell(value: Any, where: str) -> Any:
    if value is None or isinstance(value, str | int | float):
        return value
    return value.isoformat() if isinstance(value, date | time) else _json(value, where)


def _json(value: Any, where: str) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, default=_plain)
    except (TypeError, ValueError) as error:
        message = f"{where} cannot be written: {error}; write a .parquet file"
        raise OutputError(message) from error


def _plain(value: Any) -> str:
    if isinstance(value, date | time):
        return value.isoformat()
    raise TypeError(f"a value is of type {type(value).__name__}")
