"""The search on made-up scores: a function stands in the place of training."""

import math
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from smoothtune.config.tuning import load_tune
from smoothtune.tune.search import Arm, Outcome, Trial, search, search_all
from smoothtune.tune.space import PLAIN, Setting, Space

Score = Callable[[Setting, int], float | None]


def tune(**fields):
    options = {"task": "sst2", "output_dir": "unset", **fields}
    return load_tune(options=options, methods=["lnsr", "r3f", "mixout"])


def runner(score: Score, log: list | None = None):
    def run(work: Sequence[tuple[Trial, int]]) -> list[Outcome]:
        if log is not None:
            log.extend((trial.arm, trial.number, fold) for trial, fold in work)
        return [Outcome(score(trial.setting, fold)) for trial, fold in work]

    return run


def searched(score: Score, log: list | None = None, **fields) -> list[Arm]:
    return search_all(tune(**fields), run=runner(score, log))


def surface(setting: Setting, fold: int) -> float:
    """Best at a learning rate of 1e-4, 8 epochs, and with lnsr at a share of 1."""
    score = 0.8 - 0.1 * abs(math.log10(setting.learning_rate / 1e-4)) + 0.005 * setting.epochs
    if setting.method == "lnsr":
        score += 0.05 - 0.1 * abs(math.log10(setting.fields["share"]))
    return score - 0.01 * fold


def test_both_arms_have_the_same_number_of_trials() -> None:
    plain, methods = searched(surface, budget=21)
    assert (len(plain.trials), len(methods.trials)) == (11, 10)
    assert {trial.setting.method for trial in plain.trials} == {PLAIN}
    assert {trial.setting.method for trial in methods.trials} == {"lnsr", "r3f", "mixout"}
    assert [trial.setting.method for trial in methods.trials[:3]] == ["lnsr", "r3f", "mixout"]


@pytest.mark.parametrize(
    ("folds", "by_rank"), [(1, [1] * 30), (2, [2] * 4), (3, [3] * 2 + [2] * 2), (5, [5, 5, 2, 2])]
)
def test_the_best_race_over_more_folds(folds: int, by_rank: list[int]) -> None:
    """Of 30 trials, by their score on the first fold; they rank alike on every fold."""
    log: list = []
    for arm in searched(surface, log, budget=60, folds=folds):
        ranked = sorted(arm.trials, key=lambda trial: trial.scores[0], reverse=True)
        assert [len(t.scores) for t in ranked] == by_rank + [1] * (30 - len(by_rank))
        assert all((t.state == "complete") == (len(t.scores) == folds) for t in ranked)
        assert arm.best() is ranked[0]
    assert set(Counter(log).values()) == {1}


def test_the_mean_over_folds_decides() -> None:
    """The second trial is best on the first fold alone."""
    scores = [[0.8, 0.8, 0.8], [0.9, 0.5, 0.5]]

    def run(work):
        return [Outcome(scores[trial.number][fold]) for trial, fold in work]

    arm = Arm(PLAIN, Space({PLAIN: {}}, (1e-5, 1e-3), (1.0,)), 2, seed=0)
    search(arm, folds=3, round_size=2, run=run)
    assert [trial.state for trial in arm.trials] == ["complete", "complete"]
    best = arm.best()
    assert best is not None
    assert best.number == 0


def test_tpe_finds_a_known_winner() -> None:
    """Better than random draws on average, and near the best that there is, 0.89."""
    gaps: dict[str, list[float]] = {"tpe": [], "random": []}
    for seed in range(6):
        for sampler, found in gaps.items():
            space = Space({"lnsr": {}, "r3f": {}}, (1e-5, 5e-4), (2.0, 4.0, 8.0))
            arm = Arm("methods", space, 40, seed, sampler=sampler)
            search(arm, folds=1, round_size=4, run=runner(surface))
            best = arm.best()
            assert best is not None
            found.append(0.89 - best.score)
    assert np.mean(gaps["tpe"]) < 0.03
    assert np.mean(gaps["tpe"]) < np.mean(gaps["random"])


def test_a_stopped_search_goes_on_without_a_trial_twice_or_lost() -> None:
    """Scores are kept, as records are; each is computed once, whenever the search is stopped."""
    whole = searched(surface, budget=20)
    kept: dict[tuple, float] = {}
    computed: Counter = Counter()

    class Killed(Exception):
        pass

    for stop_after in (3, 5, 1, 8, 2, 1000):
        left = stop_after

        def score(setting: Setting, fold: int) -> float:
            nonlocal left
            key = (setting.describe(), fold)
            if key not in kept:
                if not left:
                    raise Killed
                left -= 1
                computed[key] += 1
                kept[key] = surface(setting, fold)
            return kept[key]

        try:
            again = searched(score, budget=20)
        except Killed:
            continue
    assert [arm.trials for arm in again] == [arm.trials for arm in whole]
    assert set(computed.values()) == {1}


