"""Printed lines, progress bars, and silencing the output of libraries, which are imported then."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Self, TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from smoothtune.errors import printable

SECONDS_BETWEEN_LINES = 10.0
T = TypeVar("T")


def say(console: Console, text: str) -> None:
    """Print one plain line: no markup, no colors, no wrapping outside a terminal."""
    console.print(printable(text), markup=False, highlight=False, soft_wrap=not console.is_terminal)


def plain_text(text: str) -> Text:
    """Text of users in a table: no markup, and only what can be printed."""
    return Text(printable(text))


def progress_bar(console: Console) -> Progress:
    """A progress bar with count and remaining time, shown in a terminal only."""
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )


@contextmanager
def tracked(items: Sequence[T], title: str, console: Console) -> Iterator[Iterator[T]]:
    """Items to go through once, with a progress bar in a terminal."""
    with progress_bar(console) as bar:
        yield iter(bar.track(items, description=title))


class Bar:
    """Progress: a bar in a terminal, elsewhere a line every ten seconds at most; counts `unit`."""

    def __init__(self, console: Console, unit: str = "batches") -> None:
        self.console, self.unit, self.part = console, unit, ""
        self.bar = progress_bar(console)
        self.row = self.bar.add_task("", total=None)
        self.title, self.total, self.done, self.skipped = "", 0, 0, 0
        self.began = self.last_line = time.monotonic()

    def __enter__(self) -> Self:
        self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.stop()

    def start(self, title: str, total: int) -> None:
        """Begin a piece of work of `total` units."""
        self.title = printable(f"{self.part}: {title}" if self.part else title)
        self.total, self.done, self.skipped = total, 0, 0
        self.began = time.monotonic()
        self.bar.reset(self.row, total=total, description=self.title)

    def skip(self, count: int) -> None:
        """Count units that were done before, and tell nothing of the time that others take."""
        self.done, self.skipped = self.done + count, self.skipped + count
        self.bar.advance(self.row, count)

    def advance(self) -> None:
        """Count one unit as done."""
        self.done += 1
        self.bar.advance(self.row)
        now = time.monotonic()
        if self.console.is_terminal or now - self.last_line < SECONDS_BETWEEN_LINES:
            return
        self.last_line = now
        seconds = (now - self.began) / (self.done - self.skipped)
        rest = max(self.total - self.done, 0) * seconds
        say(self.console, f"{self.title} {self.done}/{self.total} {self.unit}, {rest:.0f} s left")


@contextmanager
def progress_bars(*, shown: bool) -> Iterator[None]:
    """Hide the progress bars of `datasets` unless `shown`; the user's setting is restored after.

    Its log is silent meanwhile: what it says about an error, the error says too.
    """
    import datasets

    hidden_before = datasets.are_progress_bars_disabled()
    verbosity = datasets.logging.get_verbosity()
    datasets.logging.set_verbosity(datasets.logging.CRITICAL)
    if not shown:
        datasets.disable_progress_bars()
    try:
        yield
    finally:
        datasets.logging.set_verbosity(verbosity)
        if not hidden_before:
            datasets.enable_progress_bars()


@contextmanager
def quiet() -> Iterator[None]:
    """Silence the progress bars of transformers and datasets, and the log of transformers."""
    from transformers.utils import logging

    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        with progress_bars(shown=False):
            yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()
