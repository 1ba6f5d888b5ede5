import gc
import json
import re
from pathlib import Path

import datasets
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import Dataset, DatasetDict
from PIL import Image

from smoothtune.data.cache import cache_is_intact
from smoothtune.data.sources import fitting_form, load_splits, split_of
from smoothtune.errors import DataError, OutputError

FRAME = pd.DataFrame({"text": ['say "hi', "None", "c,d"], "label": [0, 1, 1]})


def write(frame: pd.DataFrame, file: Path) -> None:
    if file.suffix == ".parquet":
        frame.to_parquet(file)
    elif file.suffix == ".csv":
        frame.to_csv(file, index=False)
    elif file.suffix == ".tsv":
        # As GLUE's own files: nothing is quoted.
        rows = [frame.columns, *frame.itertuples(index=False)]
        file.write_text("".join("\t".join(map(str, row)) + "\n" for row in rows))
    else:
        frame.to_json(file, orient="records", lines=True)


@pytest.mark.parametrize("suffix", [".parquet", ".csv", ".tsv", ".jsonl", ".json"])
def test_every_format_reads_the_same(tmp_path: Path, suffix: str) -> None:
    write(FRAME, tmp_path / f"train{suffix}")
    write(FRAME[:1], tmp_path / f"dev{suffix}")
    splits = load_splits(tmp_path)
    assert splits["train"].to_dict() == FRAME.to_dict("list")
    assert splits["validation"].to_dict() == FRAME[:1].to_dict("list")
    assert load_splits(str(tmp_path / f"dev{suffix}"))["train"].num_rows == 1


@pytest.mark.parametrize(("suffix", "separator"), [(".csv", ","), (".tsv", "\t")])
def test_empty_label_is_missing(tmp_path: Path, suffix: str, separator: str) -> None:
    file = tmp_path / f"train{suffix}"
    file.write_text("text,label\na,4.5\nb,\nNA,1\n".replace(",", separator))
    train = load_splits(file)["train"]
    assert train["label"][:] == [4.5, None, 1.0]
    assert train["text"][:] == ["a", "b", "NA"]


def test_folder_saved_by_datasets_stays_as_it_is(tmp_path: Path) -> None:
    data = Dataset.from_pandas(FRAME)
    DatasetDict(train=data, validation=data).save_to_disk(tmp_path / "both")
    data.save_to_disk(tmp_path / "one")
    before = sorted(tmp_path.rglob("*"))
    both = load_splits(tmp_path / "both")
    assert {name: split.num_rows for name, split in both.items()} == {"train": 3, "validation": 3}
    one = load_splits(tmp_path / "one")
    one["train"].map(lambda row: {"more": row["label"]})
    assert one["train"]["text"][:] == list(FRAME["text"])
    assert sorted(tmp_path.rglob("*")) == before


def test_splits_saved_by_datasets_have_the_names_of_files(tmp_path: Path) -> None:
    data = Dataset.from_pandas(FRAME)
    DatasetDict(train=data, dev_r1=data).save_to_disk(tmp_path / "both")
    assert list(load_splits(tmp_path / "both")) == ["train", "validation_r1"]


def test_shards_are_one_split_in_order(tmp_path: Path) -> None:
    write(FRAME[2:], tmp_path / "train-00001-of-00002.parquet")
    write(FRAME[:2], tmp_path / "train-00000-of-00002.parquet")
    assert load_splits(tmp_path)["train"]["text"][:] == list(FRAME["text"])


def test_folder_name_with_glob_characters(tmp_path: Path) -> None:
    folder = tmp_path / "run[1]*?"
    folder.mkdir()
    write(FRAME, folder / "train.csv")
    assert load_splits(folder)["train"].num_rows == 3


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("train.csv", "train"),
        ("Training.tsv", "train"),
        ("dev.tsv", "validation"),
        ("val.jsonl", "validation"),
        ("eval.json", "validation"),
        ("rte-dev.tsv", "validation"),
        ("my_data_train.csv", "train"),
        ("validation_matched.parquet", "validation_matched"),
        ("dev_mismatched.tsv", "validation_mismatched"),
        ("test-00000-of-00003.parquet", "test"),
        ("train_3.csv", "train"),
        ("train_random.parquet", "train_random"),
        ("amazon.parquet", "amazon"),
    ],
)
def test_split_from_file_name(name: str, split: str) -> None:
    assert split_of(Path(name)) == split


