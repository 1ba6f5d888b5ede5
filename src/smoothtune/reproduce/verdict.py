"""Whether a number of a study agrees with a printed one."""

import math
from typing import Literal

from scipy import stats

from smoothtune.report.tables import Effect, Summary

Verdict = Literal["agrees", "differs", "not run", "not printed", "no interval", "cut short"]
LEVEL = 0.95


def interval(measured: Summary) -> tuple[float, float] | None:
    """95 % interval of the mean by Student's t; None without a variance to judge by."""
    return measured.effect.interval if measured.sd else None


def difference(
    measured: Summary, mean: float, sd: float | None = None, count: int | None = None
) -> Effect | None:
    """Ours minus the printed mean, with Welch's interval; None without a variance of ours.

    Args:
        measured: of this study.
        mean: printed.
        sd: printed; None: the printed mean has no error.
        count: runs behind the printed mean; needed with `sd`.

    >>> difference(Summary(25, 70.0, 2.0, 70.0, 75.0), 70.5, 2.0, 25).excludes_zero
    False
    """
    if not measured.sd:
        return None
    errors = [(measured.sd**2 / measured.n, measured.n)]  # squared, of the means
    if sd is not None and count is not None and count > 1:
        errors.append((sd**2 / count, count))
    error = sum(squared for squared, _ in errors)
    # Welch and Satterthwaite's degrees of freedom
    freedom = error**2 / sum(squared**2 / (n - 1) for squared, n in errors)
    half = float(stats.t.ppf((1 + LEVEL) / 2, freedom)) * math.sqrt(error)
    value = measured.mean - mean
    return Effect(value, (value - half, value + half))


def verdict(
    measured: Summary | None, printed: bool, gap: Effect | None, *, cut_short: bool = False
) -> Verdict:
    """What a cell says of the printed number."""
    if measured is None:
        return "not run"
    if not printed:
        return "not printed"
    if cut_short:
        return "cut short"
    if gap is None or gap.interval is None:
        return "no interval"
    return "differs" if gap.excludes_zero else "agrees"
