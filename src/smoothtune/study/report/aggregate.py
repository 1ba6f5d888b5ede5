"""Scores over all tasks: interquartile means and performance profiles.

Reference: Agarwal et al., Deep Reinforcement Learning at the Edge of the Statistical Precipice,
NeurIPS 2021, whose library rliable has the same definitions. Scores of a method are a table of
tasks x seeds, normalized: 0 is the best constant answer of a task, 1 is perfect.

- IQM: mean of the middle half of all scores, the lowest and the highest quarter left out.
- Performance profile: share of scores above tau, for every tau; a mean over tasks.

Intervals are 95 % percentile bootstrap intervals, stratified: seeds are resampled within each task.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from smoothtune.report.curves import Curve, CurvePoint
from smoothtune.report.page import Table
from smoothtune.report.tables import Effect, effect_text
from smoothtune.study.report.methods import runs_by_condition
from smoothtune.study.report.statistics import SEED, percentiles

RESAMPLES = 2000
LEVELS = 101
"""Values of tau in a profile."""


@dataclass(frozen=True)
class Aggregate:
    """Normalized scores of a method over all tasks."""

    method: str
    tasks: int
    seeds: int
    iqm: Effect
    mean: Effect


def normalized_scores(runs: pd.DataFrame) -> dict[str, np.ndarray]:
    """(tasks, seeds) of each method, of the seeds that it has in every condition.

    Args:
        runs: of `table_of_runs`.
    """
    done = runs[runs["status"] == "done"]
    groups = [g for g in runs_by_condition(done).values() if (g["trivial_baseline"] < 1).all()]
    found: dict[str, np.ndarray] = {}
    for method in runs["method"].unique() if groups else ():
        columns = []
        for group in groups:
            own = group[group["method"] == method].set_index("seed")
            chance = own["trivial_baseline"].astype(float)
            columns.append((own["score"].astype(float) - chance) / (1 - chance))
        table = pd.concat(columns, axis=1, join="inner")
        if len(table):
            found[str(method)] = table.to_numpy().T
    return found


def interquartile_mean(scores: np.ndarray) -> Effect:
    """IQM of scores (tasks, seeds); one seed has no interval."""
    return _with_interval(scores, lambda x: stats.trim_mean(x.reshape(len(x), -1), 0.25, axis=1))


def _with_interval(scores: np.ndarray, statistic: Any) -> Effect:
    interval = None
    if scores.shape[1] > 1:
        interval = percentiles(statistic(_resampled(scores)))
    return Effect(float(statistic(scores[None])[0]), interval)


def _resampled(scores: np.ndarray) -> np.ndarray:
    """(resamples, tasks, seeds), seeds drawn within each task."""
    tasks, seeds = scores.shape
    drawn = np.random.default_rng(SEED).integers(seeds, size=(RESAMPLES, tasks, seeds))
    return np.take_along_axis(np.broadcast_to(scores, drawn.shape), drawn, axis=2)


def performance_profile(scores: np.ndarray, levels: Sequence[float]) -> list[CurvePoint]:
    """Share of scores (tasks, seeds) above each level, with its interval."""
    resampled = _resampled(scores) if scores.shape[1] > 1 else None
    points = []
    for level in levels:
        share = float((scores > level).mean())
        if resampled is None:
            points.append(CurvePoint(float(level), share))
            continue
        low, high = percentiles((resampled > level).mean((1, 2)))
        points.append(CurvePoint(float(level), share, low, high))
    return points


def aggregates(runs: pd.DataFrame) -> list[Aggregate]:
    """IQM and mean of every method with all conditions; empty for fewer than two conditions.

    Args:
        runs: of `table_of_runs`.
    """
    if len(runs_by_condition(runs)) < 2:
        return []
    return [
        Aggregate(
            method,
            tasks=scores.shape[0],
            seeds=scores.shape[1],
            iqm=interquartile_mean(scores),
            mean=_with_interval(scores, lambda x: x.mean((1, 2))),
        )
        for method, scores in normalized_scores(runs).items()
    ]


def aggregate_table(found: Sequence[Aggregate]) -> Table:
    """IQM and mean of normalized scores; the best IQM is bold."""
    rows = [
        [item.method, str(item.tasks), str(item.seeds)]
        + [effect_text(of, 1, ".3f") for of in (item.iqm, item.mean)]
        for item in found
    ]
    best = max((item.iqm.value for item in found), default=None)
    bold = {(y, 3) for y, item in enumerate(found) if item.iqm.value == best}
    head = ["method", "tasks", "seeds", "IQM of normalized scores", "mean of normalized scores"]
    return Table(head, rows, frozenset(bold))


def profile_curve(runs: pd.DataFrame) -> Curve | None:
    """Performance profiles of all methods; None for fewer than two conditions."""
    found = normalized_scores(runs)
    if len(runs_by_condition(runs)) < 2 or not found:
        return None
    everything = np.concatenate([scores.ravel() for scores in found.values()])
    low, high = (np.ceil(20 * everything.min()) - 1) / 20, np.ceil(20 * everything.max()) / 20
    levels = np.linspace(low, max(high, low + 0.05), LEVELS).tolist()
    return Curve(
        "Performance profiles",
        "normalized score tau (0: constant answer, 1: perfect)",
        "share of runs above tau",
        {name: performance_profile(scores, levels) for name, scores in found.items()},
        band="95 % interval of a stratified bootstrap",
    )
