"""The tables of a study's report, as text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from smoothtune.report.page import DASH, Table, number
from smoothtune.report.tables import POINTS, effect_text, p_text, score_grid
from smoothtune.study.comparison import Comparison, ConditionKey
from smoothtune.study.config import Paper
from smoothtune.study.report.content import Chosen
from smoothtune.study.report.methods import SECONDARY, MethodResult
from smoothtune.study.report.statistics import ENOUGH_SEEDS, LEVEL, NAMES, Summary

_TITLES = ("gap", "Brier", "NLL", "ECE", "score under noise", "score on other data")
TITLES = dict(zip(SECONDARY, _TITLES, strict=True))


BETTER, WORSE, NOT_AFTER_HOLM = "better", "worse", "open: not after Holm"
NOTHING, EQUAL, FEW = "no difference seen", "equal to plain in every run", "too few seeds"
SMALLEST = "shown from, points"
"""Head of the column of the smallest differences that would have been shown."""


def main_table(methods: Sequence[MethodResult]) -> Table:
    """Mean scores of all methods and conditions, with average and rank; methods as in the study."""
    conditions = {item.condition: item.metric for item in methods if item.metric}
    titles = {key: f"{_short_title(key, conditions)}: {name}" for key, name in conditions.items()}
    scores: dict[str, dict[Any, Summary]] = {item.method: {} for item in methods}
    for item in methods:
        if item.score:
            scores[item.method][item.condition] = item.score
    return score_grid(scores, titles)


def _short_title(condition: ConditionKey, others: Iterable[ConditionKey]) -> str:
    """A condition without what all have in common beside the task."""
    model, size = (len({other[place] for other in others}) > 1 for place in (1, 2))
    return condition._replace(
        model=condition.model if model else "",
        max_train_samples=condition.max_train_samples if size else None,
    ).title


def main_rows(methods: Sequence[MethodResult]) -> Iterator[list[object]]:
    """The same as plain numbers, with `MAIN_COLUMNS`, one row for each method and condition."""
    for item in methods:
        score, against = item.score, item.against_plain
        numbers = [score.n, score.mean, score.sd, score.median, score.max] if score else [None] * 5
        tested: list[object] = [None] * 5
        if against:
            gap = against.difference
            tested = [gap.value, *gap.bounds, against.p, against.p_holm]
        yield [*item.condition, item.method, item.metric, *numbers, *tested]


MAIN_COLUMNS = (
    *("task", "model", "max_train_samples", "method", "metric", "seeds", "mean", "sd", "median"),
    *("max", "minus_plain", "low", "high", "p", "p_holm"),
)


def verdict(against: Comparison) -> str:
    """What the deciding test says about a method, in words."""
    p, gap = against.p_holm, against.difference.value
    if against.equal:
        return EQUAL
    if p is None:
        return FEW
    if p < LEVEL and len(against.seeds) < ENOUGH_SEEDS:
        return FEW
    if p < LEVEL:
        return BETTER if gap > 0 else WORSE
    return NOT_AFTER_HOLM if against.p is not None and against.p < LEVEL else NOTHING


def score_table(group: Sequence[MethodResult]) -> Table:
    """Scores of each method, and how far they are from plain's."""
    metric = next((m.metric for m in group if m.metric), "score")
    lost = any(method.failed for method in group)
    head = ["method", "seeds", f"{metric}, mean", "sd", "median", "max", *["failed"] * lost]
    head += ["minus plain, points", "p", "p, Holm", "verdict", SMALLEST, "P(better)"]
    head += ["time, x plain"]
    rows = []
    for method in group:
        score, against = method.score, method.against_plain
        values = [DASH] * 4
        if score:
            values = [number(of) for of in (score.mean, score.sd, score.median, score.max)]
        done = score.n if score else 0
        failed = ", ".join(f"{count} {status}" for status, count in method.failed.items())
        cells = [method.method, f"{done} of {method.asked}", *values]
        cells += [failed or "0"] * lost
        if against:
            cells += [
                effect_text(against.difference, POINTS, "+.1f"),
                p_text(against.p),
                p_text(against.p_holm),
                verdict(against),
                _smallest(against),
                effect_text(against.improvement, 1, ".2f"),
                number(against.cost_ratio, ".2f"),
            ]
        rows.append(cells + [DASH] * (len(head) - len(cells)))
    return Table(head, rows)


