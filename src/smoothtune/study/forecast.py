"""What a study would do: its runs, about how long they take, and whether they can begin."""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from smoothtune.config.run import RunConfig
from smoothtune.console import say, tracked
from smoothtune.errors import counted
from smoothtune.run.inputs import read_inputs
from smoothtune.run.inspect import check_fit, empty_model, with_adapters
from smoothtune.study.config import Study
from smoothtune.study.inputs import data_at_hand
from smoothtune.study.plan import Plan
from smoothtune.study.pool import default_jobs
from smoothtune.study.records import Cell, Records
from smoothtune.study.table import Row


def show_forecast(study: Study, folder: Path | None, jobs: int | None, console: Console) -> None:
    """Print the cells of a study, how many are done, and the time for the others.

    The time is judged by cells that are done, of the same method on the same condition where there
    are any, else of the same condition.

    Raises:
        DataError, ModelError: the data of a task, or a model, are not there.
    """
    choosing = [e for _, e, _ in study.runs if len(study.entries[e].settings) > 1]
    count = len({(c, e) for c, e, _ in study.runs}) * len(study.config.seeds)
    runs = counted(count, "run")
    if any(len(entry.settings) > 1 for entry in study.entries):
        runs += f", and {len(choosing) * len(study.selection_seeds)} to choose settings"
    methods = counted(len(study.entries), "method")
    conditions = counted(len(study.conditions), "condition")
    say(console, f"{study.name}: {methods} x {conditions}")
    say(console, f"  methods: {', '.join(entry.label for entry in study.entries)}")
    say(console, f"  seeds: {', '.join(map(str, study.config.seeds))}")
    say(console, f"  {runs}")
    plan, records = Plan(study, None), Records(folder or Path())
    cells = [*plan.selection_cells(), *plan.final(plan.choices(records))]
    at_once = jobs or default_jobs(plan.weight_bytes())
    with tracked(cells if folder else [], "reading records", console) as shown:
        done = {cell.id: row for cell in shown if (row := records.row(cell.id))}
    for cell in cells:
        say(console, f"  {'done' if cell.id in done else 'to do'}: {cell.id} {cell.title}")
    say(console, f"  {len(done)} of {len(cells)} known runs are done; {at_once} at once")
    seconds = _seconds_left(cells, done)
    if seconds is None:
        say(console, "  how long it takes is not known before a run of each condition is done")
    elif seconds:
        say(console, f"  about {timedelta(seconds=round(seconds / at_once))} left")


def _seconds_left(cells: Sequence[Cell], done: Mapping[str, Row]) -> float | None:
    """Time of the other cells one after another; None where nothing like them is done."""
    times: dict[tuple[object, ...], list[float]] = {}
    for cell in cells:
        row = done.get(cell.id)
        if row and row.status == "done":
            taken = row.measures["train_seconds"] + row.measures["evaluation_seconds"]
            for key in ((cell.condition, cell.label), (cell.condition,)):
                times.setdefault(key, []).append(taken)
    total = 0.0
    for cell in cells:
        if cell.id in done:
            continue
        like = times.get((cell.condition, cell.label)) or times.get((cell.condition,))
        if like is None:
            return None
        total += float(np.mean(like))
    return total


def inspect_study(study: Study, console: Console) -> None:
    """Check every run of a study as far as it goes before its first step.

    Raises:
        ConfigError: methods, model, adapters and settings of a run do not fit together.
        ModelError: a model cannot be found, or its tokenizer cannot be used.
        DataError: the data of a task cannot be read or do not fit it.
    """
    conditions: dict[int, list[RunConfig]] = {}
    for (c, _, _), run in study.runs.items():
        conditions.setdefault(c, []).append(run)
    for runs in conditions.values():
        first = runs[0].model_copy(update={"data": data_at_hand(runs[0])})
        inputs = read_inputs(first, console)
        models = dict[str, Any]()
        for run in runs:
            stored = repr((run.lora, run.frozen_weights))
            if stored not in models:
                models[stored] = with_adapters(run, inputs, empty_model(run, inputs))
            check_fit(run, inputs, deepcopy(models[stored]))  # some methods stay on their model
