"""Calibration of a classifier's probabilities.

All functions take logits (N, C), of which log-probabilities are one kind, and class ids (N,).
Confidence is the probability of the predicted class. Bins are open below and closed above; bins
without examples are left out.

Reference: Guo, Pleiss, Sun, Weinberger: On Calibration of Modern Neural Networks, ICML 2017 (ECE,
MCE, temperature); Nguyen, O'Connor, EMNLP 2015 (bins of equal mass). ECE by chance: consistency
resampling of Broecker, Smith: Increasing the Reliability of Reliability Diagrams, Weather and
Forecasting 22, 2007, as a test of calibration in Vaicenavicius et al.: Evaluating model calibration
in classification, AISTATS 2019; here the stated probabilities are kept as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import minimize_scalar
from scipy.special import expit, log_softmax, softmax
from scipy.stats import binomtest, sem, t
from sklearn.model_selection import train_test_split

from smoothtune.report.curves import Curve, CurvePoint
from smoothtune.tasks.metrics import binary_cross_entropy, brier, nll

Bins = Literal["width", "mass"]

NUM_BINS = 15
LARGEST_LOG_TEMPERATURE = 5.0
CHANCE_DRAWS, CHANCE_BOUND = 1000, 0.95
"""Samples of labels that a calibrated model is judged on, and the share of them below the bound."""


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
    return binned(*_answers(logits, labels), num_bins=num_bins, bins=bins)


def _answers(logits: ArrayLike, labels: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    """(N,) the confidence of each prediction, and (N,) whether it is right."""
    probabilities = softmax(np.asarray(logits, np.float64), axis=1)
    correct = probabilities.argmax(axis=1) == np.asarray(labels)
    return probabilities.max(axis=1, initial=0), correct


def binned(
    confidence: np.ndarray, correct: np.ndarray, *, num_bins: int = 15, bins: Bins = "width"
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


def chance_errors(
    confidence: np.ndarray, *, num_draws: int = CHANCE_DRAWS, seed: int = 0
) -> np.ndarray:
    """ECE of a calibrated model, by chance: every answer is right with its stated probability.

    Args:
        confidence: (N,) probability that an answer is right, 0 to 1.
        num_draws: samples of which answers are right.
        seed: of the samples.

    Returns:
        (num_draws,) ECE with 15 bins of equal width.
    """
    draws = np.random.default_rng(seed)
    index = np.searchsorted(np.linspace(0, 1, NUM_BINS + 1)[1:-1], confidence)
    stated = np.bincount(index, confidence, NUM_BINS)
    right = (
        np.bincount(index, draws.random(len(confidence)) < confidence, NUM_BINS)
        for _ in range(num_draws)
    )
    return np.array([np.abs(count - stated).sum() for count in right]) / len(confidence)


def _by_chance(errors: np.ndarray) -> dict[str, float]:
    """The mean of `chance_errors`, and the bound that 95 % of them do not exceed."""
    return {"mean": float(errors.mean()), "high": float(np.quantile(errors, CHANCE_BOUND))}


def fit_temperature(logits: ArrayLike, labels: ArrayLike) -> float:
    """T > 0 with the least NLL of softmax(logits / T).

    Predictions do not change. Where every prediction is right the NLL has no minimum: T ends at the
    bound exp(-5), and at exp(5) where the logits carry no information.
    """
    scores = np.asarray(logits, np.float64)
    return _best_temperature(lambda temperature: nll(scores / temperature, labels))


def _best_temperature(loss: Callable[[float], float]) -> float:
    bound = LARGEST_LOG_TEMPERATURE
    minimum = minimize_scalar(
        lambda log_t: loss(float(np.exp(log_t))),
        bounds=(-bound, bound),
        method="bounded",
        options={"xatol": 1e-6},
    )
    return float(np.exp(minimum.x))


def split_for_temperature(labels: ArrayLike, *, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows to fit a temperature on, and rows to evaluate it on: two random halves.

    They are stratified by class where each class has two examples.

    Raises:
        ValueError: there are fewer than four examples.
    """
    gold = np.asarray(labels)
    if len(gold) < 4:
        raise ValueError(f"{len(gold)} examples are too few to fit and to evaluate a temperature")
    counts = np.unique(gold, return_counts=True)[1]
    stratify = gold if counts.min() >= 2 and len(counts) <= len(gold) // 2 else None
    fit, judge = train_test_split(
        np.arange(len(gold)), test_size=0.5, random_state=seed, stratify=stratify
    )
    return np.sort(fit), np.sort(judge)


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
        `ece_by_chance` is the ECE that a calibrated model with the same confidences has on so many
        rows: the mean over samples of labels, and the bound that 95 % of them do not exceed.
        `nll_change` is what the temperature changes in the NLL of the rows it was not fitted on,
        with a 95 % interval.
    """
    fit, judge = split_for_temperature(labels, seed=seed)
    temperature = fit_temperature(logits[fit], labels[fit])
    scaled = logits / temperature
    numbers = {
        "all_rows": calibration_numbers(logits, labels),
        "ece_by_chance": _by_chance(chance_errors(_answers(logits, labels)[0])),
        "mean_confidence": float(softmax(logits, axis=1).max(axis=1).mean()),
        "temperature": temperature,
        "temperature_fitted_on": len(fit),
        "judged_on": len(judge),
        "judged_rows_before": calibration_numbers(logits[judge], labels[judge]),
        "judged_rows_after": calibration_numbers(scaled[judge], labels[judge]),
        "nll_change": _mean_change(
            _row_nll(scaled[judge], labels[judge]) - _row_nll(logits[judge], labels[judge])
        ),
        "bins": _bins(*_answers(logits, labels)),
    }
    series = {
        "as it is": _answers(logits, labels),
        f"temperature {temperature:.2f}, other half": _answers(scaled[judge], labels[judge]),
    }
    return numbers, _diagram("reliability", "accuracy (share of the bin)", series)


def _row_nll(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """(N,) NLL of every row, in nats."""
    return -log_softmax(logits, axis=1)[np.arange(len(labels)), labels]


def _mean_change(changes: np.ndarray) -> dict[str, float]:
    """The mean of changes (N,), two rows or more, with the ends of Student's 95 % interval."""
    mean, half = changes.mean(), t.ppf(0.975, len(changes) - 1) * sem(changes)
    return {"value": float(mean), "low": float(mean - half), "high": float(mean + half)}


