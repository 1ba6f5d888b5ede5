"""Curves as SVG, PDF and PNG, several runs over one another, by matplotlib without a display."""

import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from smoothtune.errors import PlotsMissing, printable
from smoothtune.report.curves import Curve, CurvePoint

# Okabe and Ito's colors, which color-blind readers tell apart; without the yellow, which is too
# light for lines. Lines differ in dashes and markers too, so the plot can be read without colors.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DASHES = ("-", "--", "-.", ":")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
GRAY = "#888888"
REFERENCE = "perfect"  # a line that belongs to no run
MOST_LINES = 7
"""Over one pair of axes; more lines get a facet each."""
WIDTH, HEIGHT, LEGEND_LINE = 5.6, 3.4, 0.19  # inches
FACETS, FACET_HEIGHT = 3, 1.55  # in a row; inches
NARROW = 5  # times the least value, below which 1, 2 and 5 leave a log axis with one tick or two
LONGEST_NAME = 48
MANY = 30  # points from which markers would hide the line
METADATA = {  # left out: the same curve gives the same bytes
    "svg": ("Creator", "Date", "Format", "Type"),
    "pdf": ("Creator", "Producer", "CreationDate"),
    "png": ("Software",),
}
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


class Style(NamedTuple):
    """What a method or run looks like."""

    color: str
    dashes: str
    marker: str


def styles(names: Iterable[str]) -> dict[str, Style]:
    """One style for each name; of 28 any two differ in two of color, dashes and marker.

    >>> a, *_, h = styles("abcdefgh").values()
    >>> (a.color == h.color, a.dashes == h.dashes, a.marker == h.marker)
    (True, False, False)
    """
    looks = {}
    for number, name in enumerate(dict.fromkeys(names)):
        block, index = divmod(number, len(COLORS))
        marker = MARKERS[(index + block) % len(MARKERS)]
        looks[name] = Style(COLORS[index], DASHES[block % len(DASHES)], marker)
    return looks


@dataclass(frozen=True)
class Frame:
    """What figures that are read beside one another share."""

    styles: Mapping[str, Style]
    """By run."""
    chance: float | None = None
    """Score of the best constant answer."""
    y_limits: tuple[float, float] | None = None


def drawn(
    width: float, height: float, paint: Callable[[Any], None], formats: Sequence[str] = ("svg",)
) -> dict[str, bytes]:
    """A figure in several formats.

    Raises:
        PlotsMissing: matplotlib is not installed.
    """
    try:
        import matplotlib
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
        from matplotlib.layout_engine import ConstrainedLayoutEngine
    except ImportError as error:
        message = 'plots need matplotlib: pip install "smoothtune[report]"'
        raise PlotsMissing(message) from error
    files = {}
    with matplotlib.rc_context(STYLE):
        layout = ConstrainedLayoutEngine()
        figure = Figure(figsize=(width, height), layout=layout)
        FigureCanvasAgg(figure)
        paint(figure)
        layout.execute(figure)  # here, as `savefig` would draw everything twice for it
        figure.set_layout_engine("none")
        for form in formats:
            file = io.BytesIO()
            metadata = dict.fromkeys(METADATA[form])
            figure.savefig(file, format=form, dpi=200, metadata=metadata)
            files[form] = file.getvalue()
    return files


def draw(curves: Mapping[str, Curve], frame: Frame | None = None) -> str:
    """The same diagnostic of one or several runs as SVG; see `draw_lines`."""
    return draw_lines(curves, frame)["svg"].decode()


def draw_lines(
    curves: Mapping[str, Curve], frame: Frame | None = None, formats: Sequence[str] = ("svg",)
) -> dict[str, bytes]:
    """The same diagnostic of one or several runs; without a frame, with styles in their order.

    More than seven lines are drawn apart: each over the first one in gray, with shared axes.

    Raises:
        PlotsMissing: matplotlib is not installed.
    """
    frame = frame or Frame(styles(curves))
    lines = _lines(curves, frame)
    first = next(iter(curves.values()))
    paint = _facets if len(lines) > MOST_LINES else _over_one_another
    return drawn(WIDTH, HEIGHT, lambda figure: paint(figure, lines, first, frame), formats)


class _Line(NamedTuple):
    name: str
    points: list[CurvePoint]
    style: Style


def _lines(curves: Mapping[str, Curve], frame: Frame) -> list[_Line]:
    """Every line with its style: of several runs the run's, of one run's lines one each."""
    lines = []
    for run, curve in curves.items():
        series = {name: points for name, points in curve.series.items() if name != REFERENCE}
        own = styles(series)
        for number, (name, points) in enumerate(series.items()):
            style = own[name] if len(curves) == 1 else frame.styles[run]
            if len(curves) > 1 and len(series) > 1:  # a run's color and marker, a line's dashes
                style = style._replace(dashes=DASHES[number % len(DASHES)])
            parts = [_short(run)] * (len(curves) > 1) + [name] * (len(series) > 1)
            lines.append(_Line(printable(" · ".join(parts) or name), points, style))
    return lines


