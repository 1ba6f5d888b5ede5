"""Plots of a study: each an SVG, a PDF and a PNG with its data as CSV."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from rich.console import Console

from smoothtune.console import tracked
from smoothtune.errors import printable
from smoothtune.report.curves import Curve, CurvePoint, csv_text, mean_and_range, metric_label
from smoothtune.report.page import Plot
from smoothtune.report.plots import GRAY, MOST_LINES, Frame, Style, draw_lines, drawn, styles
from smoothtune.report.tables import POINTS
from smoothtune.study.config import PLAIN
from smoothtune.study.records import Records
from smoothtune.study.report.aggregate import profile_curve
from smoothtune.study.report.comparison import (
    Condition,
    by_condition,
    condition_title,
    runs_by_condition,
)

Section = Condition | None
"""Where plots stand: at their condition, or at what is over all of them."""
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


def study_plots(
    runs: pd.DataFrame,
    comparisons: Sequence[Mapping[str, Any]],
    records: Records,
    console: Console,
) -> dict[Section, list[Plot]]:
    """All plots for which there are finished cells, by condition; the console shows the progress.

    Raises:
        PlotsMissing: matplotlib is not installed.
    """
    done = runs[runs["status"] == "done"]
    compared = by_condition(item for item in comparisons if item["against_plain"])
    names = sorted(runs["method"].unique(), key=lambda name: name != PLAIN)
    look = _Look(styles(names), _limits(comparisons))
    plots: dict[Section, list[Plot]] = {}
    with tracked(list(runs_by_condition(done).items()), "drawing", console) as conditions:
        for condition, group in conditions:
            where = condition_title(condition)
            plots[condition] = here = [_distribution(group, where, look)]
            if condition in compared:
                here.append(_differences(compared[condition], where, look))
            here.append(_costs(group, where, look))
            if training := _training(group, records):
                here.append(_lines("training", "Task loss in training", where, training, look))
    plots[None] = over = []
    for (task, model), group in done.groupby(["task", "model"], sort=False):
        where = condition_title((task, model, None))
        if sizes := _sizes(group, where):
            over.append(_lines("sizes", "Score against training-set size", where, sizes, look))
    if profile := profile_curve(runs):
        over.append(_lines("profiles", "Performance profiles", "all tasks", profile, look))
    return plots


def _limits(comparisons: Sequence[Mapping[str, Any]]) -> tuple[float, float]:
    """Of the axis of differences, in points, for all conditions."""
    effects = [item["against_plain"]["difference"] for item in comparisons if item["against_plain"]]
    values = [0.0, *(value for effect in effects for value in _bounds(effect))]
    low, high = POINTS * min(values), POINTS * max(values)
    pad = 0.05 * (high - low) or 1.0
    return low - pad, high + pad


def _bounds(effect: Mapping[str, Any]) -> tuple[float, float]:
    return effect["interval"] or (effect["value"], effect["value"])


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


def _differences(compared: Sequence[Mapping[str, Any]], where: str, look: _Look) -> Plot:
    """Difference from plain with its interval, for each method."""
    values = []
    for comparison in compared:
        effect = comparison["against_plain"]["difference"]
        values.append((comparison["method"], effect["value"], *_bounds(effect)))

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
        axes.set_xlabel(f"{compared[0]['metric']} minus plain, points")

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
