"""The tables of a study's report, as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from smoothtune.report.page import DASH, Table, number, with_interval
from smoothtune.study.report.comparison import SECONDARY, condition_of, condition_title
from smoothtune.study.report.plots import POINTS
from smoothtune.study.report.statistics import NAMES

TITLES = dict(zip(SECONDARY, ("gap", "Brier", "NLL", "ECE", "score under noise"), strict=True))


def score_table(group: Sequence[Mapping[str, Any]]) -> Table:
    """Scores of each method, and how far they are from plain's."""
    metric = next((m["metric"] for m in group if m["metric"]), "score")
    head = ["method", "seeds", f"{metric}, mean", "sd", "median", "max", "failed"]
    head += ["minus plain, points", "p", "p, Holm", "better with probability", "time, x plain"]
    rows = []
    for method in group:
        score, against = method["measures"]["score"], method["against_plain"]
        values = [number(score and score[name]) for name in ("mean", "sd", "median", "max")]
        done = score["n"] if score else 0
        failed = ", ".join(f"{count} {status}" for status, count in method["failed"].items())
        cells = [method["method"], f"{done} of {method['asked']}", *values, failed or "0"]
        if against:
            cells += [
                _effect(against["difference"], POINTS, 1, signed=True),
                _p(against["p"][against["test"]]),
                _p(against["p_holm"]),
                _effect(against["improvement"], 1, 2),
                number(against["cost_ratio"], ".2f"),
            ]
        rows.append(cells + [DASH] * (len(head) - len(cells)))
    return Table(head, rows)


def stability_table(group: Sequence[Mapping[str, Any]]) -> Table:
    """Spread over seeds, fit and calibration."""
    head = ["method", "variance, x plain's", "p (Brown-Forsythe)", "train score", "gap"]
    head += ["Brier", "NLL", "ECE", "under noise"]
    rows = []
    for method in group:
        against, measures = method["against_plain"], method["measures"]
        ratio = against and against["variance_ratio"]
        names = ("train_score", "generalization_gap", "brier", "nll", "ece", "noise")
        means = [number(measures[name] and measures[name]["mean"]) for name in names]
        spread = _effect(ratio, 1, 2) if ratio else DASH
        rows.append([method["method"], spread, _p(against and against["p_variance"]), *means])
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
        [m["method"], *(_p(m["against_plain"]["p"][short]) for short in NAMES)] for m in compared
    ]
    return Table(["method", *NAMES.values()], rows)


def over_tasks_table(compared: Sequence[Mapping[str, Any]]) -> Table:
    """Mean difference over all conditions."""
    head = ["method", "seeds", "minus plain, mean over tasks, points", "p", "p, Holm"]
    rows = [
        [
            item["method"],
            str(len(item["seeds"])),
            _effect(item["difference"], POINTS, 1, signed=True),
            _p(item["p"]),
            _p(item["p_holm"]),
        ]
        for item in compared
    ]
    return Table(head, rows)


def choice_table(choices: Sequence[Mapping[str, Any]]) -> Table:
    """Which settings were tried, and which one was chosen."""
    rows = [
        [
            condition_title(condition_of(choice)),
            choice["method"],
            str(choice["tried"]),
            choice["chosen"] or "none: all failed",
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


def _p(value: float | None) -> str:
    return DASH if value is None else f"{value:.2g}" if value < 0.1 else f"{value:.2f}"


def _tested(test: Mapping[str, Any] | None) -> str:
    """A difference with its corrected p-value."""
    if test is None:
        return DASH
    value = f"{test['difference']['value']:+.4f}"
    return value if test["p_holm"] is None else f"{value} ({_p(test['p_holm'])})"


def _effect(effect: Mapping[str, Any], factor: float, digits: int, *, signed: bool = False) -> str:
    interval = effect["interval"] and tuple(factor * bound for bound in effect["interval"])
    return with_interval(factor * effect["value"], interval, f"{'+' if signed else ''}.{digits}f")
