"""Task metrics with their intervals, and calibration with a temperature."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from datasets import Dataset
from scipy.special import softmax
from scipy.stats import binomtest

from smoothtune.evaluation.bootstrap import bootstrap_intervals
from smoothtune.evaluation.calibration import (
    Reliability,
    binned,
    brier,
    fit_temperature,
    nll,
    reliability,
    split_for_temperature,
)
from smoothtune.evaluation.curves import Curve, Point
from smoothtune.tasks.base import Task
from smoothtune.tasks.presets import kind_of

NUM_BINS = 15


def scores_with_intervals(
    task: Task, predictions: np.ndarray, rows: Dataset, *, num_resamples: int = 1000, seed: int = 0
) -> dict[str, Any]:
    """The task's metrics, and `roc_auc` for two classes, each with a 95 % bootstrap interval.

    Examples are resampled, so windows of one question stay together.

    Args:
        task: the task.
        predictions: (N, W) of `Predictor.predict`.
        rows: the rows, with labels.
        num_resamples: of the bootstrap.
        seed: of the resampling.

    Returns:
        `metrics`: value, low and high by name; `rows`; `trivial_baseline` of the headline metric.
        With a single row low and high are None.
    """
    kind = kind_of(task)
    evidence = kind.evidence(task, predictions, rows)
    measures = partial(kind.detailed_scores, task)
    values = measures(evidence)
    intervals = {}
    if len(evidence) > 1:
        intervals = bootstrap_intervals(measures, evidence, n_resamples=num_resamples, seed=seed)
    return {
        "metrics": {
            name: {"value": value} | _bounds(intervals.get(name)) for name, value in values.items()
        },
        "rows": len(evidence),
        "trivial_baseline": kind.baseline(task, rows),
    }


def _bounds(interval: tuple[float, float] | None) -> dict[str, float | None]:
    low, high = interval or (None, None)
    return {"low": low, "high": high}


def calibration_report(
    logits: np.ndarray, labels: np.ndarray, *, seed: int
) -> tuple[dict[str, Any], Curve]:
    """Calibration on all rows, and before and after a temperature fitted on half of them.

    Args:
        logits: (N, C).
        labels: class ids, (N,).
        seed: of the split.

    Returns:
        Numbers, and the reliability diagram: the accuracy of 15 bins of equal width of confidence
        with 95 % Wilson intervals; after scaling, of the rows the temperature was not fitted on.
    """
    fit, judge = split_for_temperature(labels, seed=seed)
    temperature = fit_temperature(logits[fit], labels[fit])
    scaled = logits / temperature
    before = reliability(logits, labels, num_bins=NUM_BINS)
    after = reliability(scaled[judge], labels[judge], num_bins=NUM_BINS)
    numbers = {
        "all_rows": calibration_numbers(logits, labels),
        "mean_confidence": float(softmax(logits, axis=1).max(axis=1).mean()),
        "temperature": temperature,
        "temperature_fitted_on": len(fit),
        "judged_on": len(judge),
        "judged_rows_before": calibration_numbers(logits[judge], labels[judge]),
        "judged_rows_after": calibration_numbers(scaled[judge], labels[judge]),
    }
    curve = Curve(
        "reliability",
        "confidence (mean of the bin)",
        "accuracy (share of the bin)",
        {
            "perfect": [Point(0, 0), Point(1, 1)],
            "as it is": _points(before),
            f"temperature {temperature:.2f}, other half": _points(after),
        },
        band="95 % Wilson interval",
    )
    return numbers, curve


def calibration_numbers(logits: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """Brier (0 to 2), nll (nats), ece and mce (15 bins of equal width), ece_mass (equal mass)."""
    width = reliability(logits, labels, num_bins=NUM_BINS)
    mass = reliability(logits, labels, num_bins=NUM_BINS, bins="mass")
    return {
        "brier": brier(logits, labels),
        "nll": nll(logits, labels),
        "ece": width.expected_error,
        "ece_mass": mass.expected_error,
        "mce": width.maximum_error,
    }


def answer_calibration(confidence: np.ndarray, correct: np.ndarray) -> tuple[dict[str, Any], Curve]:
    """Calibration of the probability of the answer that was given; no temperature is fitted.

    Args:
        confidence: (E,) 0 to 1.
        correct: (E,) whether the answer is right.

    Returns:
        Numbers, and the reliability diagram.
    """
    bins = binned(confidence, correct, num_bins=NUM_BINS)
    mass = binned(confidence, correct, num_bins=NUM_BINS, bins="mass")
    numbers = {
        "all_rows": {
            "brier": float(((confidence - correct) ** 2).mean()),
            "ece": bins.expected_error,
            "ece_mass": mass.expected_error,
            "mce": bins.maximum_error,
        },
        "mean_confidence": float(confidence.mean()),
        "mean_correct": float(correct.mean()),
    }
    series = {"perfect": [Point(0, 0), Point(1, 1)], "as it is": _points(bins)}
    curve = Curve(
        "reliability of answers",
        "confidence (mean of the bin)",
        "exact matches (share of the bin)",
        series,
        band="95 % Wilson interval",
    )
    return numbers, curve


def _points(bins: Reliability) -> list[Point]:
    points = []
    for confidence, accuracy, count in zip(bins.confidence, bins.accuracy, bins.count, strict=True):
        right = round(accuracy * count)
        interval = binomtest(right, int(count)).proportion_ci(method="wilson")
        points.append(
            Point(float(confidence), float(accuracy), float(interval.low), float(interval.high))
        )
    return points
