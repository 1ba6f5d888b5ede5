"""Gains that are there are found, others are not: searches on a model of scores.

As many searches, with the default settings, as show it; benchmarks/results/tune-power.md has more.
"""

import numpy as np
import pytest
from scipy.stats import binomtest
from tune_power import World

from smoothtune.tune.confirm import Fresh
from smoothtune.tune.price import expected_trainings
from smoothtune.tune.space import Setting

ROWS, SEARCHES = 500, 150


def used(gain: float) -> int:
    """Searches that say that a method is better than plain."""
    return sum(World(seed, gain, ROWS).search()[1].better for seed in range(SEARCHES))


def test_scores_are_of_the_truth() -> None:
    world = World(0, 0.05, rows=20_000)
    for method, gain in ((world.better, 0.05), ("plain", 0.0)):
        setting = Setting(method, {}, 2 ** world.centers[method] / 4, 4.0)
        assert world.truth(setting) == pytest.approx(0.8 + gain)
        scores = [world.score(setting, Fresh(run, run // 5, run % 5)) for run in range(200)]
        assert np.mean(scores) == pytest.approx(0.8 + gain, abs=0.012)
        assert np.std(scores) == pytest.approx(0.02, abs=0.006)  # of luck: rows are many


def test_a_search_has_the_trainings_that_it_is_said_to_have() -> None:
    world = World(0, 0.05, ROWS)
    trainings = []
    score = world.score
    world.score = lambda setting, run: trainings.append(run) or score(setting, run)
    world.search()
    assert len(trainings) == expected_trainings(world.tune) == 60


@pytest.mark.slow
def test_five_points_are_found_more_often_than_not() -> None:
    assert binomtest(used(0.05), SEARCHES, 0.5, alternative="greater").pvalue < 0.05


@pytest.mark.slow
def test_what_is_not_there_is_found_in_no_more_than_one_of_twenty() -> None:
    assert binomtest(used(0.0), SEARCHES, 0.05, alternative="greater").pvalue > 0.05
