"""The rows of CSV, TSV and Excel files: every cell a text, every row with its first line."""

import codecs
import csv
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import pandas as pd
import pyarrow as pa

from smoothtune.data.csv_format import check_encoding, separator_hint
from smoothtune.data.locations import first_of
from smoothtune.errors import DataError, counted

_TOGETHER = 10_000
"""Rows that become a part of a table together."""
_LONGEST_CELL = 2**31 - 1
TITLE = "If a title stands above the names of the columns, delete it: they come first"
_NUMBER = re.compile(r"[-+]?\d+([.,]\d*)?")


def read_csv(file: Path, sep: str | None, encoding: str | None) -> tuple[pa.Table, np.ndarray]:
    """The texts of a file, null where a row ends early, and (N,) the first line of every row.

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
    check_encoding(file, encoding)
    quoted = file.suffix.lower() != ".tsv"
    if encoding is None or codecs.lookup(encoding).name == "utf-8":
        encoding = "utf-8-sig"  # without the mark that may begin a file
    source = _CsvFile(file, sep or ("," if quoted else "\t"), encoding, quoted)
    with file.open(newline="", encoding=encoding) as opened, _long_cells():
        rows = source.rows(opened)
        line, header = next(rows, (0, []))
        if not header:
            raise DataError(f"{file}: cannot be read as csv: it has no columns")
        names = _names(header, f"{file}: line {line}")
        parts, lines = [_table(names, [])], list[int]()
        while batch := list(islice(rows, _TOGETHER)):
            parts.append(_table(names, [cells for _, cells in batch]))
            lines += [line for line, _ in batch]
    table = pa.concat_tables(parts)
    source.refuse_swallowed_rows(table)
    _refuse_title(file, table)
    return table, np.array(lines, np.int64)


@dataclass
class _CsvFile:
    """A file of rows, and which of its rows stand in several lines."""

    file: Path
    sep: str
    encoding: str
    quoted: bool
    over_lines: list[tuple[int, list[str]]] = field(default_factory=list)
    """Rows of more than one line: the first one's number, and the lines."""

    def rows(self, lines: Iterable[str]) -> Iterator[tuple[int, list[str]]]:
        """The cells of every row, the header's first, each with the row's first line."""
        row_lines, width = list[str](), 0

        def recorded() -> Iterator[str]:
            for line in lines:
                row_lines.append(line)
                yield line

        reader = csv.reader(
            recorded(),
            delimiter=self.sep,
            quoting=csv.QUOTE_MINIMAL if self.quoted else csv.QUOTE_NONE,
            strict=True,
        )
        while True:
            first = reader.line_num + 1
            row_lines.clear()
            try:
                cells = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                raise DataError(self._stray_quote(first, reader.line_num, str(error))) from error
            if len(row_lines) > 1:
                self.over_lines.append((first, list(row_lines)))
            if len(cells) == 0 or (len(cells) == 1 and not cells[0].strip()):
                continue  # a blank line
            width = width or len(cells)
            if len(cells) > width:
                hint = separator_hint(self.file, self.sep, self.encoding, quoted=self.quoted)
                raise DataError(
                    f"{self.file}: line {first} has {len(cells)} columns and the header {width}"
                    f"{hint}{f'. {TITLE}' if width == 1 else ''}"
                )
            yield first, cells

    def _stray_quote(self, first: int, last: int, error: str) -> str:
        if not self.quoted:
            return f"{self.file}: line {first} cannot be read ({error})"
        ends = "is never closed"
        if "end of data" not in error:
            ends = "is closed inside a text" + (f" in line {last}" if last > first else "")
        # what else to look at: a file is refused at its first stray quote
        with self.file.open(newline="", encoding=self.encoding) as lines:
            odd = [str(number) for number, line in enumerate(lines, 1) if line.count('"') % 2]
        others = f" Lines with an odd number of quotes: {first_of(odd)}" if odd else ""
        return (
            f"{self.file}: line {first}: a double quote opens a text and {ends}. Delete the "
            'quote; where it belongs to the text, write it twice ("") and put the whole text in '
            f"double quotes.{others}"
        )

    def refuse_swallowed_rows(self, table: pa.Table) -> None:
        """Raise `DataError` if a line within a text reads as a row of the file by itself.

        It has as many cells as the header, and in some column a value that other rows have there.
        """
        if not self.quoted or not self.over_lines or table.num_columns < 2:
            return
        counters = [Counter(column.to_pylist()) for column in table.columns]
        numeric = [all(map(_is_number, filter(None, counts))) for counts in counters]

        def looks_like_a_row(line: str, is_first: bool, is_last: bool) -> bool:
            cells = line.rstrip("\r\n").split(self.sep)
            if len(cells) != table.num_columns:
                return False
            opens = max((i for i, cell in enumerate(cells) if cell[:1] == '"'), default=-1)
            closes = min(
                (i for i, cell in enumerate(cells) if cell[-1:] == '"'), default=len(cells)
            )
            # what stands before the quote opens, or after it closes, is rightly a cell
            inside = range(opens + 1 if is_first else 0, closes if is_last else len(cells))
            return any(
                cells[i].strip()
                and (counters[i][cells[i]] or (numeric[i] and _is_number(cells[i])))
                for i in inside
            )

        swallowed = [
            f"{first} to {first + len(lines) - 1}"
            for first, lines in self.over_lines
            if any(
                looks_like_a_row(line, i == 0, i == len(lines) - 1) for i, line in enumerate(lines)
            )
        ]
        if swallowed:
            raise DataError(
                f"{self.file}: a double quote makes one text of lines {first_of(swallowed)}, and "
                "these look like rows of their own. Delete the quote, or write it twice where it "
                "belongs to the text. If the text does have these lines, save the file as JSON "
                "Lines (.jsonl)"
            )


