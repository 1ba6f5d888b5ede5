"""Tests and intervals for scores of seeds; every test goes by its name.

`a` and `b` are scores of two methods, (N,) each, of the same seeds in the same order, so that they
are paired: a seed decides the training rows, their order and the initial head of both. p-values
are two-sided. The 95 % interval of a difference belongs to the test that decides: it holds the
differences that this test would not reject. Ratios of variances and probabilities have percentile
bootstrap intervals over seeds, which are too narrow with few seeds.

References: Student, Biometrika 1908; Welch, Biometrika 1947; Wilcoxon, Biometrics Bulletin 1945;
Hodges, Lehmann, Annals of Mathematical Statistics 1963; Hartigan, JASA 1969 (intervals of the
permutation test from means of subsets); Holm, Scandinavian Journal of Statistics 1979; Brown,
Forsythe, JASA 1974 (Levene's test with medians); Agarwal et al., Deep Reinforcement Learning at the
Edge of the Statistical Precipice, NeurIPS 2021 (probability of improvement).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats

from smoothtune.evaluation.intervals import Interval
from smoothtune.report.tables import Effect

RESAMPLES, SEED = 10_000, 0
LEVEL = 0.05
ENOUGH_SEEDS = 5
"""With fewer, no method is said to be better or worse than plain, whatever p is."""
NAMES = {
    "welch": "Welch t-test",
    "paired t": "paired t-test",
    "wilcoxon": "Wilcoxon signed-rank test, exact",
    "permutation": "paired permutation test of the mean difference",
}
"""Tests of equal scores, by the short name that study files use."""


@dataclass(frozen=True)
class Summary:
    """Scores of some seeds."""

    n: int
    mean: float
    sd: float | None
    """N - 1 in the denominator; None for one seed."""
    median: float
    max: float


def summary(scores: ArrayLike) -> Summary:
    """Of scores (N,)."""
    x = np.asarray(scores, np.float64)
    sd = float(x.std(ddof=1)) if len(x) > 1 else None
    return Summary(len(x), float(x.mean()), sd, float(np.median(x)), float(x.max()))


class TrainingTime(NamedTuple):
    """Training time of a run, and where it ran, if the run names it."""

    seconds: float
    device: str | None


def time_ratio(pairs: Iterable[tuple[TrainingTime, TrainingTime]]) -> float | None:
    """Median of the ratios of training times; None without any.

    Runs on different kinds of device are not compared; those that do not name theirs only with
    each other.

    Args:
        pairs: a run with a method, and one of plain fine-tuning.
    """
    ratios = [ours.seconds / plain.seconds for ours, plain in pairs if ours.device == plain.device]
    return float(np.median(ratios)) if ratios else None


def p_values(a: ArrayLike, b: ArrayLike) -> dict[str, float | None]:
    """p-value of every test of `NAMES`; None where it is not defined.

    With N seeds, the Wilcoxon and the permutation test cannot go below 2 / 2^N, which is 0.0625 for
    five: they reject nothing at 5 %. Up to 13 seeds all permutations are taken, then `RESAMPLES`.

    Args:
        a: scores, (N,).
        b: scores of the same seeds, (N,).
    """
    return {name: p_value(a, b, name) for name in NAMES}


def p_value(a: ArrayLike, b: ArrayLike, test: str) -> float | None:
    """p-value of one test of `NAMES`, as `p_values`."""
    x, y = np.asarray(a, np.float64), np.asarray(b, np.float64)
    if len(x) < 2:
        return None
    gaps = x - y
    match test:
        case "welch":
            constant = bool(np.ptp(x) == 0 and np.ptp(y) == 0)
            welch = stats.ttest_ind
            return _p_value(lambda: welch(x, y, equal_var=False).pvalue, constant=constant)
        case "paired t":
            constant = bool(np.ptp(gaps) == 0)
            return _p_value(lambda: stats.ttest_rel(x, y).pvalue, constant=constant)
        case "wilcoxon":
            return _wilcoxon(gaps)
        case "permutation":
            return _permutation(gaps)
    raise ValueError(f"no test {test!r}")


def _p_value(test: Callable[[], float], *, constant: bool) -> float | None:
    """A p-value; None where there is no variance to judge by."""
    if constant:
        return None
    with warnings.catch_warnings():  # nearly equal scores: imprecise, and far from significance
        warnings.simplefilter("ignore", RuntimeWarning)
        value = float(test())
    return value if np.isfinite(value) else None


def _wilcoxon(gaps: np.ndarray) -> float:
    """Pairs without a difference are left out, as Wilcoxon did."""
    nonzero = gaps[gaps != 0]
    if not len(nonzero):
        return 1.0
    tied = len(np.unique(np.abs(nonzero))) < len(nonzero)
    if tied:  # the exact table knows no ties: take the permutation distribution of the rank sum
        ranks = stats.rankdata(np.abs(nonzero)) * np.sign(nonzero)
        return _permutation(ranks)
    return float(stats.wilcoxon(nonzero, method="exact").pvalue)


def _permutation(gaps: np.ndarray) -> float:
    result = stats.permutation_test(
        (gaps, np.zeros_like(gaps)),
        lambda x, y, axis: np.mean(x - y, axis=axis),
        permutation_type="samples",
        vectorized=True,
        n_resamples=RESAMPLES,
        rng=np.random.default_rng(SEED),
    )
    return float(result.pvalue)


def holm(values: Sequence[float | None]) -> list[float | None]:
    """p-values corrected for their number (Holm 1979); None stays None and counts for nothing.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    known = sorted((p, place) for place, p in enumerate(values) if p is not None)
    corrected: list[float | None] = [None] * len(values)
    least = 0.0
    for rank, (p, place) in enumerate(known):
        least = max(least, min(1.0, p * (len(known) - rank)))
        corrected[place] = round(least, 15)
    return corrected


