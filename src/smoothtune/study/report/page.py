"""The results of a study: ``results.json``, ``results.csv``, plots, and one page as HTML and MD."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from rich.console import Console
from rich.table import Table as RichTable

from smoothtune.console import heading, plain_text, say
from smoothtune.errors import OutputError, PlotsMissing
from smoothtune.files import write_atomic, write_json
from smoothtune.report.curves import csv_text
from smoothtune.report.page import Plot, Table, render
from smoothtune.study.config import Study
from smoothtune.study.plan import Choice, Plan
from smoothtune.study.records import STUDY, Cell, Records
from smoothtune.study.report.comparison import (
    COLUMNS,
    SECONDARY,
    by_condition,
    compare,
    condition_of,
    condition_title,
    over_tasks,
    run_of,
    secondary,
    secondary_over_tasks,
    table_of_runs,
)
from smoothtune.study.report.effect import (
    compare_effects,
    compare_robustness,
    effect_rows,
    effect_sentences,
    effect_table,
    quantity_table,
)
from smoothtune.study.report.effect_page import write_effect_files
from smoothtune.study.report.findings import sentences
from smoothtune.study.report.plots import study_plots
from smoothtune.study.report.statistics import NAMES
from smoothtune.study.report.tables import (
    choice_table,
    over_tasks_table,
    paper_table,
    score_table,
    secondary_table,
    stability_table,
    test_table,
)

RESULTS = "results.json"
SHORT = (0, 1, 2, 3, 6, 7, 9, 11)
"""Columns of the score table that fit a terminal."""


def write_study_report(study: Study, plan: Plan, folder: Path, console: Console) -> dict[str, Any]:
    """Write the report of a study from its finished cells.

    Args:
        study: the study.
        plan: its cells.
        folder: the study's.
        console: gets the table.

    Returns:
        The content of ``results.json``.
    """
    records = Records(folder)
    choices = plan.choices(records)
    cells = plan.final(choices)
    runs = table_of_runs(run_of(cell, records) for cell in cells)
    read = [(cell.label, records.read(cell.id)) for cell in cells]
    measured = effect_rows((label, record) for label, record in read if record)
    compared = compare_effects(measured)
    said = effect_sentences(compared, measured)
    compared = [*compared, *compare_robustness(measured)]
    content: dict[str, Any] = {
        "name": study.name,
        "title": study.config.title or study.name,
        "notes": study.config.notes,
        "test": NAMES[study.config.test],
        "seeds": study.config.seeds,
        "methods": _with_fields(compare(runs, study.config.test), cells),
        "over_tasks": over_tasks(runs),
        "over_tasks_secondary": {name: over_tasks(runs, name) for name in SECONDARY},
        "effect": compared,
        "effect_findings": [sentence._asdict() for sentence in said],
        "choices": [_choice(choice) for choice in choices.values()],
        "paper": [paper.model_dump() for paper in study.config.paper],
        "failures": _failures([*plan.selection_cells(), *cells], records),
        "versions": _versions(cells, records),
        "rows": runs.to_dict("records"),
    }
    write_json(folder / RESULTS, content)
    write_atomic(folder / "results.csv", csv_text(COLUMNS, runs.itertuples(index=False)))
    if measured:
        write_effect_files(folder, compared, said)
    page = page_content(content, _plots(runs, content, records, folder, console))
    write_atomic(folder / "report.md", render("study.md.jinja", page))
    write_atomic(folder / "report.html", render("study.html.jinja", page))
    _show(content, console)
    say(console, f"{folder / 'report.html'} is written")
    return content


def report_so_far(study: Study, folder: Path, console: Console) -> dict[str, Any]:
    """Write the report from the cells that are done, also while others run.

    Args and returns as `write_study_report`.

    Raises:
        OutputError: there is no study in the folder.
    """
    if not (folder / STUDY).exists():
        raise OutputError(f"{folder} holds no study")
    return write_study_report(study, Plan(study, folder), folder, console)


def _with_fields(methods: list[dict[str, Any]], cells: Sequence[Cell]) -> list[dict[str, Any]]:
    """Add what the runs of each method were configured with."""
    fields = {
        (c.label, c.task, c.model, c.max_train_samples): {
            "configured": c.config.methods,
            "changes": c.changes,
        }
        for c in cells
    }
    return [method | fields[method["method"], *condition_of(method)] for method in methods]


def _plots(
    runs: pd.DataFrame,
    content: Mapping[str, Any],
    records: Records,
    folder: Path,
    console: Console,
) -> list[Plot]:
    """Draw, and write the files of the plots."""
    try:
        plots = study_plots(runs, content["methods"], records)
    except PlotsMissing as error:
        say(console, f"no plots: {error}")
        return []
    for plot in plots:
        write_atomic(folder / f"{plot.name}.svg", plot.svg)
        write_atomic(folder / f"{plot.name}.csv", plot.csv)
    return plots


def _choice(choice: Choice) -> dict[str, Any]:
    return {
        "task": choice.condition.task,
        "model": choice.condition.model,
        "max_train_samples": choice.condition.max_train_samples,
        "method": choice.entry.label,
        "tried": choice.tried,
        "chosen": choice.chosen,
        "scores": choice.scores,
    }


def _failures(cells: Sequence[Cell], records: Records) -> list[dict[str, str]]:
    """Every cell that gave no scores, with the reason."""
    ended = [(cell, records.read(cell.id) or records.failure(cell.id)) for cell in cells]
    return [
        {"title": cell.title, "status": end["status"], "message": end.get("message", "")}
        for cell, end in ended
        if end and end["status"] != "done"
    ]


def _versions(cells: Sequence[Cell], records: Records) -> dict[str, list[str]]:
    """Versions that the finished cells were run with."""
    found: dict[str, set[str]] = {}
    for cell in cells:
        result = (records.read(cell.id) or {}).get("result", {})
        for name, value in result.get("versions", {}).items():
            found.setdefault(name, set()).add(value)
    return {name: sorted(values) for name, values in found.items()}


def page_content(content: Mapping[str, Any], plots: Sequence[Plot]) -> dict[str, Any]:
    """What the templates show."""
    return {
        "title": content["title"],
        "notes": content["notes"],
        "test": content["test"],
        "findings": sentences(content),
        "groups": [
            {
                "title": condition_title(condition),
                "scores": score_table(group),
                "stability": stability_table(group),
                "secondary": secondary_table(secondary(group)),
                "tests": test_table(group),
            }
            for condition, group in by_condition(content["methods"]).items()
        ],
        "over_tasks": over_tasks_table(content["over_tasks"]),
        "over_tasks_secondary": secondary_table(secondary_over_tasks(content)),
        "effect": effect_table(content["effect"]),
        "effect_findings": content["effect_findings"],
        "quantities": quantity_table(content["effect"]),
        "choices": choice_table(content["choices"]),
        "papers": [paper_table(paper, content["methods"]) for paper in content["paper"]],
        "failures": Table(
            ["run", "how it ended", "message"],
            [[f["title"], f["status"], f["message"]] for f in content["failures"]],
        ),
        "versions": Table(
            ["", "version"], [[k, ", ".join(v)] for k, v in content["versions"].items()]
        ),
        "plots": plots,
    }


def _show(content: Mapping[str, Any], console: Console) -> None:
    """The main table and the sentences on the console."""
    for condition, group in by_condition(content["methods"]).items():
        scores = score_table(group)
        head, *rows = [[cells[i] for i in SHORT] for cells in [scores.head, *scores.rows]]
        if console.is_terminal:
            table = RichTable(*map(heading, head), title=plain_text(condition_title(condition)))
            for cells in rows:
                table.add_row(*map(plain_text, cells))
            console.print(table)
        else:
            say(console, condition_title(condition))
            for cells in [head, *rows]:
                say(console, "\t".join(cells))
    for sentence in sentences(content):
        say(console, f"{sentence.verdict}: {sentence.text}")
