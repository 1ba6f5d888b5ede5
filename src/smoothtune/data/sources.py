"""Where data comes from: the hub, a `datasets` folder, or Parquet, CSV, TSV and JSON Lines files.

Everything is read by the `datasets` library, which since version 4 runs no code of a data set.
A file's split is read from its name: ``train.csv``, ``rte-dev.tsv``, ``validation_matched.jsonl``,
``train-00000-of-00002.parquet``. Other names (``train_random.parquet``) are splits of their own.
"""

import csv
import mmap
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import datasets
import pandas as pd
import pyarrow as pa
from datasets import Dataset, DatasetDict, Features, Value, load_dataset, load_from_disk
from datasets.features.features import require_decoding

from smoothtune.console import progress_bars
from smoothtune.errors import DataError

# By default a text "None" or "NA" would be read as missing. Tab-separated files have no quoting (as
# in GLUE): with it, one stray quote swallows the rows up to the next.
_CSV = {"keep_default_na": False}
_READERS: dict[str, tuple[str, dict[str, Any]]] = {
    ".parquet": ("parquet", {}),
    ".csv": ("csv", _CSV),
    ".tsv": ("csv", _CSV | {"sep": "\t", "quoting": csv.QUOTE_NONE}),
    ".jsonl": ("json", {}),
    ".json": ("json", {}),
}
_SPLITS = {
    "train": "train",
    "training": "train",
    "validation": "validation",
    "valid": "validation",
    "val": "validation",
    "dev": "validation",
    "eval": "validation",
    "test": "test",
}
_SHARD = re.compile(r"[-_.]\d+(-of-\d+)?$")
_GLOB = re.compile(r"[*?\[]")
_TOKEN, _NULL = re.compile(rb"[^\s\xef\xbb\xbf]"), re.compile(rb"(?m)^[ \t]*null[ \t\r]*$")
_HUB_ID = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)?")


def load_splits(
    source: str | Path,
    *,
    name: str = "",
    label_column: str = "label",
    hub_id: str | None = None,
    hub_config: str | None = None,
    need_train: bool = True,
) -> dict[str, Dataset]:
    """Read every split of a source.

    Args:
        source: a folder saved by ``save_to_disk``; a folder of Parquet, CSV, TSV or JSON Lines
            files, one split per file (or per set of numbered shards); one such file, which is the
            train split; or, where no such path exists, the id of a data set on the hub.
        name: of the data set; where a folder holds no data, the error suggests a subfolder of
            this name.
        label_column: in CSV and TSV files, an empty value here is a missing label, not the text "".
        hub_id: the data set that `hub_config` belongs to; it is ignored for others, except copies
            under another owner. None: use it for any.
        hub_config: configuration on the hub, for a data set with several.
        need_train: raise an error without a train split.

    Returns:
        Raw splits by name.

    Raises:
        DataError: the source does not exist, cannot be read, or lacks a train split that is needed.
    """
    path = Path(os.path.expanduser(source))
    if os.path.isdir(path):
        splits = _load_folder(path, name, label_column)
    elif os.path.isfile(path):
        splits = {"train": _load_files([path], label_column)}
    elif _looks_like_hub_id(source):
        # A configuration belongs to its own data set, or a copy of it under another owner.
        other = hub_id is not None and hub_id.split("/")[-1] != str(source).split("/")[-1]
        splits = _load_from_hub(str(source), None if other else hub_config)
    else:
        raise DataError(
            f"{source}: no such file or folder, and not an id of a data set on the hub (org/name)"
        )
    if need_train and "train" not in splits:
        raise DataError(
            f"{source}: has no train split; it has {', '.join(map(repr, sorted(splits)))}. "
            "Name the file train.<extension>, or give the file itself as the source"
        )
    return splits


def load_rows(file: str | Path) -> Dataset:
    """Read the rows of one file.

    Args:
        file: Parquet, CSV, TSV or JSON Lines. Cells of CSV and TSV are the texts that stand there:
            007 is not 7.

    Raises:
        DataError: it does not exist or cannot be read.
    """
    path = Path(os.path.expanduser(file))
    if not os.path.isfile(path):
        raise DataError(f"{file}: no such file; name one file of {', '.join(_READERS)}")
    return _load_files([path], None)


def split_of(file: Path) -> str:
    """The name of the split that a file holds, from the file's name.

    Args:
        file: a data file.

    Returns:
        "train", "validation" or "test", with what follows it ("validation_matched"). A name that
        neither begins nor ends with one of these words is a split itself, without shard number.
    """
    stem = _SHARD.sub("", file.stem)
    words = [word for word in re.split(r"[-_. ]", stem.lower()) if word]
    if words and words[0] in _SPLITS:
        return "_".join([_SPLITS[words[0]], *words[1:]])
    if words and words[-1] in _SPLITS:
        return _SPLITS[words[-1]]
    return stem