def mean_difference(a: ArrayLike, b: ArrayLike, test: str = "paired t") -> Effect:
    """Mean of a - b, with the 95 % interval that belongs to a paired test.

    The interval is None where the test cannot reject anything: for one seed, and for fewer than six
    by Wilcoxon's and by the permutation test.

    Args:
        a: scores, (N,).
        b: scores of the same seeds, (N,).
        test: "paired t", "wilcoxon" (whose interval supposes symmetric differences) or
            "permutation".
    """
    gaps = np.asarray(a, np.float64) - np.asarray(b, np.float64)
    interval = INTERVALS[test](gaps) if len(gaps) > 1 else None
    return Effect(float(gaps.mean()), interval)


def _student(gaps: np.ndarray) -> Interval:
    mean, count = gaps.mean(), len(gaps)
    half = stats.t.ppf(1 - LEVEL / 2, count - 1) * gaps.std(ddof=1) / np.sqrt(count)
    return Interval(float(mean - half), float(mean + half))


def _walsh(gaps: np.ndarray) -> Interval | None:
    """Of Wilcoxon's test: from the ordered means of all pairs, each with itself too."""
    count = len(gaps)
    first, second = np.triu_indices(count)
    means = np.sort((gaps[first] + gaps[second]) / 2)
    ways = np.ones(1)  # of a rank sum, all ranks added or not
    for rank in range(1, count + 1):
        ways = np.convolve(ways, np.r_[1.0, np.zeros(rank - 1), 1.0])
    return _between(means, int((np.cumsum(ways) / 2.0**count <= LEVEL / 2).sum()))


def _subset_means(gaps: np.ndarray) -> Interval | None:
    """Of the permutation test: from the ordered means of subsets (Hartigan 1969)."""
    count = len(gaps)
    if 2**count <= RESAMPLES:
        chosen = (np.arange(1, 2**count)[:, None] >> np.arange(count)) & 1
    else:
        chosen = np.random.default_rng(SEED).integers(2, size=(RESAMPLES - 1, count))
        chosen = chosen[chosen.any(1)]
    means = np.sort(chosen @ gaps / chosen.sum(1))
    return _between(means, int(LEVEL / 2 * (len(means) + 1)))


def _between(ordered: np.ndarray, number: int) -> Interval | None:
    """From the `number`-th smallest to the `number`-th greatest."""
    if not number:
        return None
    return Interval(float(ordered[number - 1]), float(ordered[-number]))


INTERVALS: dict[str, Callable[[np.ndarray], Interval | None]] = {
    "paired t": _student,
    "wilcoxon": _walsh,
    "permutation": _subset_means,
}
"""Of the tests that may decide, for differences (N,) of two seeds or more."""


def probability_of_improvement(a: ArrayLike, b: ArrayLike) -> Effect:
    """P(X > Y) + P(X = Y) / 2 for scores X of `a` and Y of `b`, over all pairs of seeds.

    Scores of both are resampled apart (Agarwal et al. 2021).
    """
    x, y = np.asarray(a, np.float64), np.asarray(b, np.float64)
    draw, gaps = np.random.default_rng(SEED), x[:, None] - y
    wins, interval = (gaps > 0) + 0.5 * (gaps == 0), None
    if min(wins.shape) > 1:
        drawn = [draw.integers(n, size=(RESAMPLES // 2, n)) for n in wins.shape]
        ours, theirs = (_counts(rows) for rows in drawn)
        interval = percentiles((ours @ wins * theirs).sum(1) / wins.size)
    return Effect(float(wins.mean()), interval)


def _counts(drawn: np.ndarray) -> np.ndarray:
    """How often each of N was drawn, (R, N), in each of R resamples of N."""
    resamples, size = drawn.shape
    places = drawn + size * np.arange(resamples)[:, None]
    return np.bincount(places.ravel(), minlength=drawn.size).reshape(resamples, size).astype(float)


def variance_ratio(a: ArrayLike, b: ArrayLike) -> Effect | None:
    """var(a) / var(b), below 1 if `a` is the stabler; None if b never varies.

    Pairs are resampled; resamples in which b does not vary are left out.
    """
    x, y = np.asarray(a, np.float64), np.asarray(b, np.float64)
    if len(x) < 2 or np.ptp(y) == 0:
        return None
    rows = np.random.default_rng(SEED).integers(len(x), size=(RESAMPLES, len(x)))
    above, below = x[rows].var(-1, ddof=1), y[rows].var(-1, ddof=1)
    usable = below > 1e-12 * y.var(ddof=1)
    interval = percentiles(above[usable] / below[usable]) if len(x) > 2 else None
    return Effect(float(x.var(ddof=1) / y.var(ddof=1)), interval)


def variance_test(a: ArrayLike, b: ArrayLike) -> float | None:
    """p-value of the Brown-Forsythe test (Levene's with medians) of equal variances."""
    x, y = np.asarray(a, np.float64), np.asarray(b, np.float64)
    if len(x) < 3 or (np.ptp(x) == 0 and np.ptp(y) == 0):
        return None
    return _p_value(lambda: stats.levene(x, y, center="median").pvalue, constant=False)


def percentiles(values: np.ndarray) -> Interval:
    """Bounds of the middle 95 % of bootstrapped values (R,)."""
    low, high = np.percentile(values, [2.5, 97.5])
    return Interval(float(low), float(high))
