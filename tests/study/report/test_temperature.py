"""Whether a method does more than a temperature, which everyone can have."""

from collections.abc import Mapping

import pytest

from helpers.study_files import made_runs
from smoothtune.results import Measured, Part
from smoothtune.study.report.content import StudyContent
from smoothtune.study.report.findings import findings
from smoothtune.study.report.methods import compare_methods, over_tasks


def content(nll: Mapping[str, list[tuple[float, float]]]) -> StudyContent:
    """Results of methods by their NLL without and with a temperature, task by task."""
    made = made_runs(
        [
            {
                **{"task": f"t{task}", "model": "m", "method": method, "seed": seed},
                **{"status": "done", "metric": "accuracy", "score": 0.8, "trivial_baseline": 0.5},
                **{"nll_uncalibrated": before, "nll_calibrated": after},
            }
            for method, by_task in nll.items()
            for task, (before, after) in enumerate(by_task)
            for seed in range(2)
        ]
    )
    return StudyContent(methods=compare_methods(made), over_tasks=over_tasks(made))


def sentence(nll: Mapping[str, list[tuple[float, float]]]) -> str | None:
    texts = [each.text for each in findings(content(nll))]
    return next((text for text in texts if text.startswith("A temperature")), None)


def test_methods_below_plain_with_a_temperature_are_named() -> None:
    plain = [(0.9, 0.6), (0.7, 0.4)]
    assert sentence({"plain": plain, "a": [(0.6, 0.5), (0.3, 0.3)], "b": [(0.8, 0.5)] * 2}) == (
        "A temperature takes plain's NLL from 0.800 to 0.500 on rows on which it was not fitted. "
        "Below that without one: a (0.450)."
    )


def test_where_none_is_the_nearest_is_named() -> None:
    told = sentence({"plain": [(0.8, 0.5)], "a": [(0.7, 0.4)], "b": [(0.6, 0.45)]})
    assert told is not None
    assert told.endswith("without one: no method; the lowest is b, 0.600.")


def test_a_temperature_that_raises_the_nll_is_nothing_to_be_below() -> None:
    told = sentence({"plain": [(0.694, 0.696)], "a": [(0.695, 0.69)]})
    assert told == "A temperature does not lower plain's NLL: 0.694 without one, 0.696 with it."


def test_means_are_over_the_tasks_of_plain() -> None:
    told = sentence({"plain": [(0.8, 0.5), (0.8, 0.5)], "a": [(0.1, 0.1)], "b": [(0.7, 0.5)] * 2})
    assert told is not None
    assert "no method; the lowest is b" in told  # `a` was not run on the second


def test_both_with_a_temperature_are_compared() -> None:
    compared = content({"plain": [(0.8, 0.5)] * 2, "a": [(0.7, 0.4)] * 2}).over_tasks
    (item,) = compared["nll_calibrated"]
    assert item.difference.value == pytest.approx(-0.1)


def test_numbers_come_from_the_rows_on_which_none_was_fitted() -> None:
    rows = {"judged_rows_before": {"nll": 2.0, "brier": 0.9}}
    rows |= {"judged_rows_after": {"nll": 1.0, "brier": 0.5}, "all_rows": {"nll": 3.0}}
    measured = Measured(parts={"calibration": Part(numbers=rows, curves={})})
    assert measured.calibrated == {
        **{"nll_uncalibrated": 2.0, "nll_calibrated": 1.0, "brier_calibrated": 0.5}
    }
    few = Measured(parts={"calibration": Part(numbers={"all_rows": {"nll": 3.0}}, curves={})})
    assert few.calibrated == Measured().calibrated == {}
