"""The page of a reproduction, and the files beside it: LaTeX and CSV of tables, SVG and PDF."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean
from typing import Any

from rich.console import Console

from smoothtune.console import say
from smoothtune.errors import PlotsMissing, counted
from smoothtune.files import write_atomic, write_json
from smoothtune.report.page import (
    Block,
    Figures,
    Findings,
    Folded,
    Plot,
    Section,
    Sentence,
    Table,
    write_page,
)
from smoothtune.report.tables import latex_table
from smoothtune.reproduce.departures import departures
from smoothtune.reproduce.drawing import draw
from smoothtune.reproduce.figures import draw_figure
from smoothtune.reproduce.runs import Runs, finished_runs
from smoothtune.reproduce.tables import (
    DrawnTable,
    about_of,
    as_csv,
    as_printed,
    comparison,
    draw_table,
)
from smoothtune.results import RunResult
from smoothtune.study.config import Study
from smoothtune.study.fields import PLAIN, ConditionKey
from smoothtune.study.layout import FigureLayout, TableLayout
from smoothtune.study.plan import Plan
from smoothtune.study.protocol import Protocol
from smoothtune.study.records import Records, read_study
from smoothtune.study.report.statistics import TEST

CONTENT = "reproduction.json"
VERDICTS = (
    "agrees: zero lies in the 95 % interval of the difference of the two means (Welch; where no "
    "deviation is printed, the printed mean counts as exact). differs: it does not. not printed: "
    "there is no number to compare with. no interval: one run, runs that score the same, a maximum "
    "or a p-value, of which nothing is said. cut short: runs that end before their epochs do, of "
    "which nothing is said either. not run: no finished run is about the cell. A gain is over the "
    "row that is the baseline, of the same seeds. Intervals are not corrected for the number of "
    "cells: of a hundred true numbers five differ."
)


@dataclass(frozen=True)
class Drawn:
    """What is known of one table or figure of the paper."""

    name: str
    """Of its files."""
    title: str
    note: str
    content: DrawnTable | Figures | str
    """The only plot of a figure; or why there is none."""


def write_reproduction(study: Study, folder: Path, console: Console) -> dict[str, Any]:
    """Draw a study's layout from its finished cells and write the page.

    Returns:
        The content of ``reproduction.json``.

    Raises:
        OutputError: there is no study in the folder, or a file cannot be written.
    """
    plan = Plan(study, folder, read_study(folder).fingerprints)
    runs = finished_runs(study, plan, Records(folder))
    drawn = [_drawn(number, layout, runs) for number, layout in enumerate(study.config.layout, 1)]
    for item in drawn:
        _write_files(item, folder)
    title, sentences = study.config.title or study.name, [*_sentences(runs, drawn)]
    tables: list[dict[str, Any]] = []
    figures: list[dict[str, Any]] = []
    for item in drawn:
        if isinstance(item.content, DrawnTable):
            cells = [asdict(cell) for cell in item.content.cells.values()]
            tables.append({"table": item.title, "cells": cells})
        else:
            file = f"{item.name}.svg" if isinstance(item.content, Figures) else None
            figures.append({"figure": item.title, "file": file})
    content = {
        "name": study.name,
        "title": title,
        "notes": study.config.notes,
        "protocol": study.config.protocol,
        "departures": departures(study),
        "stand_ins": dict(runs.stand_ins),
        "runs": {"done": len(runs.done), "planned": len(runs.planned)},
        "findings": [sentence._asdict() for sentence in sentences],
        "tables": tables,
        "figures": figures,
    }
    write_json(folder / CONTENT, content)
    write_page(folder, "reproduce", title, [*_sections(study, drawn, sentences)])
    for sentence in sentences:
        say(console, f"{sentence.verdict}: {sentence.text}")
    say(console, f"{folder / 'reproduce.html'} is written")
    return content


def _drawn(number: int, layout: TableLayout | FigureLayout, runs: Runs) -> Drawn:
    title = layout.table if isinstance(layout, TableLayout) else layout.figure
    words = re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")
    name = f"{number:02d}-{words[:60].rstrip('-')}"
    if isinstance(layout, TableLayout):
        return Drawn(name, title, layout.note, draw_table(layout, runs))
    return Drawn(name, title, layout.note, _plotted(name, layout, runs))


def _plotted(name: str, layout: FigureLayout, runs: Runs) -> Figures | str:
    figure = draw_figure(layout, runs)
    if isinstance(figure, str):
        return figure
    try:
        files = draw(figure)
    except PlotsMissing as error:
        return str(error)
    caption = f"{figure.band[:1].upper()}{figure.band[1:]}."
    plot = Plot(name, layout.figure, caption, files, figure.to_csv())
    return Figures([plot], panels=len(figure.panels) > 1, titled=False)


def _write_files(item: Drawn, folder: Path) -> None:
    """LaTeX and CSV of a table; SVG, PDF and CSV of a figure."""
    if isinstance(item.content, DrawnTable):
        table = as_printed(item.content)
        text = latex_table(table, caption=item.title, label=f"tab:{item.name}")
        write_atomic(folder / f"{item.name}.tex", text)
        write_atomic(folder / f"{item.name}.csv", as_csv(item.content))
    elif isinstance(item.content, Figures):
        item.content.plots[0].write(folder)


def _sections(
    study: Study, drawn: Sequence[Drawn], sentences: Sequence[Sentence]
) -> Iterator[Section]:
    notes = [study.config.notes] if study.config.notes else []
    yield Section("In short", [*notes, Findings(sentences)])
    yield from (Section(item.title, [*_blocks(item)]) for item in drawn)
    if any(isinstance(item.content, DrawnTable) for item in drawn):
        yield Section("What the verdicts mean", [VERDICTS])
    if study.protocol:
        yield Section(f"Protocol: {study.config.protocol}", [*_protocol(study, study.protocol)])


def _blocks(item: Drawn) -> Iterator[Block]:
    content = item.content
    if item.note:
        yield item.note
    if isinstance(content, DrawnTable):
        yield as_printed(content)
        if rows := "; ".join(content.empty_rows):
            yield f"Not run: {rows}."
        columns = [line.name for line in content.layout.columns if line not in content.columns]
        if columns:
            yield f"Columns not run: {', '.join(columns)}"
        yield f"{_unit(content.layout)}; {item.name}.csv, {item.name}.tex"
        if (compared := comparison(content)).rows:
            yield Folded("Cell by cell, with 95 % intervals", [compared])
    elif isinstance(content, Figures):
        yield content
        yield f"{item.name}.svg, {item.name}.pdf"
    else:
        yield f"Not drawn: {content}."


def _protocol(study: Study, protocol: Protocol) -> Iterator[Block]:
    yield f"{protocol.title}. {protocol.source}"
    if changes := departures(study):
        yield Table(["departures"], [[line] for line in changes], wraps=True)
    else:
        yield "The runs depart from it in nothing."
    if protocol.reconstructed:
        lines = [[line] for line in protocol.reconstructed]
        yield Table(["what the paper does not say"], lines, wraps=True)


def _unit(layout: TableLayout) -> str:
    """Of the table's numbers."""
    values = {about_of(layout, row, c).value for row in layout.rows for c in layout.columns}
    tested = f"p-values of the {TEST}"
    others = "scores in percent" if layout.percent else "as measured"
    if "p" not in values:
        return others
    return tested if values == {"p"} else f"{others}; {tested}"


