"""The comparison on fresh runs, by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from smoothtune.tune.confirm import compare, fresh_runs, search_run

PARTS = 5


def test_the_interval_by_hand() -> None:
    plain, method = [0.80, 0.82, 0.78, 0.81, 0.79], [0.82, 0.83, 0.80, 0.84, 0.83]
    found = compare(plain, method, PARTS)
    # gaps in points: 2, 1, 2, 3, 4, so mean 2.4, variance 1.3; 95 % of t(4) are below 2.1318
    half = 2.1318468 * math.sqrt(1.3 / 5)
    assert found.gain.value == pytest.approx(0.024)
    assert found.gain.interval == pytest.approx(((2.4 - half) / 100, (2.4 + half) / 100))
    assert found.better
    turned = compare(method, plain, PARTS)
    assert not turned.better
    assert turned.gain.interval[1] < 0 < found.gain.interval[1]


def test_rows_that_are_scored_again_are_no_new_rows() -> None:
    """As many runs as parts have Student's interval; three times as many have not a third of it."""
    plain, method = np.random.default_rng(0).normal(size=(2, 3 * PARTS))
    for count in (4, PARTS, 3 * PARTS):
        found = compare(list(plain[:count]), list(method[:count]), PARTS)
        usual = stats.ttest_rel(method[:count], plain[:count]).confidence_interval(0.9)
        ratio = np.ptp(found.gain.interval) / (usual.high - usual.low)
        assert ratio == pytest.approx(math.sqrt(max(1.0, count / PARTS)))


def test_runs_that_failed_are_left_out_and_divergence_is_not_better() -> None:
    plain = [0.5, 0.6, 0.7, 0.6, None]
    assert compare(plain, [0.9, 1.0, 1.0, 0.9, 0.9], PARTS).better
    failed = compare(plain, [0.9, 0.9, None, None, 0.9], PARTS)
    assert (failed.gain, failed.better) == (None, False)
    diverged = compare(plain, [0.9, 1.0, 1.0, math.nan, 0.9], PARTS)
    assert diverged.gain.value == pytest.approx((0.4 + 0.4 + 0.3) / 3)
    assert not diverged.better


def test_equal_scores_are_not_better() -> None:
    assert not compare([0.5] * 5, [0.5] * 5, PARTS).better


def test_differences_that_are_all_the_same_are_no_evidence() -> None:
    """As with a few held-out rows; 0.8 - 0.5 and 0.6 - 0.3 differ in their last bit."""
    few_rows, rounded = ([0.5, 0.75, 0.5], [0.75, 1.0, 0.75]), ([0.5, 0.3, 0.1], [0.8, 0.6, 0.4])
    for plain, method in (few_rows, rounded):
        found = compare(plain, method, PARTS)
        assert found.gain.value == pytest.approx(method[0] - plain[0])
        assert (found.gain.interval, found.better) == (None, False)


def test_runs_that_both_finished_are_counted() -> None:
    found = compare([0.5, None, 0.7, math.nan, 0.6], [0.5, 0.6, math.nan, 0.6, 0.7], PARTS)
    assert found.pairs == 2


def test_fresh_runs_differ_from_the_search_and_score_every_row_once() -> None:
    runs, searched = fresh_runs(7, PARTS, seed=42), [search_run(fold, 42) for fold in range(PARTS)]
    assert len({run.seed for run in (*runs, *searched)}) == 7 + PARTS
    assert [run.part for run in searched] == [0, 1, 2, 3, 4]
    assert {run.cut for run in searched} == {42}
    assert [run.part for run in runs] == [0, 1, 2, 3, 4, 0, 1]
    assert {run.cut for run in runs[:5]} == {43}
    assert {run.cut for run in runs[5:]} == {44}
    assert max(run.seed for run in fresh_runs(9, PARTS, seed=2**32 - 1)) < 2**32
