"""What a study would run, what of it is done, and about how long the rest takes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import numpy as np
from rich.console import Console

from smoothtune.console import say
from smoothtune.errors import DataError, ModelError
from smoothtune.study.cells import CELLS, Cell, Records
from smoothtune.study.config import Study
from smoothtune.study.pool import default_jobs
from smoothtune.study.protocol import Plan


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
    count = len(study.entries) * len(study.conditions) * len(study.config.seeds)
    settings = sum(len(e.settings) for e in study.entries if len(e.settings) > 1)
    choosing = settings * len(study.conditions) * len(study.selection_seeds)
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
    known = [cell for cell in cells if folder is not None and records.read(cell.id)]
    for cell in cells:
        say(console, f"  {'done' if cell in known else 'to do'}: {cell.id} {cell.title}")
    missing = [cell for cell in cells if cell not in known]
    say(console, f"  {len(known)} of {len(cells)} known runs are done; {at_once} at once")
    if seconds := _seconds(missing, known, records):
        say(console, f"  about {timedelta(seconds=round(seconds / at_once))} left")


def _seconds(missing: Sequence[Cell], known: Sequence[Cell], records: Records) -> float | None:
    """Time of the missing cells one after another; None where nothing like them is done."""
    times: dict[tuple[str, ...], list[float]] = {}
    for cell in known:
        text = (records.folder / CELLS / f"{cell.id}.json").read_text(encoding="utf-8")
        result = json.loads(text).get("result")
        if result:
            cost = result["cost"]
            taken = cost["train_seconds"] + cost["evaluation_seconds"]
            for key in ((cell.task, cell.label), (cell.task,)):
                times.setdefault(key, []).append(taken)
    total = 0.0
    for cell in missing:
        like = times.get((cell.task, cell.label)) or times.get((cell.task,))
        if like is None:
            return None
        total += float(np.mean(like))
    return total