def _at_chance(runs: Runs) -> Iterator[Sentence]:
    """Conditions in which plain fine-tuning has learned nothing."""
    conditions: dict[ConditionKey, list[RunResult]] = {}
    for run in runs.done:
        if run.cell.label == PLAIN:
            conditions.setdefault(run.cell.condition, []).append(run.result)
    for (task, model, _), results in conditions.items():
        score = mean(result.score for result in results)
        constant = mean(result.trivial_baseline for result in results)
        if score <= constant:
            yield Sentence(
                "fragile",
                f"{task}, {model}: plain fine-tuning scores {score:.3f}, and a constant answer "
                f"{constant:.3f}: what is shown of it says little.",
            )


def _sentences(runs: Runs, drawn: Sequence[Drawn]) -> Iterator[Sentence]:
    """What can be said in a line."""
    done, planned = len(runs.done), len(runs.planned)
    yield Sentence("note" if done == planned else "fragile", f"{done} of {planned} runs are done.")
    if runs.updates is not None:
        updates = "one update" if runs.updates == 1 else f"{runs.updates} updates"
        yield Sentence(
            "fragile",
            f"Runs end after {updates}, before their epochs do: this "
            "shows that all works, and scores are not compared with what is printed.",
        )
    else:
        yield from _at_chance(runs)
    tables = [item.content for item in drawn if isinstance(item.content, DrawnTable)]
    printed = any(table.layout.printed for table in tables)
    has_gains = printed and any(table.layout.baseline for table in tables)
    for paper, own in runs.stand_ins.items():
        if paper != own:
            rest = f": it need not agree with what is printed of {paper}" if printed else ""
            rest += ", and gains over the baseline are what to compare" if has_gains else ""
            yield Sentence("fragile", f"{own} stands in for {paper}{rest}.")
    for item in drawn:
        if isinstance(item.content, DrawnTable):
            yield Sentence("note", f"{item.title}: {_counts(item.content)}")
        elif isinstance(item.content, Figures):
            yield Sentence("note", f"{item.title}: drawn.")
        else:
            yield Sentence("fragile", f"{item.title}: not drawn, {item.content}.")


def _counts(table: DrawnTable) -> str:
    """How many cells, and how many printed gains, agree."""
    cells = table.cells.values()
    counts = Counter(cell.verdict for cell in cells)
    verdicts = ", ".join(f"{count} {name}" for name, count in counts.items())
    text = f"of {counted(len(cells), 'cell')} {verdicts}."
    gains = Counter(cell.gain_verdict for cell in cells if cell.gain)
    if judged := gains["agrees"] + gains["differs"]:
        over = f"gains over {table.layout.baseline}"
        text += f" Of {judged} printed {over} {gains['agrees']} agree."
    return text
