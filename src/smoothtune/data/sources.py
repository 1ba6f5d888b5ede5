"""Where data comes from: the hub, a `datasets` folder, or Parquet, CSV, TSV and JSON Lines files.

No code of a data set is run.
A file's split is read from its name: ``train.csv``, ``rte-dev.tsv``, ``validation_matched.jsonl``,
``train-00000-of-00002.parquet``. Other names (``train_random.parquet``) are splits of their own.
"""

import json
import os
import re
from pathlib import Path

from datasets import Dataset, DatasetDict, load_dataset, load_from_disk

from smoothtune.data.cache import cache_is_intact, cache_with_room
from smoothtune.data.csv_format import (
    files_in,
    first_csv,
    fitting_encoding,
    fitting_separator,
)
from smoothtune.data.files import (
    READERS,
    CsvFormat,
    check_readable,
    checked,
    load_files,
    only_data_errors,
)
from smoothtune.data.label_types import LabelType, of_type
from smoothtune.data.missing import RequiredColumns, complete_rows
from smoothtune.errors import DataError

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
_HUB_ID = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)?")


def load_splits(
    source: str | Path,
    *,
    name: str = "",
    label_column: str = "label",
    hub_id: str | None = None,
    hub_config: str | None = None,
    need_train: bool = True,
    label_type: LabelType | None = None,
    required: RequiredColumns | None = None,
    sep: str | None = None,
    encoding: str | None = None,
) -> dict[str, Dataset]:
    """Read every split of a source.

    Args:
        source: a folder saved by ``save_to_disk``; a folder of files of `READERS`, one split per
            file (or per set of numbered shards); one such file, which is the train split; or, where
            no such path exists, the id of a data set on the hub.
        name: of the subfolder that the error suggests where a folder holds no data.
        label_column: in CSV and TSV files, where all other cells are texts, this column is one of
            integers, or of real numbers, if all its cells are that or empty.
        hub_id: the data set that `hub_config` belongs to; it is ignored for others, except copies
            under another owner. None: use it for any.
        hub_config: configuration on the hub, for a data set with several.
        need_train: raise an error without a train split.
        label_type: of the label column, whatever its cells look like; None: as it is stored, or
            looks like in CSV.
        required: rows without a value in these columns are left out; None: no row is.
        sep: what separates the columns of CSV and TSV files; None: a comma or a tab, by the suffix.
        encoding: of CSV and TSV files; None: UTF-8.

    Raises:
        DataError: the source does not exist, cannot be read, or lacks a train split that is needed.
    """
    path = Path(os.path.expanduser(source))
    form = CsvFormat(sep, encoding, label_column if label_type is None else None, required)
    if os.path.isdir(path):
        splits = _load_folder(path, name, form)
    elif os.path.lexists(path):
        splits = {"train": load_files([path], form)}
    elif _looks_like_hub_id(source):
        # A configuration belongs to its own data set, or a copy of it under another owner.
        other = hub_id is not None and hub_id.split("/")[-1] != str(source).split("/")[-1]
        splits = _load_from_hub(str(source), None if other else hub_config)
    else:
        seen = "" if path.is_absolute() else f" seen from {os.getcwd()}"
        raise DataError(
            f"{source}: no such file or folder{seen}, and not an id of a data set on the hub "
            "(org/name)"
        )
    if need_train and "train" not in splits:
        raise DataError(
            f"{source}: has no train split; it has {', '.join(map(repr, sorted(splits)))}. "
            "Name the file train.<extension>, or give the file itself as the source"
        )
    splits = {split: complete_rows(rows, required) for split, rows in splits.items()}
    return {split: of_type(rows, label_column, label_type) for split, rows in splits.items()}


def fitting_form(
    source: str | Path, sep: str | None = None, encoding: str | None = None
) -> dict[str, str]:
    """The `sep` and `encoding`, if unknown, that a CSV or TSV file needs, unless they are usual.

    Of a folder the first file is looked at. Raises `DataError` if it cannot be read.
    """
    first, form = first_csv(Path(source).expanduser()), dict[str, str]()
    if first is None:
        return form
    check_readable(first)
    encoding = encoding or fitting_encoding(first.read_bytes())
    if encoding not in (None, "utf-8"):
        form["encoding"] = encoding
    sep = sep or fitting_separator(first, encoding)
    if sep is not None and sep != ("\t" if first.suffix.lower() == ".tsv" else ","):
        form["sep"] = sep
    return form


def has_types(source: str | Path) -> bool:
    """Whether a source says the types of its columns; CSV, TSV and Excel do not."""
    path = Path(source).expanduser()
    return first_csv(path) is None and READERS.get(path.suffix.lower()) != "excel"


