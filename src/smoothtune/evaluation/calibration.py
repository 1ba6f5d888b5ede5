"""Calibration of the probabilities that a model states.

Logits are (N, C) with class ids (N,), or (N, L) with whether a row has each of L labels (N, L).

Reference: Guo, Pleiss, Sun, Weinberger: On Calibration of Modern Neural Networks, ICML 2017
(temperature).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

import numpy as np
from datasets import Dataset
from numpy.typing import ArrayLike
from scipy.optimize import minimize_scalar
from scipy.special import expit, log_softmax
from sklearn.model_selection import train_test_split

from smoothtune.evaluation.conformal import set_numbers
from smoothtune.evaluation.reliability import (
    Pairs,
    binned,
    chance_errors,
    every_label,
    label_errors,
    predicted_class,
    reliability,
)
from smoothtune.report.curves import Curve, CurvePoint
from smoothtune.report.tables import Summary
from smoothtune.tasks.base import Task
from smoothtune.tasks.metrics import binary_cross_entropy, brier

LARGEST_LOG_TEMPERATURE = 5.0
FEWEST_ROWS = 4
"""To fit a temperature and to evaluate it."""
CHANCE_BOUND = 0.95
"""Share of the samples of labels, as a calibrated model has them, whose ECE is below the bound."""


def judged_error(task: Task, predictions: np.ndarray, rows: Dataset) -> float | None:
    """The ECE that a classifier is judged by, of several labels the mean over them.

    Args:
        task: None is returned for scores and answers.
        predictions: logits (N, C) or (N, L).
        rows: (N,) with their labels.
    """
    kind = kind_of(task)
    if kind not in (CLASSES, LABELS):
        return None
    labels = np.asarray(rows["labels"][:])
    if kind is CLASSES:
        return reliability(predictions, labels).expected_error
    return float(np.mean(label_errors(expit(np.asarray(predictions, np.float64)), labels)))


def error_of(numbers: Mapping[str, Any]) -> float:
    """`judged_error`, or that of answers, from the numbers of `calibration_report`."""
    error: float = numbers.get("mean_ece_of_labels", numbers["all_rows"]["ece"])
    return error


def fit_temperature(logits: ArrayLike, labels: ArrayLike) -> float:
    """T > 0 with the least NLL of softmax(logits / T); of several labels, of expit(logits / T).

    Predictions do not change. Where every prediction is right the NLL has no minimum: T ends at the
    bound exp(-5), and at exp(5) where the logits carry no information.

    Args:
        logits: (N, C) or (N, L).
        labels: class ids (N,), or whether a row has each label (N, L).
    """
    scores, gold = np.asarray(logits, np.float64), np.asarray(labels)
    nll, bound = (_class_nll if gold.ndim == 1 else binary_cross_entropy), LARGEST_LOG_TEMPERATURE
    minimum = minimize_scalar(
        lambda log_t: float(nll(scores / float(np.exp(log_t)), gold).mean()),
        bounds=(-bound, bound),
        method="bounded",
        options={"xatol": 1e-6},
    )
    return float(np.exp(minimum.x))


def split_for_temperature(labels: ArrayLike, *, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows to fit a temperature on, and rows to evaluate it on: two random halves.

    They are stratified by class where each class has two examples.

    Args:
        labels: class ids (N,), or several labels of a row (N, L), which stratify nothing.
        seed: of the split.

    Raises:
        ValueError: there are fewer than four examples.
    """
    gold = np.asarray(labels)
    if len(gold) < FEWEST_ROWS:
        raise ValueError(f"{len(gold)} examples are too few to fit and to evaluate a temperature")
    classes = gold if gold.ndim == 1 else np.zeros(len(gold))
    counts = np.unique(classes, return_counts=True)[1]
    stratify = classes if counts.min() >= 2 and len(counts) <= len(gold) // 2 else None
    fit, judge = train_test_split(
        np.arange(len(gold)), test_size=0.5, random_state=seed, stratify=stratify
    )
    return np.sort(fit), np.sort(judge)


