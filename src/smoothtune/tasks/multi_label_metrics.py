"""Metrics of several labels of an example, by scikit-learn under its names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from scipy.special import expit
from sklearn.metrics import accuracy_score, average_precision_score, f1_score

METRICS: dict[str, Callable[..., float]] = {
    "f1_micro": partial(f1_score, average="micro", zero_division=0.0),
    "f1_macro": partial(f1_score, average="macro", zero_division=0.0),
    "accuracy": accuracy_score,
}
"""Of gold and predicted labels (N, L), 0 or 1; accuracy is the share of rows that are right as a
whole."""


def multi_label_scores(
    names: Sequence[str], logits: np.ndarray, gold: np.ndarray
) -> dict[str, float]:
    """Metrics of the labels whose probability is above 0.5, and of the probabilities.

    Args:
        names: of `METRICS`, the main one first.
        logits: (N, L).
        gold: (N, L), 0 or 1.

    Returns:
        Value by name, with `brier`, the mean of (p - y)^2 over rows and labels, 0 to 1, and `nll`,
        the mean binary cross entropy in nats, from 0, which is the loss of the training.

    Raises:
        ValueError: there are no rows, the shapes differ, or a logit is not finite.
    """
    if not len(gold) or logits.shape != gold.shape:
        raise ValueError(
            f"logits of shape {logits.shape} do not fit labels of shape {gold.shape}, which must "
            "have at least one row"
        )
    if not np.isfinite(logits).all():
        row = np.flatnonzero(~np.isfinite(logits).all(axis=1))[0]
        raise ValueError(f"the prediction for example {row} is not finite: {logits[row]}")
    found = {name: float(METRICS[name](gold, logits > 0)) for name in names}
    brier = float(np.square(expit(logits) - gold).mean())
    return found | {"brier": brier, "nll": float(cross_entropy(logits, gold).mean())}


def cross_entropy(logits: np.ndarray, gold: np.ndarray) -> np.ndarray:
    """(N, L) binary cross entropy in nats of each label."""
    return np.logaddexp(0, logits) - gold * logits


def average_precision(logits: np.ndarray, gold: np.ndarray) -> float:
    """Average precision over all pairs of a row and a label, 0 to 1; 0 where no row has one."""
    if not gold.any():
        return 0.0
    return float(average_precision_score(gold, logits, average="micro"))


def best_constant(name: str, gold: np.ndarray) -> float:
    """The metric of the best set of labels that is predicted for every row.

    That is the k most frequent labels for one k, where labels count by themselves (F1), and the
    most frequent set of a row for accuracy.

    Args:
        name: of `METRICS`.
        gold: (N, L), 0 or 1.
    """
    order = np.argsort(-gold.sum(axis=0), kind="stable")
    sets = [np.isin(np.arange(len(order)), order[:k]) for k in range(len(order) + 1)]
    rows, counts = np.unique(gold, axis=0, return_counts=True)
    sets.append(rows[counts.argmax()])
    constants = (np.tile(each, (len(gold), 1)) > 0 for each in sets)
    return max(float(METRICS[name](gold, constant)) for constant in constants)
