"""The results of a study: ``results.json``, ``results.csv``, plots, and one page as HTML and MD."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from smoothtune.console import say
from smoothtune.errors import OutputError, PlotsMissing
from smoothtune.files import versions, write_atomic, write_json
from smoothtune.report.page import Table, render
from smoothtune.study.config import Study
from smoothtune.study.plan import Choice, Plan
from smoothtune.study.records import STUDY, Cell, Records
from smoothtune.study.report.comparison import (
    SECONDARY,
    Row,
    compare,
    condition_of,
    over_tasks,
    row,
    to_csv,
)
from smoothtune.study.report.findings import sentences
from smoothtune.study.report.plots import Figure, condition_title, figures
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
    """Write all that a study shows, from the cells that are there.

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
    rows = [row(cell, records) for cell in cells]
    content: dict[str, Any] = {
        "name": study.name,
        "title": study.config.title or study.name,
        "notes": study.config.notes,
        "test": NAMES[study.config.test],
        "seeds": study.config.seeds,
        "methods": _with_fields(compare(rows, study.config.test), cells),
        "over_tasks": over_tasks(rows),
        "over_tasks_secondary": {name: over_tasks(rows, name) for name in SECONDARY},
        "choices": [_choice(choice) for choice in choices.values()],
        "paper": [paper.model_dump() for paper in study.config.paper],
        "failures": _failures([*plan.selection_cells(), *cells], records),
        "versions": _versions(cells, records),
        "rows": [{name: getattr(r, name) for name in Row.__dataclass_fields__} for r in rows],
    }
    write_json(folder / RESULTS, content)
    write_atomic(folder / "results.csv", to_csv(rows))
    drawn = _draw(rows, content, records, folder, console)
    page = _page(content, drawn)
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
    known = {(c.label, c.task, c.model, c.max_train_samples): c for c in cells}
    found = []
    for method in methods:
        cell = known[method["method"], *condition_of(method)]
        found.append(method | {"configured": cell.config.methods, "changes": cell.changes})
    return found


def _draw(
    rows: Sequence[Row],
    content: Mapping[str, Any],
    records: Records,
    folder: Path,
    console: Console,
) -> list[Figure]:
    try:
        drawn = figures(rows, content["methods"], records)
    except PlotsMissing as error:
        say(console, f"no plots: {error}")
        return []
    for figure in drawn:
        write_atomic(folder / f"{figure.name}.svg", figure.svg)
        write_atomic(folder / f"{figure.name}.csv", figure.data)
    return drawn


def _choice(choice: Choice) -> dict[str, Any]:
    setting = None if choice.setting is None else choice.entry.settings[choice.setting].describe()
    return {
        "task": choice.condition.task,
        "model": choice.condition.model,
        "max_train_samples": choice.condition.max_train_samples,
        "method": choice.entry.label,
        "tried": choice.tried,
        "chosen": setting,
        "scores": choice.scores,
    }


def _failures(cells: Sequence[Cell], records: Records) -> list[dict[str, str]]:
    """Every cell that gave no scores, with the reason."""
    found = []
    for cell in cells:
        record = records.read(cell.id) or records.failure(cell.id)
        if record and record["status"] != "done":
            found.append(
                {
                    "title": cell.title,
                    "status": record["status"],
                    "message": record.get("message", ""),
                }
            )
    return found


def _versions(cells: Sequence[Cell], records: Records) -> dict[str, list[str]]:
    """Versions that the finished cells were run with."""
    found: dict[str, set[str]] = {}
    for cell in cells:
        record = records.read(cell.id) or {}
        for name, value in record.get("result", {"versions": versions()}).get("versions").items():
            found.setdefault(name, set()).add(value)
    return {name: sorted(values) for name, values in found.items()}


def _page(content: Mapping[str, Any], drawn: Sequence[Figure]) -> dict[str, Any]:
    """What the templates show."""
    conditions = dict.fromkeys(condition_of(item) for item in content["methods"])
    groups = {
        condition_title(condition): [m for m in content["methods"] if condition_of(m) == condition]
        for condition in conditions
    }
    return {
        "title": content["title"],
        "notes": content["notes"],
        "test": content["test"],
        "tests": ", ".join(NAMES.values()),
        "found": sentences(content),
        "groups": [
            {
                "title": title,
                "scores": score_table(group),
                "stability": stability_table(group),
                "secondary": secondary_table(
                    {
                        m["method"]: m["against_plain"]["secondary"]
                        for m in group
                        if m["against_plain"]
                    }
                ),
                "tests": test_table(group),
            }
            for title, group in groups.items()
        ],
        "over_tasks": over_tasks_table(content["over_tasks"]),
        "over_tasks_secondary": secondary_table(_by_method(content["over_tasks_secondary"])),
        "choices": choice_table(content["choices"]),
        "papers": [paper_table(paper, content["methods"]) for paper in content["paper"]],
        "failures": Table(
            ["run", "how it ended", "message"],
            [[f["title"], f["status"], f["message"]] for f in content["failures"]],
        ),
        "versions": Table(
            ["", "version"], [[k, ", ".join(v)] for k, v in content["versions"].items()]
        ),
        "figures": [
            {
                "title": figure.title,
                "caption": figure.caption,
                "svg": Markup(figure.svg[figure.svg.index("<svg") :]),  # matplotlib escapes names
                "file": f"{figure.name}.csv",
            }
            for figure in drawn
        ],
    }


def _by_method(
    found: Mapping[str, Sequence[Mapping[str, Any]]],
) -> dict[str, dict[str, Mapping[str, Any]]]:
    """Comparisons by measure, as comparisons by method and measure."""
    methods = dict.fromkeys(item["method"] for items in found.values() for item in items)
    return {
        method: {
            measure: item
            for measure, items in found.items()
            for item in items
            if item["method"] == method
        }
        for method in methods
    }


def _show(content: Mapping[str, Any], console: Console) -> None:
    """The main table and the sentences on the console."""
    for condition in dict.fromkeys(condition_of(item) for item in content["methods"]):
        group = [m for m in content["methods"] if condition_of(m) == condition]
        found = score_table(group)
        shown = [[cells[i] for i in SHORT] for cells in [found.head, *found.rows]]
        if console.is_terminal:
            table = RichTable(*shown[0], title=Text(condition_title(condition)))
            for cells in shown[1:]:
                table.add_row(*map(Text, cells))
            console.print(table)
        else:
            say(console, condition_title(condition))
            for cells in shown:
                say(console, "\t".join(cells))
    for sentence in sentences(content):
        say(console, f"{sentence.verdict}: {sentence.text}")
