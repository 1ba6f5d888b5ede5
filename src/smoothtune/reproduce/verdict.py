"""Whether a number of a study agrees with a printed one.

Printed are mean and often standard deviation of some runs, so that both means have an error:
Welch's interval of their difference. Where a paper prints no deviation, the printed mean is taken
as exact. One run has no interval, nor have runs that all score the same, a maximum or a p-value: of
these nothing is said, nor of runs that end before their epochs do.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy import stats

Verdict = Literal["agrees", "differs", "not run", "not printed", "no interval", "cut short"]
LEVEL = 0.95
EQUAL = 1e-9
"""Relative difference of scores up to which they are the same but for rounding."""


@dataclass(frozen=True)
class Summary:
    """Mean, deviation (N - 1 in the denominator) and maximum of some runs."""

    count: int
    mean: float
    sd: float | None
    max: float


@dataclass(frozen=True)
class Difference:
    """A difference with its 95 % interval, where it has one."""

    value: float
    low: float | None = None
    high: float | None = None


def summary(values: Sequence[float]) -> Summary | None:
    """None of no values.

    >>> summary([1.0, 3.0])
    Summary(count=2, mean=2.0, sd=1.4142135623730951, max=3.0)
    """
    if not values:
        return None
    x = np.asarray(values, np.float64)
    sd = None
    if len(x) > 1:
        same = np.ptp(x) <= EQUAL * np.abs(x).max()
        sd = 0.0 if same else float(x.std(ddof=1))
    return Summary(len(x), float(x.mean()), sd, float(x.max()))


def interval(found: Summary) -> tuple[float, float] | None:
    """95 % interval of the mean by Student's t; None without a variance to judge by."""
    if not found.sd:
        return None
    half = float(stats.t.ppf((1 + LEVEL) / 2, found.count - 1)) * found.sd / found.count**0.5
    return found.mean - half, found.mean + half


def difference(
    found: Summary, mean: float, sd: float | None = None, count: int | None = None
) -> Difference | None:
    """Ours minus the printed mean, with Welch's interval; None without a variance of ours.

    Args:
        found: of this study.
        mean: printed.
        sd: printed; None: the printed mean has no error.
        count: runs behind the printed mean; needed with `sd`.

    >>> difference(Summary(25, 70.0, 2.0, 75.0), 70.5, 2.0, 25).low < 0
    True
    """
    if not found.sd:
        return None
    ours = found.sd**2 / found.count
    theirs = sd**2 / count if sd is not None and count is not None and count > 1 else 0.0
    value, error = found.mean - mean, math.sqrt(ours + theirs)
    # Welch and Satterthwaite's degrees of freedom
    freedom = ours**2 / (found.count - 1)
    if theirs and count is not None:
        freedom += theirs**2 / (count - 1)
    half = float(stats.t.ppf((1 + LEVEL) / 2, (ours + theirs) ** 2 / freedom)) * error
    return Difference(value, value - half, value + half)


def verdict(
    found: Summary | None, printed: bool, gap: Difference | None, *, cut_short: bool = False
) -> Verdict:
    """What a cell says of the printed number.

    Args:
        found: of this study.
        printed: whether there is a number to compare with.
        gap: between both.
        cut_short: whether the runs end before their epochs do.
    """
    if found is None:
        return "not run"
    if not printed:
        return "not printed"
    if cut_short:
        return "cut short"
    if gap is None or gap.low is None or gap.high is None:
        return "no interval"
    return "agrees" if gap.low <= 0 <= gap.high else "differs"
