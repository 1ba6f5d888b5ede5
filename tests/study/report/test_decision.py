"""The first sentence: use a method, run more seeds, stay with plain, or mend the runs."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from helpers.study_files import made_runs
from smoothtune.study.report.content import StudyContent
from smoothtune.study.report.decision import decision
from smoothtune.study.report.methods import compare_methods, over_tasks
from smoothtune.study.report.statistics import seeds_needed


def content(
    gaps: dict[str, list[list[float]]],
    chance: float = 0.5,
    nll: dict[str, list[list[float]]] | None = None,
    calibrated: float | None = None,
) -> StudyContent:
    """Results of methods whose scores, and NLL, are plain's plus gaps, by task and seed.

    `calibrated` is the part of a gap in NLL that is left where both have a temperature.

    The last tasks may have no NLL.
    """
    tasks = range(len(next(iter(gaps.values()))))
    seeds = len(next(iter(gaps.values()))[0])
    base = np.random.default_rng(0).normal(0.8, 0.02, (len(tasks), seeds))
    every = {"plain": np.zeros((len(tasks), seeds)).tolist()} | gaps
    with_nll = max(map(len, (nll or {}).values()), default=0)
    change = dict.fromkeys(every, [[0.0] * seeds] * with_nll) | (nll or {})
    runs = [
        {
            **{"task": f"t{task}", "model": "m", "method": method, "seed": seed, "status": "done"},
            **{"metric": "accuracy", "score": base[task, seed] + by_task[task][seed]},
            **{"trivial_baseline": chance, "train_seconds": 2.0 if method != "plain" else 1.0},
            **({"nll": 0.5 + change[method][task][seed]} if task < len(change[method]) else {}),
        }
        for method, by_task in every.items()
        for task in tasks
        for seed in range(seeds)
    ]
    if calibrated is not None:
        for run in runs:
            run["nll_calibrated"] = 0.4 + calibrated * (run["nll"] - 0.5) + 1e-3 * run["score"]
    made = made_runs(runs)
    return StudyContent(methods=compare_methods(made), over_tasks=over_tasks(made))


BETTER = [0.03, 0.031, 0.029, 0.03, 0.0305]
NOISE = [0.01, -0.02, 0.02, -0.01, 0.012]


def test_the_best_of_those_that_hold_is_to_be_used() -> None:
    less = [gap / 2 for gap in BETTER]
    said = decision(content({"less": [less], "good": [BETTER]}))
    assert said.verdict == "good"
    interval = stats.ttest_1samp(BETTER, 0).confidence_interval()
    low, high = 100 * interval.low, 100 * interval.high
    assert said.text.startswith(f"Use good: +3.0 points [{low:+.1f}, {high:+.1f}] against plain, p")
    assert "for 2.0 times plain's training time" in said.text


def test_times_of_other_devices_are_no_price() -> None:
    compared = content({"good": [BETTER]})
    methods = [replace(method, cost_ratio=None) for method in compared.methods]
    said = decision(replace(compared, methods=methods))
    assert said.text.endswith("after Holm's correction.")


def test_over_tasks_the_mean_decides() -> None:
    said = decision(content({"good": [BETTER, BETTER], "bad": [[-x for x in BETTER], BETTER]}))
    assert "Use good: +3.0 points" in said.text
    assert "on average over 2 tasks" in said.text


SLIGHT = [0.001, -0.002, 0.002, 0.001, -0.001]
LOWER_NLL = [-0.05, -0.051, -0.049, -0.05, -0.052]


@pytest.mark.parametrize("tasks", [1, 2])
def test_better_probabilities_count_where_the_score_is_not_lower(tasks: int) -> None:
    gaps = {"calm": [SLIGHT] * tasks, "loose": [NOISE] * tasks}
    nll = {"calm": [LOWER_NLL] * tasks, "loose": [[2 * x for x in LOWER_NLL]] * tasks}
    advice = decision(content(gaps, nll=nll))
    assert advice.verdict == "good"
    assert advice.text.startswith("Use calm for better probabilities: NLL -0.050 [")
    assert "Its score is not lower: +0.0 points [" in advice.text


def test_what_a_mean_is_over_are_the_tasks_that_have_the_measure() -> None:
    advice = decision(content({"calm": [SLIGHT] * 3}, nll={"calm": [LOWER_NLL] * 2}))
    assert "against plain on average over 2 tasks, p" in advice.text


def test_better_probabilities_of_the_one_task_that_has_them_are_told() -> None:
    """As beside a regression, which has none."""
    made = content({"calm": [SLIGHT] * 2}, nll={"calm": [LOWER_NLL]})
    advice = decision(made)
    assert advice.text.startswith("Use calm for better probabilities: NLL -0.050 [")
    assert "against plain on t0, m, p" in advice.text
    assert [item.measure for item in made.comparisons].count("nll") == 1


def test_a_score_that_is_shown_to_be_lower_is_not_called_not_lower() -> None:
    slightly = [-0.003, -0.0031, -0.0029, -0.003, -0.0032]
    advice = decision(content({"calm": [slightly]}, nll={"calm": [LOWER_NLL]}))
    assert advice.text.startswith("Use calm for better probabilities")
    assert "Its score is lower by less than 0.5 points: -0.3 points [" in advice.text


@pytest.mark.parametrize("score", [SLIGHT, NOISE])
def test_better_probabilities_are_told_where_both_have_a_temperature(score: list[float]) -> None:
    advice = decision(content({"calm": [score]}, nll={"calm": [LOWER_NLL]}, calibrated=0.2))
    said = advice.text.rpartition(" With a temperature for both: ")[2]
    assert said.startswith("NLL -0.010 [-0.010, -0.010], p = ")
    assert said.endswith("after Holm's correction.")
    none = decision(content({"calm": [score]}, nll={"calm": [LOWER_NLL]}, calibrated=0.0))
    assert none.text.endswith("], not shown to differ.")
    unknown = decision(content({"calm": [score]}, nll={"calm": [LOWER_NLL]}))
    assert "temperature" not in unknown.text


@pytest.mark.parametrize("score", [BETTER, SLIGHT, NOISE])
def test_advice_tells_of_failed_runs_of_its_method(score: list[float]) -> None:
    found = content({"good": [score]}, nll={"good": [LOWER_NLL]})
    lost = {"planned": 8, "failed": {"nan": 2, "error": 1}}
    methods = [replace(m, **lost) if m.method == "good" else m for m in found.methods]
    advice = decision(replace(found, methods=methods))
    assert advice.verdict == ("note" if score is NOISE else "fragile")
    assert advice.text.endswith(". But 3 of its 8 runs failed, and are in no mean.")


def test_differences_without_a_spread_ask_for_more_seeds_than_there_are() -> None:
    advice = decision(content({"good": [[0.05] * 5]})).text
    assert advice.startswith("Run 1 more seed, or use plain: good is ahead of it by +5.0 points")
    assert "6 seeds in all would show it" in advice


def test_probabilities_that_are_not_shown_to_be_better_are_not_advised() -> None:
    advice = decision(content({"calm": [SLIGHT]}, nll={"calm": [NOISE]}))
    assert advice.text.startswith("Use plain")
    worse = decision(content({"calm": [SLIGHT]}, nll={"calm": [[-x for x in LOWER_NLL]]}))
    assert worse.text.startswith("Use plain")


def test_better_probabilities_at_an_open_score_are_told() -> None:
    twice = [2 * x for x in LOWER_NLL]
    nll = {"loose": [LOWER_NLL], "low": [twice]}
    advice = decision(content({"loose": [NOISE], "low": [[-x for x in BETTER]]}, nll=nll))
    assert advice.text.startswith("Use plain: loose is ahead of it by +0.2 points [")
    assert ". Probabilities are better with loose: NLL -0.050 [" in advice.text
    assert "Whether its score is lower is not decided: +0.2 points [" in advice.text
    of_two = decision(content({"loose": [NOISE] * 2}, nll={"loose": [LOWER_NLL] * 2})).text
    assert "] on average over 2 tasks, p = " in of_two
    alone = decision(content({"low": [[-x for x in BETTER]]}, nll={"low": [twice]}))
    assert "Probabilities" not in alone.text  # its score is shown to be lower


def test_a_better_score_comes_first() -> None:
    advice = decision(content({"good": [BETTER]}, nll={"good": [LOWER_NLL]}))
    assert "probabilities" not in advice.text


def test_more_seeds_where_they_would_show_it() -> None:
    for first in (0.01, -0.01):
        gaps = [0.03, first, 0.025, 0.0, 0.02]
        said = decision(content({"some": [gaps], "none": [NOISE]})).text
        needed = seeds_needed(np.mean(gaps), np.std(gaps, ddof=1), 2)
        ahead = f"some is ahead of it by {100 * np.mean(gaps):+.1f} points ["
        assert said.startswith(f"Run {needed - 5} more seeds, or use plain: {ahead}")
        assert "which 5 seeds and 2 comparisons do not establish" in said
        assert f"{needed} seeds in all would show it with a chance of 80 %" in said


def test_plain_where_nothing_is_near() -> None:
    assert "need more than 30 seeds" in decision(content({"none": [NOISE]})).text
    lower = decision(content({"none": [[-0.001, 0.0, -0.02, -0.01, 0.0]]}))
    assert lower.text.startswith("Use plain: no method is more than 0.2 points above it")


def test_one_seed_says_nothing_nor_do_two() -> None:
    assert decision(content({"good": [[0.03]]})).text.startswith("Run 4 more seeds: one says")
    alike = decision(content({"good": [[0.03, 0.03]]})).text
    assert alike.startswith("Run 3 more seeds: 2 say nothing, not even of good (+3.0 points")


def test_four_seeds_are_not_enough_to_use_a_method() -> None:
    said = decision(content({"good": [BETTER[:4]]}))
    assert said.verdict == "note"
    assert said.text.startswith(
        "Run 1 more seed, or use plain: good is ahead of it by +3.0 points ["
    )
    assert "5 seeds in all would show it" in said.text


def test_equal_runs_are_suspicious() -> None:
    said = decision(content({"idle": [[0.0] * 5], "lazy": [[0.0] * 5]}))
    assert said.text == "Equal to plain in every run: idle, lazy. Check that they act at all."
    assert said.verdict == "fragile"


def test_below_chance_nothing_is_recommended() -> None:
    said = decision(content({"good": [BETTER]}, chance=0.95)).text
    assert said.startswith("Train longer or with a higher learning rate first")


@pytest.mark.parametrize(("score", "seeds"), [(0.53, 7), (0.56, 10), (0.72, 3)])
def test_plain_that_equals_a_constant_answer_is_at_chance(score: float, seeds: int) -> None:
    """The mean of equal scores is rounded, here above them."""
    assert np.mean([score] * seeds) > score
    runs = [
        {"task": "t", "model": "m", "method": method, "seed": seed, "status": "done"}
        | {"metric": "accuracy", "score": score + gap, "trivial_baseline": score}
        for method, gap in (("plain", 0.0), ("good", 0.02))
        for seed in range(seeds)
    ]
    made = made_runs(runs)
    said = decision(StudyContent(methods=compare_methods(made), over_tasks=over_tasks(made)))
    assert said.text.startswith("Train longer")


def test_without_runs_of_plain() -> None:
    found = content({"good": [BETTER]})
    methods = [item for item in found.methods if item.method != "plain"]
    said = decision(replace(found, methods=methods)).text
    assert "plain fine-tuning has no finished run" in said


def test_a_method_that_is_not_for_every_task_is_compared_where_it_is() -> None:
    found = content({"some": [BETTER, BETTER]})
    methods = [m for m in found.methods if m.method == "plain" or m.condition.task == "t0"]
    alone = replace(found, methods=methods, over_tasks={})
    assert decision(alone).text.startswith("Compare task by task: no method has runs on all")
    methods[-1] = replace(methods[-1], missing=1)
    said = decision(replace(alone, methods=methods)).text
    assert said == "Go on with the study: a method beside plain has no finished run everywhere."


def test_three_seeds_do_not_establish_what_their_interval_shows() -> None:
    few = decision(content({"some": [[0.25, 0.26, 0.255]]})).text
    assert few.startswith(
        "Run 2 more seeds, or use plain: some is ahead of it by +25.5 points [+24"
    )
    assert "which 3 seeds and 1 comparison do not establish" in few
    worse = decision(content({"some": [[-x for x in BETTER]]})).text
    assert worse.startswith("Use plain: no method is more than 0.2 points above it")
