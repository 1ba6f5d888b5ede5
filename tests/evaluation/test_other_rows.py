"""Rows of other data, and the texts behind tokenized rows."""

import csv
import os
from pathlib import Path

import pytest

from smoothtune.config.evaluation import OtherData, Settings
from smoothtune.errors import DataError
from smoothtune.evaluation.subject import Subject
from smoothtune.evaluation.transfer import labeled_rows, other_rows
from smoothtune.tasks.prepare import prepare
from smoothtune.tasks.presets import TASKS, describe_task

TASK = describe_task(text_columns="text", label_names=("poor", "fine"))


def write(file: Path, rows: list[tuple[str, object]]) -> Path:
    with file.open("w", newline="") as opened:
        csv.writer(opened).writerows([("text", "label"), *rows])
    return file


def test_repeated_texts_count_once_and_labels_go_by_name(tokenizer, tmp_path: Path) -> None:
    rows = [("good film", "fine"), ("bad plot", "poor"), ("good film", "fine"), ("a film", "fine")]
    file = write(tmp_path / "other.csv", rows)
    found, repeated = other_rows(
        OtherData(str(file)), TASK, tokenizer, max_seq_length=16, vocab_size=14
    )
    assert (len(found), repeated) == (3, 1)
    assert found["labels"][:] == [1, 0, 1]
    assert found["example_id"][:] == [0, 1, 3]


def test_the_evaluation_split_is_taken_where_there_is_one(tokenizer, tmp_path: Path) -> None:
    write(tmp_path / "train.csv", [("good", "fine"), ("bad", "poor")])
    write(tmp_path / "test.csv", [("very good", "fine")])
    found, _ = other_rows(
        OtherData(str(tmp_path)), TASK, tokenizer, max_seq_length=16, vocab_size=14
    )
    assert found["length"][:] == [4]


@pytest.mark.parametrize(
    ("name", "wanted"),
    [("val", "--ood-set val.text_columns=COLUMN and --ood-set val.label_column=COLUMN"), ("", "")],
)
def test_missing_columns_are_named_with_how_to_give_them(
    name: str, wanted: str, tmp_path: Path
) -> None:
    """Of a lone file without a split, also where labels are given a meaning."""
    file = tmp_path / "validation.csv"
    file.write_text("review,stars\ngood film,1\n")
    with pytest.raises(DataError) as caught:
        labeled_rows(OtherData(str(file), labels={"1": "fine"}), TASK, name=name)
    message = str(caught.value)
    assert message.startswith(f"{file}: has no column 'text', 'label'; its columns are 'review'")
    assert "split" not in message
    assert message.endswith(f"; name its own with {wanted}" if wanted else "label_column=COLUMN")


def test_other_labels_are_refused(tokenizer, tmp_path: Path) -> None:
    file = write(tmp_path / "other.csv", [("good", "great"), ("bad", "poor")])
    with pytest.raises(DataError, match=r"other\.csv: line 2, .*'great' is no label"):
        other_rows(OtherData(str(file)), TASK, tokenizer, max_seq_length=16, vocab_size=14)


@pytest.mark.parametrize("split", ["validation.csv", None])
def test_texts_are_those_of_the_tokenized_rows(tokenizer, tmp_path: Path, split) -> None:
    words = ["good", "bad", "film", "plot", "the", "was", "and", "very", "not", "a"]
    rows = [(f"{word} {other}", "fine") for word in words for other in words]
    rows[::2] = [(text, "poor") for text, _ in rows[::2]]
    write(tmp_path / "train.csv", rows)
    if split:
        write(tmp_path / split, rows[5:25])
    prepared = prepare(tmp_path, TASK, tokenizer, max_eval_samples=7)
    settings = Settings(model="model", data=str(tmp_path))
    texts = Subject(settings, None, prepared).texts
    assert len(texts) == 7
    assert texts["labels"][:] == prepared.validation["labels"][:]
    for text, ids in zip(texts["text"], prepared.validation["input_ids"], strict=True):
        assert tokenizer(text)["input_ids"] == ids


@pytest.mark.skipif("SMOOTHTUNE_DATA" not in os.environ, reason="SMOOTHTUNE_DATA is not set")
def test_real_reviews(tokenizer) -> None:
    file = Path(os.environ["SMOOTHTUNE_DATA"]) / "uci_sentiment_labelled" / "amazon.parquet"
    found, repeated = other_rows(
        OtherData(str(file)), TASKS["sst2"], tokenizer, max_seq_length=64, vocab_size=14
    )
    assert (len(found), repeated) == (990, 10)
