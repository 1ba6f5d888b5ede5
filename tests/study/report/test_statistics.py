"""Statistics against SciPy's, against closed forms, and over simulated studies."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from smoothtune.study.report import statistics
from smoothtune.study.report.statistics import holm, mean_difference, p_values

TABLES = [np.random.default_rng(seed).normal(0.8, 0.02, (2, n)) for seed, n in enumerate([3, 5, 9])]


@pytest.mark.parametrize("table", TABLES)
def test_p_values_are_scipys(table: np.ndarray) -> None:
    a, b = table
    found = p_values(a, b)
    assert found["welch"] == pytest.approx(stats.ttest_ind(a, b, equal_var=False).pvalue)
    assert found["paired t"] == pytest.approx(stats.ttest_rel(a, b).pvalue)
    assert found["wilcoxon"] == pytest.approx(stats.wilcoxon(a, b, method="exact").pvalue)


@pytest.mark.parametrize("table", TABLES)
def test_permutations_are_all_sign_changes(table: np.ndarray) -> None:
    gaps = table[0] - table[1]
    signs = np.array(list(itertools.product([1, -1], repeat=len(gaps))))
    means = np.abs((signs * gaps).mean(1))
    expected = (means >= abs(gaps.mean()) - 1e-12).mean()
    assert p_values(*table)["permutation"] == pytest.approx(expected)


def test_welch_by_hand() -> None:
    a, b = np.array([0.70, 0.74, 0.72]), np.array([0.60, 0.66, 0.63])
    va, vb = a.var(ddof=1) / 3, b.var(ddof=1) / 3
    t = (a.mean() - b.mean()) / np.sqrt(va + vb)
    df = (va + vb) ** 2 / (va**2 / 2 + vb**2 / 2)
    assert p_values(a, b)["welch"] == pytest.approx(2 * stats.t.sf(abs(t), df))


def test_tests_without_anything_to_judge_by() -> None:
    same = [0.5, 0.5, 0.5]
    found = p_values(same, same)
    assert found == {"welch": None, "paired t": None, "wilcoxon": 1.0, "permutation": 1.0}
    assert set(p_values([0.5], [0.4]).values()) == {None}
    shifted = p_values([0.6, 0.7, 0.8], [0.5, 0.6, 0.7])  # the same gap in every seed
    assert shifted["paired t"] is None or shifted["paired t"] < 1e-10
    assert shifted["permutation"] == pytest.approx(0.25)
    assert shifted["wilcoxon"] == pytest.approx(0.25)


def test_five_seeds_cannot_reach_five_percent_exactly() -> None:
    found = p_values([0.9, 0.91, 0.92, 0.93, 0.95], [0.1, 0.12, 0.14, 0.13, 0.11])
    assert found["wilcoxon"] == found["permutation"] == pytest.approx(2 / 2**5)


def test_wilcoxon_with_ties_is_the_permutation_of_ranks() -> None:
    gaps = np.array([0.5, 0.5, -0.25, 0.75, 0.75, 1.0])
    ranks = stats.rankdata(np.abs(gaps))
    signs = np.array(list(itertools.product([1, -1], repeat=6)))
    sums = np.abs((signs * ranks).sum(1))
    expected = (sums >= abs((np.sign(gaps) * ranks).sum()) - 1e-9).mean()
    assert p_values(gaps, np.zeros(6))["wilcoxon"] == pytest.approx(expected)


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
    found = statistics.summary([1.0, 2.0, 6.0])
    assert found.sd == pytest.approx(np.sqrt(7.0))
    assert replace(found, sd=None) == statistics.Summary(3, 3.0, None, 2.0, 6.0)
    assert statistics.summary([0.5]).sd is None


@pytest.mark.parametrize("test", statistics.INTERVALS)
@pytest.mark.parametrize("count", [6, 8, 12])
def test_the_interval_holds_what_its_test_does_not_reject(test: str, count: int) -> None:
    a, b = np.random.default_rng(count).normal([[0.4], [0.1]], 0.5, size=(2, count))
    found = mean_difference(a, b, test)
    assert found.value == pytest.approx((a - b).mean())
    for bound, outwards in zip(found.interval, (-1, 1), strict=True):
        assert p_values(a, b + bound - 1e-6 * outwards)[test] >= 0.05
        assert p_values(a, b + bound + 1e-6 * outwards)[test] < 0.05


@pytest.mark.parametrize("test", statistics.INTERVALS)
def test_interval_and_verdict_agree(test: str) -> None:
    draw = np.random.default_rng(5)
    for a, b in draw.normal([[0.3], [0.0]], 0.5, size=(100, 2, 9)):
        low, high = mean_difference(a, b, test).interval
        assert (low > 0 or high < 0) == (p_values(a, b)[test] < 0.05)


def test_many_seeds_have_random_permutations() -> None:
    a, b = np.random.default_rng(1).normal(size=(2, 40))
    found, exact = mean_difference(a, b, "permutation"), mean_difference(a, b)
    assert found.interval == pytest.approx(exact.interval, abs=0.05)


def test_intervals_of_few_seeds() -> None:
    assert mean_difference([0.5], [0.4]).interval is None
    low, high = mean_difference([0.0, 2.0], [0.0, 0.0]).interval
    assert (low, high) == pytest.approx((1 - 12.706205, 1 + 12.706205))
    five = [[0.9, 0.91, 0.92, 0.93, 0.95], [0.1, 0.12, 0.14, 0.13, 0.11]]
    assert mean_difference(*five, "wilcoxon").interval is None
    assert mean_difference(*five, "permutation").interval is None


def test_probability_of_improvement_is_the_mann_whitney_statistic() -> None:
    a, b = np.round(np.random.default_rng(2).normal(size=(2, 7)), 1)
    found = statistics.probability_of_improvement(a, b)
    assert found.value == pytest.approx(stats.mannwhitneyu(a, b).statistic / 49)
    assert found.interval is not None
    assert found.interval.low <= found.value <= found.interval.high
    sure = statistics.probability_of_improvement([2, 3, 4], [0, 1, 1])
    assert (sure.value, *sure.interval) == (1.0, 1.0, 1.0)


def test_variance_ratio_and_its_test() -> None:
    draw = np.random.default_rng(4)
    a, b = draw.normal(0, 1, 40), draw.normal(0, 3, 40)
    found = statistics.variance_ratio(a, b)
    assert found.value == pytest.approx(a.var(ddof=1) / b.var(ddof=1))
    assert found.interval.low < found.value < found.interval.high < 1
    assert statistics.variance_test(a, b) == pytest.approx(stats.levene(a, b).pvalue)
    assert statistics.variance_ratio([1, 2, 3], [2, 2, 2]) is None
    assert statistics.variance_test([1, 2], [1, 3]) is None


def rejections(shift: float, *, test: str, studies: int = 500, seeds: int = 5) -> float:
    """Share of simulated studies of one method in which a test rejects at 5 %."""
    draw = np.random.default_rng(11)
    scores = draw.normal(0.8, 0.01, (studies, 2, seeds))
    scores[:, 0] += shift
    found = [p_values(a, b)[test] for a, b in scores]
    return float(np.mean([p < 0.05 for p in found]))


def test_the_deciding_test_rejects_at_its_level_without_an_effect() -> None:
    from smoothtune.study.config import StudyConfig

    test = StudyConfig().test
    assert rejections(0.0, test=test) == pytest.approx(0.05, abs=0.02)


def test_the_deciding_test_finds_an_effect() -> None:
    from smoothtune.study.config import StudyConfig

    assert rejections(0.03, test=StudyConfig().test, studies=100) > 0.9


def test_holm_holds_the_level_over_many_methods() -> None:
    scores = np.random.default_rng(12).normal(0.8, 0.01, (500, 7, 5))
    p = stats.ttest_rel(scores[:, 1:], scores[:, :1], axis=2).pvalue
    wrong = [min(holm(list(of_one_study))) < 0.05 for of_one_study in p]
    assert 0 < np.mean(wrong) < 0.07
