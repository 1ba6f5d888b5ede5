"""Progress of an evaluation, with the time that is left."""

from __future__ import annotations

import time

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress

from smoothtune.progress import say

SECONDS_BETWEEN_LINES = 10.0


class Bar:
    """A bar in a terminal; elsewhere a line every ten seconds at most."""

    def __init__(self, console: Console) -> None:
        self.console, self.part = console, ""
        self.bar = RichProgress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self.title, self.total, self.done = "", 0, 0
        self.began = self.said = time.monotonic()

    def __enter__(self) -> Bar:
        self.bar.start()
        self.row = self.bar.add_task("", total=None)
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.stop()

    def start(self, title: str, total: int) -> None:
        """Work of `total` batches begins."""
        self.title, self.total, self.done = f"{self.part}: {title}", total, 0
        self.began = time.monotonic()
        self.bar.reset(self.row, total=total, description=self.title)

    def advance(self) -> None:
        """One of them is done."""
        self.done += 1
        self.bar.advance(self.row)
        now = time.monotonic()
        if self.console.is_terminal or now - self.said < SECONDS_BETWEEN_LINES:
            return
        self.said = now
        left = max(self.total - self.done, 0) * (now - self.began) / self.done
        say(self.console, f"{self.title} {self.done}/{self.total} batches, {left:.0f} s left")