def test_missing_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match="nowhere.csv: no such file or folder"):
        load_splits(str(tmp_path / "nowhere.csv"))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match=f"folder seen from {re.escape(str(tmp_path))}, and not"):
        load_splits(Path("nowhere"))


def test_no_train_split(tmp_path: Path) -> None:
    write(FRAME, tmp_path / "amazon.csv")
    write(FRAME, tmp_path / "test.csv")
    with pytest.raises(DataError, match="no train split; it has 'amazon', 'test'"):
        load_splits(tmp_path)


def test_unknown_extension(tmp_path: Path) -> None:
    file = tmp_path / "train.xls"
    file.touch()
    with pytest.raises(DataError, match=r"'.xls'; known are .parquet, .csv.*save the table as CSV"):
        load_splits(file)
    with pytest.raises(DataError, match=r"holds no data file .* it holds train.xls"):
        load_splits(tmp_path)


def test_folder_of_data_sets_names_the_one_meant(tmp_path: Path) -> None:
    (tmp_path / "rte").mkdir()
    with pytest.raises(DataError, match="did you mean .*rte?"):
        load_splits(tmp_path, name="rte")


def test_files_that_programs_put_beside_others(tmp_path: Path) -> None:
    write(FRAME, tmp_path / "train.csv")
    (tmp_path / "._train.csv").write_bytes(b"\0\5\x16")
    (tmp_path / "~$train.xlsx").write_bytes(b"\5user")
    assert list(load_splits(tmp_path)) == ["train"]
    assert fitting_form(tmp_path) == {}


def test_a_file_that_is_no_split(tmp_path: Path) -> None:
    write(FRAME, tmp_path / "train.csv")
    (tmp_path / "labels.json").write_text('["no", "yes"]')
    told = r"labels.json: .*if labels.json is no split of the data, move it out of the folder"
    with pytest.raises(DataError, match=told):
        load_splits(tmp_path)
    (tmp_path / "labels.json").rename(tmp_path / "test.json")
    with pytest.raises(DataError, match=r"line 1 holds no row; write \{.*\} in every line$"):
        load_splits(tmp_path)


def test_same_split_twice(tmp_path: Path) -> None:
    write(FRAME, tmp_path / "train.csv")
    write(FRAME, tmp_path / "train.parquet")
    with pytest.raises(DataError, match="several files hold the split 'train': train.csv, train.p"):
        load_splits(tmp_path)


def test_broken_file_is_named(tmp_path: Path) -> None:
    file = tmp_path / "train.csv"
    file.write_text("text,label\na,1\nb,0,extra,extra\n")
    with pytest.raises(DataError, match=r"train.csv: line 3 has 4 columns and the header 2"):
        load_splits(file)
    file = tmp_path / "train.parquet"
    file.write_bytes(b"not parquet")
    with pytest.raises(DataError, match=r"train.parquet: cannot be read as parquet"):
        load_splits(file)


def stored(kind: str, values: list[bytes]) -> pa.Array:
    """Bytes that claim to be text."""
    return pa.Array.from_buffers(pa.string(), len(values), pa.array(values, pa.binary()).buffers())


