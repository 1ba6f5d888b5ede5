"""Plots of a study: each an SVG, a PDF and a PNG with its data as CSV."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd
from rich.console import Console

from smoothtune.console import tracked
from smoothtune.errors import printable
from smoothtune.report.curves import Curve, CurvePoint, csv_text, mean_and_range, metric_label
from smoothtune.report.page import Plot
from smoothtune.report.plots import GRAY, MOST_LINES, Frame, Style, draw_lines, drawn, styles
from smoothtune.report.tables import POINTS, Effect
from smoothtune.study.comparison import Comparison, ConditionKey
from smoothtune.study.config import PLAIN
from smoothtune.study.records import Records
from smoothtune.study.report.aggregate import profile_curve
from smoothtune.study.report.content import StudyContent
from smoothtune.study.report.methods import MethodResult, by_condition, runs_by_condition

POINT = ["method", "seed", "score"]
FORMATS = ("svg", "pdf", "png")
WIDTH, LINE, MARGIN = 6.4, 0.32, 1.1  # inches: width, height of a method, height of the rest


@dataclass(frozen=True)
class _Look:
    """What the plots of a study share."""

    styles: Mapping[str, Style]
    """By method, plain first."""
    differences: tuple[float, float]
    """Limits of all differences, in points."""


@dataclass(frozen=True)
class Plots:
    """The plots of a study."""

    first: Plot | None = None
    """Differences from plain over all conditions, or under the only one."""
    by_condition: Mapping[ConditionKey | None, list[Plot]] = field(default_factory=dict)
    """The others; those over all conditions under None."""

    def of(self, condition: ConditionKey | None) -> list[Plot]:
        """The plots of a condition."""
        return self.by_condition.get(condition, [])

    @property
    def all(self) -> list[Plot]:
        """Every plot."""
        first = [self.first] if self.first else []
        return [*first, *(plot for plots in self.by_condition.values() for plot in plots)]


def study_plots(
    runs: pd.DataFrame, content: StudyContent, records: Records, console: Console
) -> Plots:
    """All plots for which there are finished cells, by condition; the console shows the progress.

    Raises:
        PlotsMissing: matplotlib is not installed.
    """
    done = runs[runs["status"] == "done"]
    groups = by_condition(content.methods)
    names = sorted(runs["method"].unique(), key=lambda name: name != PLAIN)
    look = _Look(styles(names), _limits([*content.over_tasks, *_compared(content.methods)]))
    plots: dict[ConditionKey | None, list[Plot]] = {}
    first = None
    with tracked(list(runs_by_condition(done).items()), "drawing", console) as conditions:
        for condition, group in conditions:
            where, compared = condition.title, _compared(groups[condition])
            plots[condition] = here = [_distribution(group, where, look)]
            if compared:
                differences = _differences(compared, group["metric"].iloc[0], where, look)
                if len(groups) == 1:
                    first = differences
                else:
                    here.append(differences)
            here.append(_costs(group, where, look))
            if training := _training(group, records):
                here.append(_lines("training", "Task loss in training", where, training, look))
    plots[None] = over = []
    if content.over_tasks:
        first = _differences(content.over_tasks, "score", "all tasks", look)
    for (task, model), group in done.groupby(["task", "model"], sort=False):
        where = ConditionKey(task, model, None).title
        if sizes := _sizes(group, where):
            over.append(_lines("sizes", "Score against training-set size", where, sizes, look))
    if profile := profile_curve(runs):
        over.append(_lines("profiles", "Performance profiles", "all tasks", profile, look))
    return Plots(first, plots)


def _compared(methods: Iterable[MethodResult]) -> list[Comparison]:
    return [item.against_plain for item in methods if item.against_plain]


def _limits(compared: Sequence[Comparison]) -> tuple[float, float]:
    """Of the axis of differences, in points, for all conditions."""
    values = [0.0, *(value for item in compared for value in _bounds(item.difference))]
    low, high = POINTS * min(values), POINTS * max(values)
    pad = 0.05 * (high - low) or 1.0
    return low - pad, high + pad


def _bounds(effect: Effect) -> tuple[float, float]:
    return effect.interval or (effect.value, effect.value)


def _plot(
    kind: str, title: str, where: str, caption: str, files: Mapping[str, bytes], numbers: str
) -> Plot:
    text = "-".join([kind, *where.split(", ")])
    name = "".join(letter if letter.isalnum() or letter in "-_" else "_" for letter in text)
    others = {ending: file for ending, file in files.items() if ending != "svg"}
    svg = files["svg"].decode()
    return Plot(name, f"{title}: {where}", caption, svg, numbers, files=others)


def _distribution(runs: pd.DataFrame, where: str, look: _Look) -> Plot:
    """A box and every point for each method."""
    scores = runs.groupby("method", sort=False)["score"].agg(list).to_dict()
    chance = float(runs["trivial_baseline"].max())

    def paint(figure: Any) -> None:
        axes = figure.subplots()
        axes.boxplot(
            list(scores.values()),
            orientation="horizontal",
            showfliers=False,
            medianprops={"color": "#000000"},
            tick_labels=[printable(name) for name in scores],
        )
        jitter = np.random.default_rng(0)
        for number, (name, values) in enumerate(scores.items(), start=1):
            heights = number + jitter.uniform(-0.15, 0.15, len(values))
            own = look.styles[name]
            axes.plot(values, heights, own.marker, color=own.color, markersize=4, alpha=0.8)
        if chance >= axes.get_xlim()[0]:
            axes.axvline(chance, color=GRAY, linestyle=":")
        axes.invert_yaxis()
        axes.set_xlabel(metric_label(runs["metric"].iloc[0]))

    return _plot(
        "distribution",
        "Scores of all seeds",
        where,
        "Every point is a seed; box: quartiles; line: median; whiskers: 1.5 times the box at most. "
        f"The best constant answer has {chance:.3f}.",
        drawn(WIDTH, MARGIN + LINE * len(scores), paint, FORMATS),
        csv_text(POINT, runs[POINT].itertuples(index=False)),
    )


def _differences(compared: Sequence[Comparison], metric: str, where: str, look: _Look) -> Plot:
    """Difference from plain with its interval, for each method."""
    values = [(item.method, item.difference.value, *_bounds(item.difference)) for item in compared]

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

    return _plot(
        "difference",
        "Difference from plain",
        where,
        "Mean over seeds with the 95 % interval of the test that decides, of one comparison. All "
        "tasks have the same axis.",
        drawn(WIDTH, MARGIN + LINE * len(values), paint, FORMATS),
        csv_text(["method", "difference", "low", "high"], values),
    )


def _costs(runs: pd.DataFrame, where: str, look: _Look) -> Plot:
    """Score against training time."""
    values = [
        (str(method), float(np.median(own["train_seconds"])), float(np.mean(own["score"].tolist())))
        for method, own in runs.groupby("method", sort=False)
    ]

    def paint(figure: Any) -> None:
        axes = figure.subplots()
        for name, seconds, score in values:
            own = look.styles[name]
            label = printable(name)
            axes.plot(seconds, score, own.marker, color=own.color, linestyle="none", label=label)
        axes.set_xlabel("training time, seconds (median)")
        axes.set_ylabel(metric_label(runs["metric"].iloc[0]))
        axes.set_xlim(left=0)
        axes.legend(fontsize="x-small", loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)

    return _plot(
        "cost",
        "Score against cost",
        where,
        "Mean score over seeds. Times are comparable where all runs were on one kind of machine.",
        drawn(WIDTH, max(3.4, MARGIN + 0.2 * len(values)), paint, FORMATS),
        csv_text(["method", "train_seconds", "score"], values),
    )


def _training(runs: pd.DataFrame, records: Records) -> Curve | None:
    """Task loss by step: mean over seeds, with the range."""
    series: dict[str, list[CurvePoint]] = {}
    for method, own in runs.groupby("method", sort=False):
        losses: dict[int, list[float]] = {}
        for cell in own["cell"]:
            record = records.read(cell)
            for entry in record.result.log_history if record and record.result else ():
                if (loss := entry.get("loss/task", entry.get("loss"))) is not None:
                    losses.setdefault(entry["step"], []).append(loss)
        if len(losses) > 1:
            series[str(method)] = [
                mean_and_range(step, loss) for step, loss in sorted(losses.items())
            ]
    if not series:
        return None
    return Curve("Task loss in training", "step", "task loss", series, band="range over seeds")


def _sizes(runs: pd.DataFrame, where: str) -> Curve | None:
    """Score against the number of training examples, for a task with several sizes."""
    sized = runs[runs["max_train_samples"].notna()]
    if sized["max_train_samples"].nunique() < 2:
        return None
    series = {
        str(method): [
            mean_and_range(size, scores.tolist())
            for size, scores in own.groupby("max_train_samples")["score"]
        ]
        for method, own in sized.groupby("method", sort=False)
    }
    label = metric_label(runs["metric"].iloc[0])
    return Curve(where, "training examples", label, series, band="range over seeds")


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
    return _plot(kind, title, where, caption, files, curve.to_csv())
