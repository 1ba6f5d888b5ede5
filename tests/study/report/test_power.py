"""What a number of seeds can show, against simulated studies."""

import numpy as np
import pytest
from scipy import stats

from smoothtune.study.report.statistics import (
    MOST_SEEDS,
    p_value,
    seeds_needed,
    smallest_difference,
)


def shown(gap: float, sd: float, seeds: int, methods: int) -> float:
    """Share of 20,000 simulated studies whose paired t-test finds the difference."""
    gaps = np.random.default_rng(1).normal(gap, sd, (20_000, seeds))
    found = stats.ttest_1samp(gaps, 0, axis=1)
    return float(((found.pvalue < 0.05 / methods) & (found.statistic > 0)).mean())


@pytest.mark.parametrize(("gap", "sd", "methods"), [(0.02, 0.02, 1), (0.02, 0.01, 5)])
def test_seeds_needed_have_the_power(gap: float, sd: float, methods: int) -> None:
    count = seeds_needed(gap, sd, methods)
    assert shown(gap, sd, count, methods) > 0.79
    assert shown(gap, sd, count - 1, methods) < 0.79
    assert seeds_needed(gap, 10 * gap, methods) == MOST_SEEDS + 1


@pytest.mark.parametrize("methods", [1, 3, 5])
def test_differences_that_are_all_alike_need_seeds_for_the_sign_test(methods: int) -> None:
    count = seeds_needed(0.02, 0.0, methods)
    p, before = (p_value([0.02] * seeds) for seeds in (count, count - 1))
    assert methods * p < 0.05 <= methods * before


@pytest.mark.parametrize(("seeds", "methods"), [(2, 1), (5, 1), (5, 14), (25, 3)])
def test_the_smallest_difference_is_shown_in_four_of_five_studies(seeds: int, methods: int) -> None:
    smallest = smallest_difference(0.01, seeds, methods)
    assert smallest is not None
    assert shown(smallest, 0.01, seeds, methods) == pytest.approx(0.8, abs=0.01)
    assert seeds_needed(1.0001 * smallest, 0.01, methods) == seeds


def test_one_seed_or_no_spread_shows_nothing() -> None:
    assert smallest_difference(None, 1, 3) is None
    assert smallest_difference(0.0, 5, 3) is None
