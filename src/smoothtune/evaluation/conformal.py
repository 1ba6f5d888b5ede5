"""Sets of classes that hold the right one with a chosen probability: split conformal prediction.

A threshold is set on n held-out rows: the ceil((n + 1) * coverage)-th smallest of their scores
1 - p, where p is the probability of the right class. The set of a new row holds every class whose
score is not above it. If the new row is exchangeable with the n rows, the right class is in its set
with a probability of `coverage` at least, on average over rows and thresholds; of one class, or one
kind of text, it may be less. A set always holds the predicted class, which can only add coverage.

References: Vovk, Gammerman, Shafer: Algorithmic Learning in a Random World, 2005; Angelopoulos,
Bates: A Gentle Introduction to Conformal Prediction, arXiv 2107.07511, 2021, section 1; Sadinle,
Lei, Wasserman: Least Ambiguous Set-Valued Classifiers With Bounded Error Levels, JASA 2019.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import softmax

from smoothtune.evaluation.intervals import wilson

COVERAGES = (0.8, 0.9, 0.95)
"""Those that an evaluation measures, as far as the rows suffice."""


def conformal_scores(logits: ArrayLike, labels: ArrayLike) -> np.ndarray:
    """(N,) 1 - probability of the right class, rising.

    Args:
        logits: (N, C).
        labels: class ids, (N,).
    """
    gold = np.asarray(labels, int)
    return np.sort(1 - softmax(np.asarray(logits, np.float64), axis=1)[np.arange(len(gold)), gold])


def rows_needed(coverage: float) -> int:
    """Rows from which on a set can leave a class out.

    >>> rows_needed(0.9), rows_needed(0.95)
    (9, 19)
    """
    return math.ceil(coverage / (1 - coverage) - 1e-9)


def conformal_threshold(scores: Sequence[float] | np.ndarray, coverage: float) -> float:
    """The largest score of a class that is in a set.

    Args:
        scores: (n,) of `conformal_scores`.
        coverage: probability that a set holds the right class, in (0, 1).

    Raises:
        ValueError: there are fewer than `rows_needed` scores.
    """
    rank = math.ceil((len(scores) + 1) * coverage - 1e-9)
    if rank > len(scores):
        raise ValueError(
            f"a coverage of {coverage:g} needs {rows_needed(coverage)} held-out rows, not "
            f"{len(scores)}"
        )
    return float(scores[max(rank, 1) - 1])


def prediction_sets(logits: ArrayLike, threshold: float) -> np.ndarray:
    """(N, C) whether each class is in the set of a row.

    Args:
        logits: (N, C).
        threshold: of `conformal_threshold`.
    """
    probabilities = softmax(np.asarray(logits, np.float64), axis=1)
    sets: np.ndarray = 1 - probabilities <= threshold
    sets[np.arange(len(sets)), probabilities.argmax(axis=1)] = True
    return sets


def set_numbers(
    logits: np.ndarray, labels: np.ndarray, fit: np.ndarray, judge: np.ndarray
) -> dict[str, dict[str, float]]:
    """How sets do on rows that did not set their threshold.

    Returns:
        By coverage: `threshold`, `coverage` that was measured with the ends of its 95 % Wilson
        interval, and `mean_size`, classes of a set.
    """
    scores, numbers = conformal_scores(logits[fit], labels[fit]), {}
    for coverage in COVERAGES:
        if len(fit) < rows_needed(coverage):
            continue
        threshold = conformal_threshold(scores, coverage)
        sets = prediction_sets(logits[judge], threshold)
        covered = int(sets[np.arange(len(judge)), labels[judge]].sum())
        numbers[f"{coverage:g}"] = {
            "threshold": threshold,
            "coverage": covered / len(judge),
            **wilson(covered, len(judge))._asdict(),
            "mean_size": float(sets.sum(1).mean()),
        }
    return numbers