# datasets 5.0 leaves the file of rows open after an error
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("kept", [0, 8, 0.5])
def test_a_damaged_cache_is_named(tmp_path: Path, monkeypatch, kept: float) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    file = tmp_path / "train.csv"
    file.write_text("text,label\n" + "".join(f"good {i},{i % 2}\n" for i in range(50)))

    def load():
        with cache_is_intact():
            return datasets.load_dataset("csv", data_files=str(file))

    load()
    gc.collect()
    (cached,) = (tmp_path / "cache").rglob("*.arrow")
    content = cached.read_bytes()
    cached.write_bytes(content[: round(kept * len(content)) if kept < 1 else int(kept)])
    with pytest.raises(OutputError, match=r"cache, the cache folder of datasets, holds a damaged"):
        load()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"text": "good"}\n\n{"text": "oops "x}\n', "line 3, character 17: Expecting"),
        ('[{"text": "good"},\n {"text": }]', "line 2, character 11: Expecting value"),
    ],
)
def test_json_that_is_broken_is_named_by_its_line(tmp_path: Path, content, message) -> None:
    (tmp_path / "train.jsonl").write_text(content)
    with pytest.raises(DataError, match=f"train.jsonl: cannot be read as JSON: {message}"):
        load_splits(tmp_path)


def test_text_that_is_not_utf8(tmp_path: Path) -> None:
    texts = [b"good", b"fine", b"\xff\xfe", b"bad"]
    table = pa.table({"label": [0, 1, 0, 1], "text": stored("text", texts)})
    pq.write_table(table, tmp_path / "train.parquet", row_group_size=2)
    with pytest.raises(DataError, match=r"train.parquet: row 2, column 'text' is .* not UTF-8"):
        load_splits(tmp_path)
    (tmp_path / "train.parquet").unlink()
    (tmp_path / "train.jsonl").write_bytes(b'{"text": "good"}\n{"text": "\xff"}\n')
    with pytest.raises(DataError, match=r"train.jsonl: line 2 is not UTF-8 \(byte 11 of the line"):
        load_splits(tmp_path)


def test_a_file_cannot_have_others_opened(tmp_path: Path) -> None:
    """Metadata that call a column pictures made `datasets` open the paths that are in it."""
    stored_picture = {"bytes": None, "path": str(tmp_path / "secret.png")}
    Image.new("RGB", (1, 1)).save(stored_picture["path"])
    declared = {"info": {"features": {"text": {"_type": "Image"}}}}
    type_ = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    table = pa.table({"text": pa.array([stored_picture], type_)})
    pq.write_table(
        table.replace_schema_metadata({"huggingface": json.dumps(declared)}),
        tmp_path / "train.parquet",
    )
    split = load_splits(tmp_path / "train.parquet")["train"]
    assert split["text"][:] == [stored_picture]


@pytest.mark.parametrize(
    "declared", [b"[", b'{"info": 1}', b"[" * 100_000, b'{"info": {"features": {"text": 3}}}']
)
def test_damaged_metadata(declared: bytes, tmp_path: Path) -> None:
    table = pa.table({"text": ["good"]}).replace_schema_metadata({"huggingface": declared})
    pq.write_table(table, tmp_path / "train.parquet")
    with pytest.raises(DataError, match=r"train.parquet: cannot be read as parquet"):
        load_splits(tmp_path)


NO_ROWS = [b"", b"\0" * 100, b"null\n", b"null\nnull\n", b"1\n", b'"a"\n']


@pytest.mark.parametrize("content", NO_ROWS)
@pytest.mark.parametrize("suffix", ["json", "jsonl"])
def test_json_without_rows(content: bytes, suffix: str, tmp_path: Path) -> None:
    """On nothing but null, the reader ends the process with a segmentation fault."""
    (tmp_path / f"train.{suffix}").write_bytes(content)
    with pytest.raises(DataError, match=rf"train.{suffix}: cannot be read as JSON"):
        load_splits(tmp_path)


@pytest.mark.parametrize("line", ["null", "[]", '[{"text": "b"}]'])
def test_json_with_a_line_that_is_no_row(line: str, tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_text(f'{{"text": "a"}}\n{{"text": "null"}}\n {line} \n')
    with pytest.raises(DataError, match="line 3 holds no row"):
        load_splits(tmp_path)


def test_damaged_folder_of_save_to_disk(tmp_path: Path) -> None:
    for name, content in {"state.json": "{}", "dataset_dict.json": '{"splits": 3}'}.items():
        folder = tmp_path / name.partition(".")[0]
        folder.mkdir()
        (folder / name).write_text(content)
        with pytest.raises(DataError, match="cannot be read as a folder of save_to_disk"):
            load_splits(folder)