def _looks_like_hub_id(source: str | Path) -> bool:
    text = str(source)
    return (
        isinstance(source, str)
        and _HUB_ID.fullmatch(text) is not None
        and Path(text).suffix.lower() not in _READERS
    )


def _load_folder(folder: Path, name: str, label_column: str) -> dict[str, Dataset]:
    if (folder / "dataset_dict.json").is_file() or (folder / "state.json").is_file():
        # In memory, because `datasets` puts its cache files beside data that it maps from disk.
        with _only_data_errors(f"{folder}: cannot be read as a folder of save_to_disk"):
            loaded = load_from_disk(str(folder), keep_in_memory=True)
        found = dict(loaded) if isinstance(loaded, DatasetDict) else {"train": loaded}
        return {name: _plain(split, f"{folder}, split {name!r}") for name, split in found.items()}
    files = sorted(file for file in folder.iterdir() if file.suffix.lower() in _READERS)
    if not files:
        raise DataError(f"{folder}: {_no_files(folder, name)}")
    by_split: dict[str, list[Path]] = {}
    for file in files:
        by_split.setdefault(split_of(file), []).append(file)
    for split, files in by_split.items():
        if len(files) > 1 and not _are_shards(files):
            raise DataError(
                f"{folder}: several files hold the split {split!r}: "
                f"{', '.join(file.name for file in files)}; keep one of them"
            )
    return {split: _load_files(files, label_column) for split, files in by_split.items()}


def _are_shards(files: list[Path]) -> bool:
    """Whether files are numbered parts of one table, not the same table twice."""
    numbered = all(_SHARD.search(file.stem) for file in files)
    return numbered and len({(_SHARD.sub("", file.stem), file.suffix) for file in files}) == 1


def _no_files(folder: Path, name: str) -> str:
    if name and (folder / name).is_dir():
        return f"holds no data file; did you mean {folder / name}?"
    names = sorted(entry.name for entry in folder.iterdir())[:10]
    return (
        f"holds no data file ({', '.join(_READERS)}) and was not saved by save_to_disk; "
        f"it holds {', '.join(names) or 'nothing'}"
    )


def _load_files(files: list[Path], label_column: str | None) -> Dataset:
    """Rows of files; where no label column is named, all cells of CSV are texts."""
    suffix = files[0].suffix.lower()
    if suffix not in _READERS:
        raise DataError(
            f"{files[0]}: unknown file type {suffix!r}; known are {', '.join(_READERS)}"
        )
    reader, options = _READERS[suffix]
    if reader == "csv" and label_column is not None:
        # An empty label is missing, and must not turn a column of numbers into text.
        options = options | {"na_values": {label_column: [""]}}
    for file in files if reader == "json" else ():
        _check_json(file)
    # Resolved and escaped, because `datasets` reads a path as a glob pattern.
    names = [_GLOB.sub(r"[\g<0>]", str(file.resolve())) for file in files]
    shown = ", ".join(map(str, files))
    with (
        _only_data_errors(f"{shown}: cannot be read as {suffix[1:]}"),
        progress_bars(shown=False),
        _not_counted(),
    ):
        if reader == "csv" and label_column is None:
            names_of_columns = pd.read_csv(files[0], nrows=0, **options).columns
            texts = {str(column): Value("string") for column in names_of_columns}
            options = options | {"features": Features(texts)}
        loaded = load_dataset(reader, data_files={"train": names}, split="train", **options)
    return _plain(loaded, shown)


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


def _plain(split: Dataset, where: str) -> Dataset:
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


def _load_from_hub(hub_id: str, config: str | None) -> dict[str, Dataset]:
    named = hub_id if config is None else f"{hub_id}, configuration {config!r}"
    with _only_data_errors(f"{named}: no such file or folder here, and not readable from the hub"):
        found = dict(load_dataset(hub_id, config))
    return {name: _plain(split, f"{named}, split {name!r}") for name, split in found.items()}


@contextmanager
def _only_data_errors(what: str) -> Iterator[None]:
    """Turn whatever a library raises while it reads data into `DataError`; `what` begins it."""
    try:
        yield
    except MemoryError:
        raise
    except StopIteration as error:
        raise DataError(f"{what}: it has no rows") from error
    except Exception as error:  # a parser that is fed damage raises anything
        raise DataError(f"{what}: {_reason(error)}") from error


def _reason(error: BaseException) -> str:
    """The first cause of an error, which names the row or the field where there is one."""
    while error.__cause__ is not None:
        error = error.__cause__
    return f"{type(error).__name__}: {error}"
