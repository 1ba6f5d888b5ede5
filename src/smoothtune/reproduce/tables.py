"""Tables in a paper's layout: every cell with the study's number, the printed one and a verdict."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from smoothtune.report.curves import csv_text
from smoothtune.report.page import DASH, number
from smoothtune.report.tables import Effect, Summary, effect_text
from smoothtune.reproduce.runs import Runs, Values
from smoothtune.reproduce.verdict import Verdict, difference, interval, verdict
from smoothtune.study.layout import Line, Statistic, TableLayout
from smoothtune.study.report.statistics import p_value

Printed = dict[str, float | None]
COLUMNS = (
    *("row", "column", "printed mean", "printed sd", "printed max", "runs", "mean", "sd", "max"),
    *("low", "high", "here minus printed", "difference low", "difference high", "verdict"),
    *("printed gain", "gain", "gain low", "gain high", "gain verdict"),
)


@dataclass(frozen=True)
class TableCell:
    """One cell; numbers are in the table's unit."""

    row: str
    column: str
    printed: Printed
    """By statistic; empty: nothing is printed."""
    ours: Summary | None
    interval: tuple[float, float] | None
    """95 %, of the mean."""
    gap: Effect | None
    """Ours minus the printed mean."""
    verdict: Verdict
    printed_gain: float | None = None
    """Over the baseline."""
    gain: Effect | None = None
    gain_verdict: Verdict = "not printed"


@dataclass(frozen=True)
class DrawnTable:
    """A table with its cells by row and column."""

    layout: TableLayout
    cells: dict[tuple[str, str], TableCell]
    stand_ins: Mapping[str, str] = field(default_factory=dict)
    """The study's model by the name of a row that is about another one."""

    def is_empty(self, row: Line) -> bool:
        """Whether nothing is known of a row: it was not run, and nothing is printed."""
        return row.name not in self.layout.printed and not any(
            self.cells[row.name, column.name].ours for column in self.layout.columns
        )

    def empty_rows(self) -> list[str]:
        """Rows of which nothing is known; where a whole group is, its name."""
        rows = self.layout.rows
        known = {row.group for row in rows if row.group and not self.is_empty(row)}
        names = [
            row.group if row.group and row.group not in known else row.name
            for row in rows
            if self.is_empty(row)
        ]
        return list(dict.fromkeys(names))

    @property
    def columns(self) -> list[Line]:
        """Columns of which something is known; all, where nothing is."""
        known = {c for (_, c), cell in self.cells.items() if cell.ours or cell.printed}
        return [line for line in self.layout.columns if line.name in known or not known]

    def empty_columns(self) -> list[str]:
        """The others."""
        known = [line.name for line in self.columns]
        return [line.name for line in self.layout.columns if line.name not in known]

    def statistics(self, column: Line) -> list[Statistic]:
        """The numbers of a column's cells."""
        return column.statistics or self.layout.statistics

    def label_here(self, row: Line) -> str:
        """What stands before the study's numbers of a row."""
        return f"here, {self.stand_ins[row.name]}" if row.name in self.stand_ins else "here"

    def numbers_here(self, row: Line) -> list[str]:
        """The study's numbers of a row, one for each printed column."""
        return [
            shown(self.layout, column, getattr(self.cells[row.name, column.name].ours, name, None))
            for column in self.columns
            for name in self.statistics(column)
        ]

    def numbers_printed(self, row: Line) -> list[str]:
        """The paper's numbers of a row."""
        return [
            shown(self.layout, column, self.cells[row.name, column.name].printed.get(name))
            for column in self.columns
            for name in self.statistics(column)
        ]

    def counts(self) -> dict[str, int]:
        """How many cells there are of each verdict."""
        verdicts = [cell.verdict for cell in self.cells.values()]
        return {each: verdicts.count(each) for each in dict.fromkeys(verdicts)}


def draw_table(layout: TableLayout, runs: Runs) -> DrawnTable:
    """Fill in a table."""
    cut = runs.updates is not None
    factor = 100 if layout.percent else 1
    values = {
        (row.name, column.name): _values(layout, row, column, runs)
        for row in layout.rows
        for column in layout.columns
    }
    cells = {}
    for row in layout.rows:
        for column in layout.columns:
            key = (row.name, column.name)
            about = layout.about.merged(row).merged(column)
            base = values.get((layout.baseline or "", column.name), {})
            if about.value == "p":
                cells[key] = _p_value(layout, row, column, values[key], base)
                continue
            scaled = {k: factor * v for k, v in values[key].items()}
            cells[key] = _cell(
                layout, row, column, scaled, {k: factor * v for k, v in base.items()}, cut
            )
    models = {row.name: row.model for row in layout.rows if row.model}
    others = {row: runs.stand_ins.get(model, model) for row, model in models.items()}
    return DrawnTable(layout, cells, {r: m for r, m in others.items() if m != models[r]})


def _values(layout: TableLayout, row: Line, column: Line, runs: Runs) -> Values:
    """The numbers of a cell's runs; of an average those of the runs that have all of it."""
    if row.not_run or column.not_run:
        return {}
    about = layout.about.merged(row).merged(column)
    if column.average_of is None:
        return runs.values(about)
    if column.average_of == "tasks":
        parts = runs.values_by_task(about)
    else:
        by_name = {line.name: line for line in layout.columns}
        parts = [_values(layout, row, by_name[name], runs) for name in column.average_of]
    shared = [key for key in parts[0] if all(key in part for part in parts)] if parts else []
    return {key: float(np.mean([part[key] for part in parts])) for key in shared}


