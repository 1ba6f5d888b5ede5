"""Tables in a paper's layout: every cell with the study's number, the printed one and a verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from smoothtune.report.curves import csv_text
from smoothtune.report.page import DASH
from smoothtune.reproduce.runs import Runs, Values
from smoothtune.reproduce.verdict import (
    Difference,
    Summary,
    Verdict,
    difference,
    interval,
    summary,
    verdict,
)
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
    found: Summary | None
    interval: tuple[float, float] | None
    """95 %, of the mean."""
    gap: Difference | None
    """Ours minus the printed mean."""
    verdict: Verdict
    printed_gain: float | None = None
    """Over the baseline."""
    gain: Difference | None = None
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
            self.cells[row.name, column.name].found for column in self.layout.columns
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
        known = {c for (_, c), cell in self.cells.items() if cell.found or cell.printed}
        return [line for line in self.layout.columns if line.name in known or not known]

    def empty_columns(self) -> list[str]:
        """The others."""
        known = [line.name for line in self.columns]
        return [line.name for line in self.layout.columns if line.name not in known]

    def counts(self) -> dict[str, int]:
        """How many cells there are of each verdict."""
        found = [cell.verdict for cell in self.cells.values()]
        return {each: found.count(each) for each in dict.fromkeys(found)}


def draw_table(layout: TableLayout, runs: Runs) -> DrawnTable:
    """Fill in a table.

    Args:
        layout: its form, and the printed numbers.
        runs: of the study.
    """
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
            if about.value == "p":
                cells[key] = _p_value(layout, row, column, runs)
                continue
            scaled = {k: factor * v for k, v in values[key].items()}
            base = values.get((layout.baseline or "", column.name), {})
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
    found = summary(list(values.values()))
    mean, sd = printed.get("mean"), printed.get("sd")
    gap = (
        None if found is None or mean is None else difference(found, mean, sd, layout.printed_seeds)
    )
    judged = any(value is not None for value in printed.values())
    cell = TableCell(
        row.name,
        column.name,
        printed,
        found,
        interval(found) if found else None,
        gap,
        verdict(found, judged, gap, cut_short=cut),
    )
    # several labels have the same seeds, and no pairs
    if layout.baseline in (None, row.name) or found is None or row.best_of:
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
    ours, plain = ({seed: v for (_, seed), v in each.items()} for each in (values, base))
    gained = summary([ours[seed] - plain[seed] for seed in ours if seed in plain])
    theirs = _printed(layout, layout.baseline or "", column)
    before, after = theirs.get("mean"), cell.printed.get("mean")
    printed = after - before if None not in (after, before) else None  # type: ignore[operator]
    if gained is None:
        return cell
    gap = None
    if printed is not None:
        gap = difference(gained, printed, *_sd_of_gain(layout, cell, theirs))
    return replace(
        cell,
        printed_gain=printed,
        gain=Difference(gained.mean, *(interval(gained) or ())),
        gain_verdict=verdict(gained, printed is not None, gap, cut_short=cut),
    )


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
    return dict(zip(_statistics(layout, column), numbers, strict=False))


def _statistics(layout: TableLayout, column: Line) -> list[Statistic]:
    return column.statistics or layout.statistics


def _p_value(layout: TableLayout, row: Line, column: Line, runs: Runs) -> TableCell:
    """A p-value against the baseline's runs of the same seeds; it gets no verdict.

    It is not defined for one seed, nor for differences that are all the same.
    """
    of_score = layout.about.merged(row).merged(column).model_copy(update={"value": None})
    base = next(line for line in layout.rows if line.name == layout.baseline)
    of_base = layout.about.merged(base).merged(column).model_copy(update={"value": None})
    ours, plain = (
        {seed: v for (_, seed), v in runs.values(about).items()} for about in (of_score, of_base)
    )
    seeds = [seed for seed in ours if seed in plain]
    printed = _printed(layout, row.name, column)
    p = None
    if row.name != base.name:
        p = p_value([ours[seed] - plain[seed] for seed in seeds])
    found = None if p is None else Summary(len(seeds), p, None, p)
    kind: Verdict = "not run" if not seeds else "no interval" if printed else "not printed"
    return TableCell(row.name, column.name, printed, found, None, None, kind)


# --- as text -----------------------------------------------------------------------------------


def heads(table: DrawnTable) -> tuple[list[tuple[str, int]], list[str]]:
    """The two lines above a table: names with the columns they span, and what each column holds."""
    each = [(line.name, _statistics(table.layout, line)) for line in table.columns]
    groups = [(column, len(names)) for column, names in each]
    return groups, [name for _, names in each for name in names]


def label_here(table: DrawnTable, row: str) -> str:
    """What stands before the study's numbers of a row."""
    return f"here, {table.stand_ins[row]}" if row in table.stand_ins else "here"


def numbers_here(table: DrawnTable, row: str) -> list[str]:
    """The study's numbers of a row, one for each printed column."""
    found = []
    for line in table.columns:
        cell = table.cells[row, line.name]
        for name in _statistics(table.layout, line):
            value = getattr(cell.found, name) if cell.found else None
            found.append(shown(table.layout, line, value))
    return found


def numbers_printed(table: DrawnTable, row: str) -> list[str]:
    """The paper's numbers of a row."""
    found = []
    for line in table.columns:
        printed = table.cells[row, line.name].printed
        for name in _statistics(table.layout, line):
            found.append(shown(table.layout, line, printed.get(name)))
    return found


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
    found = asdict(cell.found) if cell.found else {}
    low, high = cell.interval or (None, None)
    gap, gain = (asdict(each) if each else {} for each in (cell.gap, cell.gain))
    return [
        *(cell.row, cell.column, *(cell.printed.get(name) for name in ("mean", "sd", "max"))),
        *(found.get(name) for name in ("count", "mean", "sd", "max")),
        *(low, high, *(gap.get(name) for name in ("value", "low", "high")), cell.verdict),
        *(cell.printed_gain, *(gain.get(name) for name in ("value", "low", "high"))),
        cell.gain_verdict,
    ]


def comparison_rows(table: DrawnTable) -> list[list[str]]:
    """Cell by cell: printed, here with its interval, the difference, the verdict, and the gain."""
    rows: list[list[str]] = []
    lines: Sequence[Line] = table.layout.columns
    for (_, column), cell in table.cells.items():
        line = next(each for each in lines if each.name == column)
        if cell.verdict == "not run" and not cell.printed:
            continue
        show = lambda value, line=line: shown(table.layout, line, value)  # noqa: E731
        compared: Statistic = "mean" if "mean" in _statistics(table.layout, line) else "max"
        here = show(getattr(cell.found, compared)) if cell.found else DASH
        if cell.interval and compared == "mean":
            here += f" [{', '.join(map(show, cell.interval))}]"
        rows.append(
            [
                cell.row,
                column,
                show(cell.printed.get(compared)),
                here,
                _signed(cell.gap, table.layout.digits),
                cell.verdict,
                DASH
                if cell.printed_gain is None
                else f"{cell.printed_gain:+.{table.layout.digits}f}",
                _signed(cell.gain, table.layout.digits),
                cell.gain_verdict if cell.gain else DASH,
            ]
        )
    return rows


def _signed(gap: Difference | None, digits: int) -> str:
    if gap is None:
        return DASH
    if gap.low is None or gap.high is None:
        return f"{gap.value:+.{digits}f}"
    return f"{gap.value:+.{digits}f} [{gap.low:+.{digits}f}, {gap.high:+.{digits}f}]"
