"""Tables in a paper's layout: every cell with the study's number, the printed one and a verdict."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from smoothtune.report.curves import csv_text
from smoothtune.report.page import DASH, Table, number
from smoothtune.report.tables import Effect, Summary, effect_text
from smoothtune.reproduce.runs import Runs, Values
from smoothtune.reproduce.verdict import Verdict, difference, interval, verdict
from smoothtune.study.layout import About, Line, Statistic, TableLayout
from smoothtune.study.report.statistics import p_value

Printed = dict[str, float | None]
COLUMNS = (
    *("row", "column", "printed mean", "printed sd", "printed max", "runs", "mean", "sd", "max"),
    *("low", "high", "here minus printed", "difference low", "difference high", "verdict"),
    *("printed gain", "gain", "gain low", "gain high", "gain verdict"),
)
COMPARED = [
    *("row", "column", "printed", "here, 95 % interval", "here minus printed", "verdict"),
    *("printed gain", "gain, 95 % interval", "verdict on the gain"),
]


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
    stand_ins: Mapping[str, str]
    """The study's model by the paper's."""

    def is_empty(self, row: Line) -> bool:
        """Whether nothing is known of a row: it was not run, and nothing is printed."""
        return row.name not in self.layout.printed and not any(
            self.cells[row.name, column.name].ours for column in self.layout.columns
        )

    @property
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

    def statistics(self, column: Line) -> list[Statistic]:
        """The numbers of a column's cells."""
        return column.statistics or self.layout.statistics


def about_of(layout: TableLayout, row: Line, column: Line) -> About:
    """What a cell is about."""
    return layout.about.merged(row).merged(column)


def draw_table(layout: TableLayout, runs: Runs) -> DrawnTable:
    """Fill in a table."""
    cells = {
        (row.name, column.name): _cell(layout, row, column, runs)
        for row in layout.rows
        for column in layout.columns
    }
    return DrawnTable(layout, cells, runs.stand_ins)


def _values(layout: TableLayout, row: Line, column: Line, runs: Runs) -> Values:
    """The numbers of a cell's runs; of an average those of the runs that have all of it."""
    if row.not_run or column.not_run:
        return {}
    about = about_of(layout, row, column)
    if column.average_of is None:
        return runs.values(about)
    if column.average_of == "tasks":
        parts = runs.values_by_task(about)
    else:
        by_name = {line.name: line for line in layout.columns}
        parts = [_values(layout, row, by_name[name], runs) for name in column.average_of]
    shared = [key for key in parts[0] if all(key in part for part in parts)] if parts else []
    return {key: float(np.mean([part[key] for part in parts])) for key in shared}


def _cell(layout: TableLayout, row: Line, column: Line, runs: Runs) -> TableCell:
    baseline = next((line for line in layout.rows if line.name == layout.baseline), None)
    values = _values(layout, row, column, runs)
    base = _values(layout, baseline, column, runs) if baseline else {}
    if about_of(layout, row, column).value == "p":
        return _p_value(layout, row, column, values, base)

    factor, cut = 100 if layout.percent else 1, runs.updates is not None
    values, base = ({k: factor * v for k, v in each.items()} for each in (values, base))
    printed, theirs = (_printed(layout, name, column) for name in (row.name, layout.baseline))
    ours = Summary.of(list(values.values())) if values else None
    mean, sd = printed.get("mean"), printed.get("sd")
    gap = None if ours is None or mean is None else difference(ours, mean, sd, layout.printed_seeds)
    cell = TableCell(
        row.name,
        column.name,
        printed,
        ours,
        interval(ours) if ours else None,
        gap,
        verdict(ours, any(value is not None for value in printed.values()), gap, cut_short=cut),
    )
    gains = _gains(values, base)
    if row is baseline or not gains:
        return cell

    gained, gap, printed_gain = Summary.of(gains), None, None
    if mean is not None and (before := theirs.get("mean")) is not None:
        printed_gain, sd_before = mean - before, theirs.get("sd")
        # as if the printed runs were not paired
        both = None if sd is None or sd_before is None else (sd**2 + sd_before**2) ** 0.5
        gap = difference(gained, printed_gain, both, layout.printed_seeds)
    return replace(
        cell,
        printed_gain=printed_gain,
        gain=Effect(gained.mean, interval(gained)),
        gain_verdict=verdict(gained, printed_gain is not None, gap, cut_short=cut),
    )


def _gains(values: Values, base: Values) -> list[float]:
    """The numbers minus the baseline's, of the seeds that both have.

    Empty where a seed is that of several labels, whose runs are no pairs.
    """
    ours, plain = ({seed: v for (_, seed), v in each.items()} for each in (values, base))
    if len(ours) < len(values) or len(plain) < len(base):
        return []
    return [ours[seed] - plain[seed] for seed in ours if seed in plain]


def _printed(layout: TableLayout, row: str | None, column: Line) -> Printed:
    numbers = layout.printed.get(row or "", {}).get(column.name, [])
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


def _shown(layout: TableLayout, line: Line, value: float | None) -> str:
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


def as_printed(table: DrawnTable) -> Table:
    """One line of heads, ours above the printed numbers, without empty rows and columns."""
    layout, rows = table.layout, []
    columns = [(line, name) for line in table.columns for name in table.statistics(line)]
    one = len({name for _, name in columns}) == 1
    titles = [line.name if one else f"{line.name} {name}" for line, name in columns]
    for row in layout.rows:
        if table.is_empty(row):
            continue
        cells = [(line, name, table.cells[row.name, line.name]) for line, name in columns]
        own = table.stand_ins.get(row.model or "", row.model)
        label = "here" if own == row.model else f"here, {own}"
        here = [_shown(layout, line, getattr(cell.ours, name, None)) for line, name, cell in cells]
        rows.append([row.name, label, *here])
        if row.name in layout.printed:
            printed = [_shown(layout, line, cell.printed.get(name)) for line, name, cell in cells]
            rows.append(["", "printed", *printed])
    return Table(["", "", *titles], rows)


def comparison(table: DrawnTable) -> Table:
    """Cell by cell: printed, here with its interval, the difference, the verdict, and the gain."""
    signed, rows = f"+.{table.layout.digits}f", []
    lines = {line.name: line for line in table.layout.columns}
    for cell in table.cells.values():
        if cell.verdict == "not run" and not cell.printed:
            continue
        line = lines[cell.column]
        compared: Statistic = "mean" if "mean" in table.statistics(line) else "max"
        here = _shown(table.layout, line, getattr(cell.ours, compared, None))
        if cell.interval and compared == "mean":
            here += f" [{', '.join(_shown(table.layout, line, end) for end in cell.interval)}]"
        printed = _shown(table.layout, line, cell.printed.get(compared))
        gains = [number(cell.printed_gain, signed), effect_text(cell.gain, 1, signed)]
        gains.append(cell.gain_verdict if cell.gain else DASH)
        gap = effect_text(cell.gap, 1, signed)
        rows.append([cell.row, cell.column, printed, here, gap, cell.verdict, *gains])
    return Table(COMPARED, rows)
