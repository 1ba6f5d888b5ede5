"""The rows of CSV, TSV and Excel files: every cell a text, every row with its first line."""

from __future__ import annotations

import codecs
import csv
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import pandas as pd
import pyarrow as pa

from smoothtune.data.csv_format import separator_hint
from smoothtune.data.locations import FIRST
from smoothtune.errors import DataError, counted

_TOGETHER = 10_000
"""Rows that become a part of a table together."""
_LONGEST_CELL = 2**31 - 1
TITLE = "If a title stands above the names of the columns, delete it: they come first"
_NUMBER = re.compile(r"[-+]?\d+([.,]\d*)?")


@dataclass(frozen=True)
class CsvRows:
    """The rows of one file."""

    table: pa.Table
    """Texts; null where a row ends before the column."""
    lines: np.ndarray
    """(N,) the line, from 1, in which each row begins."""


def read_csv(file: Path, sep: str | None, encoding: str | None) -> CsvRows:
    """Read a file.

    Tab-separated files have no quoting, as those of GLUE. In others a text that holds the
    separator, a quote or a line end stands in double quotes, and quotes inside it are doubled; all
    else that quotes may mean is refused, since one stray quote swallows the rows up to the next.

    Args:
        file: its name ends in .csv or .tsv.
        sep: what separates the columns; None: a comma, or a tab in TSV.
        encoding: of the text; None: UTF-8.

    Raises:
        DataError: names the line, and what to do.
    """
    quoted = file.suffix.lower() != ".tsv"
    sep = sep or ("," if quoted else "\t")
    if encoding is None or codecs.lookup(encoding).name == "utf-8":
        encoding = "utf-8-sig"  # without the mark that may begin a file
    with file.open(newline="", encoding=encoding) as opened, _long_cells():
        rows = _Rows(file, opened, sep, encoding, quoted)
        header = _header(file, next(iter(rows), None))
        rows.width = len(header)
        parts, lines = [], list[int]()
        for batch in _batches(rows):
            parts.append(_table(header, [cells for _, cells in batch]))
            lines += [line for line, _ in batch]
    if quoted and rows.over_lines:
        _refuse_swallowed(file, sep, header, pa.concat_tables(parts), rows.over_lines)
    schema = pa.schema([(name, pa.string()) for name in header])
    table = pa.concat_tables(parts) if parts else schema.empty_table()
    _refuse_title(file, table)
    return CsvRows(table, np.array(lines, np.int64))


def _refuse_title(file: Path, table: pa.Table) -> None:
    """Refuse columns of which the first alone has a name, as under the title of a table.

    Raises:
        DataError: another one holds texts.
    """
    first, *names = table.column_names
    if first == _unnamed(0) or names != [_unnamed(index + 1) for index in range(len(names))]:
        return
    if used := [name for name in names if any(table[name].to_pylist())]:
        raise DataError(
            f"{file}: {len(used) + 1} columns hold texts, and {first!r} is their only name: give "
            f"each a name. {TITLE}"
        )


def _unnamed(index: int) -> str:
    """The name of a column whose cell in the header is empty."""
    return f"Unnamed: {index}"


