"""Confidence and accuracy in bins, and the expected calibration error.

Confidence is the probability of the predicted class; of several labels, that of every label. Bins
are open below and closed above; bins without examples are left out.

Reference: Guo, Pleiss, Sun, Weinberger: On Calibration of Modern Neural Networks, ICML 2017 (ECE,
MCE); Nguyen, O'Connor, EMNLP 2015 (bins of equal mass). ECE by chance: consistency
resampling of Broecker, Smith: Increasing the Reliability of Reliability Diagrams, Weather and
Forecasting 22, 2007, as a test of calibration in Vaicenavicius et al.: Evaluating model calibration
in classification, AISTATS 2019; here the stated probabilities are kept as they are.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import expit, softmax

from smoothtune.evaluation.intervals import wilson
from smoothtune.report.curves import CurvePoint

Bins = Literal["width", "mass"]
Pairs = tuple[np.ndarray, np.ndarray]
"""(M,) stated probabilities, and (M,) whether it is so."""

NUM_BINS = 15
CHANCE_DRAWS = 1000  # samples of labels that a calibrated model is judged on


@dataclass(frozen=True)
class Reliability:
    """What a reliability diagram shows: one entry for every bin that has examples."""

    confidence: np.ndarray
    """Mean confidence, 0 to 1."""
    accuracy: np.ndarray
    """Share of right predictions, 0 to 1."""
    count: np.ndarray
    """Examples."""

    @property
    def expected_error(self) -> float:
        """ECE, sum_bins count/N |accuracy - confidence|, 0 to 1."""
        gaps = np.abs(self.accuracy - self.confidence)
        return float((gaps * self.count).sum() / self.count.sum())

    @property
    def maximum_error(self) -> float:
        """MCE, max_bins |accuracy - confidence|, 0 to 1."""
        return float(np.abs(self.accuracy - self.confidence).max())

    def points(self) -> list[CurvePoint]:
        """Accuracy against confidence, with 95 % Wilson intervals."""
        columns = (self.confidence.tolist(), self.accuracy.tolist(), self.count.tolist())
        return [
            CurvePoint(confidence, accuracy, *wilson(round(accuracy * count), count))
            for confidence, accuracy, count in zip(*columns, strict=True)
        ]


def reliability(
    logits: ArrayLike, labels: ArrayLike, *, num_bins: int = 15, bins: Bins = "width"
) -> Reliability:
    """Accuracy against confidence.

    Args:
        logits: (N, C).
        labels: class ids, (N,).
        num_bins: number of bins.
        bins: "width": equal intervals of [0, 1]; "mass": between equidistant quantiles of the
            confidence, so that all hold equally many examples unless confidences are equal.

    Returns:
        The bins that have examples, by rising confidence.

    Raises:
        ValueError: there are no examples, or the number of bins is not positive.
    """
    return binned(*predicted_class(logits, labels), num_bins=num_bins, bins=bins)


def binned(
    confidence: np.ndarray, correct: np.ndarray, *, num_bins: int = NUM_BINS, bins: Bins = "width"
) -> Reliability:
    """`reliability` from the confidence (N,) of each answer and whether it is right (N,)."""
    if not len(confidence) or num_bins < 1:
        raise ValueError(f"{len(confidence)} examples cannot be put into {num_bins} bins")
    shares = np.linspace(0, 1, num_bins + 1)
    edges = shares if bins == "width" else np.percentile(confidence, 100 * shares)
    index = np.searchsorted(edges[1:-1], confidence)
    count = np.bincount(index, minlength=num_bins)
    used = count > 0
    means = [
        np.bincount(index, values, num_bins)[used] / count[used] for values in (confidence, correct)
    ]
    return Reliability(means[0], means[1], count[used])


def label_errors(probabilities: np.ndarray, gold: np.ndarray) -> list[float]:
    """(L,) ECE of each label, of probabilities (N, L) and of whether rows have it (N, L)."""
    return [
        binned(*columns).expected_error for columns in zip(probabilities.T, gold.T, strict=True)
    ]


def chance_errors(confidence: np.ndarray, *, seed: int = 0) -> np.ndarray:
    """ECE of a calibrated model, by chance: every answer is right with its stated probability.

    Args:
        confidence: (N,) probability that an answer is right, 0 to 1.
        seed: of the samples of which answers are right.

    Returns:
        (1000,) ECE with 15 bins of equal width, one of each sample.
    """
    draws = np.random.default_rng(seed)
    index = np.searchsorted(np.linspace(0, 1, NUM_BINS + 1)[1:-1], confidence)
    stated = np.bincount(index, confidence, NUM_BINS)
    right = (
        np.bincount(index, draws.random(len(confidence)) < confidence, NUM_BINS)
        for _ in range(CHANCE_DRAWS)
    )
    return np.array([np.abs(count - stated).sum() for count in right]) / len(confidence)


def predicted_class(logits: ArrayLike, labels: ArrayLike) -> Pairs:
    """The confidence of each prediction, and whether it is right."""
    probabilities = softmax(np.asarray(logits, np.float64), axis=1)
    correct = probabilities.argmax(axis=1) == np.asarray(labels)
    return probabilities.max(axis=1, initial=0), correct


def every_label(logits: np.ndarray, gold: np.ndarray) -> Pairs:
    """The probability of every label of a row, and whether the row has it."""
    return expit(logits).ravel(), gold.ravel()