def _class_nll(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """(N,) NLL of every row, in nats."""
    return -log_softmax(logits, axis=1)[np.arange(len(labels)), labels]


class Kind(NamedTuple):
    """What probabilities are stated of; the functions take predictions and labels."""

    pairs: Callable[[np.ndarray, np.ndarray], Pairs]
    nll: Callable[[np.ndarray, np.ndarray], np.ndarray] | None
    """(N,) or (N, L) in nats; None: predictions are no logits, so no temperature is fitted."""
    title: str
    x_label: str
    y_label: str


_CONFIDENCE = "confidence (mean of the bin)"
CLASSES = Kind(
    predicted_class, _class_nll, "reliability", _CONFIDENCE, "accuracy (share of the bin)"
)
LABELS = Kind(
    every_label,
    binary_cross_entropy,
    "reliability of labels",
    "probability of a label (mean of the bin)",
    "rows that have the label (share of the bin)",
)
ANSWERS = Kind(
    lambda confidence, correct: (confidence, correct),
    None,
    "reliability of answers",
    _CONFIDENCE,
    "exact matches (share of the bin)",
)


def kind_of(task: Task) -> Kind | None:
    """What the probabilities of a task are stated of; None: it predicts scores."""
    kinds = {"multi_label_classification": LABELS, "single_label_classification": CLASSES}
    type_ = task.head.problem_type
    return ANSWERS if type_ is None else kinds.get(type_)


def calibration_report(
    kind: Kind, predictions: np.ndarray, labels: np.ndarray, *, names: Sequence[str] = (), seed: int
) -> tuple[dict[str, Any], Curve]:
    """Calibration on all rows, and before and after a temperature fitted on half of them.

    With several labels a bin holds pairs of a row and a label, with the share that has the label in
    the place of the accuracy. Rare labels fill the lowest bin, so the error over all pairs is
    small; the errors by label, and their mean, are not.

    Args:
        kind: what the probabilities are stated of.
        predictions: logits (N, C) or (N, L); of `ANSWERS`, the probability of each answer (N,).
        labels: class ids (N,); whether a row has each label (N, L), or the answer is right (N,).
        names: (L,) of several labels.
        seed: of the halves.

    Returns:
        Numbers, and the reliability diagram: 15 bins of equal width with 95 % Wilson intervals.
        `ece_by_chance` is the ECE, or the mean over labels, that a calibrated model with the same
        probabilities has on so many rows: the mean over samples of labels, and the bound that 95 %
        of them do not exceed. From four rows on a temperature is fitted; `nll_change`, with a 95 %
        interval, `prediction_sets` and the scaled diagram are of the other half.
    """
    # all rows, and each label
    stated, right = kind.pairs(predictions, labels)
    numbers: dict[str, Any] = {"all_rows": _errors(kind, predictions, labels)}
    columns = [stated]
    if names:
        columns = [*expit(predictions).T]
        errors = label_errors(expit(predictions), labels)
        numbers["ece_by_label"] = dict(zip(names, errors, strict=True))
        numbers["mean_ece_of_labels"] = float(np.mean(errors))
    # what a calibrated model would show
    by_chance = np.mean([chance_errors(each, seed=i) for i, each in enumerate(columns)], axis=0)
    high, bins = float(np.quantile(by_chance, CHANCE_BOUND)), binned(stated, right)
    numbers |= {
        "ece_by_chance": {"mean": float(by_chance.mean()), "high": high},
        "mean_confidence": float(stated.mean()),
        "mean_correct": float(right.mean()),
        "bins": {name: values.tolist() for name, values in asdict(bins).items()},
    }
    lines = {"perfect": [CurvePoint(0, 0), CurvePoint(1, 1)], "as it is": bins.points()}
    # a temperature fitted on one half, judged on the other
    if kind.nll is not None and len(predictions) >= FEWEST_ROWS:
        fit, judge = split_for_temperature(labels, seed=seed)
        temperature = fit_temperature(predictions[fit], labels[fit])
        before, after, gold = predictions[judge], predictions[judge] / temperature, labels[judge]
        numbers |= {
            "temperature": temperature,
            "temperature_fitted_on": len(fit),
            "judged_on": len(judge),
            "judged_rows_before": _errors(kind, before, gold),
            "judged_rows_after": _errors(kind, after, gold),
            "nll_change": _mean_change(kind.nll(before, gold), kind.nll(after, gold)),
        }
        if kind is CLASSES:
            numbers["prediction_sets"] = set_numbers(predictions, labels, fit, judge)
        scaled = binned(*kind.pairs(after, gold)).points()
        lines[f"temperature {temperature:.2f}, other half"] = scaled
    curve = Curve(kind.title, kind.x_label, kind.y_label, lines, band="95 % Wilson interval")
    return numbers, curve


def _errors(kind: Kind, predictions: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """Brier, nll (nats, of logits), ece and mce (bins of equal width), ece_mass (equal mass)."""
    stated, right = kind.pairs(predictions, labels)
    width, mass = binned(stated, right), binned(stated, right, bins="mass")
    nll = {"nll": float(kind.nll(predictions, labels).mean()) + 0.0} if kind.nll else {}  # no -0.0
    return {
        "brier": brier(predictions, labels)
        if kind is CLASSES
        else float(((stated - right) ** 2).mean()),
        **nll,
        "ece": width.expected_error,
        "ece_mass": mass.expected_error,
        "mce": width.maximum_error,
    }


def _mean_change(before: np.ndarray, after: np.ndarray) -> dict[str, float | None]:
    """The mean change of two rows or more, (N,) or (N, L), with Student's 95 % interval."""
    old, new = (each.reshape(len(each), -1).mean(1) for each in (before, after))
    change = Summary.of(new - old).effect
    low, high = change.bounds
    return {"value": change.value, "low": low, "high": high}
