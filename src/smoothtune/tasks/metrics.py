"""Metrics of a task on arrays, computed by scikit-learn and SciPy under scikit-learn's names."""

import warnings
from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import log_softmax
from scipy.stats import ConstantInputWarning, NearConstantInputWarning, pearsonr, spearmanr
from sklearn.metrics import (
    accuracy_score,
    brier_score_loss,
    f1_score,
    matthews_corrcoef,
    roc_auc_score,
)

from smoothtune.tasks.base import Task


def compute_metrics(task: Task, predictions: ArrayLike, labels: ArrayLike) -> dict[str, float]:
    """The task's metrics of predictions and, for classes, `brier` and `nll`.

    Ranges: accuracy and f1 (of class 1 when there are two classes, else the unweighted mean over
    classes) 0 to 1; matthews_correlation, pearson and spearman -1 to 1; brier 0 to 2, and nll, in
    nats, from 0: see the functions of these names.

    Correlations with a constant, or of fewer than two examples, are undefined; they count as 0.0.

    Args:
        task: the task.
        predictions: logits, (N, C), for classification; scores, (N,) or (N, 1), for regression.
        labels: class ids or scores, (N,).

    Returns:
        Value by metric, the main metric first.

    Raises:
        ValueError: there are no examples, the shapes do not fit the task, or a prediction is not
            finite.
    """
    predicted, gold = np.asarray(predictions, np.float64), np.asarray(labels)
    if task.regression and predicted.ndim == 2 and predicted.shape[1] == 1:
        predicted = predicted[:, 0]
    shape = (len(gold),) if task.regression else (len(gold), task.num_labels)
    if not len(gold) or predicted.shape != shape:
        raise ValueError(
            f"predictions of task {task.name!r} must have shape {shape} with at least one row, not "
            f"{predicted.shape}"
        )
    if not np.isfinite(predicted).all():
        row = np.flatnonzero(~np.isfinite(predicted).reshape(len(gold), -1).all(axis=1))[0]
        raise ValueError(f"the prediction for example {row} is not finite: {predicted[row]}")
    if task.regression:
        return {name: _correlation(name, gold, predicted) for name in task.metrics}
    classes = predicted.argmax(axis=1)
    average = "binary" if task.num_labels == 2 else "macro"
    measures: dict[str, Callable[..., float]] = {
        "accuracy": accuracy_score,
        "f1": partial(f1_score, average=average, zero_division=0.0),
        "matthews_correlation": matthews_corrcoef,
    }
    scores = {name: float(measures[name](gold, classes)) for name in task.metrics}
    return scores | {"brier": brier(predicted, gold), "nll": nll(predicted, gold)}


def trivial_baseline(task: Task, labels: ArrayLike) -> float:
    """The main metric of always predicting the most frequent label.

    Args:
        task: the task.
        labels: class ids or scores, (N,), of the evaluated examples; for accuracy this is then the
            best constant prediction.

    Returns:
        The metric; 0 for correlations, including matthews_correlation.
    """
    gold = np.asarray(labels)
    if task.regression:
        constant = np.zeros(len(gold))
    else:
        majority = np.bincount(gold, minlength=task.num_labels).argmax()
        constant = np.tile(np.eye(task.num_labels)[majority], (len(gold), 1))
    return compute_metrics(task, constant, gold)[task.main_metric]


def roc_auc(logits: np.ndarray, labels: np.ndarray) -> float:
    """Probability that an example of class 1 scores above one of class 0; 0.5 with a single class.

    Args:
        logits: (N, 2).
        labels: (N,).
    """
    if len(np.unique(labels)) < 2:
        return 0.5
    return float(roc_auc_score(labels, logits[:, 1] - logits[:, 0]))


def brier(logits: ArrayLike, labels: ArrayLike) -> float:
    """Mean over examples of sum_c (1[y = c] - p_c)^2, as Brier (1950) defined it, 0 to 2.

    For two classes this is twice the usual binary Brier score.
    """
    probabilities = np.exp(log_softmax(np.asarray(logits, np.float64), axis=1))
    classes = np.arange(probabilities.shape[1])
    return float(brier_score_loss(labels, probabilities, labels=classes, scale_by_half=False))


def nll(logits: ArrayLike, labels: ArrayLike) -> float:
    """Mean negative log-likelihood in nats, from 0."""
    gold = np.asarray(labels)
    likelihoods = log_softmax(np.asarray(logits, np.float64), axis=1)[np.arange(len(gold)), gold]
    return abs(float(likelihoods.mean()))  # abs: never -0.0


_CORRELATIONS = {"pearson": pearsonr, "spearman": spearmanr}


def _correlation(name: str, gold: np.ndarray, predicted: np.ndarray) -> float:
    if len(gold) < 2:
        return 0.0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConstantInputWarning)
        warnings.simplefilter("ignore", NearConstantInputWarning)
        value = _CORRELATIONS[name](gold, predicted).statistic
    return 0.0 if np.isnan(value) else float(value)
