"""Reading files of rows: Parquet, CSV, TSV, Excel and JSON Lines, checked before they are believed.

Nothing that is read is kept: a file is read again each time, so that its rows are those it holds.
"""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from datasets import Dataset, concatenate_datasets
from datasets.features.features import require_decoding
from datasets.table import InMemoryTable

from smoothtune.data.csv_rows import read_csv, read_excel, refuse_repeated
from smoothtune.data.json_rows import read_json
from smoothtune.data.label_types import typed_by_cells
from smoothtune.data.locations import remember
from smoothtune.data.missing import RequiredColumns, complete_rows
from smoothtune.errors import DataError, OutputError

READERS = {".parquet": "parquet", ".csv": "csv", ".tsv": "csv", ".jsonl": "json", ".json": "json"}
READERS[".xlsx"] = "excel"
"""The kind of file by its suffix."""
_KINDS = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket"}
_KINDS |= {stat.S_IFCHR: "a device", stat.S_IFBLK: "a device"}
OTHER_TABLES = (".xls", ".xlsm", ".xlsb", ".ods", ".numbers")


@dataclass(frozen=True)
class CsvFormat:
    """How CSV and TSV files are read; other types say it themselves."""

    sep: str | None = None
    """None: a comma, or a tab in TSV."""
    encoding: str | None = None
    """None: UTF-8."""
    label_column: str | None = None
    """The only column whose cells may be numbers, see `typed_by_cells`; None: all are texts."""
    required: RequiredColumns | None = None
    """Rows without these are left out before the type of the label column is looked at."""


def load_files(files: list[Path], form: CsvFormat) -> Dataset:
    """Rows of files of one type; raises `DataError` if they cannot be read."""
    suffix = files[0].suffix.lower()
    if suffix not in READERS:
        table = "; save the table as CSV" if suffix in OTHER_TABLES else ""
        hint = f"known are {', '.join(READERS)}{table}"
        raise DataError(f"{files[0]}: unknown file type {suffix!r}; {hint}")
    for file in files:
        check_readable(file)
    source, kind = ", ".join(map(str, files)), READERS[suffix]
    with only_data_errors(f"{source}: cannot be read as {suffix[1:]}"):
        if kind == "parquet":
            return checked(_in_memory([_parquet(file) for file in files]), source)
        if kind == "json":
            table, lines = read_json(files)
            tables = [table]
        else:
            parts = [
                read_excel(file) if kind == "excel" else read_csv(file, form.sep, form.encoding)
                for file in files
            ]
            tables, lines = [table for table, _ in parts], [numbers for _, numbers in parts]
        split = checked(_in_memory(tables), source)
        remember(split, lambda: _row_locations(files, lines))
        if kind == "json":
            return split
        return typed_by_cells(complete_rows(split, form.required), form.label_column)


def check_readable(file: Path) -> None:
    """Raise `DataError` unless a path is a file that can be read to its end."""
    try:
        kind = _KINDS.get(stat.S_IFMT(os.stat(file).st_mode))
        if kind is not None:
            raise DataError(f"{file}: is {kind}, not a file of rows")
        with open(file, "rb"):
            pass
    except OSError as error:
        link = "; it is a link to nowhere" if os.path.islink(file) else ""
        raise DataError(f"{file}: cannot be read: {error.strerror or error}{link}") from error


def _row_locations(files: list[Path], lines: list[np.ndarray]) -> list[str]:
    names = [f"{file.name} " if len(files) > 1 else "" for file in files]
    return [f"{name}line {n}" for name, each in zip(names, lines, strict=True) for n in each]


def _in_memory(tables: list[pa.Table]) -> Dataset:
    return concatenate_datasets([Dataset(InMemoryTable(table)) for table in tables])


def _parquet(file: Path) -> pa.Table:
    with pq.ParquetFile(file) as opened:
        names = opened.schema_arrow.names
        refuse_repeated(names, str(file))
        table = opened.read()
    for index, field in enumerate(table.schema):
        if (kind := known_type(field.type)) != field.type:
            table = table.set_column(index, field.with_type(kind), table.column(index).cast(kind))
    return table


def known_type(kind: pa.DataType) -> pa.DataType:
    """A type of Arrow without views, which few functions know, and with lists of pairs for maps."""
    if pa.types.is_map(kind):
        return pa.list_(pa.struct([kind.key_field, kind.item_field]))
    if pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_binary_view(kind):
        return pa.binary()
    if pa.types.is_list(kind) or pa.types.is_list_view(kind):
        return pa.list_(kind.value_field.with_type(known_type(kind.value_type)))
    if pa.types.is_large_list(kind) or pa.types.is_large_list_view(kind):
        return pa.large_list(kind.value_field.with_type(known_type(kind.value_type)))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(known_type(field.type)) for field in kind])
    return kind


def checked(split: Dataset, where: str) -> Dataset:
    """A split whose texts are UTF-8 and whose files hold what they say.

    A column that claims to be pictures or sound is left as it is stored: to read it, `datasets`
    would open any path that the file names.
    """
    for name, feature in split.features.items():
        if require_decoding(feature):
            encoded = replace(feature, decode=False) if hasattr(feature, "decode") else None
            split = split.cast_column(name, encoded) if encoded else split.remove_columns(name)
    for name in split.column_names:
        first = 0
        for chunk in split.data.column(name).chunks:
            try:
                chunk.validate(full=True)
            except pa.ArrowInvalid as error:
                row = first + _first_invalid(chunk)
                raise DataError(
                    f"{where}: row {row}, column {name!r} is damaged or not UTF-8 ({error}); "
                    "write the file again as UTF-8"
                ) from error
            first += len(chunk)
    return split


def _first_invalid(chunk: pa.Array) -> int:
    """Number of the first damaged value."""
    for row in range(len(chunk)):
        try:
            pa.concat_arrays([chunk[row : row + 1]]).validate(full=True)
        except pa.ArrowInvalid:
            return row
    return 0


@contextmanager
def only_data_errors(what: str) -> Iterator[None]:
    """Turn whatever a library raises while it reads data into `DataError`; `what` begins it."""
    try:
        yield
    except (MemoryError, DataError, OutputError):
        raise
    except Exception as error:  # a parser that is fed damage raises anything
        raise DataError(f"{what}: {_reason(error)}") from error


def _reason(error: BaseException) -> str:
    """The first cause of an error, which names the row or the field where there is one."""
    while error.__cause__ is not None:
        error = error.__cause__
    return f"{type(error).__name__}: {error}"