def _cell(
    layout: TableLayout, row: Line, column: Line, values: Values, base: Values, cut: bool
) -> TableCell:
    printed = _printed(layout, row.name, column)
    ours = Summary.of(list(values.values())) if values else None
    mean, sd = printed.get("mean"), printed.get("sd")
    gap = None if ours is None or mean is None else difference(ours, mean, sd, layout.printed_seeds)
    judged = any(value is not None for value in printed.values())
    cell = TableCell(
        row.name,
        column.name,
        printed,
        ours,
        interval(ours) if ours else None,
        gap,
        verdict(ours, judged, gap, cut_short=cut),
    )
    if layout.baseline in (None, row.name) or ours is None:
        return cell
    return _with_gain(cell, layout, column, values, base, cut)


def _with_gain(
    cell: TableCell,
    layout: TableLayout,
    column: Line,
    values: Values,
    base: Values,
    cut: bool,
) -> TableCell:
    """The cell with what it gains over the baseline, paired by seed."""
    gains, theirs = _gains(values, base), _printed(layout, layout.baseline or "", column)
    before, after = theirs.get("mean"), cell.printed.get("mean")
    printed = after - before if None not in (after, before) else None  # type: ignore[operator]
    if not gains:
        return cell
    gained, gap = Summary.of(gains), None
    if printed is not None:
        gap = difference(gained, printed, *_sd_of_gain(layout, cell, theirs))
    return replace(
        cell,
        printed_gain=printed,
        gain=Effect(gained.mean, interval(gained)),
        gain_verdict=verdict(gained, printed is not None, gap, cut_short=cut),
    )


def _gains(values: Values, base: Values) -> list[float]:
    """The numbers minus the baseline's, of the seeds that both have.

    Empty where a seed is that of several labels, whose runs are no pairs.
    """
    ours, plain = ({seed: v for (_, seed), v in each.items()} for each in (values, base))
    if len(ours) < len(values) or len(plain) < len(base):
        return []
    return [ours[seed] - plain[seed] for seed in ours if seed in plain]


def _sd_of_gain(
    layout: TableLayout, cell: TableCell, base: Printed
) -> tuple[float | None, int | None]:
    """Deviation of a printed gain, were its runs not paired."""
    first, second = cell.printed.get("sd"), base.get("sd")
    if first is None or second is None:
        return None, None
    return (first**2 + second**2) ** 0.5, layout.printed_seeds


def _printed(layout: TableLayout, row: str, column: Line) -> Printed:
    numbers = layout.printed.get(row, {}).get(column.name, [])
    return dict(zip(column.statistics or layout.statistics, numbers, strict=False))


def _p_value(
    layout: TableLayout, row: Line, column: Line, values: Values, base: Values
) -> TableCell:
    """A p-value of scores against the baseline's of the same seeds; it gets no verdict.

    It is not defined for one seed, for differences that are all the same, nor for several labels.
    """
    gaps, printed = _gains(values, base), _printed(layout, row.name, column)
    p = p_value(gaps) if row.name != layout.baseline else None
    ours = None if p is None else Summary(len(gaps), p, None, p, p)
    done = values and base
    kind: Verdict = "not run" if not done else "no interval" if printed else "not printed"
    return TableCell(row.name, column.name, printed, ours, None, None, kind)


# --- as text -----------------------------------------------------------------------------------


def shown(layout: TableLayout, line: Line, value: float | None) -> str:
    """A number as the table prints it."""
    if value is None:
        return DASH
    small = layout.about.merged(line).value == "p"
    return f"{value:.1e}" if small else f"{value:.{layout.digits}f}"


def as_csv(table: DrawnTable) -> str:
    """A row for each cell, with all its numbers."""
    return csv_text(COLUMNS, map(_csv_row, table.cells.values()))


def _csv_row(cell: TableCell) -> list[Any]:
    here = cell.ours
    return [
        *(cell.row, cell.column, *(cell.printed.get(name) for name in ("mean", "sd", "max"))),
        *((here.n, here.mean, here.sd, here.max) if here else [None] * 4),
        *(*(cell.interval or (None, None)), *_numbers(cell.gap), cell.verdict),
        *(cell.printed_gain, *_numbers(cell.gain), cell.gain_verdict),
    ]


def _numbers(effect: Effect | None) -> list[float | None]:
    return [effect.value, *effect.bounds] if effect else [None] * 3


def comparison_rows(table: DrawnTable) -> list[list[str]]:
    """Cell by cell: printed, here with its interval, the difference, the verdict, and the gain."""
    signed, rows = f"+.{table.layout.digits}f", []
    lines = {line.name: line for line in table.layout.columns}
    for cell in table.cells.values():
        if cell.verdict == "not run" and not cell.printed:
            continue
        line = lines[cell.column]
        compared: Statistic = "mean" if "mean" in table.statistics(line) else "max"
        here = shown(table.layout, line, getattr(cell.ours, compared, None))
        if cell.interval and compared == "mean":
            here += f" [{', '.join(shown(table.layout, line, end) for end in cell.interval)}]"
        printed = shown(table.layout, line, cell.printed.get(compared))
        gains = [number(cell.printed_gain, signed), effect_text(cell.gain, 1, signed)]
        gains.append(cell.gain_verdict if cell.gain else DASH)
        gap = effect_text(cell.gap, 1, signed)
        rows.append([cell.row, cell.column, printed, here, gap, cell.verdict, *gains])
    return rows