def test_a_larger_budget_goes_on_from_a_smaller_one() -> None:
    small, large = searched(surface, budget=22), searched(surface, budget=40)
    for few, many in zip(small, large, strict=True):
        for trial, same in zip(few.trials, many.trials, strict=False):
            assert (trial.setting, trial.scores[0]) == (same.setting, same.scores[0])


def test_failed_and_diverged_trials_are_never_the_best() -> None:
    def score(setting: Setting, fold: int) -> float | None:
        if setting.method == "lnsr":
            return None
        return math.nan if setting.learning_rate > 1e-4 else surface(setting, fold)

    plain, methods = searched(score, budget=40)
    states = {trial.state for arm in (plain, methods) for trial in arm.trials}
    assert {"failed", "diverged"} < states
    assert all(t.state == "failed" for t in methods.trials if t.setting.method == "lnsr")
    for arm in (plain, methods):
        best = arm.best()
        assert best is not None
        assert best.setting.learning_rate <= 1e-4
        assert math.isfinite(best.score)


def test_nothing_is_best_where_all_trials_fail() -> None:
    arm = Arm("methods", Space({"lnsr": {}}, (1e-5, 5e-4), (2.0, 4.0)), 3, seed=0)
    search(arm, folds=3, round_size=4, run=runner(lambda setting, fold: None))
    assert arm.best() is None


def test_without_a_score_of_plain_no_method_is_tried() -> None:
    (plain,) = searched(lambda setting, fold: None, budget=6)
    assert plain.best() is None
    assert len(plain.trials) == 3


def test_methods_begin_at_the_best_of_plain() -> None:
    log: list = []
    plain, methods = searched(surface, log, budget=20)
    best = plain.best()
    assert best is not None
    near = (best.setting.learning_rate, best.setting.epochs)
    assert near != (7.07e-05, 4.0), "the middle of the ranges"
    begun = [(trial.setting.learning_rate, trial.setting.epochs) for trial in methods.trials]
    assert begun[:3] == [near] * 3
    assert set(begun[3:]) != {near}
    by_arm = [arm for arm, _, _ in log]
    assert by_arm == sorted(by_arm, key=["plain", "methods"].index)


@pytest.mark.parametrize(("round_size", "rounds"), [(1, [6, 1, 1]), (4, [6, 2]), (8, [8])])
def test_trials_that_depend_on_no_score_start_together(round_size: int, rounds: list[int]) -> None:
    sizes: list[int] = []

    def run(work):
        sizes.append(len(work))
        return [Outcome(surface(trial.setting, fold)) for trial, fold in work]

    arm = Arm(PLAIN, Space({PLAIN: {}}, (1e-5, 5e-4), (2.0, 4.0, 8.0)), 8, seed=0)
    search(arm, folds=1, round_size=round_size, run=run)
    assert sizes == rounds


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("end", [math.nan, None], ids=["diverges", "fails"])
@pytest.mark.parametrize("folds", [3, 5])
def test_a_trial_that_leads_and_breaks_down_leaves_another_one(
    end: float | None, folds: int
) -> None:
    """The first two trials are the best on the first fold and break down on a later one."""

    def scored(trial: Trial, fold: int) -> float | None:
        if trial.number < 2 and fold == folds - 1:
            return end
        return 0.9 - 0.01 * trial.number - 0.001 * fold

    log: list = []

    def run(work):
        log.extend((trial.number, fold) for trial, fold in work)
        return [Outcome(scored(trial, fold), "why") for trial, fold in work]

    def note(arm: Arm, trial: Trial) -> None:
        ended.append(trial)

    def search_of(round_size: int) -> Arm:
        arm = Arm(PLAIN, Space({PLAIN: {}}, (1e-5, 5e-4), (2.0, 4.0, 8.0)), 8, seed=0)
        search(arm, folds=folds, round_size=round_size, run=run, ended=note)
        return arm

    for round_size in (1, 8):
        log.clear()
        ended: list[Trial] = []
        arm = search_of(round_size)
        state = "failed" if end is None else "diverged"
        assert arm.trials[0].state == state
        best = arm.best()
        assert best is not None
        assert (best.state, len(best.scores)) == ("complete", folds)
        assert best is max((t for t in arm.trials if t.state != state), key=lambda t: t.scores[0])
        assert [trial.number for trial in ended[-2:]] == [2, 3]
        assert set(Counter(log).values()) == {1}
        assert search_of(round_size).trials == arm.trials


@pytest.mark.parametrize("round_size", [1, 5])
def test_rounds_of_any_size_spend_the_budget(round_size: int) -> None:
    plain, methods = searched(surface, budget=11, round_size=round_size)
    assert (len(plain.trials), len(methods.trials)) == (6, 5)
    assert all(trial.state != "running" for trial in plain.trials + methods.trials)
