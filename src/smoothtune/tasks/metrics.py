"""Metrics on arrays, computed by scikit-learn and SciPy under scikit-learn's names.

Ranges: accuracies and F1 0 to 1; matthews_correlation, pearson and spearman -1 to 1; nll, in nats,
from 0; brier as its function says.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import expit, log_softmax
from scipy.stats import ConstantInputWarning, NearConstantInputWarning, pearsonr, spearmanr
from sklearn.metrics import (
    accuracy_score,
    average_precision_score,
    brier_score_loss,
    f1_score,
    matthews_corrcoef,
    roc_auc_score,
)


def _class_f1(gold: np.ndarray, classes: np.ndarray, num_classes: int) -> float:
    """F1 of class 1 where there are two classes, else the unweighted mean over classes."""
    average = "binary" if num_classes == 2 else "macro"
    return float(f1_score(gold, classes, average=average, zero_division=0.0))


Measure = Callable[[np.ndarray, np.ndarray, int], float]
"""Of gold and predicted classes (N,), and the number of classes."""
CLASS_METRICS: dict[str, Measure] = {
    "accuracy": lambda gold, classes, _: accuracy_score(gold, classes),
    "f1": _class_f1,
    "matthews_correlation": lambda gold, classes, _: matthews_corrcoef(gold, classes),
}
LABEL_METRICS: dict[str, Callable[[np.ndarray, np.ndarray], float]] = {
    "f1_micro": lambda gold, labels: f1_score(gold, labels, average="micro", zero_division=0.0),
    "f1_macro": lambda gold, labels: f1_score(gold, labels, average="macro", zero_division=0.0),
    "accuracy": accuracy_score,
}
"""Of gold and predicted labels (N, L), 0 or 1; accuracy is the share of rows that are right as a
whole."""
CORRELATIONS = {"pearson": pearsonr, "spearman": spearmanr}


def class_scores(
    measures: Mapping[str, Measure], logits: ArrayLike, labels: ArrayLike, num_classes: int
) -> dict[str, float]:
    """Metrics of the most likely classes, then `brier` and `nll` of their probabilities.

    From logits (N, C) and class ids (N,).

    Raises:
        ValueError: there are no rows, the shapes differ, or a logit is not finite.
    """
    gold = np.asarray(labels)
    scores = _checked(logits, (len(gold), num_classes))
    classes = scores.argmax(axis=1)
    values = {name: float(of(gold, classes, num_classes)) for name, of in measures.items()}
    return values | {"brier": brier(scores, gold), "nll": nll(scores, gold)}


def correlations(
    names: Sequence[str], predictions: ArrayLike, labels: ArrayLike
) -> dict[str, float]:
    """Correlations of scores; with a constant, or of fewer than two rows, they count as 0.

    Of predictions (N, 1) with labels (N,). Raises ValueError as `class_scores`.
    """
    gold = np.asarray(labels)
    predicted = _checked(predictions, (len(gold), 1))[:, 0]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConstantInputWarning)
        warnings.simplefilter("ignore", NearConstantInputWarning)
        enough = len(gold) > 1
        values = {
            name: float(CORRELATIONS[name](gold, predicted).statistic) if enough else 0.0
            for name in names
        }
    return {name: 0.0 if np.isnan(value) else value for name, value in values.items()}


def label_scores(names: Sequence[str], logits: np.ndarray, gold: np.ndarray) -> dict[str, float]:
    """Metrics of the labels whose probability is above 0.5, and of the probabilities.

    From logits and gold (N, L), 0 or 1: the `LABEL_METRICS` of these names; `brier`, the mean of
    (p - y)^2 over rows and labels, 0 to 1; and `nll`, the mean binary cross entropy in nats, from
    0, which is the loss of the training. Raises ValueError as `class_scores`.
    """
    scores = _checked(logits, gold.shape)
    values = {name: float(LABEL_METRICS[name](gold, scores > 0)) for name in names}
    squared = float(np.square(expit(scores) - gold).mean())
    return values | {"brier": squared, "nll": float(binary_cross_entropy(scores, gold).mean())}


def _checked(predictions: ArrayLike, shape: tuple[int, ...]) -> np.ndarray:
    predicted = np.asarray(predictions, np.float64)
    if not shape[0] or predicted.shape != shape:
        raise ValueError(
            f"predictions must have shape {shape} with at least one row, not {predicted.shape}"
        )
    if not np.isfinite(predicted).all():
        row = np.flatnonzero(~np.isfinite(predicted).all(axis=1))[0]
        raise ValueError(f"the prediction for example {row} is not finite: {predicted[row]}")
    return predicted


def best_label_set(name: str, gold: np.ndarray) -> float:
    """The metric of the best set of labels that is predicted for every row.

    That is the k most frequent labels for one k for `f1_micro`, all labels for `f1_macro`, and the
    most frequent set of a row for `accuracy`. `gold` is (N, L), 0 or 1.
    """
    rows, counts = len(gold), np.sort(gold.sum(axis=0))[::-1]
    if name == "accuracy":
        return float(np.unique(gold, axis=0, return_counts=True)[1].max() / rows)
    if name == "f1_macro":
        return float((2 * counts / (rows + counts)).mean())
    predicted = rows * np.arange(1, len(counts) + 1)
    return float((2 * counts.cumsum() / (predicted + counts.sum())).max())


def roc_auc(logits: np.ndarray, labels: np.ndarray) -> float:
    """Probability that an example of class 1 scores above one of class 0; 0.5 with a single class.

    Of logits (N, 2) with labels (N,).
    """
    if len(np.unique(labels)) < 2:
        return 0.5
    return float(roc_auc_score(labels, logits[:, 1] - logits[:, 0]))


def average_precision(logits: np.ndarray, gold: np.ndarray) -> float:
    """Average precision over all pairs of a row and a label, 0 to 1; 0 where no row has one."""
    if not gold.any():
        return 0.0
    return float(average_precision_score(gold, logits, average="micro"))


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


def binary_cross_entropy(logits: np.ndarray, gold: np.ndarray) -> np.ndarray:
    """(N, L) binary cross entropy in nats of each label."""
    return np.logaddexp(0, logits) - gold * logits
