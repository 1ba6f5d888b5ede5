"""Reading files of rows: Parquet, CSV, TSV and JSON Lines, checked before they are believed."""

from __future__ import annotations

import mmap
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import datasets
import pandas as pd
import pyarrow as pa
from datasets import Dataset, Features, Value, load_dataset
from datasets.features.features import require_decoding

from smoothtune.console import progress_bars
from smoothtune.data.cache import cache_is_whole, not_cached
from smoothtune.data.csv_format import check_encoding, check_header, csv_options, separator_hint
from smoothtune.errors import DataError, OutputError

READERS = {".parquet": "parquet", ".csv": "csv", ".tsv": "csv", ".jsonl": "json", ".json": "json"}
"""The reader of `datasets` for each suffix."""
_GLOB = re.compile(r"[*?\[]")
_TOKEN, _NULL = re.compile(rb"[^\s\xef\xbb\xbf]"), re.compile(rb"(?m)^[ \t]*null[ \t\r]*$")


@dataclass(frozen=True)
class CsvFormat:
    """How CSV and TSV files are read; other types say it themselves."""

    sep: str | None = None
    """None: a comma, or a tab in TSV."""
    encoding: str | None = None
    """None: UTF-8."""
    text_labels: bool = False
    """Cells of the label column are the texts that stand there: an empty one is an empty text."""


def load_files(files: list[Path], label_column: str | None, form: CsvFormat) -> Dataset:
    """Rows of files of one type.

    Args:
        files: shards of one split.
        label_column: where an empty cell of CSV is a missing label; None: all cells of CSV are
            texts.
        form: of CSV files.

    Raises:
        DataError: they cannot be read.
    """
    suffix = files[0].suffix.lower()
    if suffix not in READERS:
        raise DataError(f"{files[0]}: unknown file type {suffix!r}; known are {', '.join(READERS)}")
    reader, shown = READERS[suffix], ", ".join(map(str, files))
    options = csv_options(suffix, form.sep, form.encoding) if reader == "csv" else {}
    for file in files:
        if reader == "json":
            _check_json(file)
        if reader == "csv":
            check_encoding(file, form.encoding)
            check_header(file, options)
    failed = f"{shown}: cannot be read as {suffix[1:]}"
    hint = separator_hint(files[0], options) if reader == "csv" else ""
    with only_data_errors(failed, hint), progress_bars(shown=False), _not_counted():
        if reader == "csv" and label_column is None:
            names = pd.read_csv(files[0], nrows=0, **options).columns
            options["features"] = Features({str(name): Value("string") for name in names})
        elif reader == "csv" and form.text_labels:
            options["converters"] = {label_column: str}
        elif reader == "csv":
            # An empty label is missing, and must not turn a column of numbers into text.
            options["na_values"] = {label_column: [""]}
        # Resolved and escaped, because `datasets` reads a path as a glob pattern.
        paths = [_GLOB.sub(r"[\g<0>]", str(file.resolve())) for file in files]
        with cache_is_whole():
            loaded = load_dataset(reader, data_files={"train": paths}, split="train", **options)
    return checked(loaded, shown)


@contextmanager
def _not_counted() -> Iterator[None]:
    """Read local files without the request by which `datasets` counts its readers on the hub."""
    before = datasets.config.HF_UPDATE_DOWNLOAD_COUNTS
    datasets.config.HF_UPDATE_DOWNLOAD_COUNTS = False
    try:
        yield
    finally:
        datasets.config.HF_UPDATE_DOWNLOAD_COUNTS = before


def _check_json(file: Path) -> None:
    """Refuse rows that are ``null``, on which the reader of JSON can crash with the process."""
    with file.open("rb") as opened:
        if not file.stat().st_size:
            raise DataError(f"{file}: cannot be read as JSON: it has no rows")
        with mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as content:
            wrong = start = _TOKEN.search(content)
            if start and start[0] in b"{[":  # a null inside a list of the whole file is no row
                wrong = _NULL.search(content) if start[0] == b"{" else None
            if wrong:
                line = content[: wrong.start()].count(b"\n") + 1
                raise DataError(
                    f"{file}: cannot be read as JSON: line {line} holds no row; write "
                    '{"column": value, ...} in every line'
                )


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
def only_data_errors(what: str, hint: str = "") -> Iterator[None]:
    """Turn whatever a library raises while it reads data into `DataError`; `what` begins it.

    `hint` ends it where a row could not be cut into columns.
    """
    try:
        yield
    except (MemoryError, OutputError):
        raise
    except StopIteration as error:
        raise DataError(f"{what}: it has no rows") from error
    except Exception as error:  # a parser that is fed damage raises anything
        if full := not_cached(error):
            raise full from error
        reason = _reason(error)
        raise DataError(f"{what}: {reason}{hint * ('ParserError' in reason)}") from error


def _reason(error: BaseException) -> str:
    """The first cause of an error, which names the row or the field where there is one."""
    while error.__cause__ is not None:
        error = error.__cause__
    return f"{type(error).__name__}: {error}"
