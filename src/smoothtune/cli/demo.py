"""`smoothtune demo`: plain fine-tuning and VAT side by side over three seeds, offline."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import NamedTuple

import torch
from rich.console import Console
from rich.table import Table
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from smoothtune.config.run import RunConfig
from smoothtune.console import quiet, say, tracked
from smoothtune.core.forward import ForwardPass
from smoothtune.data.demo_sentences import LABEL_NOISE, Row, sentiment
from smoothtune.errors import Stopped
from smoothtune.functional.noise import gaussian
from smoothtune.run.train import train

METHOD, TITLE = "vat", "VAT"
SEEDS = (1, 2, 3)
NOISE_RATIO = 0.3
"""Norm of the noise relative to that of each word embedding."""


class DemoRun(NamedTuple):
    """What one run of the demo ended with."""

    method: str
    seed: int
    accuracy: float
    brier: float
    noisy_accuracy: float
    """With Gaussian noise on the word embeddings."""
    seconds: float
    """Training time."""


def demo(
    console: Console | None = None,
    *,
    model: str = "minilm",
    seeds: Sequence[int] = SEEDS,
    train_rows: int = 100,
    validation_rows: int = 200,
    num_train_epochs: float = 6,
) -> list[DemoRun]:
    """Fine-tune a model on generated sentences with and without a method, and compare.

    Args:
        console: to print to; default: standard output.
        model: minilm, a local folder, or a hub id.
        seeds: of head, data order and dropout; two runs each.
        train_rows: training examples.
        validation_rows: validation examples.
        num_train_epochs: passes over the training examples.

    Raises:
        Stopped: a signal came.
    """
    console = console or Console()
    train_split, validation_split = sentiment(train_rows, validation_rows)
    say(
        console,
        f"{train_rows} generated training sentences, {LABEL_NOISE:.0%} of them with a wrong label, "
        f"and {validation_rows} validation sentences, for example:",
    )
    for row in validation_split[:3]:
        say(console, f"  {row['label']}: {row['sentence']}")
    say(console, f"Training {model} with {len(seeds)} seeds, plain and with {TITLE} ...")
    plan = [(method, seed) for seed in seeds for method in ("plain", METHOD)]
    with tempfile.TemporaryDirectory(prefix="smoothtune-demo-") as name:
        folder = Path(name)
        _write(folder / "data" / "train.jsonl", train_split)
        _write(folder / "data" / "validation.jsonl", validation_split)
        try:
            with tracked(plan, "runs", console) as runs:
                finished = [
                    _run(method, seed, model, num_train_epochs, folder, validation_split)
                    for method, seed in runs
                ]
        except Stopped:  # whose advice is that of `smoothtune train`
            message = "stopped by a signal; the demo keeps nothing and starts from the beginning"
            raise Stopped(message) from None
    _show(console, finished)
    return finished


def _run(
    method: str, seed: int, model: str, epochs: float, folder: Path, rows: list[Row]
) -> DemoRun:
    output = folder / f"{method}-{seed}"
    config = RunConfig(
        task="demo",
        data=str(folder / "data"),
        text_columns=["sentence"],
        model=model,
        methods={method: {}},
        output_dir=str(output),
        seed=seed,
        num_train_epochs=epochs,
        per_device_train_batch_size=8,
        learning_rate=2e-4,
        warmup_steps=0.1,
        eval_strategy="no",
        cost_steps=0,
    )
    with open(os.devnull, "w") as nothing:
        result = train(config, console=Console(file=nothing))
    return DemoRun(
        method,
        seed,
        result["metrics"]["accuracy"],
        result["metrics"]["brier"],
        noisy_accuracy(output, rows, NOISE_RATIO),
        result["cost"]["train_seconds"],
    )


def noisy_accuracy(folder: Path, rows: list[Row], ratio: float) -> float:
    """Accuracy of a model folder with Gaussian noise on its word embeddings.

    Args:
        folder: a trained model.
        rows: ``sentence`` and ``label`` of each example.
        ratio: norm of the Gaussian noise relative to each token's embedding.

    Returns:
        Share of correct predictions, 0 to 1; the noise is the same at every call.
    """
    with quiet():
        model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
        tokenizer = AutoTokenizer.from_pretrained(folder)
    correct = 0
    with torch.no_grad(), torch.random.fork_rng():
        torch.manual_seed(0)
        for start in range(0, len(rows), 64):
            chunk = rows[start : start + 64]
            texts = [row["sentence"] for row in chunk]
            batch = dict(tokenizer(texts, padding=True, return_tensors="pt"))
            clean = ForwardPass(model, batch, points=["word"])
            noise = gaussian(clean.embeddings("word"), clean.mask, ratio)
            predicted = clean.at(noise, "word").logits.argmax(-1).tolist()
            names = [model.config.id2label[index] for index in predicted]
            correct += sum(name == row["label"] for name, row in zip(names, chunk, strict=True))
    return correct / len(rows)


def _write(path: Path, rows: list[Row]) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def _show(console: Console, runs: Sequence[DemoRun]) -> None:
    """Four lines and one sentence."""
    plain = [run for run in runs if run.method == "plain"]
    regularized = [run for run in runs if run.method == METHOD]
    table = Table(f"mean of {len(plain)} seeds", "plain", TITLE)

    def line(title: str, values: list[list[float]], digits: int = 3) -> None:
        table.add_row(title, *(f"{mean(column):.{digits}f}" for column in values))

    both = (plain, regularized)
    line("accuracy", [[run.accuracy for run in arm] for arm in both])
    line("Brier score, less is better", [[run.brier for run in arm] for arm in both])
    line("accuracy under noise", [[run.noisy_accuracy for run in arm] for arm in both])
    line("seconds of training", [[run.seconds for run in arm] for arm in both], digits=0)
    say(console, "")
    console.print(table)
    pairs = list(zip(plain, regularized, strict=True))
    better = sum(other.brier < one.brier for one, other in pairs)
    gap = mean(other.brier - one.brier for one, other in pairs)
    say(
        console,
        f"{TITLE}'s probabilities are better in {better} of {len(pairs)} seeds: its Brier score "
        f"is {abs(gap):.3f} {'lower' if gap < 0 else 'higher'} on average.",
    )
