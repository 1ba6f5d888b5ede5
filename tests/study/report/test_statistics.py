"""Statistics against SciPy's, against closed forms, and over simulated studies."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from smoothtune.report.tables import Summary
from smoothtune.study.report import statistics
from smoothtune.study.report.statistics import holm, p_value

TABLES = [np.random.default_rng(seed).normal(0.8, 0.02, (2, n)) for seed, n in enumerate([3, 5, 9])]


@pytest.mark.parametrize("table", TABLES)
def test_p_values_are_scipys(table: np.ndarray) -> None:
    a, b = table
    assert p_value(a - b) == pytest.approx(stats.ttest_rel(a, b).pvalue)


def test_without_anything_to_judge_by_there_is_no_p() -> None:
    assert p_value([0.0, 0.0, 0.0]) is None
    assert p_value([0.1]) is None


def test_a_difference_that_is_the_same_in_all_seeds_has_the_p_of_the_sign_test() -> None:
    right = np.array([150, 171, 160, 181, 155])  # of 277 rows: one more in every seed
    gaps = (right + 1) / 277 - right / 277
    assert np.ptp(gaps) > 0  # but for rounding
    assert p_value(gaps) == stats.binomtest(5, 5).pvalue


@pytest.mark.parametrize("seed", range(5))
def test_holm_is_step_down(seed: int) -> None:
    values = np.random.default_rng(seed).uniform(size=6) ** 2
    found = holm([float(p) for p in values])
    for i, p in enumerate(values):  # Holm: the largest (m - rank) p of all that are not larger
        smaller = sorted(q for q in values if q <= p)
        expected = min(1.0, max((6 - rank) * q for rank, q in enumerate(smaller)))
        assert found[i] == pytest.approx(expected)


def test_holm_leaves_undefined_ones_out() -> None:
    assert holm([None, 0.02, 0.03]) == [None, 0.04, 0.04]
    assert holm([]) == []


def test_summary() -> None:
    found = Summary.of([1.0, 2.0, 6.0])
    assert found.sd == pytest.approx(np.sqrt(7.0))
    assert replace(found, sd=None) == Summary(3, 3.0, None, 2.0, 6.0)
    assert Summary.of([0.5]).sd is None


@pytest.mark.parametrize("count", [2, 6, 12])
def test_the_interval_holds_what_its_test_does_not_reject(count: int) -> None:
    gaps = np.random.default_rng(count).normal(0.3, 0.7, size=count)
    found = Summary.of(gaps).effect
    assert found.value == pytest.approx(gaps.mean())
    for bound, outwards in zip(found.interval, (-1, 1), strict=True):
        assert p_value(gaps - bound + 1e-6 * outwards) >= 0.05
        assert p_value(gaps - bound - 1e-6 * outwards) < 0.05


def test_interval_and_verdict_agree() -> None:
    for gaps in np.random.default_rng(5).normal(0.3, 0.7, size=(100, 9)):
        assert Summary.of(gaps).effect.excludes_zero == (p_value(gaps) < 0.05)


def test_intervals_of_few_seeds() -> None:
    assert Summary.of([0.1]).effect.interval is None
    low, high = Summary.of([0.0, 2.0]).effect.interval
    assert (low, high) == pytest.approx((1 - 12.706205, 1 + 12.706205))


def test_variance_ratio_and_its_test() -> None:
    draw = np.random.default_rng(4)
    a, b = draw.normal(0, 1, 40), draw.normal(0, 3, 40)
    found = statistics.variance_ratio(a, b)
    assert found.value == pytest.approx(a.var(ddof=1) / b.var(ddof=1))
    assert found.interval[0] < found.value < found.interval[1] < 1
    assert statistics.variance_test(a, b) == pytest.approx(stats.levene(a, b).pvalue)
    assert statistics.variance_ratio([1, 2, 3], [2, 2, 2]) is None
    assert statistics.variance_test([1, 2], [1, 3]) is None
    assert statistics.variance_ratio([1, 1, 2, 3], [1, 2, 2, 2]).interval is None  # few seeds
    assert statistics.variance_ratio([1, 1, 2, 3, 4], [1, 2, 2, 2, 3]).interval is not None


def rejections(shift: float, *, studies: int = 500, seeds: int = 5) -> float:
    """Share of simulated studies of one method in which the test rejects at 5 %."""
    draw = np.random.default_rng(11)
    scores = draw.normal(0.8, 0.01, (studies, 2, seeds))
    scores[:, 0] += shift
    return float(np.mean([p_value(a - b) < 0.05 for a, b in scores]))


def test_the_test_rejects_at_its_level_without_an_effect() -> None:
    assert rejections(0.0) == pytest.approx(0.05, abs=0.02)


def test_the_test_finds_an_effect() -> None:
    assert rejections(0.03, studies=100) > 0.9


def test_holm_holds_the_level_over_many_methods() -> None:
    scores = np.random.default_rng(12).normal(0.8, 0.01, (500, 7, 5))
    p = stats.ttest_rel(scores[:, 1:], scores[:, :1], axis=2).pvalue
    wrong = [min(holm(list(of_one_study))) < 0.05 for of_one_study in p]
    assert 0 < np.mean(wrong) < 0.07