class _Rows:
    """Cells of a file, row by row, each row with its first line."""

    def __init__(
        self, file: Path, lines: Iterator[str], sep: str, encoding: str, quoted: bool
    ) -> None:
        self.file, self.sep, self.encoding, self.quoted = file, sep, encoding, quoted
        self.row_lines: list[str] = []
        """The lines of the row that is being read."""
        self.width: int | None = None
        """Number of columns; None: that of the header, which is read first."""
        self.over_lines: list[tuple[int, list[str]]] = []
        """Rows of more than one line: the first one's number, and the lines."""
        self.reader = csv.reader(
            self._recorded(lines),
            delimiter=sep,
            quoting=csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE,
            strict=True,
        )

    def _recorded(self, lines: Iterator[str]) -> Iterator[str]:
        for line in lines:
            self.row_lines.append(line)
            yield line

    def __iter__(self) -> Iterator[tuple[int, list[str]]]:
        while True:
            first = self.reader.line_num + 1
            self.row_lines.clear()
            try:
                cells = next(self.reader)
            except StopIteration:
                return
            except csv.Error as error:
                raise DataError(self._stray_quote(first, error)) from error
            if len(self.row_lines) > 1:
                self.over_lines.append((first, list(self.row_lines)))
            if len(cells) > 1 or (cells and cells[0].strip()):  # else a blank line
                self._check_width(first, cells)
                yield first, cells

    def _stray_quote(self, first: int, error: csv.Error) -> str:
        if not self.quoted:
            return f"{self.file}: line {first} cannot be read ({error})"
        last = self.reader.line_num
        ends = "is never closed" if "end of data" in str(error) else "is closed inside a text"
        where = f" in line {last}" if "closed inside" in ends and last > first else ""
        odd = self._lines_with_an_odd_quote()
        return (
            f"{self.file}: line {first}: a double quote opens a text and {ends}{where}. Delete the "
            'quote; where it belongs to the text, write it twice ("") and put the whole text in '
            f"double quotes. {odd}"
        ).strip()

    def _lines_with_an_odd_quote(self) -> str:
        """What else to look at: a file is refused at its first stray quote."""
        with self.file.open(newline="", encoding=self.encoding) as lines:
            odd = [number for number, line in enumerate(lines, 1) if line.count('"') % 2]
        more = f" and {len(odd) - FIRST} more" if len(odd) > FIRST else ""
        shown = ", ".join(map(str, odd[:FIRST]))
        return f"Lines with an odd number of quotes: {shown}{more}" if odd else ""

    def _check_width(self, line: int, cells: Sequence[str]) -> None:
        if self.width is None or len(cells) <= self.width:
            return
        hint = separator_hint(self.file, self.sep, self.encoding, quoted=self.quoted)
        title = f". {TITLE}" if self.width == 1 else ""
        raise DataError(
            f"{self.file}: line {line} has {len(cells)} columns and the header "
            f"{self.width}{hint}{title}"
        )


@contextmanager
def _long_cells() -> Iterator[None]:
    """Let cells be as long as they are; the limit of `csv` holds for the whole process."""
    before = csv.field_size_limit(_LONGEST_CELL)
    try:
        yield
    finally:
        csv.field_size_limit(before)


def _header(file: Path, first: tuple[int, list[str]] | None) -> list[str]:
    if first is None:
        raise DataError(f"{file}: cannot be read as csv: it has no columns")
    line, cells = first
    names = [cell or _unnamed(index) for index, cell in enumerate(cells)]
    refuse_repeated(names, f"{file}: line {line}")
    return names


def refuse_repeated(names: Sequence[str], where: str) -> None:
    """Refuse two columns of one name.

    Raises:
        DataError: there are such columns.
    """
    repeated = [name for name, count in Counter(names).items() if count > 1]
    if repeated:
        raise DataError(
            f"{where}: {counted(names.count(repeated[0]), 'column')} are named {repeated[0]!r}; "
            "give each a name of its own"
        )


def _batches(rows: _Rows) -> Iterator[list[tuple[int, list[str]]]]:
    batch: list[tuple[int, list[str]]] = []
    for row in rows:
        batch.append(row)
        if len(batch) == _TOGETHER:
            yield batch
            batch = []
    if batch:
        yield batch


def _table(header: Sequence[str], rows: Sequence[list[str]]) -> pa.Table:
    for cells in rows:
        cells += [None] * (len(header) - len(cells))  # type: ignore[list-item]
    columns = zip(*rows, strict=True)
    return pa.table([pa.array(column, pa.string()) for column in columns], names=list(header))


