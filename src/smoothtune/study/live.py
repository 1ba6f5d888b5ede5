"""What a study shows while it runs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import timedelta

import numpy as np
from rich.console import Console, Group
from rich.live import Live as RichLive

from smoothtune.console import plain_text, say
from smoothtune.report.page import Table
from smoothtune.report.terminal import fitted
from smoothtune.study.pool import Ended
from smoothtune.study.records import Cell, Records

REFRESH_SECONDS = 1.0


class Live:
    """A table that is redrawn in a terminal; elsewhere a line for every cell that ended."""

    def __init__(self, console: Console, cells: Sequence[Cell], records: Records) -> None:
        self.console, self.cells = console, cells
        self.scores: dict[str, float | None] = {}
        for cell in cells:
            self._read(cell, records)
        self.groups: dict[str, dict[str, list[str]]] = {}
        """Ids of the cells of each method and column."""
        for cell in cells:
            columns = self.groups.setdefault(cell.label, {})
            columns.setdefault(_column(cell), []).append(cell.id)
        self.records, self.running = records, dict[str, float]()
        self.failed: set[str] = set()
        self.kept, self.began = len(self.scores), time.monotonic()
        self.live = RichLive(console=console, auto_refresh=False, transient=True)
        self.shown = 0.0

    def __enter__(self) -> Live:
        if self.kept:
            say(self.console, f"{self.kept} of {len(self.cells)} runs are done already")
        if self.console.is_terminal:
            self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.live.stop()

    def _read(self, cell: Cell, records: Records) -> None:
        if row := records.row(cell.id):
            self.scores[cell.id] = row.score

    def started(self, cell: Cell) -> None:
        """A cell begins."""
        self.running[cell.id] = time.monotonic()

    def ended(self, ended: Ended, again: bool) -> None:
        """A cell has ended, and may be tried again."""
        cell = ended.cell
        seconds = time.monotonic() - self.running.pop(cell.id)
        self._read(cell, self.records)
        if cell.id not in self.scores and not again:
            self.failed.add(cell.id)
        score = self.scores.get(cell.id)
        outcome = f"{score:.4f}" if score is not None else f"{ended.status}: {ended.message}"
        count = f"{len(self.scores)}/{len(self.cells)}"
        more = "; tried again" * again
        left = self._left()
        say(self.console, f"{count} {cell.title}: {outcome} ({seconds:.0f} s){more}{left}")

    def _left(self) -> str:
        """The time left, judged by the cells of this call so far."""
        done = len(self.scores) - self.kept
        if not done:
            return ""
        missing = len(self.cells) - len(self.scores) - len(self.failed)
        seconds = (time.monotonic() - self.began) / done * missing
        return f", about {timedelta(seconds=round(seconds))} left"

    def state(self) -> str:
        """How far it is."""
        done = sum(self.records.row(cell.id) is not None for cell in self.cells)
        return f"{done} of {len(self.cells)} runs done"

    def refresh(self) -> None:
        """Draw the table again, at most once a second."""
        if self.console.is_terminal and time.monotonic() - self.shown > REFRESH_SECONDS:
            self.shown = time.monotonic()
            table, left_out = fitted(self._table(), self.console.width, ["method"])
            state = (
                f"{len(self.scores)} of {len(self.cells)} runs done, {len(self.running)} running, "
                f"{len(self.failed)} failed{self._left()}"
            )
            state += f"; no room for {', '.join(left_out)}" * bool(left_out)
            self.live.update(Group(table, plain_text(state)), refresh=True)

    def _table(self) -> Table:
        """Mean score and number of seeds, so far."""
        tasks = list(dict.fromkeys(_column(cell) for cell in self.cells))
        rows = [
            [label, *(self._mean(columns.get(task, [])) for task in tasks)]
            for label, columns in self.groups.items()
        ]
        return Table(["method", *tasks], rows)

    def _mean(self, ids: Sequence[str]) -> str:
        scores = [s for cell in ids if (s := self.scores.get(cell)) is not None]
        return f"{np.mean(scores):.3f} ({len(scores)}/{len(ids)})" if scores else "–"


def _column(cell: Cell) -> str:
    parts = [cell.task, cell.model if cell.model != "minilm" else "", cell.max_train_samples]
    return " ".join(str(part) for part in parts if part)