def _is_number(text: str) -> bool:
    return _NUMBER.fullmatch(text) is not None


@contextmanager
def _long_cells() -> Iterator[None]:
    """Let cells be as long as they are; the limit of `csv` holds for the whole process."""
    before = csv.field_size_limit(_LONGEST_CELL)
    try:
        yield
    finally:
        csv.field_size_limit(before)


def _names(header: Sequence[str], where: str) -> list[str]:
    """Names of columns, each its own, from their cells."""
    names = [cell or _unnamed(index) for index, cell in enumerate(header)]
    refuse_repeated(names, where)
    return names


def _unnamed(index: int) -> str:
    """The name of a column whose cell in the header is empty."""
    return f"Unnamed: {index}"


def refuse_repeated(names: Sequence[str], where: str) -> None:
    """Raise `DataError` if two columns have one name."""
    repeated = [name for name, count in Counter(names).items() if count > 1]
    if repeated:
        raise DataError(
            f"{where}: {counted(names.count(repeated[0]), 'column')} are named {repeated[0]!r}; "
            "give each a name of its own"
        )


def _refuse_title(file: Path, table: pa.Table) -> None:
    """Raise `DataError` if only the first of several columns has a name, as under a title."""
    first, *names = table.column_names
    if first == _unnamed(0) or names != [_unnamed(index + 1) for index in range(len(names))]:
        return
    if used := [name for name in names if any(table[name].to_pylist())]:
        raise DataError(
            f"{file}: {len(used) + 1} columns hold texts, and {first!r} is their only name: give "
            f"each a name. {TITLE}"
        )


def _table(names: Sequence[str], rows: Sequence[list[str]]) -> pa.Table:
    """A table of texts; null where a row ends before the column."""
    columns = [
        pa.array([row[i] if i < len(row) else None for row in rows], pa.string())
        for i in range(len(names))
    ]
    return pa.table(columns, names=list(names))


def read_excel(file: Path) -> tuple[pa.Table, np.ndarray]:
    """As `read_csv`, the first sheet; its first row holds the names of the columns.

    Raises:
        DataError: openpyxl is not installed, or the sheet has no rows, cells beyond the columns, or
            two columns of one name.
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
    others = f". The first sheet is read, not {', '.join(more)}" * bool(more)
    rows = [list(map(_as_text, row)) for row in cells.itertuples(index=False)]
    filled = [number for number, row in enumerate(rows) if any(row)]
    if len(filled) < 2:
        raise DataError(f"{file}: its first sheet {first} has no rows{others}")
    head, *numbers = filled
    width = max(i for i, name in enumerate(rows[head], start=1) if name)
    for number in numbers:
        if any(rows[number][width:]):
            beyond = f"row {number + 1} has cells beyond the {counted(width, 'column')}"
            raise DataError(f"{file}: {beyond} of row {head + 1}. {TITLE}{others}")
    names = _names(rows[head][:width], f"{file}: row {head + 1}")
    return _table(names, [rows[number] for number in numbers]), np.array(numbers, np.int64) + 1


def _as_text(cell: Any) -> str:
    """A cell as it is typed; "" if it is empty, as in CSV; a stored 1.0 as 1."""
    if cell is None or cell != cell:
        return ""
    if isinstance(cell, float) and cell.is_integer():
        return str(int(cell))
    return str(cell)
