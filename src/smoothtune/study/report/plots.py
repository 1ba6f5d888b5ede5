"""Plots of a study: each an SVG with its data as CSV."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from smoothtune.errors import printable
from smoothtune.report.curves import Curve, CurvePoint, csv_text, mean_and_range, metric_label
from smoothtune.report.page import Plot
from smoothtune.report.plots import COLORS, MARKERS, draw, plot
from smoothtune.study.config import PLAIN
from smoothtune.study.records import Records
from smoothtune.study.report.comparison import (
    by_condition,
    condition_title,
    runs_by_condition,
)

POINT = ["method", "seed", "score"]
POINTS = 100  # a difference of 0.01 is one point
WIDTH, LINE, MARGIN = 6.4, 0.32, 1.1  # inches: width, height of a method, height of the rest


def study_plots(
    runs: pd.DataFrame, comparisons: Sequence[Mapping[str, Any]], records: Records
) -> list[Plot]:
    """All plots for which there are finished cells.

    Raises:
        PlotsMissing: matplotlib is not installed.
    """
    done = runs[runs["status"] == "done"]
    compared = by_condition(item for item in comparisons if item["against_plain"])
    plots: list[Plot] = []
    for condition, group in runs_by_condition(done).items():
        where, metric = condition_title(condition), metric_label(group["metric"].iloc[0])
        plots.append(_distribution(group, where, metric))
        if condition in compared:
            plots.append(_differences(compared[condition], where))
        plots.append(_costs(group, where, metric))
        if training := _training(group, records):
            plots.append(_lines("training", "Task loss in training", where, training))
    for (task, model), group in done.groupby(["task", "model"], sort=False):
        where = condition_title((task, model, None))
        if sizes := _sizes(group, where):
            plots.append(_lines("sizes", "Score against training-set size", where, sizes))
    return plots


def _file_name(kind: str, where: str) -> str:
    text = "-".join([kind, *where.split(", ")])
    return "".join(letter if letter.isalnum() or letter in "-_" else "_" for letter in text)


def _distribution(runs: pd.DataFrame, where: str, metric: str) -> Plot:
    """A box and every point for each method."""
    scores = runs.groupby("method", sort=False)["score"].agg(list).to_dict()

    def paint(axes: Any) -> None:
        axes.boxplot(
            list(scores.values()),
            orientation="horizontal",
            showfliers=False,
            medianprops={"color": COLORS[1]},
            tick_labels=[printable(name) for name in scores],
        )
        jitter = np.random.default_rng(0)
        for number, values in enumerate(scores.values(), start=1):
            heights = number + jitter.uniform(-0.15, 0.15, len(values))
            axes.plot(values, heights, "o", color=COLORS[0], markersize=4, alpha=0.7)
        axes.invert_yaxis()
        axes.set_xlabel(metric)

    return Plot(
        _file_name("distribution", where),
        f"Scores of all seeds: {where}",
        "Every point is a seed; box: quartiles; line: median; whiskers: 1.5 times the box at most.",
        plot(WIDTH, MARGIN + LINE * len(scores), paint),
        csv_text(POINT, runs[POINT].itertuples(index=False)),
    )


def _differences(compared: Sequence[Mapping[str, Any]], where: str) -> Plot:
    """Difference from plain with its interval, for each method."""
    values = []
    for comparison in compared:
        effect = comparison["against_plain"]["difference"]
        low, high = effect["interval"] or (effect["value"], effect["value"])
        values.append((comparison["method"], effect["value"], low, high))

    def paint(axes: Any) -> None:
        for number, (_, value, low, high) in enumerate(values):
            line = [POINTS * low, POINTS * high]
            axes.plot(line, [number, number], color=COLORS[0], linewidth=2)
            axes.plot(POINTS * value, number, "o", color=COLORS[0], markersize=6)
        axes.axvline(0, color="#888888", linewidth=1)
        axes.set_yticks(range(len(values)), [printable(value[0]) for value in values])
        axes.set_ylim(len(values) - 0.5, -0.5)
        axes.set_xlabel(f"{compared[0]['metric']} minus plain, points")

    return Plot(
        _file_name("difference", where),
        f"Difference from plain: {where}",
        "Mean over seeds with its 95 % bootstrap interval.",
        plot(WIDTH, MARGIN + LINE * len(values), paint),
        csv_text(["method", "difference", "low", "high"], values),
    )


def _costs(runs: pd.DataFrame, where: str, metric: str) -> Plot:
    """Score against training time."""
    values = [
        (method, float(np.median(own["train_seconds"])), float(np.mean(own["score"].tolist())))
        for method, own in runs.groupby("method", sort=False)
    ]

    def paint(axes: Any) -> None:
        for number, (name, seconds, score) in enumerate(values):
            color, marker = COLORS[number % len(COLORS)], MARKERS[number // len(COLORS)]
            axes.plot(seconds, score, marker, color=color, linestyle="none", label=printable(name))
        axes.set_xlabel("training time, seconds (median)")
        axes.set_ylabel(metric)
        axes.set_xlim(left=0)
        axes.legend(fontsize="x-small", loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)

    return Plot(
        _file_name("cost", where),
        f"Score against cost: {where}",
        "Mean score over seeds. Times are comparable where all cells ran on one kind of machine.",
        plot(WIDTH, max(3.4, MARGIN + 0.2 * len(values)), paint),
        csv_text(["method", "train_seconds", "score"], values),
    )


def _training(runs: pd.DataFrame, records: Records) -> Curve | None:
    """Task loss by step: mean over seeds, with the range."""
    series: dict[str, list[CurvePoint]] = {}
    for method, own in runs.groupby("method", sort=False):
        losses: dict[int, list[float]] = {}
        for cell in own["cell"]:
            for entry in (records.read(cell) or {})["result"]["log_history"]:
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


def _lines(kind: str, title: str, where: str, curve: Curve) -> Plot:
    """Lines of all methods over one pair of axes, plain first."""
    by_method = {
        name: replace(curve, series={name: curve.series[name]})
        for name in sorted(curve.series, key=lambda name: name != PLAIN)
    }
    return Plot(
        _file_name(kind, where),
        f"{title}: {where}",
        f"Mean over seeds; shaded: {curve.band}.",
        draw(by_method),
        curve.to_csv(),
    )
