"""Files as they are found: unusual names, types and kinds."""

import json
import os
import socket
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import Dataset

from smoothtune.data.sources import load_rows, load_splits
from smoothtune.errors import DataError
from smoothtune.tasks.guess import guess
from smoothtune.tasks.presets import describe_task


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
@pytest.mark.parametrize("name", ["f::x", "a[1]*?{b}", "100%20 #1", "ü ß"])
def test_any_name_is_read(tmp_path: Path, name: str, suffix: str) -> None:
    file = tmp_path / f"{name}{suffix}"
    rows = Dataset.from_dict({"text": ["a", "b"], "label": [0, 1]})
    if suffix == ".parquet":
        pq.write_table(rows.data.table, file)
    else:
        content = "text,label\na,0\nb,1\n"
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        file.write_text(content if suffix == ".csv" else lines)
    assert load_splits(file)["train"].to_dict() == rows.to_dict()


def test_views_of_arrow_are_read(tmp_path: Path) -> None:
    columns = {
        "text": pa.array(["a", "b"]).cast(pa.string_view()),
        "words": pa.array([["a"], ["b", "c"]], pa.list_(pa.string_view())),
        "label": pa.array(["x", "y"]).cast(pa.string_view()),
    }
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    train = load_splits(tmp_path / "a.parquet")["train"]
    assert train["words"][:] == [["a"], ["b", "c"]]
    task = describe_task(text_columns="text").with_labels(train)
    assert task.rows.check({"train": train}, "a")["train"].tolist() == [0, 1]


def test_other_types_of_arrow_beside_texts_and_labels(tmp_path: Path) -> None:
    """A map is nothing that datasets knows; a decimal number is no label until its type is told."""
    columns = {
        "text": pa.array(["a", "b"]),
        "more": pa.array([[("k", 1)], None], pa.map_(pa.string(), pa.int64())),
        "label": pa.array([Decimal("1.5"), Decimal("2.5")]),
    }
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    task = describe_task(text_columns="text")
    train = task.load_splits(tmp_path / "a.parquet")["train"]
    assert train["more"][:] == [[{"key": "k", "value": 1}], None]
    with pytest.raises(DataError, match="decimal.*label_type: text for classes, float for scores"):
        task.with_labels(train)
    scores = describe_task(text_columns="text", label_type="float")
    train = scores.load_splits(tmp_path / "a.parquet")["train"]
    assert scores.with_labels(train).rows.check({"a": train}, "a")["a"].tolist() == [1.5, 2.5]


def test_two_columns_of_parquet_with_one_name(tmp_path: Path) -> None:
    table = pa.table([pa.array(["a"]), pa.array([1]), pa.array([2])], ["text", "label", "label"])
    pq.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(DataError, match="2 columns are named 'label'"):
        load_splits(tmp_path / "a.parquet")


@pytest.mark.parametrize("lines", [True, False])
def test_dates_in_json_stay_as_they_are_written(tmp_path: Path, lines: bool) -> None:
    rows = [
        {"day": "2020-01-31", "time": "2020-01-31T10:00:00+02:00"},
        {"day": None, "time": "2020-02-01T10:00:00Z"},
    ]
    text = "\n".join(map(json.dumps, rows)) if lines else json.dumps(rows)
    (tmp_path / "a.json").write_text(text)
    assert list(load_rows(tmp_path / "a.json")) == rows


@pytest.mark.parametrize("value", ["a", 0.5])
def test_values_that_come_late_in_json(tmp_path: Path, value: object) -> None:
    """Of 10 MB datasets finds the types in what comes first."""
    rows = [{"text": "x" * 100_000, "label": None if value == "a" else 1}] * 110
    rows = [*rows, {"text": "y", "label": value}]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert load_rows(tmp_path / "a.jsonl")[-1] == rows[-1]


