"""Plots of a study: each an SVG with its data as CSV."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from smoothtune.report.curves import Curve, Point, metric_label
from smoothtune.report.plots import COLORS, LINE, MARGIN, MARKERS, csv_text, draw, plot
from smoothtune.study.config import PLAIN
from smoothtune.study.records import Records
from smoothtune.study.report.comparison import Row, condition_of

POINTS = 100  # a difference of 0.01 is one point


@dataclass(frozen=True)
class Figure:
    """A plot with what it shows."""

    name: str
    """Of its files, without ending."""
    title: str
    caption: str
    svg: str
    data: str
    """CSV."""


def figures(
    rows: Sequence[Row], comparisons: Sequence[Mapping[str, Any]], records: Records
) -> list[Figure]:
    """All plots for which there are finished cells.

    Raises:
        PlotsMissing: matplotlib is not installed.
    """
    done = [row for row in rows if row.status == "done"]
    conditions = list(dict.fromkeys(row.condition for row in done))
    found: list[Figure] = []
    for condition in conditions:
        mine = [row for row in done if row.condition == condition]
        compared = [c for c in comparisons if condition_of(c) == condition and c["against_plain"]]
        found.append(_distribution(mine))
        if compared:
            found.append(_differences(compared))
        found.append(_costs(mine))
        if curve := _training(mine, records):
            found.append(_curve("training", curve, condition))
    for curve in _sizes(done):
        found.append(_curve("sizes", curve, (curve.title, "", None)))
    return found


def condition_title(condition: tuple[str, str, int | None]) -> str:
    """A condition in words: ``sst2, minilm, 1000 examples``."""
    task, model, size = condition
    return ", ".join([task, model, *([f"{size} examples"] if size else [])])


def _name(kind: str, condition: tuple[str, str, int | None]) -> str:
    text = "-".join([kind, *condition_title(condition).split(", ")])
    return "".join(letter if letter.isalnum() or letter in "-_" else "_" for letter in text)


def _by_method(rows: Sequence[Row]) -> dict[str, list[Row]]:
    methods = dict.fromkeys(row.method for row in rows)
    return {name: [row for row in rows if row.method == name] for name in methods}


def _distribution(rows: Sequence[Row]) -> Figure:
    """A box and every point for each method."""
    groups = _by_method(rows)

    def paint(axes: Any) -> None:
        scores = [[row.score for row in group] for group in groups.values()]
        axes.boxplot(
            scores,
            orientation="horizontal",
            showfliers=False,
            medianprops={"color": COLORS[1]},
            tick_labels=list(groups),
        )
        draws = np.random.default_rng(0)
        for number, values in enumerate(scores, start=1):
            heights = number + draws.uniform(-0.15, 0.15, len(values))
            axes.plot(values, heights, "o", color=COLORS[0], markersize=4, alpha=0.7)
        axes.invert_yaxis()
        axes.set_xlabel(metric_label(rows[0].metric or ""))

    condition = rows[0].condition
    return Figure(
        _name("distribution", condition),
        f"Scores of all seeds: {condition_title(condition)}",
        "Every point is a seed; box: quartiles; line: median; whiskers: 1.5 times the box at most.",
        plot(MARGIN + LINE * len(groups), paint),
        csv_text(["method", "seed", "score"], [(r.method, r.seed, r.score) for r in rows]),
    )


def _differences(compared: Sequence[Mapping[str, Any]]) -> Figure:
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
        axes.set_yticks(range(len(values)), [value[0] for value in values])
        axes.set_ylim(len(values) - 0.5, -0.5)
        axes.set_xlabel(f"{compared[0]['metric']} minus plain, points")

    condition = condition_of(compared[0])
    return Figure(
        _name("difference", condition),
        f"Difference from plain: {condition_title(condition)}",
        "Mean over seeds with its 95 % bootstrap interval.",
        plot(MARGIN + LINE * len(values), paint),
        csv_text(["method", "difference", "low", "high"], values),
    )


def _costs(rows: Sequence[Row]) -> Figure:
    """Score against training time."""
    values = [
        (
            name,
            float(np.median([row.train_seconds or 0.0 for row in group])),
            float(np.mean([row.score for row in group if row.score is not None])),
        )
        for name, group in _by_method(rows).items()
    ]

    def paint(axes: Any) -> None:
        for number, (name, seconds, score) in enumerate(values):
            color, marker = COLORS[number % len(COLORS)], MARKERS[number // len(COLORS)]
            axes.plot(seconds, score, marker, color=color, linestyle="none", label=name)
        axes.set_xlabel("training time, seconds (median)")
        axes.set_ylabel(metric_label(rows[0].metric or ""))
        axes.set_xlim(left=0)
        axes.legend(fontsize="x-small", loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)

    condition = rows[0].condition
    return Figure(
        _name("cost", condition),
        f"Score against cost: {condition_title(condition)}",
        "Mean score over seeds. Times are comparable where all cells ran on one kind of machine.",
        plot(max(3.4, MARGIN + 0.2 * len(values)), paint),
        csv_text(["method", "train_seconds", "score"], values),
    )


def _training(rows: Sequence[Row], records: Records) -> Curve | None:
    """Task loss by step: mean over seeds, with the range."""
    series: dict[str, list[Point]] = {}
    for method, group in _by_method(rows).items():
        losses: dict[int, list[float]] = {}
        for row in group:
            history = (records.read(row.cell) or {})["result"]["log_history"]
            for entry in history:
                if (loss := entry.get("loss/task", entry.get("loss"))) is not None:
                    losses.setdefault(entry["step"], []).append(loss)
        points = [
            Point(step, float(np.mean(found)), min(found), max(found))
            for step, found in sorted(losses.items())
        ]
        if len(points) > 1:
            series[method] = points
    if not series:
        return None
    return Curve("Task loss in training", "step", "task loss", series, band="range over seeds")


def _sizes(done: Sequence[Row]) -> list[Curve]:
    """Score against the number of training examples, for tasks with several sizes."""
    curves = []
    for task, model in dict.fromkeys((row.task, row.model) for row in done):
        mine = [row for row in done if (row.task, row.model) == (task, model)]
        sizes = sorted({row.max_train_samples for row in mine if row.max_train_samples})
        if len(sizes) < 2:
            continue
        series = {}
        for method, group in _by_method(mine).items():
            found = {s: [r.score or 0.0 for r in group if r.max_train_samples == s] for s in sizes}
            series[method] = [
                Point(size, float(np.mean(v)), min(v), max(v)) for size, v in found.items() if v
            ]
        label = metric_label(mine[0].metric or "")
        title = condition_title((task, model, None))
        curves.append(Curve(title, "training examples", label, series, band="range over seeds"))
    return curves


def _curve(kind: str, curve: Curve, condition: tuple[str, str, int | None]) -> Figure:
    """Lines of all methods over one pair of axes, plain first."""
    order = sorted(curve.series, key=lambda name: name != PLAIN)
    by_method = {
        name: Curve(
            curve.title, curve.x_label, curve.y_label, {name: curve.series[name]}, curve.band
        )
        for name in order
    }
    titles = {"training": "Task loss in training", "sizes": "Score against training-set size"}
    where = curve.title if kind == "sizes" else condition_title(condition)
    return Figure(
        _name(kind, condition),
        f"{titles[kind]}: {where}",
        f"Mean over seeds; shaded: {curve.band}.",
        draw(by_method),
        curve.to_csv(),
    )