def _refuse_swallowed(
    file: Path,
    sep: str,
    header: Sequence[str],
    table: pa.Table,
    over_lines: Sequence[tuple[int, list[str]]],
) -> None:
    """Refuse a text over several lines of which one reads as a row of the file by itself.

    It has as many cells as the header, and in some column a value that other rows have there.

    Raises:
        DataError: there is such a text.
    """
    if len(header) < 2:
        return
    counters = [Counter(column.to_pylist()) for column in table.columns]
    numeric = [all(map(_is_number, filter(None, counts))) for counts in counters]

    def looks_like_a_row(line: str, number: int, count: int) -> bool:
        cells = line.rstrip("\r\n").split(sep)
        if len(cells) != len(header):
            return False
        opens = max((i for i, cell in enumerate(cells) if cell[:1] == '"'), default=-1)
        closes = min((i for i, cell in enumerate(cells) if cell[-1:] == '"'), default=len(cells))
        # what stands before the quote opens, or after it closes, is rightly a cell
        inside = range(
            opens + 1 if number == 0 else 0, closes if number == count - 1 else len(cells)
        )
        return any(
            cells[i].strip() and (counters[i][cells[i]] or (numeric[i] and _is_number(cells[i])))
            for i in inside
        )

    swallowed = [
        (first, first + len(lines) - 1)
        for first, lines in over_lines
        if any(looks_like_a_row(line, i, len(lines)) for i, line in enumerate(lines))
    ]
    if swallowed:
        shown = ", ".join(f"{first} to {last}" for first, last in swallowed[:FIRST])
        more = f" (and {len(swallowed) - FIRST} more)" if len(swallowed) > FIRST else ""
        raise DataError(
            f"{file}: a double quote makes one text of lines {shown}{more}, and these look like "
            "rows of their own. Delete the quote, or write it twice where it belongs to the text. "
            "If the text does have these lines, save the file as JSON Lines (.jsonl)"
        )


def _is_number(text: str) -> bool:
    return _NUMBER.fullmatch(text) is not None


def read_excel(file: Path) -> CsvRows:
    """Read the first sheet; its first row holds the names of the columns.

    Raises:
        DataError: openpyxl is not installed, or the sheet has no rows below its columns, or cells
            beyond them, or two columns of one name.
    """
    if find_spec("openpyxl") is None:
        raise DataError(f"{file}: save as CSV, or pip install 'smoothtune[excel]'")
    try:
        book = pd.ExcelFile(file, engine="openpyxl")
    except BadZipFile as error:
        raise DataError(f"{file}: is no Excel workbook; if it is CSV, name it .csv") from error
    with book:
        cells = pd.read_excel(book, header=None, dtype=object, keep_default_na=False)
        first, *more = map(repr, book.sheet_names)
    sheet = f"its first sheet {first}"
    others = f". The first sheet is read, not {', '.join(more)}" * bool(more)
    rows = [list(map(_as_text, row)) for row in cells.itertuples(index=False)]
    filled = [number for number, row in enumerate(rows) if any(row)]
    if len(filled) < 2:
        raise DataError(f"{file}: {sheet} has no rows{others}")
    head, *numbers = filled
    width = max(i for i, name in enumerate(rows[head], start=1) if name)
    for number in numbers:
        if any(rows[number][width:]):
            beyond = f"row {number + 1} has cells beyond the {counted(width, 'column')}"
            raise DataError(f"{file}: {beyond} of row {head + 1}. {TITLE}{others}")
    names = [name or _unnamed(index) for index, name in enumerate(rows[head][:width])]
    refuse_repeated(names, f"{file}: row {head + 1}")
    columns = [pa.array([rows[n][i] for n in numbers], pa.string()) for i in range(width)]
    return CsvRows(pa.table(columns, names=names), np.array(numbers, np.int64) + 1)


def _as_text(cell: Any) -> str:
    """A cell as it is typed; "" if it is empty, as in CSV; a stored 1.0 as 1."""
    if cell is None or cell != cell:
        return ""
    if isinstance(cell, float) and cell.is_integer():
        return str(int(cell))
    return str(cell)
