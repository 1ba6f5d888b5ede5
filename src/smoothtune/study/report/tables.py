"""The tables of a study's report, as text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from smoothtune.report.page import DASH, Table, number
from smoothtune.report.tables import POINTS, effect_text, p_text, score_grid
from smoothtune.study.report.comparison import (
    SECONDARY,
    Condition,
    condition_of,
    condition_title,
)
from smoothtune.study.report.statistics import ENOUGH_SEEDS, LEVEL, NAMES

_TITLES = ("gap", "Brier", "NLL", "ECE", "score under noise", "score on other data")
TITLES = dict(zip(SECONDARY, _TITLES, strict=True))


BETTER, WORSE, NOT_AFTER_HOLM = "better", "worse", "open: not after Holm"
NOTHING, EQUAL, FEW = "no difference seen", "equal to plain in every run", "too few seeds"
SMALLEST = "shown from, points"
"""Head of the column of the smallest differences that would have been shown."""


def main_table(methods: Sequence[Mapping[str, Any]]) -> Table:
    """Mean scores of all methods and conditions, with average and rank; methods as in the study."""
    conditions = {condition_of(item): item["metric"] for item in methods if item["metric"]}
    titles = {key: f"{_short_title(key, conditions)}: {name}" for key, name in conditions.items()}
    scores: dict[str, dict[Any, Any]] = {item["method"]: {} for item in methods}
    for item in methods:
        if score := item["measures"]["score"]:
            scores[item["method"]][condition_of(item)] = score
    return score_grid(scores, titles)


def _short_title(condition: Condition, others: Iterable[Condition]) -> str:
    """A condition without what all have in common beside the task."""
    model, size = (len({other[place] for other in others}) > 1 for place in (1, 2))
    task, named, examples = condition
    return condition_title((task, named if model else "", examples if size else None))


def main_rows(methods: Sequence[Mapping[str, Any]]) -> Iterator[list[object]]:
    """The same as plain numbers, with `MAIN_COLUMNS`, one row for each method and condition."""
    for item in methods:
        score, against = item["measures"]["score"] or {}, item["against_plain"] or {}
        gap = against.get("difference", {"value": None, "interval": None})
        yield [
            *(*condition_of(item), item["method"], item["metric"]),
            *(score.get(name) for name in ("n", "mean", "sd", "median", "max")),
            *(gap["value"], *(gap["interval"] or (None, None))),
            *(against.get("p", {}).get(against.get("test")), against.get("p_holm")),
        ]


MAIN_COLUMNS = (
    *("task", "model", "max_train_samples", "method", "metric", "seeds", "mean", "sd", "median"),
    *("max", "minus_plain", "low", "high", "p", "p_holm"),
)


def verdict(against: Mapping[str, Any]) -> str:
    """What the deciding test says about a method, in words."""
    p, gap = against["p_holm"], against["difference"]["value"]
    if against["equal"]:
        return EQUAL
    if p is None:
        return FEW
    if p < LEVEL and len(against["seeds"]) < ENOUGH_SEEDS:
        return FEW
    if p < LEVEL:
        return BETTER if gap > 0 else WORSE
    return NOT_AFTER_HOLM if against["p"][against["test"]] < LEVEL else NOTHING


def score_table(group: Sequence[Mapping[str, Any]]) -> Table:
    """Scores of each method, and how far they are from plain's."""
    metric = next((m["metric"] for m in group if m["metric"]), "score")
    lost = any(method["failed"] for method in group)
    head = ["method", "seeds", f"{metric}, mean", "sd", "median", "max", *["failed"] * lost]
    head += ["minus plain, points", "p", "p, Holm", "verdict", SMALLEST, "P(better)"]
    head += ["time, x plain"]
    rows = []
    for method in group:
        score, against = method["measures"]["score"], method["against_plain"]
        values = [number(score and score[name]) for name in ("mean", "sd", "median", "max")]
        done = score["n"] if score else 0
        failed = ", ".join(f"{count} {status}" for status, count in method["failed"].items())
        cells = [method["method"], f"{done} of {method['asked']}", *values]
        cells += [failed or "0"] * lost
        if against:
            cells += [
                effect_text(against["difference"], POINTS, "+.1f"),
                p_text(against["p"][against["test"]]),
                p_text(against["p_holm"]),
                verdict(against),
                _smallest(against),
                effect_text(against["improvement"], 1, ".2f"),
                number(against["cost_ratio"], ".2f"),
            ]
        rows.append(cells + [DASH] * (len(head) - len(cells)))
    return Table(head, rows)