def load_rows(
    file: str | Path,
    *,
    required: RequiredColumns | None = None,
    sep: str | None = None,
    encoding: str | None = None,
) -> Dataset:
    """Read the rows of one file of `READERS`; arguments as `load_splits`.

    Cells of CSV, TSV and Excel are the texts that stand there: 007 is not 7.

    Raises:
        DataError: it does not exist or cannot be read.
    """
    path = Path(os.path.expanduser(file))
    if os.path.isdir(path) or not os.path.lexists(path):
        what = "a folder" if os.path.isdir(path) else "no such file"
        raise DataError(f"{file}: {what}; name one file of {', '.join(READERS)}")
    return complete_rows(load_files([path], CsvFormat(sep, encoding)), required)


def split_of(file: Path) -> str:
    """The name of the split that a file holds, from the file's name.

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
        and Path(text).suffix.lower() not in READERS
    )


def _load_folder(folder: Path, name: str, form: CsvFormat) -> dict[str, Dataset]:
    try:
        entries = files_in(folder)
    except OSError as error:
        raise DataError(f"{folder}: cannot be read: {error.strerror}") from error
    if (folder / "dataset_dict.json").is_file() or (folder / "state.json").is_file():
        return _load_saved(folder)
    files = [file for file in entries if file.suffix.lower() in READERS]
    if not files:
        raise DataError(f"{folder}: {_no_files(folder, name)}")
    by_split: dict[str, list[Path]] = {}
    for file in files:
        by_split.setdefault(split_of(file), []).append(file)
    for split, files in by_split.items():
        if len(files) > 1 and not _are_shards(files):
            raise DataError(
                f"{folder}: several files hold the split {split!r}: "
                f"{', '.join(file.name for file in files)}; keep one of them, or name the file"
            )
    return {split: _load_split(split, files, form) for split, files in by_split.items()}


def _load_split(split: str, files: list[Path], form: CsvFormat) -> Dataset:
    try:
        return load_files(files, form)
    except DataError as error:
        if split.split("_")[0] in _SPLITS.values():
            raise
        raise DataError(
            f"{error}; if {files[0].name} is no split of the data, move it out of the folder"
        ) from error


def _load_saved(folder: Path) -> dict[str, Dataset]:
    """The splits of a folder of save_to_disk, which may name files of its own alone."""
    with only_data_errors(f"{folder}: cannot be read as a folder of save_to_disk"):
        parts = [folder]
        if (folder / "dataset_dict.json").is_file():
            names = json.loads((folder / "dataset_dict.json").read_text("utf-8"))["splits"]
            parts = [_inside(folder, split) for split in names]
        for part in parts:
            state = json.loads((part / "state.json").read_text("utf-8"))
            for entry in state["_data_files"]:
                check_readable(_inside(part, entry["filename"]))
        # In memory, because `datasets` puts its cache files beside data that it maps from disk.
        loaded = load_from_disk(str(folder), keep_in_memory=True)
    named = isinstance(loaded, DatasetDict)
    splits = _with_standard_names(dict(loaded)) if named else {"train": loaded}
    return {name: checked(split, f"{folder}, split {name!r}") for name, split in splits.items()}


def _inside(folder: Path, name: str) -> Path:
    """A file or folder that lies in a folder; raises `DataError` if the name leads elsewhere."""
    if not isinstance(name, str) or Path(name).name != name or name in (".", "..") or "::" in name:
        raise DataError(
            f"{folder}: names {name!r}, and its files must lie in it; get the data set again"
        )
    return folder / name


def _are_shards(files: list[Path]) -> bool:
    """Whether files are numbered parts of one table, not the same table twice."""
    numbered = all(_SHARD.search(file.stem) for file in files)
    return numbered and len({(_SHARD.sub("", file.stem), file.suffix) for file in files}) == 1


def _no_files(folder: Path, name: str) -> str:
    if name and (folder / name).is_dir():
        return f"holds no data file; did you mean {folder / name}?"
    names = sorted(entry.name for entry in folder.iterdir())[:10]
    return (
        f"holds no data file ({', '.join(READERS)}) and was not saved by save_to_disk; "
        f"it holds {', '.join(names) or 'nothing'}"
    )


def _with_standard_names(splits: dict[str, Dataset]) -> dict[str, Dataset]:
    """Splits under the names that files would have: ``dev_r1`` is ``validation_r1``."""
    names = [split_of(Path(f"{name}.parquet")) for name in splits]
    if len(set(names)) < len(names):
        return splits
    return dict(zip(names, splits.values(), strict=True))


def _load_from_hub(hub_id: str, config: str | None) -> dict[str, Dataset]:
    source = hub_id if config is None else f"{hub_id}, configuration {config!r}"
    missing = f"{source}: no such file or folder here, and not readable from the hub"
    with only_data_errors(missing), cache_with_room(), cache_is_intact():
        splits = _with_standard_names(dict(load_dataset(hub_id, config)))
    return {name: checked(split, f"{source}, split {name!r}") for name, split in splits.items()}
