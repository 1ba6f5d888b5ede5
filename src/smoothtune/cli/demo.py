"""`smoothtune demo`: plain fine-tuning and VAT side by side over three seeds, offline.

The runs are trained in several processes at once, for which torch is imported once.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory
from types import FrameType
from typing import NamedTuple, NoReturn

from rich.console import Console
from rich.table import Table

from smoothtune.config.run import RunConfig
from smoothtune.console import progress_bar, say
from smoothtune.data.demo_sentences import LABEL_NOISE, Row, sentiment
from smoothtune.errors import STOP_SIGNALS, Stopped
from smoothtune.study.pool import start_server

METHOD, TITLE = "vat", "VAT"
SEEDS = (1, 2, 3)


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

    Returns:
        The runs: plain and with the method for every seed.

    Raises:
        Stopped: a signal came.
    """
    start_server()  # which imports while the rest is prepared
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
    with _stopping(), TemporaryDirectory(prefix="smoothtune-demo-") as name:
        folder = Path(name)
        _write(folder / "data" / "train.jsonl", train_split)
        _write(folder / "data" / "validation.jsonl", validation_split)
        plan = [
            _config(method, seed, model, num_train_epochs, folder)
            for method in (METHOD, "plain")  # the slow runs first
            for seed in seeds
        ]
        finished = _train(plan, validation_split, console)
    _show(console, finished)
    return finished


def _config(method: str, seed: int, model: str, epochs: float, folder: Path) -> RunConfig:
    return RunConfig(
        task="demo",
        data=str(folder / "data"),
        text_columns=["sentence"],
        model=model,
        methods={method: {}},
        output_dir=str(folder / f"{method}-{seed}"),
        seed=seed,
        num_train_epochs=epochs,
        per_device_train_batch_size=16,
        learning_rate=3e-4,
        warmup_steps=0.1,
        eval_strategy="no",
        max_train_eval_samples=1,  # the demo does not show it
        cost_steps=0,
    )


def _train(plan: Sequence[RunConfig], rows: list[Row], console: Console) -> list[DemoRun]:
    """Train runs in one process for each core."""
    context = multiprocessing.get_context("forkserver")
    ours, theirs = context.Pipe(duplex=False)[::-1]
    size = min(len(plan), os.cpu_count() or 1)
    # the pipe closes first, whatever happens: processes end with it
    with (
        progress_bar(console) as bar,
        ProcessPoolExecutor(size, context, _end_with, (theirs,)) as pool,
        ours,
    ):
        futures = [pool.submit(_run, config, rows) for config in plan]
        for _ in bar.track(as_completed(futures), len(futures), description="runs"):
            pass
        return sorted(
            (future.result() for future in futures),
            key=lambda run: (run.seed, run.method == METHOD),
        )


def _end_with(pipe: Connection) -> None:
    """End this process when the demo's end of a pipe closes; signals are for the demo."""
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)

    def end() -> None:
        wait([pipe])
        os._exit(0)

    threading.Thread(target=end, daemon=True).start()


def _run(config: RunConfig, rows: list[Row]) -> DemoRun:
    from smoothtune.cli.demo_run import train_and_measure

    (method,) = config.methods
    return DemoRun(method, config.seed, *train_and_measure(config, rows))


@contextmanager
def _stopping() -> Iterator[None]:
    """A signal raises `Stopped` within a ``with``, where Python can handle signals."""

    def stop(number: int, frame: FrameType | None) -> NoReturn:
        raise Stopped("stopped by a signal; the demo keeps nothing and starts from the beginning")

    main = threading.current_thread() is threading.main_thread()
    before = {number: signal.getsignal(number) for number in STOP_SIGNALS if main}
    previous = {n: handler for n, handler in before.items() if handler is not signal.SIG_IGN}
    for number in previous:
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


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
