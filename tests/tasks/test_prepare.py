import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from datasets import Dataset
from rich.console import Console
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from helpers.hub_server import WORDS, make_tokenizer
from smoothtune.data import tokenizing
from smoothtune.data.batches import Collator
from smoothtune.errors import DataError
from smoothtune.tasks.prepare import Prepared, prepare, prepare_evaluation
from smoothtune.tasks.presets import describe_task

TASK = describe_task(text_columns="text", label_names=("no", "yes"))
PAIR = describe_task(text_columns=["text", "other"], label_names=("no", "yes"))
TEXTS = ["the cat", "the cat sat on the mat .", "a dog", "a dog ran", "the dog sat", "a cats ran"]


def frame(rows: int = 6) -> pd.DataFrame:
    texts = [TEXTS[row % 6] for row in range(rows)]
    return pd.DataFrame({"text": texts, "other": texts[::-1], "label": np.arange(rows) % 2})


@pytest.fixture
def source(tmp_path: Path) -> Path:
    frame(40).to_parquet(tmp_path / "train.parquet")
    frame(6).to_parquet(tmp_path / "validation.parquet")
    return tmp_path


def decoder_tokenizer(**special: str) -> PreTrainedTokenizerFast:
    """A tokenizer that, as GPT-2's, adds no special token of its own."""
    words = {word: index for index, word in enumerate(["<eos>", *WORDS])}
    level = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    level.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=level, unk_token="[UNK]", **special)


def test_columns_and_values(source: Path) -> None:
    prepared = prepare(source, TASK, make_tokenizer())
    assert prepared.validation[5] == {
        "input_ids": [2, 6, 7, 14, 10, 3],  # [CLS] a cat ##s ran [SEP]
        "token_type_ids": [0] * 6,
        "attention_mask": [1] * 6,
        "labels": 1,
        "length": 6,
        "cut": False,
        "example_id": 5,
    }
    assert prepared.validation.features["labels"].dtype == "int64"
    assert prepared.train["example_id"][:] == list(range(40))


def test_pairs_and_scores(source: Path) -> None:
    task = describe_task(text_columns=["text", "other"], label_names=())
    prepared = prepare(source, task, make_tokenizer())
    # [CLS] the cat [SEP] a cat ##s ran [SEP]
    assert prepared.validation[0]["input_ids"] == [2, 5, 7, 3, 6, 7, 14, 10, 3]
    assert prepared.validation[0]["token_type_ids"] == [0] * 4 + [1] * 5
    assert prepared.validation.features["labels"].dtype == "float32"


def test_train_sample_is_random_seeded_and_nested(source: Path) -> None:
    def chosen(number: int, seed: int) -> list[int]:
        prepared = prepare(source, TASK, make_tokenizer(), max_train_samples=number, seed=seed)
        assert prepared.train["labels"][:] == [row % 2 for row in prepared.train["example_id"][:]]
        return prepared.train["example_id"][:]

    assert len(set(chosen(20, seed=1))) == 20
    assert chosen(20, seed=1) == chosen(20, seed=1)
    assert chosen(10, seed=1) == chosen(20, seed=1)[:10]
    assert set(chosen(20, seed=1)) != set(chosen(20, seed=2))
    assert chosen(99, seed=1) == list(range(40))


def test_evaluation_takes_the_first_rows(source: Path) -> None:
    prepared = prepare(source, TASK, make_tokenizer(), max_eval_samples=4, seed=3)
    assert prepared.validation["example_id"][:] == [0, 1, 2, 3]


def test_missing_columns_are_reported_where_validation_is_held_out(tmp_path: Path) -> None:
    frame(40).drop(columns="text").to_csv(tmp_path / "train.csv", index=False)
    with pytest.raises(DataError, match="split 'train': has no column 'text'; its columns are"):
        prepare(tmp_path, TASK, make_tokenizer())


