"""What runs have of a figure: for every run the points of its lines, or its score."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from smoothtune.report.curves import Curve, CurvePoint, metric_label
from smoothtune.reproduce.runs import Run, number_of
from smoothtune.study.fields import PLAIN
from smoothtune.study.layout import Dimension, FigureLayout


@dataclass(frozen=True)
class Sample:
    """Points of one line of one run, with what it is about."""

    about: dict[Dimension, str]
    points: list[CurvePoint]
    y_label: str
    curve: Curve | None = None
    score: tuple[str, float] | None = None
    """Metric and score of the run."""


def samples_of(layout: FigureLayout, chosen: Sequence[Run]) -> list[Sample]:
    """All that runs have of a figure."""
    gather = GATHER[layout.kind]
    return [sample for run in chosen for sample in gather(run, layout, chosen)]


def _where(run: Run, **more: str) -> dict[Dimension, str]:
    task, model, rows = run.cell.condition
    size = "all rows" if rows is None else f"{rows} rows"
    about: dict[Any, str] = {"task": task, "model": model, "method": run.cell.label}
    return about | {"size": size} | more


def _of_curve(run: Run, layout: FigureLayout, _: Sequence[Run]) -> Iterator[Sample]:
    curve = run.measured.curve(layout.curve or "")
    if curve is None:
        return
    for name, points in curve.series.items():
        if layout.series is None or name in layout.series:
            low, high = layout.x_range or (-np.inf, np.inf)
            shown = [point for point in points if low <= point.x <= high]
            y_label = layout.y_label or curve.y_label
            score = (run.result.headline, run.result.score)
            yield Sample(_where(run, series=name), shown, y_label, curve, score)


def _of_training(run: Run, layout: FigureLayout, _: Sequence[Run]) -> Iterator[Sample]:
    name = f"eval_{layout.quantity}"
    points = [
        CurvePoint(float(entry["step"]), float(entry[name]))
        for entry in run.result.log_history
        if entry.get(name) is not None
    ]
    if points:
        label = (
            "validation loss" if layout.quantity == "loss" else metric_label(str(layout.quantity))
        )
        yield Sample(_where(run), points, layout.y_label or label)


def _of_settings(run: Run, layout: FigureLayout, chosen: Sequence[Run]) -> Iterator[Sample]:
    """A point of a method; of plain fine-tuning a level line beside the methods that are there."""
    known, y = layout.x or {}, number_of(run, layout.about)
    label = run.cell.label
    if y is None:
        return
    if label in known:
        where = _where(run, method="with the method")
        yield Sample(where, [CurvePoint(known[label], y)], _score_label(run, layout))
    elif label == PLAIN:
        there = [known[each.cell.label] for each in chosen if each.cell.label in known]
        ends = dict.fromkeys((min(there), max(there))) if there else ()
        yield Sample(_where(run), [CurvePoint(x, y) for x in ends], _score_label(run, layout))


def _of_sizes(run: Run, layout: FigureLayout, _: Sequence[Run]) -> Iterator[Sample]:
    size, y = run.cell.condition.max_train_samples, number_of(run, layout.about)
    if size is not None and y is not None:
        point = CurvePoint(float(size), y)
        yield Sample(_where(run, size=""), [point], _score_label(run, layout))


def _of_reliability(run: Run, layout: FigureLayout, _: Sequence[Run]) -> Iterator[Sample]:
    bins = run.numbers("calibration").get("bins")
    if bins:
        parts = zip(bins["confidence"], bins["accuracy"], bins["count"], strict=True)
        # y for x, and as `low` the number of examples, by which runs are put together
        points = [CurvePoint(x, y, float(count)) for x, y, count in parts]
        yield Sample(_where(run), points, layout.y_label or "accuracy (share of the bin)")


def _of_boxes(run: Run, layout: FigureLayout, _: Sequence[Run]) -> Iterator[Sample]:
    value = number_of(run, layout.about)
    if value is not None:
        yield Sample(_where(run), [CurvePoint(0.0, value)], _score_label(run, layout))


def _score_label(run: Run, layout: FigureLayout) -> str:
    """The number that `number_of` reads, as the label of an axis."""
    about = layout.about
    wanted = about.metric or run.result.headline
    names = [wanted] if isinstance(wanted, str) else wanted
    metric = metric_label(names[0]) if len(names) == 1 else f"mean of {', '.join(names)}"
    others = {
        None: metric,
        "score": metric,
        "train": f"{metric}, training rows",
        "gap": f"{metric}, training minus validation",
    }
    return layout.y_label or others.get(about.value) or str(about.value)


Gather = Callable[[Run, FigureLayout, Sequence[Run]], Iterator[Sample]]
GATHER: dict[str, Gather] = {
    "curve": _of_curve,
    "training": _of_training,
    "settings": _of_settings,
    "sizes": _of_sizes,
    "reliability": _of_reliability,
    "box": _of_boxes,
}
"""By kind of figure."""
