"""Separators and encodings of CSV files: whether they fit, and which ones a file seems to have."""

import codecs
import csv
import io
import re
from collections.abc import Collection, Mapping
from pathlib import Path

from smoothtune.errors import DataError

SEPARATORS = {",": "','", ";": "';'", "\t": r"'\t' (a tab)", "|": "'|'"}
"""What separates columns in practice, as an error shows it."""
_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_SAMPLE_BYTES = 200_000
_SAMPLE_ROWS = 50
# Bytes that are control characters in cp1252, and undefined there: no text of an office program.
_UNLIKELY = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")


def files_in(folder: Path) -> list[Path]:
    """What a folder holds, but not what programs put there: ``._train.csv``, ``~$train.xlsx``."""
    return sorted(each for each in folder.iterdir() if not each.name.startswith((".", "~$")))


def first_csv(path: Path) -> Path | None:
    """The file, or the first one of a folder, if it is CSV or TSV."""
    try:
        files = files_in(path) if path.is_dir() else [path]
    except OSError:  # which reading the rows tells
        return None
    return next((f for f in files if f.suffix.lower() in (".csv", ".tsv") and f.is_file()), None)


def no_header(source: str, values: Mapping[str, Collection[str]]) -> str:
    """What to tell of CSV files whose first line seems to be a row; empty if it is a header."""
    column = next((name for name, texts in values.items() if name in texts), None)
    file = first_csv(Path(source).expanduser()) if column is not None else None
    if file is None:
        return ""
    return (
        f"{file} seems to have no header line: the column {column!r} is named like one of its own "
        "values, so the first row is lost as names; if so, put a line of names above it, such as "
        "text,label"
    )


def check_encoding(file: Path, encoding: str | None) -> None:
    """Raise `DataError` if a file is not text of this encoding, or UTF-8 read as another one."""
    raw = file.read_bytes()
    codec = encoding or "utf-8"
    if (wide := _utf16_without_mark(raw)) and encoding is None:  # its zeros are UTF-8, too
        raise DataError(f"{file}: is {wide} without a mark that says so; give encoding: {wide}")
    try:
        raw.decode(codec)
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        fits = fitting_encoding(raw)
        again = (
            f"; it reads as {fits}, {_around(raw, error.start, fits)}: give encoding: {fits}"
            if fits and not _same(fits, codec)
            else "; it is an Excel workbook: name it .xlsx"
            if raw.startswith(b"PK")
            else "; save it as UTF-8"
        )
        raise DataError(f"{file}: line {line} is not {codec}{again}") from error
    if encoding is None or raw.isascii() or _same(codec, "utf-8") or _same(codec, "utf-8-sig"):
        return
    if fitting_encoding(raw) == "utf-8":
        first = next(offset for offset, byte in enumerate(raw) if byte > 127)
        raise DataError(
            f"{file}: is UTF-8, {_around(raw, first, 'utf-8')}, and would be read as "
            f"{_around(raw, first, codec)} with encoding: {encoding}; give encoding: utf-8"
        )


def fitting_encoding(raw: bytes) -> str | None:
    """UTF-16 where a mark or its zeros say so, else the Western one in which all bytes are text."""
    if raw.startswith(_MARKS):
        return "utf-16"
    if wide := _utf16_without_mark(raw):
        return wide
    for encoding in ("utf-8", "cp1252", "latin-1"):
        try:
            text = raw.decode(encoding)
        except UnicodeDecodeError:
            continue
        if encoding == "utf-8" or not _UNLIKELY.search(text):
            return encoding
    return None


def _utf16_without_mark(raw: bytes) -> str | None:
    """The kind of UTF-16 of a file that begins with names of columns, nearly all of them ASCII."""
    first, second = raw[:20:2].count(0), raw[1:20:2].count(0)
    if raw.startswith(_MARKS) or min(first, second) > 0 or max(first, second) < 5:
        return None
    return "utf-16-le" if second else "utf-16-be"


def fitting_separator(file: Path, encoding: str | None = None) -> str | None:
    """The separator that gives every one of the first rows the same columns, two or more.

    If there is none, one that does so below a title.
    """
    rows = {each: _first_rows(file, each, encoding) for each in SEPARATORS}
    below = {each: lines[1:] for each, lines in rows.items() if lines and len(lines[0]) == 1}
    for candidates in (rows, below):
        columns = {each: _common_length(lines) for each, lines in candidates.items()}
        best = max(columns, key=lambda each: columns[each], default=None)
        if best is not None and columns[best] > 1:
            return best
    return None


def _common_length(rows: list[list[str]]) -> int:
    """Number of columns that all rows have; 0 if they differ."""
    counts = {len(row) for row in rows}
    return counts.pop() if len(counts) == 1 else 0


def _first_rows(file: Path, sep: str, encoding: str | None) -> list[list[str]]:
    """The first rows of a file, without empty lines; none where they cannot be read."""
    with file.open("rb") as opened:
        raw = opened.read(_SAMPLE_BYTES)
    text = raw.decode(encoding or "utf-8-sig", errors="replace")
    lines = io.StringIO(text, newline="").readlines()  # which end as those of a file
    if len(raw) == _SAMPLE_BYTES:  # the last line may be cut
        lines = lines[:-1]
    reader = csv.reader(lines[:_SAMPLE_ROWS], delimiter=sep)
    try:
        return [row for row in reader if row]
    except csv.Error:
        return []


def separator_hint(file: Path, sep: str, encoding: str | None, *, quoted: bool) -> str:
    """What to write about the separator of a file that could not be read."""
    fits = fitting_separator(file, encoding)
    if fits is not None and fits != sep:
        return f"; its columns seem to be separated by {SEPARATORS[fits]}: give sep: {_yaml(fits)}"
    shown = SEPARATORS.get(sep, repr(sep))
    if not quoted:
        return f"; no text may hold the separator {shown}"
    return f"; a text that holds the separator {shown} must stand in double quotes"


def _yaml(sep: str) -> str:
    """A separator as a run file has it."""
    return r'"\t"' if sep == "\t" else f'"{sep}"'


def _around(raw: bytes, offset: int, encoding: str) -> str:
    """The text around a byte in its line, in quotes."""
    start = max(offset - 12, raw.rfind(b"\n", 0, offset) + 1)
    line = raw[start : offset + 12].splitlines()
    return repr(line[0].decode(encoding, errors="ignore"))


def _same(one: str, other: str) -> bool:
    return codecs.lookup(one).name == codecs.lookup(other).name
