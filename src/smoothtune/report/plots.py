"""Curves as SVG, several runs over one another, drawn by matplotlib without a display."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from typing import Any

from smoothtune.errors import PlotsMissing, printable
from smoothtune.report.curves import Curve, CurvePoint

# Okabe and Ito's colors, which color-blind readers tell apart; without the yellow, which is too
# light for lines. Lines differ in dashes and markers too, so the plot can be read without colors.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DASHES = ("-", "--", "-.", ":")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
REFERENCE = "perfect"  # a line that belongs to no run
WIDTH, HEIGHT, LEGEND_LINE = 5.6, 3.4, 0.19  # inches
MANY = 30  # points from which markers would hide the line
METADATA = ("Creator", "Date", "Format", "Type")  # left out
STYLE: dict[Any, Any] = {
    "svg.fonttype": "path",  # looks the same everywhere
    "axes.formatter.use_mathtext": False,
    "svg.hashsalt": "smoothtune",  # the same curve gives the same bytes
    "text.parse_math": False,  # names from outside may hold dollar signs
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#dddddd",
}


def plot(width: float, height: float, paint: Callable[[Any], None]) -> str:
    """One plot.

    Args:
        width: inches.
        height: inches.
        paint: draws on the axes it is given.

    Returns:
        An SVG document.

    Raises:
        PlotsMissing: matplotlib is not installed.
    """
    try:
        import matplotlib
        from matplotlib.backends.backend_svg import FigureCanvasSVG
        from matplotlib.figure import Figure
    except ImportError as error:
        message = 'plots need matplotlib: pip install "smoothtune[report]"'
        raise PlotsMissing(message) from error
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        FigureCanvasSVG(figure)
        paint(figure.subplots())
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata=dict.fromkeys(METADATA))
    return text.getvalue()


def draw(curves: Mapping[str, Curve]) -> str:
    """The same diagnostic of one or several runs.

    Args:
        curves: by the run's name, which the legend shows when there are several.

    Returns:
        An SVG document.

    Raises:
        PlotsMissing: matplotlib is not installed.
    """
    first = next(iter(curves.values()))

    def paint(axes: Any) -> None:
        lines = _draw_lines(axes, curves)
        axes.set_xlabel(printable(first.x_label))
        axes.set_ylabel(printable(first.y_label))
        _scale(axes, first)
        if lines > 1:
            figure = axes.figure
            figure.set_figheight(HEIGHT + LEGEND_LINE * lines)
            figure.legend(loc="outside lower center", ncols=1, frameon=False, fontsize="small")

    return plot(WIDTH, HEIGHT, paint)


def _draw_lines(axes: Any, curves: Mapping[str, Curve]) -> int:
    """Draw every line once, and how many there are."""
    count = 0
    for run, (name, curve) in enumerate(curves.items()):
        series = [item for item in curve.series.items() if item[0] != REFERENCE]
        for number, (line, points) in enumerate(series):
            style = run if len(curves) > 1 else number
            parts = [_short(name)] * (len(curves) > 1) + [line] * (len(series) > 1)
            _draw_line(
                axes,
                points,
                COLORS[style % len(COLORS)],
                DASHES[number % len(DASHES)],
                MARKERS[style % len(MARKERS)],
                printable(" · ".join(parts) or line),
            )
            count += 1
    if reference := next(iter(curves.values())).series.get(REFERENCE):
        axes.plot([p.x for p in reference], [p.y for p in reference], color="#888888", linewidth=1)
    return count


def _scale(axes: Any, curve: Curve) -> None:
    """Whole numbers where x counts layers or components, and tick labels without offsets."""
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

    if all(float(point.x).is_integer() for points in curve.series.values() for point in points):
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if curve.log_y:
        values = [point.y for points in curve.series.values() for point in points]
        wide = max(values) > 1e4 * min(value for value in values if value > 0)
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0,) if wide else (1.0, 2.0, 5.0)))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.yaxis.set_minor_formatter(NullFormatter())
    else:
        axes.ticklabel_format(axis="y", useOffset=False)


def _draw_line(
    axes: Any, points: list[CurvePoint], color: str, dashes: str, marker: str, label: str
) -> None:
    x, y = [point.x for point in points], [point.y for point in points]
    axes.plot(
        x,
        y,
        color=color,
        linestyle=dashes,
        marker=marker if len(points) < MANY else None,
        markersize=4,
        label=label,
    )
    banded = [point for point in points if point.low is not None and point.high is not None]
    if banded:
        axes.fill_between(
            [point.x for point in banded],
            [point.low for point in banded],
            [point.high for point in banded],
            color=color,
            alpha=0.15,
            linewidth=0,
        )


def _short(name: str, limit: int = 48) -> str:
    name = printable(name)
    return name if len(name) <= limit else f"{name[: limit - 1]}…"
