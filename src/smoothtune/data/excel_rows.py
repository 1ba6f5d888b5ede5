"""The rows of the first sheet of an Excel file, as those of CSV: every cell a text."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from smoothtune.data.csv_rows import CsvRows, refuse_repeated
from smoothtune.errors import DataError


def read_excel(file: Path) -> CsvRows:
    """Read the first sheet; its first row holds the names of the columns.

    Raises:
        DataError: openpyxl is not installed, or the sheet has no columns or two of one name.
    """
    if find_spec("openpyxl") is None:
        raise DataError(f"{file}: save as CSV, or pip install 'smoothtune[excel]'")
    cells = pd.read_excel(file, header=None, dtype=object, keep_default_na=False, engine="openpyxl")
    rows = [list(map(_as_text, row)) for row in cells.itertuples(index=False)]
    filled = [number for number, row in enumerate(rows) if any(row)]
    if not filled:
        raise DataError(f"{file}: its first sheet is empty")
    head, *numbers = filled
    width = max(i for i, name in enumerate(rows[head], start=1) if name)
    for number in numbers:
        if any(rows[number][width:]):
            raise DataError(f"{file}: row {number + 1} has cells beyond the {width} columns")
    names = [name or f"Unnamed: {index}" for index, name in enumerate(rows[head][:width])]
    refuse_repeated(names, f"{file}: row {head + 1}")
    columns = [pa.array([rows[n][i] for n in numbers], pa.string()) for i in range(width)]
    return CsvRows(pa.table(columns, names=names), np.array(numbers, np.int64) + 1)


def _as_text(cell: Any) -> str | None:
    """A cell as it is typed; None if it is empty, a stored 1.0 as 1."""
    if cell is None or cell != cell or cell == "":
        return None
    if isinstance(cell, float) and cell.is_integer():
        return str(int(cell))
    return str(cell)
