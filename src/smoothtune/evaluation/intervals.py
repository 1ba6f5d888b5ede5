"""Bootstrap intervals: how far a metric on a sample may be from that on all examples."""

import warnings
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import numpy as np
from datasets import Dataset
from numpy.typing import ArrayLike
from scipy.stats import DegenerateDataWarning, binomtest, bootstrap

from smoothtune.report.curves import SIGNED
from smoothtune.tasks.base import Task

Metrics = Callable[..., dict[str, float]]


class Interval(NamedTuple):
    """A confidence interval."""

    low: float
    high: float


def wilson(count: int, total: int) -> Interval:
    """95 % interval of a share, `count` of `total` (Wilson 1927)."""
    interval = binomtest(count, total).proportion_ci(method="wilson")
    return Interval(float(interval.low), float(interval.high))


def bootstrap_intervals(
    metrics: Metrics,
    *arrays: ArrayLike,
    confidence_level: float = 0.95,
    n_resamples: int = 1000,
    method: Literal["percentile", "bca"] = "percentile",
    seed: int = 0,
) -> dict[str, Interval]:
    """Intervals of all metrics from the same resamples of the examples.

    It covers the choice of the evaluated examples, not the seed of the training run. For a paired
    comparison let `metrics` return the difference of two models on the same rows.

    Args:
        metrics: arrays -> number by name.
        *arrays: each with one row for every example, (N, ...); resampled together.
        confidence_level: 0 to 1.
        n_resamples: number of resamples.
        method: "bca" corrects bias and skew and calls `metrics` N times more.
        seed: of the resampling.

    Returns:
        Interval by name; low = high where a metric is the same in every resample.

    Raises:
        ValueError: there are fewer than two examples.
    """
    columns = [np.asarray(array) for array in arrays]
    names = list(metrics(*columns))

    def values(rows: np.ndarray) -> np.ndarray:
        scores = metrics(*(column[rows.astype(int)] for column in columns))
        return np.array([scores[name] for name in names])

    if len(columns[0]) < 2:
        raise ValueError("a bootstrap interval needs at least two examples")
    with warnings.catch_warnings(), np.errstate(invalid="ignore"):
        warnings.simplefilter("ignore", DegenerateDataWarning)
        result = bootstrap(
            (np.arange(len(columns[0])),),
            values,
            vectorized=False,
            confidence_level=confidence_level,
            n_resamples=n_resamples,
            method=method,
            rng=np.random.default_rng(seed),
        )
    low, high = np.atleast_1d(result.confidence_interval.low, result.confidence_interval.high)
    point = values(np.arange(len(columns[0])))  # where all resamples agree, BCa has no value
    low, high = np.where(np.isnan(low), point, low), np.where(np.isnan(high), point, high)
    return dict(zip(names, map(Interval, low.tolist(), high.tolist()), strict=True))


def scores_with_intervals(
    task: Task, predictions: np.ndarray, rows: Dataset, *, num_resamples: int = 1000, seed: int = 0
) -> dict[str, Any]:
    """The task's metrics, and `roc_auc` for two classes, each with a 95 % bootstrap interval.

    Examples are resampled, so windows of one question stay together. All resamples of a metric that
    is 1, or 0, may agree: its interval is that of a share then, by Clopper and Pearson.

    Args:
        task: the task.
        predictions: (N, W) of `Predictor.predict`.
        rows: the rows, with labels.
        num_resamples: of the bootstrap.
        seed: of the resampling.

    Returns:
        `metrics`: value, low and high by name; `rows`; `trivial_baseline` of the main metric.
        With a single row low and high are None.
    """
    statistics = task.scorer.example_statistics(predictions, rows)
    measures = task.scorer.detailed_scores
    values = measures(statistics)
    intervals: dict[str, tuple[float | None, float | None]] = dict.fromkeys(values, (None, None))
    if len(statistics) > 1:
        intervals |= bootstrap_intervals(measures, statistics, n_resamples=num_resamples, seed=seed)
    for name, (low, high) in intervals.items():
        ends = (1,) if name in SIGNED else (0, 1)  # a correlation of 0 is not the end of a share
        if low is not None and low == high and low in ends and name not in task.scorer.losses:
            share = binomtest(int(low) * len(statistics), len(statistics))
            intervals[name] = Interval(*map(float, share.proportion_ci(method="exact")))
    return {
        "metrics": {
            name: {"value": value, "low": intervals[name][0], "high": intervals[name][1]}
            for name, value in values.items()
        },
        "rows": len(statistics),
        "trivial_baseline": task.scorer.baseline(rows),
    }
