"""What runs have of a figure: for every run the points of its lines, or its score."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from smoothtune.report.curves import Curve, CurvePoint, metric_label
from smoothtune.reproduce.runs import Run, metric_names, number_of
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
    gather = GATHER.get(layout.kind, _of_score)
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
    quantity = str(layout.quantity)
    points = [
        CurvePoint(float(entry["step"]), float(value))
        for entry in run.result.log_history
        if (value := entry.get(f"eval_{quantity}")) is not None
    ]
    if points:
        label = "validation loss" if quantity == "loss" else metric_label(quantity)
        yield Sample(_where(run), points, layout.y_label or label)


def _of_reliability(run: Run, layout: FigureLayout, _: Sequence[Run]) -> Iterator[Sample]:
    if bins := run.numbers("calibration").get("bins"):
        parts = zip(bins["confidence"], bins["accuracy"], bins["count"], strict=True)
        # y for x, and as `low` the number of examples, by which runs are put together
        points = [CurvePoint(x, y, float(count)) for x, y, count in parts]
        yield Sample(_where(run), points, layout.y_label or "accuracy (share of the bin)")


def _of_score(run: Run, layout: FigureLayout, chosen: Sequence[Run]) -> Iterator[Sample]:
    """A point; of plain fine-tuning a level line beside the settings of methods that are there."""
    y, label = number_of(run, layout.about), run.cell.label
    if y is None:
        return
    where, places = _where(run), [0.0]
    if layout.kind == "sizes":
        size = run.cell.condition.max_train_samples
        if size is None:
            return
        where, places = _where(run, size=""), [float(size)]
    elif layout.kind == "settings":
        settings = layout.x or {}
        if label in settings:
            where, places = _where(run, method="with the method"), [settings[label]]
        elif label == PLAIN:
            there = {settings[each.cell.label] for each in chosen if each.cell.label in settings}
            places = sorted({min(there), max(there)}) if there else []
        else:
            return
    yield Sample(where, [CurvePoint(x, y) for x in places], _score_label(run, layout))


def _score_label(run: Run, layout: FigureLayout) -> str:
    """The number that `number_of` reads, as the label of an axis."""
    names, value = metric_names(run, layout.about), layout.about.value
    metric = metric_label(names[0]) if len(names) == 1 else f"mean of {', '.join(names)}"
    others = {
        None: metric,
        "score": metric,
        "train": f"{metric}, training rows",
        "gap": f"{metric}, training minus validation",
    }
    return layout.y_label or others.get(value) or str(value)


Gather = Callable[[Run, FigureLayout, Sequence[Run]], Iterator[Sample]]
GATHER: dict[str, Gather] = {
    "curve": _of_curve,
    "training": _of_training,
    "reliability": _of_reliability,
}
"""By kind of figure, where it is not of a score."""
