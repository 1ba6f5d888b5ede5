"""`smoothtune demo`: plain fine-tuning and VAT side by side over three seeds, offline."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from smoothtune.cli.output import FAILED, fail
from smoothtune.console import say
from smoothtune.data.demo_sentences import LABEL_NOISE, sentiment
from smoothtune.errors import Stopped
from smoothtune.files import write_atomic
from smoothtune.study.pool import start_server

if TYPE_CHECKING:
    from smoothtune.run.signals import Signals
    from smoothtune.study.report.methods import Run

METHOD, TITLE = "vat", "VAT"
SEEDS = (1, 2, 3)
MEASURES = {
    "score": "accuracy",
    "brier": "Brier score, less is better",
    "ece": "calibration error",
    "train_seconds": "seconds of training",
}
"""Titles by measure of a run."""
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


def demo(
    console: Console | None = None,
    *,
    model: str = "minilm",
    seeds: Sequence[int] = SEEDS,
    train_rows: int = 100,
    validation_rows: int = 200,
    num_train_epochs: float = 6,
) -> list[Run]:
    """Fine-tune a model on generated sentences with and without a method, and compare.

    Args:
        console: to print to; default: standard output.
        model: minilm, a local folder, or a hub id.
        seeds: of head, data order and dropout; two runs each.
        train_rows: training examples.
        validation_rows: validation examples.
        num_train_epochs: passes over the training examples.

    Returns:
        The runs: plain and with the method for every seed.

    Raises:
        Stopped: a signal came.
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
    for run in runs:
        if run.status != "done":
            fail(f"{run.method} with seed {run.seed}: {run.status}: {run.message}", FAILED)
    _show(console, runs)
    return runs


def _train(folder: Path, signals: Signals, console: Console) -> list[Run]:
    """The runs of the study in a folder, those of plain fine-tuning first of each seed."""
    from smoothtune.study.config import load_study
    from smoothtune.study.plan import Plan
    from smoothtune.study.pool import Pool, default_jobs
    from smoothtune.study.records import Records
    from smoothtune.study.report.methods import run_of
    from smoothtune.study.run import Progress, execute

    records = Records(folder)
    with Progress(console, "runs", records) as progress:
        plan = Plan(load_study(folder / "demo.yaml"), folder)
        cells = plan.final({})
        progress.start("demo", len(cells))
        pool = Pool(folder, default_jobs(plan.weight_bytes()))
        try:
            slow_first = sorted(cells, key=lambda cell: cell.label != METHOD)
            execute(slow_first, pool, progress, signals)
        except Stopped as error:
            message = "stopped by a signal; the demo keeps nothing and starts from the beginning"
            raise Stopped(message) from error
        finally:
            pool.stop()
    return [run_of(cell, records) for cell in cells]


def _show(console: Console, runs: Sequence[Run]) -> None:
    """A table and one sentence."""
    arms = [[run.measures for run in runs if run.method == name] for name in ("plain", METHOD)]
    table = Table(f"mean of {len(arms[0])} seeds", "plain", TITLE)
    for name, title in MEASURES.items():
        digits = 0 if name == "train_seconds" else 3
        table.add_row(title, *(f"{mean(run[name] for run in arm):.{digits}f}" for arm in arms))
    say(console, "")
    console.print(table)
    gaps = [other["brier"] - plain["brier"] for plain, other in zip(*arms, strict=True)]
    say(
        console,
        f"{TITLE}'s probabilities are better in {sum(gap < 0 for gap in gaps)} of {len(gaps)} "
        f"seeds: its Brier score is {abs(mean(gaps)):.3f} "
        f"{'lower' if mean(gaps) < 0 else 'higher'} on average.",
    )
