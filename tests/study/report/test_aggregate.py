"""Interquartile means and performance profiles against literal definitions."""

import numpy as np
import pytest

from smoothtune.study.report.aggregate import (
    aggregate_table,
    aggregates,
    interquartile_mean,
    normalized_scores,
    performance_profile,
    profile_curve,
)
from smoothtune.study.report.methods import table_of_runs

SCORES = np.random.default_rng(3).normal(0.6, 0.2, size=(3, 5))


def literal_iqm(scores: np.ndarray) -> float:
    """All scores in order, the lowest and the highest quarter (rounded down) left out."""
    ordered = sorted(float(score) for task in scores for score in task)
    cut = len(ordered) // 4
    kept = ordered[cut : len(ordered) - cut]
    return sum(kept) / len(kept)


def resamples(scores: np.ndarray, count: int) -> list[np.ndarray]:
    """Stratified: of each task as many seeds as it has, drawn with replacement."""
    draw = np.random.default_rng(99)
    return [
        np.stack([[task[draw.integers(len(task))] for _ in task] for task in scores])
        for _ in range(count)
    ]


def test_iqm_and_its_stratified_interval() -> None:
    found = interquartile_mean(SCORES)
    assert found.value == pytest.approx(literal_iqm(SCORES))
    values = [literal_iqm(table) for table in resamples(SCORES, 2000)]
    assert found.interval == pytest.approx(np.percentile(values, [2.5, 97.5]), abs=0.015)
    assert interquartile_mean(SCORES[:, :1]).interval is None


def test_iqm_is_not_moved_by_one_outlier() -> None:
    broken = SCORES.copy()
    broken[0, 0] = -50.0
    assert abs(interquartile_mean(broken).value - interquartile_mean(SCORES).value) < 0.1


def test_profile_is_the_share_of_runs_above_tau() -> None:
    taus = [0.2, 0.5, float(SCORES[1, 2]), 0.9]
    found = performance_profile(SCORES, taus)
    for point, tau in zip(found, taus, strict=True):
        shares = [sum(score > tau for score in task) / len(task) for task in SCORES]
        assert (point.x, point.y) == (tau, pytest.approx(sum(shares) / len(shares)))
    drawn = [np.mean(table > 0.5) for table in resamples(SCORES, 2000)]
    assert (found[1].low, found[1].high) == pytest.approx(
        np.percentile(drawn, [2.5, 97.5]), abs=0.07
    )


def run(task: str, method: str, seed: int, score: float, chance: float = 0.5) -> dict:
    return {
        **{"task": task, "model": "m", "method": method, "seed": seed, "status": "done"},
        **{"score": score, "trivial_baseline": chance},
    }


RUNS = [
    *(run("a", "plain", seed, 0.75) for seed in range(3)),
    *(run("b", "plain", seed, 0.6, 0.0) for seed in range(3)),
    *(run("a", "half", seed, 0.9) for seed in range(3)),
    *(run("a", "gap", seed, 1.0) for seed in (0, 2)),
    *(run("b", "gap", seed, 0.5, 0.0) for seed in (1, 2)),
]


def test_scores_are_normalized_by_the_constant_answer_on_common_seeds() -> None:
    found = normalized_scores(table_of_runs(RUNS))
    assert list(found) == ["plain", "gap"]
    assert found["plain"] == pytest.approx(np.array([[0.5] * 3, [0.6] * 3]))
    assert found["gap"] == pytest.approx(np.array([[1.0], [0.5]]))


def test_table_and_curve_need_two_tasks() -> None:
    runs = table_of_runs(RUNS)
    table = aggregate_table(aggregates(runs))
    assert table.rows[0][:3] == ["plain", "2", "3"]
    assert table.rows[1] == ["gap", "2", "1", "0.750", "0.750"]
    assert table.bold == {(1, 3)}
    curve = profile_curve(runs)
    assert [curve.series["plain"][0].y, curve.series["plain"][-1].y] == [1.0, 0.0]
    one = table_of_runs([r for r in RUNS if r["task"] == "a"])
    assert (aggregates(one), profile_curve(one)) == ([], None)


def test_a_task_that_a_constant_answer_solves_is_left_out() -> None:
    easy = [run("c", "plain", seed, 1.0, 1.0) for seed in range(3)]
    assert normalized_scores(table_of_runs([*RUNS, *easy]))["plain"].shape == (2, 3)