def stability_table(group: Sequence[Mapping[str, Any]]) -> Table:
    """Spread over seeds, fit and calibration."""
    head = ["method", "variance, x plain's", "p (Brown-Forsythe)", "train score", "gap"]
    head += ["Brier", "NLL", "ECE", "under noise", "on other data"]
    rows = []
    for method in group:
        against, measures = method["against_plain"], method["measures"]
        ratio = against and against["variance_ratio"]
        names = ("train_score", *SECONDARY)
        means = [number(measures[name] and measures[name]["mean"]) for name in names]
        spread = effect_text(ratio, 1, ".2f")
        rows.append([method["method"], spread, p_text(against and against["p_variance"]), *means])
    return Table(head, rows)


def secondary_table(tested: Mapping[str, Mapping[str, Any]]) -> Table:
    """Differences from plain in what is measured beside the score, by measure and method."""
    methods = dict.fromkeys(method for by_method in tested.values() for method in by_method)
    rows = [
        [method, *(_tested(tested[measure].get(method)) for measure in SECONDARY)]
        for method in methods
    ]
    return Table(["method", *TITLES.values()], rows)


def test_table(group: Sequence[Mapping[str, Any]]) -> Table:
    """p-values of all tests, uncorrected."""
    compared = [method for method in group if method["against_plain"]]
    rows = [
        [m["method"], *(p_text(m["against_plain"]["p"][short]) for short in NAMES)]
        for m in compared
    ]
    return Table(["method", *NAMES.values()], rows)


def over_tasks_table(compared: Sequence[Mapping[str, Any]]) -> Table:
    """Mean difference over all conditions."""
    head = ["method", "seeds", "minus plain, mean over tasks, points", "p", "p, Holm", SMALLEST]
    rows = [
        [
            item["method"],
            str(len(item["seeds"])),
            effect_text(item["difference"], POINTS, "+.1f"),
            p_text(item["p"]),
            p_text(item["p_holm"]),
            _smallest(item),
        ]
        for item in compared
    ]
    return Table(head, rows)


def _smallest(item: Mapping[str, Any]) -> str:
    """More than the whole scale is no difference."""
    points = item["smallest"] and POINTS * item["smallest"]
    return "> 100" if points and points > POINTS else number(points, ".1f")


def choice_table(choices: Sequence[Mapping[str, Any]]) -> Table:
    """Which settings were tried, and which one was chosen."""
    rows = [
        [
            condition_title(condition_of(choice)),
            choice["method"],
            str(choice["tried"]),
            choice["chosen"] or ("none: all failed" if choice["complete"] else "not yet"),
            "; ".join(f"{name}: {number(score)}" for name, score in choice["scores"].items()),
        ]
        for choice in choices
    ]
    head = ["condition", "method", "tried", "chosen", "score on held-out training rows"]
    return Table(head, rows)


def paper_table(paper: Mapping[str, Any], methods: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The paper's numbers beside ours, in points, with a row for every condition of a task."""
    head = ["task", "method", *(f"paper: {name}" for name in paper["columns"])]
    rows = []
    for task, by_method in paper["values"].items():
        for method, numbers in by_method.items():
            printed = [number(value, ".2f") for value in numbers]
            printed += [DASH] * (len(paper["columns"]) - len(printed))
            ours = [m for m in methods if (m["task"], m["method"]) == (task, method)]
            for item in ours or [{}]:
                score = item["measures"]["score"] if item else None
                title = condition_title(condition_of(item)) if len(ours) > 1 else task
                mine = [
                    number(score and score[name] and POINTS * score[name], ".2f")
                    for name in ("mean", "sd", "max")
                ]
                rows.append([title, method, *printed, *mine])
    table = Table([*head, "here: mean", "here: sd", "here: max"], rows)
    return {
        "source": paper["source"],
        "model": paper["model"],
        "notes": paper["notes"],
        "table": table,
    }


def _tested(test: Mapping[str, Any] | None) -> str:
    """A difference with its corrected p-value."""
    if test is None:
        return DASH
    value = f"{test['difference']['value']:+.4f}"
    return value if test["p_holm"] is None else f"{value} ({p_text(test['p_holm'])})"
