"""Figures with several panels, drawn by matplotlib without a display."""

import textwrap
from typing import Any

from smoothtune.errors import printable
from smoothtune.report.plots import (
    GRAY,
    Style,
    drawn,
    log_scale,
    paint_boxes,
    paint_line,
    styles,
)
from smoothtune.reproduce.figures import Figure, Panel

WIDTH, HEIGHT, LEGEND_LINE = 3.6, 2.9, 0.2  # inches of a panel, and of a line of the legend
BOX = 0.19  # inches of one box with its label
WIDEST = 5.6  # inches of a single panel, as other plots
MOST = 3  # panels in a row
LETTERS = {"x": 34, "y": 30}  # on a line of a label of one of several panels
FEW = 12  # places on the x axis that have a tick each


def draw(figure: Figure) -> dict[str, bytes]:
    """A figure as svg and pdf.

    Raises:
        PlotsMissing: matplotlib is not installed.
    """
    columns = min(MOST, len(figure.panels))
    rows = -(-len(figure.panels) // columns)
    looks = styles(name for panel in figure.panels for name in panel.lines)
    in_a_row = 1 if columns == 1 else 2
    legend = LEGEND_LINE * -(-len(looks) // in_a_row) * (len(looks) > 1)
    heights = [p.y for panel in figure.panels for line in panel.lines.values() for p in line]

    def paint(canvas: Any) -> None:
        grid = canvas.subplots(rows, columns, squeeze=False)
        named: dict[str, Any] = {}
        for axes, panel in zip(grid.flat, figure.panels, strict=False):
            _paint(axes, panel, looks)
            if figure.log_y:
                log_scale(axes, heights)
            _label(axes, panel, figure, alone=len(figure.panels) == 1)
            for line, name in zip(*axes.get_legend_handles_labels(), strict=True):
                named.setdefault(name, line)
        for axes in list(grid.flat)[len(figure.panels) :]:
            axes.set_axis_off()
        if len(looks) > 1:
            place = {"loc": "outside lower center", "ncols": in_a_row}
            lines = list(named.values())
            canvas.legend(lines, list(named), **place, frameon=False, fontsize="small")

    width = WIDEST if columns == 1 else columns * WIDTH
    height = max(HEIGHT, 1 + BOX * max(len(panel.boxes) for panel in figure.panels))
    return drawn(width, rows * height + legend, paint, ("svg", "pdf"))


def _paint(axes: Any, panel: Panel, looks: dict[str, Style]) -> None:
    if panel.boxes:
        paint_boxes(axes, panel.boxes, styles(panel.boxes))
    for name, points in panel.lines.items():
        paint_line(axes, points, looks[name], printable(name))
    if panel.diagonal:
        axes.plot([0, 1], [0, 1], color=GRAY, linewidth=1)
        axes.set_xlim(0, 1)
        axes.set_ylim(0, 1)


def _label(axes: Any, panel: Panel, figure: Figure, *, alone: bool) -> None:
    """Titles and labels, on as many lines as they need, and ticks where the points are."""
    along_x = LETTERS["x"] * (WIDEST / WIDTH if alone else 1.0)
    of_x, of_y = (panel.y_label, "") if panel.boxes else (figure.x_label, panel.y_label)
    axes.set_title(_lines(panel.title, along_x), fontsize="medium")
    axes.set_xlabel(_lines(of_x, along_x))
    axes.set_ylabel(_lines(of_y, LETTERS["y"]))
    places = sorted({point.x for line in panel.lines.values() for point in line})
    if figure.layout.kind in ("settings", "sizes") and len(places) <= FEW:
        axes.set_xticks(places, [f"{place:g}" for place in places])
    elif places and all(float(place).is_integer() for place in places):
        from matplotlib.ticker import MaxNLocator

        axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8))


def _lines(text: str, letters: float) -> str:
    return textwrap.fill(printable(text), int(letters))
