"""What a study shows while it runs, and what ``--status`` shows from another terminal."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console, Group
from rich.live import Live as RichLive
from rich.table import Table

from smoothtune.console import heading, plain_text, say
from smoothtune.errors import DataError, ModelError, OutputError
from smoothtune.files import is_owned, read_json
from smoothtune.study.config import Study
from smoothtune.study.plan import Plan
from smoothtune.study.pool import Ended, default_jobs
from smoothtune.study.records import STUDY, Cell, Records

REFRESH_SECONDS = 1.0
CELL_ID = re.compile(r"[0-9a-f]{16}")
"""An id becomes part of a path."""


class Live:
    """A table that is redrawn in a terminal; elsewhere a line for every cell that ended."""

    def __init__(self, console: Console, cells: Sequence[Cell], records: Records) -> None:
        self.console, self.cells = console, cells
        self.scores: dict[str, float | None] = {}
        for cell in cells:
            self._read(cell, records)
        self.records, self.running = records, dict[str, float]()
        self.failed: set[str] = set()
        self.kept, self.began = len(self.scores), time.monotonic()
        self.live = RichLive(console=console, auto_refresh=False, transient=True)
        self.shown = 0.0

    def __enter__(self) -> Live:
        if self.kept:
            say(self.console, f"{self.kept} of {len(self.cells)} cells are done already")
        if self.console.is_terminal:
            self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.live.stop()

    def _read(self, cell: Cell, records: Records) -> None:
        if record := records.read(cell.id):
            result = record.get("result")
            self.scores[cell.id] = result and result["metrics"][result["headline"]]

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
        done = sum(self.records.read(cell.id) is not None for cell in self.cells)
        return f"{done} of {len(self.cells)} cells done"

    def refresh(self) -> None:
        """Draw the table again, at most once a second."""
        if self.console.is_terminal and time.monotonic() - self.shown > REFRESH_SECONDS:
            self.shown = time.monotonic()
            state = (
                f"{len(self.scores)} of {len(self.cells)} cells done, {len(self.running)} running, "
                f"{len(self.failed)} failed{self._left()}"
            )
            self.live.update(Group(self._table(), plain_text(state)), refresh=True)

    def _table(self) -> Table:
        """Mean score and number of seeds, so far."""
        tasks = list(dict.fromkeys(_column(cell) for cell in self.cells))
        table = Table("method", *map(heading, tasks))
        for label in dict.fromkeys(cell.label for cell in self.cells):
            mine = [cell for cell in self.cells if cell.label == label]
            cells = [self._mean([cell for cell in mine if _column(cell) == task]) for task in tasks]
            table.add_row(plain_text(label), *cells)
        return table

    def _mean(self, cells: Sequence[Cell]) -> str:
        scores = [s for cell in cells if (s := self.scores.get(cell.id)) is not None]
        return f"{np.mean(scores):.3f} ({len(scores)}/{len(cells)})" if scores else "–"


def _column(cell: Cell) -> str:
    parts = [cell.task, cell.model if cell.model != "minilm" else "", cell.max_train_samples]
    return " ".join(str(part) for part in parts if part)


def show_status(folder: Path, console: Console) -> dict[str, int]:
    """Say how far the study in a folder is, without touching it.

    Returns:
        Number of cells that are done, running, failed and open; running ones only if a study is
        at work on the folder now.

    Raises:
        OutputError: there is no study.
    """
    study = read_json(folder / STUDY)
    if study is None:
        raise OutputError(f"{folder} holds no study")
    cells = study.get("cells")
    if not isinstance(cells, list) or not all(_is_named(cell) for cell in cells):
        raise OutputError(f"{folder / STUDY} lists no cells: run the study's command again")
    records = Records(folder)
    last = {line["cell"]: line["event"] for line in records.log()}
    states: dict[str, list[str]] = {"done": [], "running": [], "failed": [], "open": []}
    at_work = is_owned(folder)
    for cell in cells:
        failure = records.failure(cell["id"])
        if records.read(cell["id"]):
            states["done"].append(cell["title"])
        elif at_work and last.get(cell["id"]) == "start":
            states["running"].append(cell["title"])
        elif failure:
            states["failed"].append(f"{cell['title']}: {failure['status']}: {failure['message']}")
        else:
            states["open"].append(cell["title"])
    counts = {name: len(titles) for name, titles in states.items()}
    total = len(cells)
    say(console, f"{study.get('name')}: {counts['done']} of {total} cells done")
    for name in ("running", "failed"):
        for title in states[name]:
            say(console, f"{name}: {title}")
    if not at_work and counts["done"] < total:
        say(console, "no process is running it; the same command continues it")
    return counts


def _is_named(cell: object) -> bool:
    if not isinstance(cell, dict):
        return False
    return isinstance(cell.get("title"), str) and bool(CELL_ID.fullmatch(str(cell.get("id"))))


def show_forecast(study: Study, folder: Path | None, jobs: int | None, console: Console) -> None:
    """Print the cells of a study, how many are done, and the time for the others.

    The time is judged by cells that are done, in the same folder: of the same method on the same
    condition where there are any, else of the same condition. Without any it is not known.

    Args:
        study: the study.
        folder: its output folder, which need not exist.
        jobs: cells at once; None: as cores and memory allow.
        console: where to print.
    """
    chosen = sum(len(entry.settings) > 1 for entry in study.entries)
    several = [e for _, e, _ in study.runs if len(study.entries[e].settings) > 1]
    count = len({(c, e) for c, e, _ in study.runs}) * len(study.config.seeds)
    choosing = len(several) * len(study.selection_seeds)
    say(console, f"{study.name}: {len(study.entries)} methods x {len(study.conditions)} conditions")
    say(console, f"  methods: {', '.join(entry.label for entry in study.entries)}")
    say(console, f"  seeds: {', '.join(map(str, study.config.seeds))}")
    say(console, f"  {count} runs" + f", and {choosing} to choose settings" * (chosen > 0))
    plan = Plan(study, None)
    try:
        records = Records(folder or Path())
        cells = [*plan.selection_cells(), *plan.final(plan.choices(records))]
        at_once = jobs or default_jobs(plan.weight_bytes())
    except (DataError, ModelError) as error:
        say(console, f"  what is done cannot be told: {error}")
        return
    read = {cell.id: records.read(cell.id) for cell in cells} if folder else {}
    done = {cell_id: record for cell_id, record in read.items() if record}
    for cell in cells:
        say(console, f"  {'done' if cell.id in done else 'to do'}: {cell.id} {cell.title}")
    say(console, f"  {len(done)} of {len(cells)} known runs are done; {at_once} at once")
    if seconds := _seconds_left(cells, done):
        say(console, f"  about {timedelta(seconds=round(seconds / at_once))} left")


def _seconds_left(cells: Sequence[Cell], done: Mapping[str, dict[str, Any]]) -> float | None:
    """Time of the other cells one after another; None where nothing like them is done."""
    times: dict[tuple[str, ...], list[float]] = {}
    for cell in cells:
        if result := done.get(cell.id, {}).get("result"):
            taken = result["cost"]["train_seconds"] + result["cost"]["evaluation_seconds"]
            for key in ((cell.task, cell.label), (cell.task,)):
                times.setdefault(key, []).append(taken)
    total = 0.0
    for cell in cells:
        if cell.id in done:
            continue
        like = times.get((cell.task, cell.label)) or times.get((cell.task,))
        if like is None:
            return None
        total += float(np.mean(like))
    return total
