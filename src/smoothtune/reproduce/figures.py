"""What a figure shows, gathered from the records: panels of lines, or of boxes."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from smoothtune.evaluation.intervals import wilson
from smoothtune.report.curves import Curve, CurvePoint, csv_text, mean_and_range
from smoothtune.report.tables import Summary
from smoothtune.reproduce.runs import Runs
from smoothtune.reproduce.samples import Sample, samples_of
from smoothtune.reproduce.verdict import interval
from smoothtune.study.layout import Dimension, FigureLayout

BINS = 15
"""Of a reliability diagram."""
X_LABELS = {
    "training": "update",
    "settings": "setting",
    "sizes": "training rows",
    "reliability": "confidence",
}
"""By kind of figure, where neither the layout nor a curve says it."""


@dataclass(frozen=True)
class Panel:
    """One pair of axes."""

    title: str
    lines: dict[str, list[CurvePoint]] = field(default_factory=dict)
    boxes: dict[str, list[float]] = field(default_factory=dict)
    y_label: str = ""
    """What the lines, or the boxes, are of; a task has its own metric."""
    diagonal: bool = False
    """Draw the line y = x."""


@dataclass(frozen=True)
class Figure:
    """Panels with what they share."""

    layout: FigureLayout
    panels: list[Panel]
    x_label: str
    band: str
    """What lines, points and shades are."""
    log_y: bool = False

    def to_csv(self) -> str:
        """A row for every point: panel, what y is, line, x, y, low, high."""
        rows: list[list[Any]] = []
        for panel in self.panels:
            about = [panel.title, panel.y_label]
            for name, line in panel.lines.items():
                rows += [[*about, name, *point] for point in line]
            for name, scores in panel.boxes.items():
                rows += [[*about, name, "", score, "", ""] for score in scores]
        x_label = self.x_label or "x"
        return csv_text(["panel", "quantity", "line", x_label, "value", "low", "high"], rows)


def draw_figure(layout: FigureLayout, runs: Runs) -> Figure | str:
    """Gather what a figure shows; or why there is nothing to draw."""
    chosen = [
        run
        for run in runs.matching(layout.about)
        if layout.methods is None or run.cell.label in layout.methods
    ]
    if not chosen:
        return "no run of what it shows is done"
    samples = samples_of(layout, chosen)
    if not samples:
        return "the finished runs have not measured what it shows"
    seeds, first = len({run.cell.seed for run in chosen}), samples[0].curve
    panels, band = _panels(layout, samples), _band(layout, seeds, first)
    if layout.kind == "box":
        return Figure(layout, panels, "", band)
    log_y = layout.log_y if layout.log_y is not None else bool(first and first.log_y)
    x_label = layout.x_label or (first.x_label if first else X_LABELS[layout.kind])
    return Figure(layout, panels, x_label, band, log_y)


def _band(layout: FigureLayout, seeds: int, curve: Curve | None) -> str:
    if seeds == 1 and layout.kind == "reliability":
        return "one seed; shaded: 95 % Wilson interval of a bin"
    if seeds == 1:
        return f"one seed; shaded: {curve.band}" if curve and curve.band else "one seed"
    if layout.kind == "box":
        return f"{seeds} seeds, a point each; line: median"
    if layout.kind == "reliability":
        return f"the rows of {seeds} seeds together; shaded: 95 % Wilson interval of a bin"
    if layout.kind in ("settings", "sizes"):
        return f"mean of {seeds} seeds; shaded: its 95 % interval, where there is one"
    return f"mean of {seeds} seeds; shaded: their range"


# --- from the lines of runs to panels ----------------------------------------------------------


def _panels(layout: FigureLayout, samples: Sequence[Sample]) -> list[Panel]:
    """Lines, or boxes, of different runs of the same kind are put together."""
    several = [d for d in samples[0].about if len({s.about.get(d) for s in samples}) > 1]
    apart = [d for d in layout.panels if d in several]
    inside = [d for d in several if d not in apart]
    if layout.kind == "box":
        apart, inside = [d for d in several if d != "method"], ["method"]
    grouped: dict[str, dict[str, list[Sample]]] = {}
    for sample in samples:
        name = _title(layout, sample, inside) or _title(layout, sample, ["method"])
        grouped.setdefault(_title(layout, sample, apart), {}).setdefault(name, []).append(sample)
    return [_panel(layout, title, lines) for title, lines in grouped.items()]


def _panel(layout: FigureLayout, title: str, lines: dict[str, list[Sample]]) -> Panel:
    samples = [sample for of_line in lines.values() for sample in of_line]
    y_label = " or ".join(dict.fromkeys(sample.y_label for sample in samples))
    if layout.kind == "box":
        boxes = {name: [s.points[0].y for s in of_line] for name, of_line in lines.items()}
        return Panel(title, boxes=boxes, y_label=y_label)
    scores = [sample.score for sample in samples if sample.score]
    if layout.mark_score and scores:
        mean = np.mean([round(value, 4) for _, value in scores])
        title = ", ".join(filter(None, [title, f"{scores[0][0]} {mean:.3f}"]))
    points = {name: _line(layout, of_line) for name, of_line in lines.items()}
    return Panel(title, points, y_label=y_label, diagonal=layout.kind == "reliability")


def _title(layout: FigureLayout, sample: Sample, dimensions: Sequence[Dimension]) -> str:
    values = [sample.about.get(dimension, "") for dimension in dimensions]
    return ", ".join(layout.names.get(value, value) for value in values if value)


def _line(layout: FigureLayout, samples: Sequence[Sample]) -> list[CurvePoint]:
    """One line of the samples of all runs."""
    points: dict[float, list[CurvePoint]] = {}
    for point in (point for sample in samples for point in sample.points):
        x = round(point.x, 9)
        if layout.kind == "reliability":
            x = float(min(int(point.x * BINS), BINS - 1))
        points.setdefault(x, []).append(point)
    # where some runs end, a mean would be over others than before
    if layout.kind in ("curve", "training"):
        points = {x: at_x for x, at_x in points.items() if len(at_x) == len(samples)}
    join = {"reliability": _pooled, "settings": _estimated, "sizes": _estimated}
    make = join.get(layout.kind, _ranged)
    return [make(x, at_x) for x, at_x in sorted(points.items())]


def _ranged(x: float, points: Sequence[CurvePoint]) -> CurvePoint:
    """Mean and range over runs; a single run keeps its own band."""
    return points[0] if len(points) == 1 else mean_and_range(x, [point.y for point in points])


def _estimated(x: float, points: Sequence[CurvePoint]) -> CurvePoint:
    """Mean over runs with its 95 % interval."""
    mean = Summary.of([point.y for point in points])
    return CurvePoint(x, mean.mean, *(interval(mean) or (None, None)))


def _pooled(_: float, points: Sequence[CurvePoint]) -> CurvePoint:
    """One bin of all runs: means over their examples, as if each row of a seed were another."""
    counts = [point.low or 0.0 for point in points]
    x, y = (float(np.average([p[place] for p in points], weights=counts)) for place in (0, 1))
    count = round(sum(counts))
    return CurvePoint(x, y, *wilson(round(y * count), count))