def test_mixed_types_in_json_name_the_odd_lines(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    rows = [{"text": "a", "label": 1}, {"text": "b", "label": 0}, {"text": "c", "label": "x"}]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = describe_task(text_columns="text")
    with pytest.raises(DataError, match=r"line 3, column 'label': 'x' is of type str; 2 rows hold"):
        task.with_labels(task.load_splits(file)["train"])
    text = describe_task(text_columns="text", label_type="text")
    train = text.load_splits(file)["train"]
    assert text.with_labels(train).label_names == ("0", "1", "x")
    dropped = describe_task(text_columns="text", label_type="text", drop_missing=True)
    file.write_text(file.read_text() + '{"text": "d"}\n')
    assert dropped.load_splits(file)["train"]["label"][:] == ["1", "0", "x"]
    file.write_text('{"text": "a"}\n{"text": 7}\n{"text": "b"}\n')
    with pytest.raises(DataError, match=r"line 2, column 'text': 7 is of type int"):
        task.rows.check_inputs(load_rows(file), "a")


def test_lists_and_mappings_with_values_of_several_types_are_read(tmp_path: Path) -> None:
    file, kind = tmp_path / "a.jsonl", "multi-label-classification"
    rows = [
        {"say": "a film", "labels": ["x", 1], "more": {"speaker": "a long name"}, "mood": "good"},
        {"say": "a plot", "labels": [], "more": {"speaker": 1}, "mood": "bad"},
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in [*rows, *rows]))
    assert [*map(json.loads, load_rows(file)["more"][:2])] == [row["more"] for row in rows]
    assert guess(load_rows(file)).text_columns == ["say"]
    task = describe_task("a", kind, text_columns="say")
    with pytest.raises(DataError, match="column 'labels' holds lists or mappings with values of"):
        task.with_labels(task.load_splits(file)["train"])
    text = describe_task("a", kind, text_columns="say", label_type="text", drop_missing=True)
    assert text.with_labels(text.load_splits(file)["train"]).label_names == ("1", "x")


def test_what_the_reader_of_mixed_types_would_let_pass(tmp_path: Path) -> None:
    """It takes the last of two equal names, and makes other characters of bytes."""
    rows = [b'{"text": "a", "label": 1}\n'] + [b'{"text": "a", "label": "x"}\n'] * 150
    (file := tmp_path / "a.jsonl").write_bytes(b"".join(rows))
    assert len(load_rows(file)) == 151
    twice = rows[:120] + [b'{"text": "a", "label": "x", "label": "y"}\n'] + rows[120:]
    file.write_bytes(b"".join(twice))
    with pytest.raises(DataError, match="line 121: 2 columns are named 'label'"):
        load_rows(file)
    file.write_bytes(b"".join(rows[:120] + [b'{"text": "\xa8", "label": "x"}\n'] + rows[120:]))
    with pytest.raises(DataError, match="line 121 is not UTF-8"):
        load_rows(file)


def fifo(path: Path) -> None:
    os.mkfifo(path)


def bound_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


SPECIAL = {
    "is a folder": Path.mkdir,
    "is a pipe": fifo,
    "is a socket": bound_socket,
    "No such file": lambda path: path.symlink_to("nowhere"),
    "Too many levels": lambda path: path.symlink_to(path.name),
    "is a device": lambda path: path.symlink_to("/dev/zero"),
}


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
@pytest.mark.parametrize("message", SPECIAL)
def test_what_is_no_file_is_refused(tmp_path: Path, message: str, suffix: str) -> None:
    SPECIAL[message](tmp_path / f"train{suffix}")
    sources = [tmp_path, tmp_path / f"train{suffix}"][: 1 if "folder" in message else 2]
    for source in sources:
        with pytest.raises(DataError, match=f"train{suffix}: .*{message}"):
            load_splits(source)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_what_may_not_be_read(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("text\na\n")
    (tmp_path / "a.csv").chmod(0)
    with pytest.raises(DataError, match=r"a\.csv: cannot be read: Permission denied"):
        load_splits(tmp_path / "a.csv")


@pytest.mark.parametrize("name", ["../secret.arrow", "/etc/passwd", "..", "a/b.arrow"])
def test_a_saved_folder_names_files_of_its_own(tmp_path: Path, name: str) -> None:
    rows = Dataset.from_dict({"text": ["a"]})
    rows.save_to_disk(tmp_path / "data")
    rows.save_to_disk(tmp_path / "other")
    (tmp_path / "other" / "data-00000-of-00001.arrow").rename(tmp_path / "secret.arrow")
    state = json.loads((tmp_path / "data" / "state.json").read_text())
    state["_data_files"] = [{"filename": name}]
    (tmp_path / "data" / "state.json").write_text(json.dumps(state))
    with pytest.raises(DataError, match="its files must lie in it"):
        load_splits(tmp_path / "data")
    (tmp_path / "both").mkdir()
    (tmp_path / "both" / "dataset_dict.json").write_text('{"splits": ["../other"]}')
    with pytest.raises(DataError, match="its files must lie in it"):
        load_splits(tmp_path / "both")
