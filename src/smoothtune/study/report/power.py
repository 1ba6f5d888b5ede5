"""What a number of seeds can show: the power of a paired t-test against plain fine-tuning.

The level is 5 % divided by the number of methods, the first step of Holm's correction, and the
spread over seeds is taken to be the one that was seen.

Reference: Cohen, Statistical Power Analysis for the Behavioral Sciences, 1988; the noncentral t
distribution of scipy.
"""

from __future__ import annotations

import numpy as np
from scipy import optimize, stats

from smoothtune.study.report.statistics import LEVEL

POWER = 0.8
MOST_SEEDS = 30
"""More than these are not worth running for a difference that may not be there."""


def seeds_needed(gap: float, sd: float, num_methods: int) -> int:
    """Seeds with which a paired t-test finds a difference with a power of 80 %.

    Args:
        gap: the true mean difference.
        sd: standard deviation of the differences over seeds.
        num_methods: 5 % are divided by it.

    Returns:
        At least 2; `MOST_SEEDS` + 1 where more than those are needed.
    """
    for count in range(2, MOST_SEEDS + 1):
        shift = abs(gap) * np.sqrt(count) / sd if sd else np.inf
        if not np.isfinite(shift) or _power(shift, count, num_methods) >= POWER:
            return count
    return MOST_SEEDS + 1


def smallest_difference(sd: float | None, num_seeds: int, num_methods: int) -> float | None:
    """The true mean difference that a paired t-test finds with a power of 80 %.

    Args:
        sd: standard deviation of the differences over seeds.
        num_seeds: how many there are.
        num_methods: 5 % are divided by it.

    Returns:
        In the units of `sd`; None for fewer than two seeds, or differences that are all alike.
    """
    if not sd or num_seeds < 2:
        return None
    high = 1.0
    while _power(high, num_seeds, num_methods) < POWER:
        high *= 2
    shift = optimize.brentq(lambda x: _power(x, num_seeds, num_methods) - POWER, 0.0, high)
    return float(shift * sd / np.sqrt(num_seeds))


def _power(shift: float, num_seeds: int, num_methods: int) -> float:
    """Probability of a significant difference of the right sign.

    Args:
        shift: the true mean difference in standard errors.
        num_seeds: how many there are.
        num_methods: 5 % are divided by it.
    """
    critical = stats.t.ppf(1 - LEVEL / num_methods / 2, num_seeds - 1)
    return float(stats.nct.sf(critical, num_seeds - 1, shift))
