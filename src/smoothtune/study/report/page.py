"""The results of a study: ``results.json``, tables, plots, and one page as HTML and MD."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from smoothtune.console import say
from smoothtune.errors import PlotsMissing
from smoothtune.files import is_owned, make_folder, write_atomic, write_json
from smoothtune.report.curves import csv_text
from smoothtune.report.page import Table, write_page
from smoothtune.report.tables import latex_table, show_table
from smoothtune.study.config import Study
from smoothtune.study.description import write_description
from smoothtune.study.plan import Plan
from smoothtune.study.records import TABLES, Records, read_study
from smoothtune.study.report.content import StudyContent, study_content
from smoothtune.study.report.findings import effect_findings, findings
from smoothtune.study.report.methods import COLUMNS
from smoothtune.study.report.plots import Plots, study_plots
from smoothtune.study.report.sections import study_sections
from smoothtune.study.report.tables import (
    COMPARISON_COLUMNS,
    comparison_rows,
    effect_table,
    main_table,
    over_tasks_table,
    score_table,
)

RESULTS = "results.json"
SHOWN = re.compile(r"^(method|quantity|change|verdict|p, Holm)$|, mean$|minus plain")
"""Columns of the page's tables that the console has."""


def write_study_report(study: Study, plan: Plan, folder: Path, console: Console) -> dict[str, Any]:
    """Write the report of a study from its finished cells, and return that of ``results.json``."""
    records = Records(folder)
    content = study_content(study, plan, records, console)
    plain = content.content()
    write_json(folder / RESULTS, plain)
    columns = dict.fromkeys([*COLUMNS, *(name for run in content.runs for name in run.measures)])
    lines = ([row.get(name) for name in columns] for row in plain["rows"])
    write_atomic(folder / "results.csv", csv_text(columns, lines))
    plots, no_plots = Plots(), ""
    try:
        plots = study_plots(content, records, console)
    except PlotsMissing as error:
        say(console, f"no plots: {error}")
        no_plots = str(error)
    for plot in plots.all:
        plot.write(folder)
    write_tables(folder, content)
    write_page(folder, "report", content.title, study_sections(content, plots, no_plots))
    show(content, folder, console)
    say(console, f"{folder / 'report.html'} is written")
    return plain


def write_tables(folder: Path, content: StudyContent) -> None:
    """The tables of a paper as LaTeX, and all comparisons as CSV."""
    make_folder(place := folder / TABLES)
    caption = f"{content.title}: mean in points and standard deviation over seeds"
    scores = latex_table(main_table(content.methods), caption=caption, label="tab:scores")
    write_atomic(place / "scores.tex", scores)
    tables = {
        "over-tasks": over_tasks_table(content.over_tasks),
        "effect": effect_table(content.effect),
        "training": content.training,
    }
    for name, table in tables.items():
        if table.rows:
            write_atomic(place / f"{name}.tex", latex_table(table))
        else:  # one of an earlier report, which had more tasks
            (place / f"{name}.tex").unlink(missing_ok=True)
    rows = comparison_rows(content.comparisons)
    write_atomic(place / "comparisons.csv", csv_text(COMPARISON_COLUMNS, rows))


def report_so_far(
    study: Study, folder: Path, console: Console, command: Sequence[str] = ()
) -> dict[str, Any]:
    """Write the report from the cells that are done, also while others run, by the folder alone.

    ``study.json`` becomes what is reported, unless a process is running the study or settings are
    still to be chosen.

    Returns:
        The content of ``results.json``.

    Raises:
        OutputError: there is no study in the folder.
    """
    plan = Plan(study, folder, read_study(folder).fingerprints)
    content = write_study_report(study, plan, folder, console)
    choices = plan.choices(Records(folder))
    if all(choice.complete for choice in choices.values()) and not is_owned(folder):
        write_description(plan, folder, plan.final(choices), choices, command)
    return content


def show(content: StudyContent, folder: Path, console: Console) -> None:
    """Print what decides of the tables of scores and of quantities, and the findings."""
    tables = {key.title: score_table(group) for key, group in content.conditions.items()}
    if content.over_tasks:
        tables["all tasks"] = over_tasks_table(content.over_tasks)
    for title in dict.fromkeys(item.condition for item in content.effect):
        items = [item for item in content.effect if item.condition == title]
        tables[f"{title}: what methods are about"] = effect_table(items)
    for title, table in tables.items():
        kept = [x for x, name in enumerate(table.head) if SHOWN.search(name)]
        head, *rows = [[cells[x] for x in kept] for cells in [table.head, *table.rows]]
        show_table(Table(head, rows), title, console)
    for sentence in [*findings(content), *effect_findings(content.effect)]:
        say(console, f"{sentence.verdict}: {sentence.text}")
    say(console, f"all numbers are in {folder / 'report.md'}")
