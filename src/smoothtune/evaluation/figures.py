"""Figures of evaluations: every curve of a part, with all runs that have it."""

from collections.abc import Sequence

from smoothtune.console import Bar
from smoothtune.errors import PlotsMissing
from smoothtune.evaluation.compare import Run
from smoothtune.evaluation.parts import PARTS
from smoothtune.report.curves import Curve, metric_label
from smoothtune.report.page import DASH, Plot, Table
from smoothtune.report.plots import MOST_LINES, Frame, draw_lines, num_lines, styles

SECTIONS = {name: part.title for name, part in PARTS.items() if name != "metrics"}
LARGEST_TABLE = 60  # points; a plot with more has its numbers in its CSV file alone


def figures(runs: Sequence[Run], bar: Bar) -> tuple[dict[str, list[Plot]], str]:
    """Those of every part; why there are none, or an empty text."""
    drawn = {}
    bar.start("figures", len(SECTIONS))
    for part in SECTIONS:
        try:
            drawn[part] = plots(runs, part)
        except PlotsMissing as error:
            return {}, str(error)
        bar.advance()
    return drawn, ""


def plots(runs: Sequence[Run], part: str) -> list[Plot]:
    """All curves of a part, each with every run that has it."""
    by_run = {run.label: run.curves(part) for run in runs}
    names = dict.fromkeys(name for curves in by_run.values() for name in curves)
    looks, scores = styles(by_run), _score_frame(runs)
    drawn = []
    for name in names:
        curves = {run: run_curves[name] for run, run_curves in by_run.items() if name in run_curves}
        of_score = next(iter(curves.values())).y_label == metric_label(runs[0].main_metric)
        drawn.append(_plot(f"{part}_{name}", curves, scores if of_score else Frame(looks)))
    return drawn


def _score_frame(runs: Sequence[Run]) -> Frame:
    """What all plots of the main metric share: the line of chance, and the axis."""
    label, chance = metric_label(runs[0].main_metric), runs[0].baseline
    curves = [curve for run in runs for part in SECTIONS for curve in run.curves(part).values()]
    lines = [line for curve in curves if curve.y_label == label for line in curve.series.values()]
    bounds = [bound for points in lines for p in points for bound in (p.y, p.low, p.high)]
    values = [chance, *(bound for bound in bounds if bound is not None)]
    pad = 0.04 * (max(values) - min(values)) or 0.01
    limits = min(values) - pad, max(values) + pad
    return Frame(styles(run.label for run in runs), chance, limits)


def _plot(name: str, curves: dict[str, Curve], frame: Frame) -> Plot:
    first = next(iter(curves.values()))
    rows = [
        [run, series, *map(value_text, point)]
        for run, curve in curves.items()
        for series, points in curve.series.items()
        for point in points
    ]
    head = ["run", "line", first.x_label, first.y_label, "low", "high"]
    caption = f"Shaded: {first.band}." if first.band else ""
    if num_lines(curves) > MOST_LINES:
        caption += " Gray: the first line."
    return Plot(
        name,
        first.title,
        caption,
        draw_lines(curves, frame),
        numbers=Table(head, rows) if len(rows) <= LARGEST_TABLE else None,
    )


def value_text(value: object) -> str:
    """A number of a part, or several, in a table."""
    if value is None:
        return DASH
    if isinstance(value, list):
        return ", ".join(map(value_text, value))
    return f"{value:.4g}" if isinstance(value, float) else str(value)
