"""Plots of a study: each an SVG, a PDF and a PNG with its data as CSV."""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rich.console import Console

from smoothtune.console import tracked
from smoothtune.errors import printable
from smoothtune.report.curves import Curve, CurvePoint, csv_text, mean_and_range, metric_label
from smoothtune.report.page import Plot
from smoothtune.report.plots import (
    GRAY,
    MOST_LINES,
    Frame,
    Style,
    draw_lines,
    drawn,
    paint_boxes,
    styles,
)
from smoothtune.report.tables import POINTS
from smoothtune.study.comparison import Comparison
from smoothtune.study.fields import PLAIN, ConditionKey
from smoothtune.study.records import Records
from smoothtune.study.report.content import StudyContent
from smoothtune.study.report.methods import Run, by_condition, method_names

FORMATS = ("svg", "pdf", "png")
WIDTH, LINE, MARGIN = 6.4, 0.32, 1.1  # inches: width, height of a method, height of the rest
RANGE = "range over seeds"
MAX_NAME = 200
"""Bytes of a file's name without its ending, of the 255 that a file system takes."""


@dataclass(frozen=True)
class _Look:
    """What the plots of a study share."""

    styles: Mapping[str, Style]
    """By method, plain first."""
    differences: tuple[float, float]
    """Limits of all differences, in points."""
    conditions: int
    taken: set[str] = field(default_factory=set)
    """Names of files, in lower case: no plot takes that of another."""


@dataclass(frozen=True)
class Plots:
    """The plots of a study."""

    first: Plot | None = None
    """Differences from plain over all conditions, or under the only one."""
    by_condition: Mapping[ConditionKey | None, list[Plot]] = field(default_factory=dict)
    """The others; those over all conditions under None."""

    @property
    def all(self) -> list[Plot]:
        """Every plot."""
        first = [self.first] if self.first else []
        return [*first, *(plot for plots in self.by_condition.values() for plot in plots)]


def study_plots(content: StudyContent, records: Records, console: Console) -> Plots:
    """The plots of what finished cells show.

    Of several conditions those are drawn under which a method is shown to differ from plain: a
    null result is a word in a table.

    Raises:
        PlotsMissing: matplotlib is not installed.
    """
    done = [run for run in content.runs if run.status == "done"]
    compared = {
        condition: [item for method in group if (item := method.score_against_plain)]
        for condition, group in content.conditions.items()
    }
    over_tasks = content.over_tasks.get("score", [])
    names = sorted(method_names(content.runs), key=lambda name: name != PLAIN)
    shown = [*over_tasks, *(item for items in compared.values() for item in items)]
    look = _Look(styles(names), _limits(shown), len(compared))
    plots: dict[ConditionKey | None, list[Plot]] = {}
    first = _differences(over_tasks, "score", "all tasks", look) if over_tasks else None
    shown_ones = [
        (condition, runs)
        for condition, runs in by_condition(done).items()
        if len(compared) == 1 or any(item.is_established for item in compared[condition])
    ]
    with tracked(shown_ones, "drawing", console) as conditions:
        for condition, runs in conditions:
            where, metric = condition.title, runs[0].metric or "score"
            plots[condition] = here = [_distribution(runs, where, look)]
            if compared[condition]:
                differences = _differences(compared[condition], metric, where, look)
                if len(compared) == 1:
                    first = differences
                else:
                    here.append(differences)
            if training := _training(runs, records):
                here.append(_lines("training", "Task loss in training", where, training, look))
    plots[None] = _of_sizes(done, look)
    return Plots(first, plots)


def _limits(compared: Iterable[Comparison]) -> tuple[float, float]:
    """Of the axis of differences, in points, for all conditions."""
    values = [0.0, *(value for item in compared for value in _bounds(item))]
    low, high = POINTS * min(values), POINTS * max(values)
    pad = 0.05 * (high - low) or 1.0
    return low - pad, high + pad


def _bounds(item: Comparison) -> tuple[float, float]:
    return item.difference.interval or (item.difference.value, item.difference.value)


def _file_name(kind: str, where: str, look: _Look) -> str:
    text = "-".join([kind, *where.split(", ")])
    name = "".join(letter if letter.isalnum() or letter in "-_" else "_" for letter in text)
    name = name.encode()[:MAX_NAME].decode(errors="ignore")
    numbered = (f"{name}-{number}" for number in itertools.count(2))
    name = next(n for n in itertools.chain([name], numbered) if n.casefold() not in look.taken)
    look.taken.add(name.casefold())
    return name


