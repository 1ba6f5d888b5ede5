"""Tests, intervals and power for scores of seeds.

A seed decides the training rows, their order and the initial head of a method and of plain, so
their scores are paired. The test is Student's of the differences, two-sided; ratios of variances
have percentile bootstrap intervals over seeds, too narrow with few seeds.

References: Student, Biometrika 1908; Holm, Scandinavian Journal of Statistics 1979; Brown,
Forsythe, JASA 1974 (Levene's test with medians); Cohen, Statistical Power Analysis for the
Behavioral Sciences, 1988 (power, by the noncentral t distribution).
"""

import warnings
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy import optimize, stats

from smoothtune.report.tables import Effect, Summary

RESAMPLES, SEED = 10_000, 0
LEVEL = 0.05
ENOUGH_SEEDS = 5
"""With fewer, no method is said to be better or worse than plain, whatever p is."""
POWER = 0.8
MOST_SEEDS = 30
"""More than these are not worth running for a difference that may not be there."""
TEST = "paired t-test"


class TrainingTime(NamedTuple):
    """Training time of a run, and where it ran, if the run names it."""

    seconds: float
    device: str | None


def time_ratio(pairs: Iterable[tuple[TrainingTime, TrainingTime]]) -> float | None:
    """Median of the ratios of training times; None without any.

    Runs on different kinds of device are not compared; those that do not name theirs only with
    each other.
    """
    ratios = [ours.seconds / plain.seconds for ours, plain in pairs if ours.device == plain.device]
    return float(np.median(ratios)) if ratios else None


# --- differences of pairs ----------------------------------------------------------------------


def p_value(gaps: ArrayLike) -> float | None:
    """p-value of the t-test of paired differences (N,), of the sign test where all are the same.

    None for one difference, or where all are 0.
    """
    x = np.asarray(gaps, np.float64)
    if len(x) < 2 or not x.any():
        return None
    if Summary.of(x).sd == 0:  # the same but for rounding: t would be infinite
        return _sign_test(len(x))
    return _finite_p(lambda: stats.ttest_1samp(x, 0))


def _sign_test(count: int) -> float:
    """The p-value of differences that all have one sign."""
    return float(2.0 ** (1 - count))


def _finite_p(test: Callable[[], Any]) -> float | None:
    """The p-value of a test; nearly equal scores have none, or an imprecise one."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        value = float(test().pvalue)
    return value if np.isfinite(value) else None


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


# --- power -------------------------------------------------------------------------------------


def seeds_needed(gap: float, sd: float, num_methods: int) -> int:
    """Seeds with which a paired t-test finds a difference with a power of 80 %.

    Args:
        gap: the true mean difference.
        sd: standard deviation of the differences over seeds; 0: the sign test finds them.
        num_methods: 5 % are divided by it, as in the first step of Holm's correction.

    Returns:
        At least 2; `MOST_SEEDS` + 1 where more than those are needed.
    """
    for count in range(2, MOST_SEEDS + 1):
        shift = abs(gap) * np.sqrt(count) / sd if sd else np.inf
        if np.isfinite(shift):
            is_shown = _power(shift, count, num_methods) >= POWER
        else:
            is_shown = num_methods * _sign_test(count) < LEVEL
        if is_shown:
            return count
    return MOST_SEEDS + 1


def smallest_difference(sd: float | None, num_seeds: int, num_methods: int) -> float | None:
    """The true mean difference that a paired t-test finds with a power of 80 %.

    In the units of `sd`, and by the same arguments as `seeds_needed`; None for fewer than two
    seeds, or differences that are all alike.
    """
    if not sd or num_seeds < 2:
        return None
    return float(_smallest_shift(num_seeds, num_methods) * sd / np.sqrt(num_seeds))


@cache
def _smallest_shift(num_seeds: int, num_methods: int) -> float:
    """`smallest_difference` in standard errors."""
    high = 1.0
    while _power(high, num_seeds, num_methods) < POWER:
        high *= 2
    return optimize.brentq(lambda x: _power(x, num_seeds, num_methods) - POWER, 0.0, high)


def _power(shift: float, num_seeds: int, num_methods: int) -> float:
    """Probability of a significant difference of the right sign, of `shift` standard errors."""
    critical = stats.t.ppf(1 - LEVEL / num_methods / 2, num_seeds - 1)
    return float(stats.nct.sf(critical, num_seeds - 1, shift))


# --- spread ------------------------------------------------------------------------------------


def variance_ratio(a: ArrayLike, b: ArrayLike) -> Effect | None:
    """var(a) / var(b) of scores (N,) of the same seeds; None if b never varies.

    Pairs are resampled; resamples in which b does not vary are left out. Fewer than `ENOUGH_SEEDS`
    have no interval: the few resamples that there are would make it too narrow, or a point.
    """
    x, y = np.asarray(a, np.float64), np.asarray(b, np.float64)
    if len(x) < 2 or np.ptp(y) == 0:
        return None
    rows = np.random.default_rng(SEED).integers(len(x), size=(RESAMPLES, len(x)))
    above, below = x[rows].var(-1, ddof=1), y[rows].var(-1, ddof=1)
    usable = below > 1e-12 * y.var(ddof=1)
    interval = None
    if len(x) >= ENOUGH_SEEDS:
        low, high = np.percentile(above[usable] / below[usable], [2.5, 97.5])
        interval = float(low), float(high)
    return Effect(float(x.var(ddof=1) / y.var(ddof=1)), interval)


def variance_test(a: ArrayLike, b: ArrayLike) -> float | None:
    """p-value of the Brown-Forsythe test of equal variances of scores (N,)."""
    x, y = np.asarray(a, np.float64), np.asarray(b, np.float64)
    if len(x) < 3 or (np.ptp(x) == 0 and np.ptp(y) == 0):
        return None
    return _finite_p(lambda: stats.levene(x, y, center="median"))