def _over_one_another(figure: Any, lines: Sequence[_Line], curve: Curve, frame: Frame) -> None:
    axes = figure.subplots()
    for line in lines:
        paint_line(axes, line.points, line.style, line.name)
    _background(axes, curve, frame)
    axes.set_xlabel(printable(curve.x_label))
    axes.set_ylabel(printable(curve.y_label))
    num_entries = len(lines) + (frame.chance is not None)
    if num_entries > 1:
        figure.set_figheight(HEIGHT + LEGEND_LINE * num_entries)
        figure.legend(loc="outside lower center", ncols=1, frameon=False, fontsize="small")


def _facets(figure: Any, lines: Sequence[_Line], curve: Curve, frame: Frame) -> None:
    """A line in each pair of axes, over the first line in gray."""
    first, *others = lines
    height = -(-len(others) // FACETS)
    figure.set_figheight(0.6 + FACET_HEIGHT * height)
    grid = figure.subplots(height, FACETS, sharex=True, sharey=True, squeeze=False)
    for number, axes in enumerate(grid.flat):
        if number >= len(others):
            axes.set_visible(False)
            continue
        line = others[number]
        paint_line(axes, first.points, Style(GRAY, "-", ""), first.name, band=False)
        paint_line(axes, line.points, line.style, line.name)
        _background(axes, curve, frame)
        axes.set_title(line.name, fontsize="small")
        axes.tick_params(labelsize="x-small")
        if number >= len(others) - FACETS:  # the lowest of its column
            axes.tick_params(labelbottom=True)
    figure.supxlabel(printable(curve.x_label), fontsize="small")
    figure.supylabel(printable(curve.y_label), fontsize="small")


def num_lines(curves: Mapping[str, Curve]) -> int:
    """How many lines a figure of the curves has."""
    return sum(name != REFERENCE for curve in curves.values() for name in curve.series)


def _background(axes: Any, curve: Curve, frame: Frame) -> None:
    """Reference and chance lines, scales and limits, and ticks without offsets."""
    from matplotlib.ticker import MaxNLocator

    if reference := curve.series.get(REFERENCE):
        axes.plot([p.x for p in reference], [p.y for p in reference], color=GRAY, linewidth=1)
    if frame.chance is not None:
        axes.axhline(
            frame.chance, color=GRAY, linestyle=":", linewidth=1.5, label="best constant answer"
        )
    points = [point for line in curve.series.values() for point in line]
    if all(float(point.x).is_integer() for point in points):  # layers or components
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if curve.log_y:
        log_scale(axes, [point.y for point in points])
    else:
        axes.ticklabel_format(axis="y", useOffset=False)
    if frame.y_limits:
        axes.set_ylim(*frame.y_limits)


def log_scale(axes: Any, values: Sequence[float]) -> None:
    """A logarithmic y, unless its ticks would be too few to read within the range of the values."""
    positive = [value for value in values if value > 0]
    if not positive or max(positive) < NARROW * min(positive):
        axes.ticklabel_format(axis="y", useOffset=False)
        return
    axes.set_yscale("log")
    log_ticks(axes.yaxis, wide=max(positive) > 1e4 * min(positive))


def log_ticks(axis: Any, *, wide: bool) -> None:
    """Ticks of a logarithmic axis as plain numbers: matplotlib's own are formulas.

    Over more than four decades, `wide`, only powers of ten have one.
    """
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axis.set_major_locator(LogLocator(subs=(1.0,) if wide else (1.0, 2.0, 5.0)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def paint_line(
    axes: Any, points: Sequence[CurvePoint], style: Style, label: str, *, band: bool = True
) -> None:
    """A line with its markers, and its shade where the points have bounds."""
    x, y = [point.x for point in points], [point.y for point in points]
    axes.plot(
        x,
        y,
        color=style.color,
        linestyle=style.dashes,
        marker=style.marker if len(points) < MANY else None,
        markersize=4,
        label=label,
    )
    bounds = [(p.x, p.low, p.high) for p in points if p.low is not None and p.high is not None]
    if bounds and band:
        axes.fill_between(*zip(*bounds, strict=True), color=style.color, alpha=0.15, linewidth=0)
    if bounds and len(points) == 1:  # no line to shade
        axes.vlines(*bounds[0], color=style.color, alpha=0.4)


def paint_boxes(
    axes: Any, values: Mapping[str, Sequence[float]], looks: Mapping[str, Style]
) -> None:
    """A box and every point for each name, from above to below."""
    axes.boxplot(
        list(values.values()),
        orientation="horizontal",
        showfliers=False,
        medianprops={"color": "#000000"},
        tick_labels=[printable(name) for name in values],
    )
    jitter = np.random.default_rng(0)
    for number, (name, points) in enumerate(values.items(), start=1):
        heights = number + jitter.uniform(-0.15, 0.15, len(points))
        own = looks[name]
        axes.plot(points, heights, own.marker, color=own.color, markersize=4, alpha=0.8)
    axes.invert_yaxis()


def _short(name: str) -> str:
    """The end of a long name, by which paths differ."""
    name = printable(name)
    return name if len(name) <= LONGEST_NAME else f"…{name[1 - LONGEST_NAME :]}"