def calibration_numbers(logits: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """Brier (0 to 2), nll (nats), ece and mce (15 bins of equal width), ece_mass (equal mass)."""
    errors = _errors(*_answers(logits, labels))
    return {"brier": brier(logits, labels), "nll": nll(logits, labels)} | errors


def answer_calibration(confidence: np.ndarray, correct: np.ndarray) -> tuple[dict[str, Any], Curve]:
    """Calibration of the probability of the answer that was given; no temperature is fitted.

    Args:
        confidence: (E,) 0 to 1.
        correct: (E,) whether the answer is right.

    Returns:
        Numbers, and the reliability diagram.
    """
    squared = float(((confidence - correct) ** 2).mean())
    numbers = {
        "all_rows": {"brier": squared} | _errors(confidence, correct),
        "ece_by_chance": _by_chance(chance_errors(confidence)),
        "mean_confidence": float(confidence.mean()),
        "mean_correct": float(correct.mean()),
        "bins": _bins(confidence, correct),
    }
    series = {"as it is": (confidence, correct)}
    return numbers, _diagram("reliability of answers", "exact matches (share of the bin)", series)


def label_calibration(
    logits: np.ndarray, gold: np.ndarray, names: Sequence[str], *, seed: int
) -> tuple[dict[str, Any], Curve]:
    """Calibration of the probabilities of several labels, and one temperature for all of them.

    A bin holds pairs of a row and a label; its share of pairs where the row has the label stands
    in the place of the accuracy. Rare labels fill the lowest bin, so the error over all pairs is
    small; the errors by label, and their mean, are not.

    Args:
        logits: (N, L).
        gold: (N, L) whether the row has the label.
        names: (L,) of the labels.
        seed: of the halves of the rows on which the temperature is fitted and judged.

    Returns:
        Numbers, and the reliability diagram of all pairs; after scaling, of the rows the
        temperature was not fitted on. With fewer than four rows none is fitted. `ece_by_chance` is
        that of `calibration_report`, of the mean over labels.
    """
    pairs = expit(logits).ravel(), gold.ravel()
    by_label = dict(zip(names, label_errors(expit(logits), gold), strict=True))
    by_chance = np.mean(
        [chance_errors(column, seed=label) for label, column in enumerate(expit(logits).T)], axis=0
    )
    numbers = {
        "all_rows": _label_numbers(logits, gold),
        "ece_by_label": by_label,
        "mean_ece_of_labels": float(np.mean(list(by_label.values()))),
        "ece_by_chance": _by_chance(by_chance),
        "mean_confidence": float(pairs[0].mean()),
        "mean_correct": float(gold.mean()),
        "bins": _bins(*pairs),
    }
    series = {"as it is": pairs}
    if len(logits) >= 4:
        fit, judge = split_for_temperature(np.zeros(len(logits)), seed=seed)
        temperature = _best_temperature(
            lambda by: float(binary_cross_entropy(logits[fit] / by, gold[fit]).mean())
        )
        scaled = logits[judge] / temperature
        numbers |= {
            "temperature": temperature,
            "temperature_fitted_on": len(fit),
            "judged_on": len(judge),
            "judged_rows_before": _label_numbers(logits[judge], gold[judge]),
            "judged_rows_after": _label_numbers(scaled, gold[judge]),
            "nll_change": _mean_change(
                binary_cross_entropy(scaled, gold[judge]).reshape(len(judge), -1).mean(1)
                - binary_cross_entropy(logits[judge], gold[judge]).reshape(len(judge), -1).mean(1)
            ),
        }
        after = expit(scaled).ravel(), gold[judge].ravel()
        series[f"temperature {temperature:.2f}, other half"] = after
    return numbers, _diagram(
        "reliability of labels",
        "rows that have the label (share of the bin)",
        series,
        "probability of a label (mean of the bin)",
    )


def label_errors(probabilities: np.ndarray, gold: np.ndarray) -> list[float]:
    """(L,) ECE of each label, of probabilities (N, L) and of whether rows have it (N, L)."""
    return [
        binned(*columns, num_bins=NUM_BINS).expected_error
        for columns in zip(probabilities.T, gold.T, strict=True)
    ]


def _label_numbers(logits: np.ndarray, gold: np.ndarray) -> dict[str, float]:
    """As `calibration_numbers`, of pairs of a row and a label; brier 0 to 1."""
    chances = expit(logits)
    numbers = {
        "brier": float(((chances - gold) ** 2).mean()),
        "nll": float(binary_cross_entropy(logits, gold).mean()),
    }
    return numbers | _errors(chances.ravel(), gold.ravel())


def _bins(confidence: np.ndarray, correct: np.ndarray) -> dict[str, list[float]]:
    """The bins of equal width, from which several models' diagrams can be put together."""
    found = binned(confidence, correct, num_bins=NUM_BINS)
    return {
        "confidence": found.confidence.tolist(),
        "accuracy": found.accuracy.tolist(),
        "count": found.count.tolist(),
    }


def _errors(confidence: np.ndarray, correct: np.ndarray) -> dict[str, float]:
    width = binned(confidence, correct, num_bins=NUM_BINS)
    mass = binned(confidence, correct, num_bins=NUM_BINS, bins="mass")
    return {
        "ece": width.expected_error,
        "ece_mass": mass.expected_error,
        "mce": width.maximum_error,
    }


def _diagram(
    title: str,
    y_label: str,
    answers: dict[str, tuple[np.ndarray, np.ndarray]],
    x_label: str = "confidence (mean of the bin)",
) -> Curve:
    """A reliability diagram; `answers` are confidences and whether they are right, by line."""
    lines = {name: _points(binned(*pair, num_bins=NUM_BINS)) for name, pair in answers.items()}
    return Curve(
        title,
        x_label,
        y_label,
        {"perfect": [CurvePoint(0, 0), CurvePoint(1, 1)]} | lines,
        band="95 % Wilson interval",
    )


def _points(bins: Reliability) -> list[CurvePoint]:
    points = []
    for confidence, accuracy, count in zip(bins.confidence, bins.accuracy, bins.count, strict=True):
        right = round(accuracy * count)
        interval = binomtest(right, int(count)).proportion_ci(method="wilson")
        points.append(
            CurvePoint(
                float(confidence), float(accuracy), float(interval.low), float(interval.high)
            )
        )
    return points
