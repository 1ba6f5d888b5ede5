"""Whether the best of many is better: made-up searches whose truth is known."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from scipy import stats

from smoothtune.tune.confirm import compare, fresh_runs
from smoothtune.tune.search import Arm, Outcome, search
from smoothtune.tune.space import PLAIN, Space

PARTS, RUNS, TRIALS = 5, 5, 15


def test_the_interval_by_hand() -> None:
    plain, method = [0.80, 0.82, 0.78, 0.81, 0.79], [0.82, 0.83, 0.80, 0.84, 0.83]
    found = compare(plain, method, PARTS)
    # gaps in points: 2, 1, 2, 3, 4, so mean 2.4, variance 1.3; t(4) is 2.7764
    half = 2.7764451 * math.sqrt(1.3 * (1 / 5 + 1 / 4))
    assert found.gain == pytest.approx(0.024)
    assert (found.low, found.high) == pytest.approx(((2.4 - half) / 100, (2.4 + half) / 100))
    assert found.better == (half < 2.4)


def test_it_is_wider_than_for_independent_runs() -> None:
    draw = np.random.default_rng(0)
    plain, method = draw.normal(size=(2, 8))
    found = compare(list(plain), list(method), PARTS)
    usual = stats.ttest_rel(method, plain).confidence_interval()
    ratio = (found.high - found.low) / (usual.high - usual.low)
    assert ratio == pytest.approx(math.sqrt((1 / 8 + 1 / 4) / (1 / 8)))


def test_runs_that_failed_are_left_out_and_divergence_is_not_better() -> None:
    plain = [0.5, 0.6, 0.7, 0.6, None]
    assert compare(plain, [0.9, 1.0, 1.0, 0.9, 0.9], PARTS).better
    failed = compare(plain, [0.9, 0.9, None, None, 0.9], PARTS)
    assert (failed.gain, failed.better) == (None, False)
    diverged = compare(plain, [0.9, 1.0, 1.0, math.nan, 0.9], PARTS)
    assert diverged.gain == pytest.approx((0.4 + 0.4 + 0.3) / 3)
    assert not diverged.better


def test_equal_scores_are_not_better() -> None:
    assert not compare([0.5] * 5, [0.5] * 5, PARTS).better


def test_differences_that_are_all_the_same_are_no_evidence() -> None:
    """As with a few held-out rows; 0.8 - 0.5 and 0.6 - 0.3 differ in their last bit."""
    few_rows, rounded = ([0.5, 0.75, 0.5], [0.75, 1.0, 0.75]), ([0.5, 0.3, 0.1], [0.8, 0.6, 0.4])
    for plain, method in (few_rows, rounded):
        found = compare(plain, method, PARTS)
        assert found.gain == pytest.approx(method[0] - plain[0])
        assert (found.low, found.high, found.better) == (None, None, False)


def test_runs_that_both_finished_are_counted() -> None:
    found = compare([0.5, None, 0.7, math.nan, 0.6], [0.5, 0.6, math.nan, 0.6, 0.7], PARTS)
    assert found.pairs == 2


def test_fresh_runs_differ_from_the_search_and_score_every_row_once() -> None:
    runs = fresh_runs(7, PARTS, seed=42)
    assert 42 not in {run.seed for run in runs}
    assert len({run.seed for run in runs}) == 7
    assert [run.part for run in runs] == [0, 1, 2, 3, 4, 0, 1]
    assert {run.cut for run in runs[:5]} == {43}
    assert {run.cut for run in runs[5:]} == {44}
    assert fresh_runs(1, PARTS, seed=2**32 - 1)[0].seed == 0


class World:
    """Rows that settings predict with chances of their own; a run adds luck of its own.

    What a setting is good at is drawn for every row, so the rows of a search favor some settings,
    and fresh parts of the same rows do so again: the optimism that fresh seeds do not remove.
    """

    def __init__(self, seed: int, gain: float, rows: int = 300) -> None:
        self.draw = np.random.default_rng(seed)
        self.seed, self.rows, self.gain = seed, rows, gain
        self.ease = self.draw.uniform(0.5, 1.0, rows)
        self.known: dict[str, np.ndarray] = {}

    def score(self, name: str, gain: float, cut: int, part: int) -> float:
        if name not in self.known:
            self.known[name] = self.ease + self.draw.normal(0, 0.1, self.rows) + gain
        scored = np.random.default_rng(cut).permutation(self.rows)[part::PARTS]
        chance = self.known[name][scored] + self.draw.normal(0, 0.02)
        return float((self.draw.uniform(size=len(scored)) < chance).mean())

    def says_better(self, best: Callable[[World], tuple[str, str]]) -> bool:
        """Fresh runs of the best plain setting and the best other one, by name."""
        plain, method = best(self)
        scores = [
            [self.score(name, gain, run.cut, run.part) for name, gain in self.named(plain, method)]
            for run in fresh_runs(RUNS, PARTS, seed=0)
        ]
        return bool(compare(*map(list, zip(*scores, strict=True)), PARTS).better)

    def named(self, plain: str, method: str) -> tuple[tuple[str, float], ...]:
        return (plain, 0.0), (method, self.gain)


def by_hand(world: World) -> tuple[str, str]:
    """The best of 15 settings each, by the mean over three folds."""
    arms = [[f"{arm} {trial}" for trial in range(TRIALS)] for arm in ("plain", "method")]
    found = [
        max(names, key=lambda n, g=gain: sum(world.score(n, g, 0, fold) for fold in range(3)))
        for names, gain in zip(arms, (0.0, world.gain), strict=True)
    ]
    return found[0], found[1]


def by_search(world: World) -> tuple[str, str]:
    """The best of the trials of both arms of a search."""
    rates, epochs = (1e-5, 5e-4), (2.0, 4.0)
    arms = [
        Arm(PLAIN, Space({PLAIN: {}}, rates, epochs), TRIALS, world.seed),
        Arm("methods", Space({"lnsr": {}, "r3f": {}}, rates, epochs), TRIALS, world.seed),
    ]

    def run(work):
        return [
            Outcome(world.score(trial.setting.describe(), gain * world.gain, 0, fold))
            for trial, fold in work
            for gain in [trial.arm != PLAIN]
        ]

    search(arms, folds=3, round_size=4, run=run)
    best = [arm.best() for arm in arms]
    return best[0].setting.describe(), best[1].setting.describe()


def test_without_a_difference_it_nearly_always_says_stay_with_plain() -> None:
    wrong = sum(World(seed, gain=0.0).says_better(by_hand) for seed in range(100))
    assert wrong <= 6  # the interval promises 2.5


def test_the_search_itself_is_too_hopeful() -> None:
    """What the fresh runs are for: the better of the two best by the search's own scores."""
    wrong = 0
    for seed in range(50):
        world = World(seed, gain=0.0)
        arms = [[f"{arm} {trial}" for trial in range(n)] for arm, n in (("p", 1), ("m", TRIALS))]
        best = [max(world.score(name, 0.0, 0, 0) for name in names) for names in arms]
        wrong += best[1] > best[0]
    assert wrong > 35


def test_a_large_difference_is_found() -> None:
    right = sum(World(seed, gain=0.3).says_better(by_hand) for seed in range(40))
    assert right >= 34


@pytest.mark.slow
def test_searches_of_optuna_with_and_without_a_difference() -> None:
    assert sum(World(seed, gain=0.0).says_better(by_search) for seed in range(100)) <= 5
    assert sum(World(seed, gain=0.3).says_better(by_search) for seed in range(20)) >= 17
