"""`smoothtune demo`: plain fine-tuning and VAT side by side over three seeds, offline."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, NamedTuple

from rich.console import Console
from rich.table import Table

from smoothtune.cli.output import FAILED, fail
from smoothtune.console import quiet, say
from smoothtune.data.demo_sentences import LABEL_NOISE, Row, sentiment
from smoothtune.errors import Stopped
from smoothtune.files import write_atomic
from smoothtune.study.pool import start_server

if TYPE_CHECKING:
    from smoothtune.run.signals import Signals
    from smoothtune.study.report.methods import Run

METHOD, TITLE = "vat", "VAT"
STOPPED = "stopped by a signal; the demo keeps nothing and starts from the beginning"
SEEDS = (1, 2, 3)
CHANGE = 0.02  # size of a small change, as a part of the norm of a sentence's embeddings
MEASURED_ROWS = 50  # validation sentences whose worst change is sought
NUM_STEPS = 3  # of that search
SETTINGS = {
    "task": "demo",
    "text_columns": ["sentence"],
    "methods": ["plain", METHOD],
    "more_epochs": None,
    "per_device_train_batch_size": 16,
    "learning_rate": 3e-4,
    "warmup_steps": 0.1,
    "eval_strategy": "no",
    "max_train_eval_samples": 1,  # scores of training rows are not shown
}


class Shown(NamedTuple):
    """What the table shows of a run."""

    run: Run
    moved: float
    """How far the worst small change moves a predicted probability, a mean over rows."""


def demo(
    console: Console | None = None,
    *,
    model: str = "minilm",
    seeds: Sequence[int] = SEEDS,
    train_rows: int = 100,
    validation_rows: int = 200,
    num_train_epochs: float = 5,
) -> list[Shown]:
    """Fine-tune a model on generated sentences with and without a method, and compare.

    Args:
        console: to print to; default: standard output.
        model: minilm, a local folder, or a hub id.
        seeds: of head, data order and dropout; two runs each.
        train_rows: training examples.
        validation_rows: validation examples.
        num_train_epochs: passes over the training examples.

    Returns:
        What is shown of every run: plain and with the method for every seed.
    """
    start_server()  # which imports while the rest is prepared
    console = console or Console()
    splits = dict(zip(("train", "validation"), sentiment(train_rows, validation_rows), strict=True))
    say(
        console,
        f"{train_rows} generated training sentences, {LABEL_NOISE:.0%} of them with a wrong label, "
        f"and {validation_rows} validation sentences, for example:",
    )
    for row in splits["validation"][:3]:
        say(console, f"  {row['label']}: {row['sentence']}")
    say(console, f"Training {model} with {len(seeds)} seeds, plain and with {TITLE} ...")
    from smoothtune.run.signals import Signals  # imports torch

    with Signals() as signals, TemporaryDirectory(prefix="smoothtune-demo-") as name:
        folder = Path(name)
        for split, rows in splits.items():
            (folder / f"{split}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        study = SETTINGS | {
            "data": str(folder),
            "model": model,
            "seeds": list(seeds),
            "num_train_epochs": num_train_epochs,
        }
        write_atomic(folder / "demo.yaml", json.dumps(study))
        runs = _train(folder, signals, console)
        shown = _measured(runs, splits["validation"][:MEASURED_ROWS], signals, console)
    _show(console, shown)
    return shown


def _train(folder: Path, signals: Signals, console: Console) -> dict[Path, Run]:
    """The runs of the study in a folder by that of their model, plain first of each seed."""
    from smoothtune.study.config import load_study
    from smoothtune.study.plan import Plan
    from smoothtune.study.pool import Pool, default_jobs
    from smoothtune.study.records import Records
    from smoothtune.study.report.methods import run_of
    from smoothtune.study.run import Progress, execute
    from smoothtune.study.worker import MODELS

    records = Records(folder)
    with Progress(console, "runs", records) as progress:
        plan = Plan(load_study(folder / "demo.yaml"), folder)
        cells = plan.final({})
        progress.start("demo", len(cells))
        pool = Pool(folder, default_jobs(plan.weight_bytes()), keep_models=True)
        try:
            slow_first = sorted(cells, key=lambda cell: cell.label != METHOD)
            execute(slow_first, pool, progress, signals)
        except Stopped as error:
            raise Stopped(STOPPED) from error
        finally:
            pool.stop()
    return {folder / MODELS / cell.id: run_of(cell, records) for cell in cells}


def _measured(
    runs: dict[Path, Run], rows: Sequence[Row], signals: Signals, console: Console
) -> list[Shown]:
    """The runs by their models, with what is sought on the models; a failed run ends it."""
    for run in runs.values():
        if run.status != "done":
            fail(f"{run.method} with seed {run.seed}: {run.status}: {run.message}", FAILED)
    say(console, f"Looking for the worst change of {len(rows)} sentences by {CHANGE:.0%} ...")
    sentences = [row["sentence"] for row in rows]
    with signals.ending(STOPPED), quiet():
        return [Shown(run, moved_by_worst(model, sentences)) for model, run in runs.items()]


def moved_by_worst(folder: Path, sentences: list[str]) -> float:
    """How far the worst small change of a sentence moves a predicted probability.

    Returns the mean over the sentences of half the sum over classes of |p(x + delta) - p(x)|, in
    [0, 1]; delta has a norm of `CHANGE` times that of the sentence's embeddings.
    """
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    from smoothtune.core.forward import ForwardPass
    from smoothtune.evaluation.effect import worst_perturbation
    from smoothtune.nn.rng import stream

    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    batch = tokenizer(sentences, padding=True, return_tensors="pt")
    clean = ForwardPass(model, batch, hidden_states=False, dropout="off").run()
    with stream(model.device, 0, "demo", 0):
        delta = worst_perturbation(clean, CHANGE, NUM_STEPS)
    p, q = (run.logits.softmax(-1) for run in (clean, clean.at(delta, dropout="off")))
    return float((p - q).detach().abs().sum(-1).mean() / 2)


def _show(console: Console, shown: Sequence[Shown]) -> None:
    plain, other = ([each for each in shown if each.run.method == m] for m in ("plain", METHOD))
    table = Table(f"mean of {len(plain)} seeds", "plain", TITLE)
    rows: dict[str, tuple[Callable[[Shown], float], int]] = {
        "accuracy": (lambda each: each.run.measures["score"], 3),
        f"moved by the worst {CHANGE:.0%} change": (lambda each: each.moved, 3),
        "seconds of training": (lambda each: each.run.measures["train_seconds"], 0),
    }
    for title, (value, digits) in rows.items():
        table.add_row(title, *(f"{mean(map(value, arm)):.{digits}f}" for arm in (plain, other)))
    say(console, "")
    console.print(table)
    less = sum(theirs.moved < own.moved for own, theirs in zip(plain, other, strict=True))
    say(
        console,
        f"The worst change of a sentence by {CHANGE:.0%} moves {TITLE}'s probabilities less in "
        f"{less} of {len(plain)} seeds.",
    )