def stability_table(group: Sequence[MethodResult]) -> Table:
    """Spread over seeds, fit and calibration."""
    head = ["method", "variance, x plain's", "p (Brown-Forsythe)", "train score", "gap"]
    head += ["Brier", "NLL", "ECE", "under noise", "on other data"]
    rows = []
    for method in group:
        against = method.against_plain
        found = [method.measures[name] for name in ("train_score", *SECONDARY)]
        means = [number(summary.mean if summary else None) for summary in found]
        spread = effect_text(against.variance_ratio if against else None, 1, ".2f")
        p = p_text(against.p_variance if against else None)
        rows.append([method.method, spread, p, *means])
    return Table(head, rows)


def secondary_table(tested: Mapping[str, Mapping[str, Comparison | None]]) -> Table:
    """Differences from plain in what is measured beside the score, by measure and method."""
    methods = dict.fromkeys(method for by_method in tested.values() for method in by_method)
    rows = [
        [method, *(_tested(tested[measure].get(method)) for measure in SECONDARY)]
        for method in methods
    ]
    return Table(["method", *TITLES.values()], rows)


def test_table(group: Sequence[MethodResult]) -> Table:
    """p-values of all tests, uncorrected."""
    compared = [item.against_plain for item in group if item.against_plain]
    rows = [[item.method, *(p_text(item.p_by_test[name]) for name in NAMES)] for item in compared]
    return Table(["method", *NAMES.values()], rows)


def over_tasks_table(compared: Sequence[Comparison]) -> Table:
    """Mean difference over all conditions."""
    head = ["method", "seeds", "minus plain, mean over tasks, points", "p", "p, Holm", SMALLEST]
    rows = [
        [
            item.method,
            str(len(item.seeds)),
            effect_text(item.difference, POINTS, "+.1f"),
            p_text(item.p),
            p_text(item.p_holm),
            _smallest(item),
        ]
        for item in compared
    ]
    return Table(head, rows)


def _smallest(item: Comparison) -> str:
    """More than the whole scale is no difference."""
    points = item.smallest and POINTS * item.smallest
    return "> 100" if points and points > POINTS else number(points, ".1f")


def choice_table(choices: Sequence[Chosen]) -> Table:
    """Which settings were tried, and which one was chosen."""
    rows = [
        [
            choice.condition.title,
            choice.method,
            str(choice.tried),
            choice.chosen or ("none: all failed" if choice.complete else "not yet"),
            "; ".join(f"{name}: {number(score)}" for name, score in choice.scores.items()),
        ]
        for choice in choices
    ]
    head = ["condition", "method", "tried", "chosen", "score on held-out training rows"]
    return Table(head, rows, wraps=True)


def paper_table(paper: Paper, methods: Sequence[MethodResult]) -> Table:
    """The paper's numbers beside ours, in points, with a row for every condition of a task."""
    head = ["task", "method", *(f"paper: {name}" for name in paper.columns)]
    rows = []
    for task, by_label in paper.values.items():
        for method, numbers in by_label.items():
            printed = [number(value, ".2f") for value in numbers]
            printed += [DASH] * (len(paper.columns) - len(printed))
            own = [m for m in methods if (m.condition.task, m.method) == (task, method)]
            for item in own:
                title = item.condition.title if len(own) > 1 else task
                rows.append([title, method, *printed, *_in_points(item.score)])
            if not own:
                rows.append([task, method, *printed, *_in_points(None)])
    return Table([*head, "here: mean", "here: sd", "here: max"], rows)


def _in_points(score: Summary | None) -> list[str]:
    """Mean, sd and maximum."""
    numbers = (score.mean, score.sd, score.max) if score else (None, None, None)
    return [number(None if value is None else POINTS * value, ".2f") for value in numbers]


def comparisons_by_method(
    tested: Mapping[str, Sequence[Comparison]],
) -> dict[str, dict[str, Comparison]]:
    """Comparisons by measure and method."""
    return {name: {item.method: item for item in items} for name, items in tested.items()}


def _tested(test: Comparison | None) -> str:
    """A difference with its corrected p-value."""
    if test is None:
        return DASH
    value = f"{test.difference.value:+.4f}"
    return value if test.p_holm is None else f"{value} ({p_text(test.p_holm)})"
