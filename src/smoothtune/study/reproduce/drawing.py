"""Figures with several panels as SVG and as PDF, drawn by matplotlib without a display."""

from __future__ import annotations

import io
from typing import Any

import numpy as np

from smoothtune.errors import PlotsMissing, printable
from smoothtune.report.curves import CurvePoint
from smoothtune.report.plots import COLORS, DASHES, MARKERS, METADATA, STYLE
from smoothtune.study.reproduce.figures import Figure, Panel

WIDTH, HEIGHT, LEGEND_LINE = 3.6, 2.9, 0.2  # inches of a panel, and of a line of the legend
MOST = 3  # panels in a row
MANY = 30  # points from which markers would hide the line


def draw(figure: Figure) -> tuple[str, bytes]:
    """A figure as an SVG document and as a PDF.

    Raises:
        PlotsMissing: matplotlib is not installed.
    """
    try:
        import matplotlib
        from matplotlib.backends.backend_pdf import FigureCanvasPdf
        from matplotlib.backends.backend_svg import FigureCanvasSVG
        from matplotlib.figure import Figure as Canvas
    except ImportError as error:
        message = 'plots need matplotlib: pip install "smoothtune[report]"'
        raise PlotsMissing(message) from error
    columns = min(MOST, len(figure.panels))
    rows = -(-len(figure.panels) // columns)
    names = list(dict.fromkeys(name for panel in figure.panels for name in panel.lines))
    legend = LEGEND_LINE * len(names) * (len(names) > 1)
    least = 5.6 if columns == 1 else 0.0  # a single panel needs no less than other plots
    with matplotlib.rc_context(STYLE | {"pdf.fonttype": 42}):
        size = (max(least, columns * WIDTH), rows * HEIGHT + legend)
        canvas = Canvas(figsize=size, layout="constrained")
        FigureCanvasSVG(canvas)
        grid = canvas.subplots(rows, columns, squeeze=False)
        for place, panel in zip(grid.flat, figure.panels, strict=False):
            _paint(place, panel, figure, names)
        for place in list(grid.flat)[len(figure.panels) :]:
            place.set_axis_off()
        if len(names) > 1:
            first: dict[str, Any] = {}
            for place in grid.flat:
                for line, name in zip(*place.get_legend_handles_labels(), strict=True):
                    first.setdefault(name, line)
            canvas.legend(
                first.values(),
                first.keys(),
                loc="outside lower center",
                ncols=1 if columns == 1 else min(columns, 2),
                frameon=False,
                fontsize="small",
            )
        text, document = io.StringIO(), io.BytesIO()
        canvas.savefig(text, format="svg", metadata=dict.fromkeys(METADATA))
        FigureCanvasPdf(canvas)
        canvas.savefig(document, format="pdf", metadata={"CreationDate": None})
    return text.getvalue(), document.getvalue()


def _paint(axes: Any, panel: Panel, figure: Figure, names: list[str]) -> None:
    if panel.boxes:
        _paint_boxes(axes, panel)
    for name, points in panel.lines.items():
        _paint_line(axes, points, names.index(name), printable(name))
    if panel.diagonal:
        axes.plot([0, 1], [0, 1], color="#888888", linewidth=1)
    if figure.log_y:
        axes.set_yscale("log")
    axes.set_title(printable(panel.title), fontsize="medium")
    axes.set_xlabel(printable(figure.x_label) if not panel.boxes else printable(figure.y_label))
    axes.set_ylabel("" if panel.boxes else printable(figure.y_label))
    if all(p.x.is_integer() for line in panel.lines.values() for p in line) and panel.lines:
        from matplotlib.ticker import MaxNLocator

        axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8))


def _paint_line(axes: Any, points: list[CurvePoint], number: int, name: str) -> None:
    color = COLORS[number % len(COLORS)]
    axes.plot(
        [point.x for point in points],
        [point.y for point in points],
        color=color,
        linestyle=DASHES[number % len(DASHES)],
        marker=MARKERS[number % len(MARKERS)] if len(points) < MANY else None,
        markersize=3.5,
        linewidth=1.3,
        label=name,
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


def _paint_boxes(axes: Any, panel: Panel) -> None:
    axes.boxplot(
        list(panel.boxes.values()),
        orientation="horizontal",
        showfliers=False,
        medianprops={"color": COLORS[1]},
        tick_labels=[printable(name) for name in panel.boxes],
    )
    jitter = np.random.default_rng(0)
    for number, values in enumerate(panel.boxes.values(), start=1):
        heights = number + jitter.uniform(-0.15, 0.15, len(values))
        axes.plot(values, heights, "o", color=COLORS[0], markersize=3, alpha=0.7)
    axes.invert_yaxis()