def _distribution(runs: Sequence[Run], where: str, look: _Look) -> Plot:
    """A box and every point for each method."""
    scores: dict[str, list[float]] = {}
    for run in runs:
        scores.setdefault(run.method, []).append(run.measures["score"])
    chance = max(run.trivial_baseline or 0.0 for run in runs)

    def paint(figure: Any) -> None:
        axes = figure.subplots()
        paint_boxes(axes, scores, look.styles)
        if chance >= axes.get_xlim()[0]:
            axes.axvline(chance, color=GRAY, linestyle=":")
        axes.set_xlabel(metric_label(runs[0].metric or "score"))

    return Plot(
        _file_name("distribution", where, look),
        f"Scores of all seeds: {where}",
        "Every point is a seed; box: quartiles; line: median; whiskers: 1.5 times the box at most. "
        f"The best constant answer has {chance:.3f}.",
        drawn(WIDTH, MARGIN + LINE * len(scores), paint, FORMATS),
        csv_text(
            ["method", "seed", "score"],
            ([run.method, run.seed, run.measures["score"]] for run in runs),
        ),
    )


def _differences(compared: Sequence[Comparison], metric: str, where: str, look: _Look) -> Plot:
    """Difference from plain with its interval, for each method."""
    values = [(item.method, item.difference.value, *_bounds(item)) for item in compared]

    def paint(figure: Any) -> None:
        axes = figure.subplots()
        for number, (name, value, low, high) in enumerate(values):
            own = look.styles[name]
            axes.plot([POINTS * low, POINTS * high], [number] * 2, color=own.color, linewidth=2)
            axes.plot(POINTS * value, number, own.marker, color=own.color, markersize=6)
        axes.axvline(0, color=GRAY, linewidth=1)
        axes.set_yticks(range(len(values)), [printable(value[0]) for value in values])
        axes.set_ylim(len(values) - 0.5, -0.5)
        axes.set_xlim(*look.differences)
        axes.set_xlabel(f"{metric} minus plain, points")

    return Plot(
        _file_name("difference", where, look),
        f"Difference from plain: {where}",
        "Mean over seeds with the 95 % interval by Student's t, of one comparison."
        + " All tasks have the same axis." * (look.conditions > 1),
        drawn(WIDTH, MARGIN + LINE * len(values), paint, FORMATS),
        csv_text(["method", "difference", "low", "high"], values),
    )


def _training(runs: Iterable[Run], records: Records) -> Curve | None:
    """Task loss by step: mean over seeds, with the range."""
    losses = []
    for run in runs:
        record = records.read(run.cell)
        for entry in record.result.log_history if record and record.result else ():
            if (loss := entry.get("loss/task", entry.get("loss"))) is not None:
                losses.append((run.method, entry["step"], loss))
    series = {name: points for name, points in _means(losses).items() if len(points) > 1}
    if not series:
        return None
    return Curve("Task loss in training", "step", "task loss", series, band=RANGE)


def _of_sizes(runs: Iterable[Run], look: _Look) -> list[Plot]:
    """Score against the number of training examples, for tasks with several sizes."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(run.condition._replace(max_train_samples=None).title, []).append(run)
    plots = []
    for where, group in groups.items():
        scores = [
            (run.method, size, run.measures["score"])
            for run in group
            if (size := run.condition.max_train_samples) is not None
        ]
        if len({size for _, size, _ in scores}) > 1:
            label = metric_label(group[0].metric or "score")
            curve = Curve(where, "training examples", label, _means(scores), band=RANGE)
            title = "Score against training-set size"
            plots.append(_lines("sizes", title, where, curve, look))
    return plots


def _means(values: Iterable[tuple[str, float, float]]) -> dict[str, list[CurvePoint]]:
    """By method, the mean and the range of y at each x; values are of method, x and y."""
    samples: dict[str, dict[float, list[float]]] = {}
    for method, x, y in values:
        samples.setdefault(method, {}).setdefault(x, []).append(y)
    return {
        method: [mean_and_range(x, ys) for x, ys in sorted(by_x.items())]
        for method, by_x in samples.items()
    }


def _lines(kind: str, title: str, where: str, curve: Curve, look: _Look) -> Plot:
    """Lines of all methods, plain first."""
    by_method = {
        name: replace(curve, series={name: curve.series[name]})
        for name in sorted(curve.series, key=lambda name: name != PLAIN)
    }
    first, *others = by_method
    caption = f"Mean over seeds; shaded: {curve.band}."
    caption += f" Gray: {first}." * (len(others) >= MOST_LINES)
    files = draw_lines(by_method, Frame(look.styles), FORMATS)
    name = _file_name(kind, where, look)
    return Plot(name, f"{title}: {where}", caption, files, curve.to_csv())
