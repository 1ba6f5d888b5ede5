from pathlib import Path

import pandas as pd
import pytest
from datasets import Dataset, DatasetDict

from smoothtune.data.sources import load_splits, split_of
from smoothtune.errors import DataError

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


def test_missing_path(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="nowhere.csv: no such file or folder"):
        load_splits(str(tmp_path / "nowhere.csv"))
    with pytest.raises(DataError, match="nowhere: no such file or folder"):
        load_splits(Path("nowhere"))


def test_no_train_split(tmp_path: Path) -> None:
    write(FRAME, tmp_path / "amazon.csv")
    write(FRAME, tmp_path / "test.csv")
    with pytest.raises(DataError, match="no train split; it has 'amazon', 'test'"):
        load_splits(tmp_path)


def test_unknown_extension(tmp_path: Path) -> None:
    file = tmp_path / "train.xlsx"
    file.touch()
    with pytest.raises(DataError, match=r"'.xlsx'; known are .parquet, .csv"):
        load_splits(file)
    with pytest.raises(DataError, match=r"holds no data file .* it holds train.xlsx"):
        load_splits(tmp_path)


def test_folder_of_data_sets_names_the_one_meant(tmp_path: Path) -> None:
    (tmp_path / "rte").mkdir()
    with pytest.raises(DataError, match="did you mean .*rte?"):
        load_splits(tmp_path, name="rte")


def test_same_split_twice(tmp_path: Path) -> None:
    write(FRAME, tmp_path / "train.csv")
    write(FRAME, tmp_path / "train.parquet")
    with pytest.raises(DataError, match="several files hold the split 'train': train.csv, train.p"):
        load_splits(tmp_path)


def test_broken_file_is_named(tmp_path: Path) -> None:
    file = tmp_path / "train.csv"
    file.write_text("text,label\na,1\nb,0,extra,extra\n")
    with pytest.raises(DataError, match=r"train.csv: cannot be read as csv: .*line 3, saw 4"):
        load_splits(file)
    file = tmp_path / "train.parquet"
    file.write_bytes(b"not parquet")
    with pytest.raises(DataError, match=r"train.parquet: cannot be read as parquet"):
        load_splits(file)
