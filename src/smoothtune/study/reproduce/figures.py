"""What a figure shows, gathered from the records: panels of lines, or of boxes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from smoothtune.report.curves import Curve, CurvePoint, csv_text, metric_label
from smoothtune.study.config import PLAIN
from smoothtune.study.layout import Dimension, FigureLayout
from smoothtune.study.reproduce.runs import Run, Runs, number_of
from smoothtune.study.reproduce.verdict import interval, summary

BINS = 15
"""Of a reliability diagram."""
Points = dict[float, list[CurvePoint]]
"""Of all runs, by x."""


@dataclass(frozen=True)
class Panel:
    """One pair of axes."""

    title: str
    lines: dict[str, list[CurvePoint]] = field(default_factory=dict)
    boxes: dict[str, list[float]] = field(default_factory=dict)
    diagonal: bool = False
    """Draw the line y = x."""


@dataclass(frozen=True)
class Figure:
    """Panels with the labels that they share."""

    layout: FigureLayout
    panels: list[Panel]
    x_label: str
    y_label: str
    band: str
    log_y: bool = False

    def to_csv(self) -> str:
        """A row for every point: panel, line, x, y, low, high."""
        rows: list[list[Any]] = []
        for panel in self.panels:
            rows += [[panel.title, name, *p] for name, line in panel.lines.items() for p in line]
            rows += [
                [panel.title, name, "", score, "", ""]
                for name, scores in panel.boxes.items()
                for score in scores
            ]
        return csv_text(["panel", "line", self.x_label, self.y_label, "low", "high"], rows)


@dataclass(frozen=True)
class _Sample:
    """Points of one line of one run, with what it is about."""

    about: dict[Dimension, str]
    points: list[CurvePoint]
    curve: Curve | None = None
    score: str = ""
    """Metric and score of the run."""


def draw_figure(layout: FigureLayout, runs: Runs) -> Figure | None:
    """Gather what a figure shows; None if no run has it."""
    chosen = [run for run in runs.done if _fits(run, layout, runs)]
    if layout.kind == "box":
        return _boxes(layout, chosen)
    gather = {
        "curve": _of_curve,
        "training": _of_training,
        "settings": _of_settings,
        "sizes": _of_sizes,
        "reliability": _of_reliability,
    }[layout.kind]
    samples = [sample for run in chosen for sample in gather(run, layout)]
    if not samples:
        return None
    first = samples[0].curve
    x_label, y_label = _labels(layout, chosen, first)
    count = len({run.cell.seed for run in chosen})
    if layout.kind in ("settings", "sizes"):
        band = "shaded: 95 % interval of the mean over seeds"
    elif count > 1:
        band = f"mean of {count} seeds; shaded: their range"
    else:
        band = f"one seed; shaded: {first.band}" if first and first.band else "one seed"
    log_y = layout.log_y if layout.log_y is not None else bool(first and first.log_y)
    panels = _panels(layout, samples)
    return Figure(layout, panels, x_label, y_label, band, log_y)


def _fits(run: Run, layout: FigureLayout, runs: Runs) -> bool:
    about, cell = layout.about, run.cell
    model = None if about.model is None else runs.stand_ins.get(about.model, about.model)
    return (
        (layout.methods is None or cell.label in layout.methods)
        and about.method in (None, cell.label)
        and about.task in (None, cell.task)
        and model in (None, cell.model)
        and about.size in (None, cell.max_train_samples)
    )


def _where(run: Run, **more: str) -> dict[Dimension, str]:
    cell = run.cell
    size = "all rows" if cell.max_train_samples is None else f"{cell.max_train_samples} rows"
    found: dict[Any, str] = {"task": cell.task, "model": cell.model, "method": cell.label}
    return found | {"size": size} | more


# --- what each kind of figure shows of a run ---------------------------------------------------


def _of_curve(run: Run, layout: FigureLayout) -> Iterator[_Sample]:
    curve = run.curve(layout.curve or "")
    if curve is None:
        return
    for name, points in curve.series.items():
        if layout.series is None or name in layout.series:
            low, high = layout.x_range or (-np.inf, np.inf)
            shown = [point for point in points if low <= point.x <= high]
            metric, metrics = run.result["headline"], run.result["metrics"]
            score = f"{metric} {metrics[metric]:.4f}"
            yield _Sample(_where(run, series=name), shown, curve, score)


def _of_training(run: Run, layout: FigureLayout) -> Iterator[_Sample]:
    names = ("loss/task", "loss") if layout.quantity == "loss" else (f"eval_{layout.quantity}",)
    points = []
    for entry in run.result["log_history"]:
        value = next((entry[name] for name in names if entry.get(name) is not None), None)
        if value is not None:
            points.append(CurvePoint(float(entry["step"]), float(value)))
    if points:
        yield _Sample(_where(run), points)


def _of_settings(run: Run, layout: FigureLayout) -> Iterator[_Sample]:
    x, y = (layout.x or {}).get(run.cell.label), number_of(run, layout.about)
    if y is None:
        return
    if x is not None:
        where = _where(run)
        where["method"] = "with the method"
        yield _Sample(where, [CurvePoint(x, y)])
    elif run.cell.label == PLAIN:
        edges = sorted((layout.x or {}).values())
        yield _Sample(_where(run), [CurvePoint(edges[0], y), CurvePoint(edges[-1], y)])


def _of_sizes(run: Run, layout: FigureLayout) -> Iterator[_Sample]:
    size, y = run.cell.max_train_samples, number_of(run, layout.about)
    if size is not None and y is not None:
        where = _where(run)
        where["size"] = ""
        yield _Sample(where, [CurvePoint(float(size), y)])


def _of_reliability(run: Run, layout: FigureLayout) -> Iterator[_Sample]:
    bins = (run.part("calibration") or {}).get("numbers", {}).get("bins")
    if bins:
        parts = zip(bins["confidence"], bins["accuracy"], bins["count"], strict=True)
        # y for x, and as `low` the number of examples, by which runs are put together
        points = [CurvePoint(x, y, float(count)) for x, y, count in parts]
        yield _Sample(_where(run), points)


def _labels(layout: FigureLayout, chosen: Sequence[Run], curve: Curve | None) -> tuple[str, str]:
    score = metric_label(chosen[0].result["headline"]) if chosen else "score"
    known = {
        "curve": (curve.x_label, curve.y_label) if curve else ("", ""),
        "training": ("update", "task loss" if layout.quantity == "loss" else str(layout.quantity)),
        "settings": ("setting", score),
        "sizes": ("training rows", score),
        "reliability": ("confidence", "accuracy (share of the bin)"),
        "box": ("", score),
    }[layout.kind]
    return layout.x_label or known[0], layout.y_label or known[1]


# --- from the lines of runs to panels ----------------------------------------------------------


def _panels(layout: FigureLayout, samples: Sequence[_Sample]) -> list[Panel]:
    """Lines of different runs of the same kind are put together."""
    several = [d for d in samples[0].about if len({s.about.get(d) for s in samples}) > 1]
    apart = [d for d in layout.panels if d in several]
    inside = [d for d in several if d not in apart]
    grouped: dict[str, dict[str, Points]] = {}
    marks = _marks(layout, samples, apart)
    for sample in samples:
        title = marks[_title(layout, sample, apart)]
        name = _title(layout, sample, inside) or _title(layout, sample, ["method"])
        points = grouped.setdefault(title, {}).setdefault(name, {})
        for point in sample.points:
            x = round(point.x, 9)
            if layout.kind == "reliability":
                x = float(min(int(point.x * BINS), BINS - 1))
            points.setdefault(x, []).append(point)
    return [
        Panel(
            title,
            {name: _line(layout, points) for name, points in lines.items()},
            diagonal=layout.kind == "reliability",
        )
        for title, lines in grouped.items()
    ]


def _marks(
    layout: FigureLayout, samples: Sequence[_Sample], apart: Sequence[Dimension]
) -> dict[str, str]:
    """The titles of panels, with the mean score where it is asked for."""
    found: dict[str, list[str]] = {}
    for sample in samples:
        found.setdefault(_title(layout, sample, apart), []).append(sample.score)
    if not layout.mark_score:
        return {title: title for title in found}
    marked = {}
    for title, scores in found.items():
        metric = scores[0].partition(" ")[0]
        mean = np.mean([float(score.partition(" ")[2]) for score in scores])
        marked[title] = ", ".join(filter(None, [title, f"{metric} {mean:.3f}"]))
    return marked


def _title(layout: FigureLayout, sample: _Sample, dimensions: Sequence[Dimension]) -> str:
    values = [sample.about.get(dimension, "") for dimension in dimensions]
    return ", ".join(layout.names.get(value, value) for value in values if value)


def _line(layout: FigureLayout, points: Points) -> list[CurvePoint]:
    join = {"reliability": _pooled, "settings": _estimated, "sizes": _estimated}
    make = join.get(layout.kind, _ranged)
    return [make(x, found) for x, found in sorted(points.items())]


def _ranged(x: float, found: Sequence[CurvePoint]) -> CurvePoint:
    """Mean and range over runs; a single run keeps its own band."""
    if len(found) == 1:
        return found[0]
    heights = [point.y for point in found]
    return CurvePoint(x, float(np.mean(heights)), min(heights), max(heights))


def _estimated(x: float, found: Sequence[CurvePoint]) -> CurvePoint:
    """Mean over runs with its 95 % interval."""
    mean = summary([point.y for point in found])
    assert mean is not None
    return CurvePoint(x, mean.mean, *(interval(mean) or (None, None)))


def _pooled(_: float, found: Sequence[CurvePoint]) -> CurvePoint:
    """One bin of all runs: means over their examples."""
    counts = [point.low or 0.0 for point in found]
    x, y = (float(np.average([p[place] for p in found], weights=counts)) for place in (0, 1))
    return CurvePoint(x, y)


def _boxes(layout: FigureLayout, chosen: Sequence[Run]) -> Figure | None:
    """Scores of all seeds, by panel and method."""
    scores = [
        (_Sample(_where(run), []), value)
        for run in chosen
        if (value := number_of(run, layout.about)) is not None
    ]
    if not scores:
        return None
    several = [d for d in scores[0][0].about if len({s.about.get(d) for s, _ in scores}) > 1]
    apart = [d for d in several if d != "method"]
    found: dict[str, dict[str, list[float]]] = {}
    for sample, value in scores:
        boxes = found.setdefault(_title(layout, sample, apart), {})
        boxes.setdefault(_title(layout, sample, ["method"]), []).append(value)
    _, y_label = _labels(layout, chosen, None)
    panels = [Panel(title, boxes=boxes) for title, boxes in found.items()]
    return Figure(layout, panels, "", y_label, "every point is a seed; line: median")