def test_validation_is_held_out_where_there_is_none(tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    frame(40).assign(text=[f"the cat {row}" for row in range(40)]).to_csv(file, index=False)
    first = prepare(file, TASK, make_tokenizer(), seed=0)
    second = prepare(file, TASK, make_tokenizer(), seed=1, max_train_samples=5)
    held_out = set(first.validation["example_id"][:])
    assert len(held_out) == 4
    assert held_out | set(first.train["example_id"][:]) == set(range(40))
    assert len(first.train) == 36
    assert set(second.validation["example_id"][:]) == held_out
    assert not held_out & set(second.train["example_id"][:])
    assert "held out from train" in str(first.report)


def test_no_text_is_on_both_sides(tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    texts = [f"the cat {row % 30}" for row in range(40)]
    frame(40).assign(text=texts).to_csv(file, index=False)
    prepared = prepare(file, TASK, make_tokenizer())
    held_out = {texts[row] for row in prepared.validation["example_id"][:]}
    trained = {texts[row] for row in prepared.train["example_id"][:]}
    assert not held_out & trained
    assert len(trained) == 30 - len(held_out)
    repeated = sum(text in held_out for text in texts) - len(prepared.validation)
    assert f"{repeated} more rows with the same texts left out" in str(prepared.report)
    frame(40).assign(text="the cat").to_csv(file, index=False)
    with pytest.raises(DataError, match="so few different texts"):
        prepare(file, TASK, make_tokenizer())


def test_one_row_cannot_be_split(tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    frame(1).to_csv(file, index=False)
    with pytest.raises(DataError, match="too few rows to hold some out"):
        prepare(file, TASK, make_tokenizer())


def test_validation_split_of_another_name_must_be_named(tmp_path: Path) -> None:
    frame().to_csv(tmp_path / "train.csv")
    frame(3).to_csv(tmp_path / "dev_matched.csv")
    with pytest.raises(DataError, match="no split 'validation' .* 'train', 'validation_matched'"):
        prepare(tmp_path, TASK, make_tokenizer())
    task = describe_task(
        text_columns="text", label_names=("no", "yes"), validation_split="validation_matched"
    )
    assert len(prepare(tmp_path, task, make_tokenizer()).validation) == 3


def test_labels_are_inferred_from_train(tmp_path: Path) -> None:
    data = frame().assign(label=["ham", "spam"] * 3)
    data.to_csv(tmp_path / "train.csv")
    data.to_csv(tmp_path / "dev.csv")
    prepared = prepare(tmp_path, describe_task(text_columns="text"), make_tokenizer())
    assert prepared.task.label_names == ("ham", "spam")
    assert prepared.validation["labels"][:] == [0, 1, 0, 1, 0, 1]
    data.assign(label="eggs").to_csv(tmp_path / "dev.csv")
    with pytest.raises(DataError, match="'validation': line 2, column 'label': 'eggs' is no label"):
        prepare(tmp_path, describe_task(text_columns="text"), make_tokenizer())


def test_truncation_is_counted(source: Path) -> None:
    # With [CLS] and [SEP] only row 1 has more than 6 tokens; row 5 has exactly 6.
    prepared = prepare(source, TASK, make_tokenizer(), max_seq_length=6)
    assert prepared.report.splits["validation"].truncated == 1
    assert max(prepared.validation["length"][:]) == 6
    assert prepare(source, TASK, make_tokenizer()).report.splits["validation"].truncated == 0


def test_report(source: Path) -> None:
    report = prepare(source, TASK, make_tokenizer(), max_train_samples=10).report
    assert report.splits["train"].rows == 10
    assert report.splits["train"].source_rows == 40
    validation = report.splits["validation"]
    assert validation.labels == {"no": 3, "yes": 3}
    # Lengths 4 9 4 5 5 6.
    assert validation.lengths == {"min": 4, "median": 5, "p95": 8, "max": 9}
    assert json.loads(json.dumps(report.to_dict()))["splits"]["validation"]["rows"] == 6
    console = Console(width=120)
    with console.capture() as capture:
        console.print(report)
    for text in (str(report), capture.get()):
        assert "10 of 40" in text
        assert "p95 8" in text
        assert "0 at 128 tokens" in text


def test_report_shows_label_names_as_they_are(source: Path) -> None:
    task = describe_task(text_columns="text", label_names=("[/bold]", "[red]"))
    console = Console(width=120)
    with console.capture() as capture:
        console.print(prepare(source, task, make_tokenizer()).report)
    assert "[/bold] 20" in capture.get()
    assert "[red] 20" in capture.get()


def test_report_of_scores(source: Path) -> None:
    report = prepare(
        source, describe_task(text_columns="text", label_names=()), make_tokenizer()
    ).report
    assert report.splits["train"].labels == {"min": 0.0, "mean": 0.5, "max": 1.0}


def test_fingerprint_follows_the_content(source: Path, tmp_path: Path) -> None:
    def fingerprint(**options: Any) -> str:
        return prepare(source, TASK, make_tokenizer(), **options).fingerprint

    first = fingerprint()
    assert len(first) == 64
    assert fingerprint() == first
    assert fingerprint(max_eval_samples=5) != first
    assert fingerprint(max_train_samples=39) != first
    copy = tmp_path / "copy"
    copy.mkdir()
    frame(40).to_csv(copy / "train.csv")
    frame(6).to_json(copy / "dev.jsonl", orient="records", lines=True)
    assert prepare(copy, TASK, make_tokenizer()).fingerprint == first
    frame(40).replace("a dog", "a cat").to_csv(copy / "train.csv")
    assert prepare(copy, TASK, make_tokenizer()).fingerprint != first
    frame(40).assign(label=lambda data: 1 - data["label"]).to_csv(copy / "train.csv")
    assert prepare(copy, TASK, make_tokenizer()).fingerprint != first


def test_token_id_beyond_the_vocabulary_names_the_row(source: Path) -> None:
    assert prepare(source, TASK, make_tokenizer(), vocab_size=15)
    # "##s" is 14 and occurs first in row 5.
    with pytest.raises(DataError, match=r"split 'train', row 5: token id 14 .* vocabulary size 14"):
        prepare(source, TASK, make_tokenizer(), vocab_size=14)


@pytest.mark.parametrize("option", ["max_train_samples", "max_eval_samples", "max_seq_length"])
def test_numbers_must_be_positive(source: Path, option: str) -> None:
    with pytest.raises(ValueError, match=f"{option} must be at least 1, not 0"):
        prepare(source, TASK, make_tokenizer(), **{option: 0})


def test_decoder_pair_has_eos_between(source: Path) -> None:
    tokenizer = decoder_tokenizer(eos_token="<eos>")
    prepared = prepare(source, PAIR, tokenizer)
    # the cat <eos> a [UNK] ran
    assert prepared.validation[0]["input_ids"] == [6, 8, 0, 7, 2, 11]
    cut = prepare(source, PAIR, tokenizer, max_seq_length=4)
    assert cut.validation["input_ids"][0] == [6, 8, 0, 7]
    assert prepare(source, TASK, tokenizer).validation["input_ids"][0] == [6, 8]


def test_decoder_pair_without_eos_is_refused(source: Path) -> None:
    with pytest.raises(ValueError, match="set tokenizer.eos_token"):
        prepare(source, PAIR, decoder_tokenizer())


def test_no_file_beside_the_data(source: Path, tmp_path: Path) -> None:
    folder = tmp_path / "saved"
    Dataset.from_pandas(frame(40)).save_to_disk(folder)
    before = sorted(tmp_path.rglob("*"))
    prepare(folder, TASK, make_tokenizer(), max_train_samples=7)
    prepare(source, TASK, make_tokenizer(), max_train_samples=7)
    assert sorted(tmp_path.rglob("*")) == before


def test_large_splits_are_tokenized_once(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizing, "MIN_CACHED_ROWS", 5)
    calls = []
    encode = tokenizing._encode
    monkeypatch.setattr(
        tokenizing,
        "_encode",
        lambda batch, **how: calls.append(len(batch["text"])) or encode(batch, **how),
    )

    def prepared(**options: Any) -> Prepared:
        calls.clear()
        return prepare(source, PAIR, make_tokenizer(), **options)

    first = prepared()
    assert calls == [1, 40, 1, 6]
    again = prepared()
    assert calls == [1, 1]
    assert again.train.to_dict() == first.train.to_dict()
    assert max(prepared(max_seq_length=5).train["length"][:]) == 5
    assert 40 in calls
    monkeypatch.setattr(tokenizing, "version", lambda name: f"a later {name}")
    prepared()
    assert calls == [1, 40, 1, 6]  # another version may make other rows


@pytest.mark.parametrize("side", ["right", "left"])
def test_collator_pads_on_the_tokenizers_side(source: Path, side: str) -> None:
    tokenizer = make_tokenizer()
    tokenizer.padding_side = side
    rows = prepare(source, TASK, tokenizer).validation
    batch = Collator(tokenizer, pad_to_multiple_of=None)([rows[4], rows[0]])
    short = [2, 5, 7, 3]
    assert batch["input_ids"].tolist() == [
        [2, 5, 8, 9, 3],
        [*short, 0] if side == "right" else [0, *short],
    ]
    assert batch["attention_mask"].sum(1).tolist() == [5, 4]
    assert batch["labels"].tolist() == [0, 0]
    assert batch["example_id"].tolist() == [4, 0]
    assert batch["example_id"].dtype == batch["labels"].dtype == torch.int64
    assert set(batch) == {*tokenizer.model_input_names, "labels", "example_id"}


def test_collator_multiple_scores_and_no_labels(source: Path) -> None:
    tokenizer = make_tokenizer()
    rows = prepare(
        source, describe_task(text_columns=["text", "other"], label_names=()), tokenizer
    ).validation
    batch = Collator(tokenizer, pad_to_multiple_of=8)([rows[0], rows[1]])
    assert batch["input_ids"].shape == (2, 16)
    assert batch["labels"].dtype == torch.float32
    unlabeled = Collator(tokenizer)([{"input_ids": [2, 3]}, {"input_ids": [2, 5, 3]}])
    assert "labels" not in unlabeled


def test_unlabeled_rows_need_no_label(tmp_path: Path) -> None:
    """With drop_missing a blank label column leaves no unlabeled row out."""
    (tmp_path / "texts.csv").write_text("text,label\ngood film,\nbad film,\n,\n")
    task = describe_task(text_columns="text", drop_missing=True)
    assert len(task.load_splits(tmp_path / "texts.csv", labeled=False)["train"]) == 2
    assert len(task.load_splits(tmp_path / "texts.csv")["train"]) == 0


def test_null_may_name_a_class_where_labels_are_texts(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("text,label\na film,null\na plot,cat\na cat,\n")
    for label_type, rows in ((None, 1), ("text", 2)):
        task = describe_task(text_columns="text", drop_missing=True, label_type=label_type)
        assert len(task.load_splits(tmp_path / "a.csv")["train"]) == rows


def test_some_of_a_models_labels_in_another_spelling_are_its_labels(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("text,label\nthe cat,Yes\nthe dog,yes \n")
    task = describe_task(text_columns="text", merge_labels=True)
    names = ("no", "perhaps", "yes")
    found = prepare_evaluation(tmp_path / "a.csv", task, make_tokenizer(), model_labels=names)
    assert (found.task.label_names, found.validation["labels"][:]) == (names, [2, 2])
