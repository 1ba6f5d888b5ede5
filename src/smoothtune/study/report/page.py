"""The results of a study: ``results.json``, tables, plots, and one page as HTML and MD."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from rich.console import Console

from smoothtune.console import say
from smoothtune.errors import OutputError, PlotsMissing
from smoothtune.files import is_owned, make_folder, write_atomic, write_json
from smoothtune.report.curves import csv_text
from smoothtune.report.page import Table, write_page
from smoothtune.report.tables import latex_table
from smoothtune.report.terminal import say_left_out, show_table
from smoothtune.study.config import Study
from smoothtune.study.description import write_description
from smoothtune.study.plan import Plan, read_fingerprints
from smoothtune.study.records import STUDY, TABLES, Records
from smoothtune.study.report.aggregate import aggregate_table
from smoothtune.study.report.content import StudyContent, study_content
from smoothtune.study.report.effect_page import write_effect_files
from smoothtune.study.report.findings import sentences
from smoothtune.study.report.methods import COLUMNS, by_condition, table_of_runs
from smoothtune.study.report.plots import Plots, study_plots
from smoothtune.study.report.sections import study_sections
from smoothtune.study.report.tables import (
    MAIN_COLUMNS,
    main_rows,
    main_table,
    over_tasks_table,
    score_table,
)
from smoothtune.study.report.training import training_table

RESULTS = "results.json"
WIDE = ("median", "max", "p", "P(better)")
"""Columns of the score table that are for the page."""
DECIDING = ("method", "minus plain, points", "verdict", "failed", "p, Holm", "average")
"""Columns that a narrow terminal keeps longest."""


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
    content = study_content(study, plan, records, console)
    runs = table_of_runs(content.rows)
    plain = content.content()
    write_json(folder / RESULTS, plain)
    write_atomic(folder / "results.csv", csv_text(COLUMNS, runs.itertuples(index=False)))
    if content.effect or content.effect_findings:
        write_effect_files(folder, content.effect, content.effect_layers, content.effect_findings)
    plots, no_plots = _plots(runs, content, records, folder, console)
    _write_tables(folder, content)
    write_page(folder, "report", content.title, study_sections(content, plots, no_plots))
    show(content, folder, console)
    say(console, f"{folder / 'report.html'} is written")
    return plain


def _write_tables(folder: Path, content: StudyContent) -> None:
    """The tables of a paper as LaTeX, and their numbers as CSV."""
    place = folder / TABLES
    make_folder(place)
    caption = f"{content.title}: mean in points and standard deviation over seeds"
    scores = latex_table(main_table(content.methods), caption=caption, label="tab:scores")
    write_atomic(place / "scores.tex", scores)
    others = {
        "over-tasks": over_tasks_table(content.over_tasks),
        "aggregates": aggregate_table(content.aggregates),
        "training": training_table(content.training),
    }
    for name, table in others.items():
        if table.rows:
            write_atomic(place / f"{name}.tex", latex_table(table))
    write_atomic(place / "scores.csv", csv_text(MAIN_COLUMNS, main_rows(content.methods)))


def report_so_far(
    study: Study, folder: Path, console: Console, command: Sequence[str] = ()
) -> dict[str, Any]:
    """Write the report from the cells that are done, also while others run.

    It needs the folder alone: neither data nor models are looked at.

    ``study.json`` becomes what is reported, unless a process is running the study or settings are
    still to be chosen.

    Args:
        study: the study.
        folder: its folder.
        console: gets the table.
        command: how it was started, for the record.

    Returns:
        The content of ``results.json``.

    Raises:
        OutputError: there is no study in the folder.
    """
    if not (folder / STUDY).exists():
        raise OutputError(f"{folder} holds no study")
    plan = Plan(study, folder, read_fingerprints(folder))
    content = write_study_report(study, plan, folder, console)
    records = Records(folder)
    choices = plan.choices(records)
    if all(choice.complete for choice in choices.values()) and not is_owned(folder):
        trials = plan.selection_cells()
        write_description(study, plan.final(choices), choices, command, trials, records)
    return content


def _plots(
    runs: pd.DataFrame,
    content: StudyContent,
    records: Records,
    folder: Path,
    console: Console,
) -> tuple[Plots, str]:
    """Draw, and write the files of the plots; also why there are none."""
    try:
        plots = study_plots(runs, content, records, console)
    except PlotsMissing as error:
        say(console, f"no plots: {error}")
        return Plots(), str(error)
    for plot in plots.all:
        write_atomic(folder / f"{plot.name}.svg", plot.svg)
        write_atomic(folder / f"{plot.name}.csv", plot.csv)
        for ending, file in plot.files.items():
            write_atomic(folder / f"{plot.name}.{ending}", file)
    return plots, ""


def show(content: StudyContent, folder: Path, console: Console) -> None:
    """Print the tables and the sentences of the content of ``results.json``."""
    conditions = by_condition(content.methods)
    left_out: list[str] = []
    for condition, group in conditions.items():
        found = score_table(group)
        shown = [x for x, title in enumerate(found.head) if title not in WIDE]
        head, *rows = [[cells[x] for x in shown] for cells in [found.head, *found.rows]]
        deciding = [*DECIDING, found.head[2]]  # the mean score
        left_out += show_table(Table(head, rows), condition.title, console, deciding)
    if len(conditions) > 1:
        found = main_table(content.methods)
        left_out += show_table(found, "all tasks, points", console, DECIDING)
    say_left_out(left_out, str(folder / "report.md"), console)
    for sentence in sentences(content):
        say(console, f"{sentence.verdict}: {sentence.text}")
