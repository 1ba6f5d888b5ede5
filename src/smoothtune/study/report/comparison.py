"""Records of cells as a table of runs, and its methods compared with plain fine-tuning."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from smoothtune.study.config import PLAIN
from smoothtune.study.records import Cell, Records
from smoothtune.study.report import statistics
from smoothtune.study.report.power import smallest_difference
from smoothtune.study.table import Row

Condition = tuple[str, str, int | None]
"""Task, model and number of training examples."""
CONDITION = ["task", "model", "max_train_samples"]
SECONDARY = ("generalization_gap", "brier", "nll", "ece", "noise", "ood")
"""Measures that are tested against plain's beside the score; noise: the mean score under Gaussian
noise on the embeddings; ood: the mean score on the other data sets."""
MEASURES = ("score", "train_score", *SECONDARY)
ROUNDING = 1e-9
COSTS = ("steps", "train_seconds", "evaluation_seconds")
COLUMNS = (
    *(*CONDITION, "method", "setting", "seed", "status", "metric", "score", "trivial_baseline"),
    *("train_score", *SECONDARY, *COSTS, "device", "cell"),
)
"""Of a table of runs. `method` is the label of the study's entry; `status` done, nan, killed, out
of memory, error or missing; None stands for what was not measured."""


Measured = dict[str, dict[int, float]]
"""A measure by method and seed."""


class Pairs(NamedTuple):
    """A measure on the seeds that a method and plain fine-tuning have, (N,) each."""

    seeds: list[int]
    method: np.ndarray
    plain: np.ndarray


def table_of_runs(rows: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """One row for each run that is reported, with `COLUMNS`; what a row lacks is None."""
    table = pd.DataFrame(rows, columns=COLUMNS, dtype=object)
    return table.where(table.notna(), None)


def run_of(cell: Cell, records: Records) -> dict[str, Any]:
    """The row of a cell, done or not."""
    row = records.row(cell.id)
    if row is None:
        status = (records.failure(cell.id) or {"status": "missing"})["status"]
        row = Row(cell.id, status)
    return vars(row) | cell.described


def devices(runs: pd.DataFrame) -> list[str]:
    """The kinds of device of the finished runs; those that do not name theirs count as one."""
    found = set(runs.loc[runs["status"] == "done", "device"])
    return sorted(found - {None}) + ["one that is not recorded"] * (None in found)


def condition_of(item: Mapping[str, Any] | pd.Series) -> Condition:
    """The condition of a run, a comparison or a choice."""
    return item["task"], item["model"], item["max_train_samples"]


def condition_title(condition: Condition) -> str:
    """A condition in words: ``sst2, minilm, 1000 examples``."""
    task, model, size = condition
    return ", ".join(part for part in (task, model, f"{size} examples" if size else "") if part)


def runs_by_condition(runs: pd.DataFrame) -> dict[Condition, pd.DataFrame]:
    """The runs of each condition, in the order in which these appear."""
    grouped = runs.groupby(CONDITION, sort=False, dropna=False)
    return {condition_of(group.iloc[0]): group for _, group in grouped}


def by_condition(items: Iterable[Mapping[str, Any]]) -> dict[Condition, list[Mapping[str, Any]]]:
    """The comparisons of each condition."""
    groups: dict[Condition, list[Mapping[str, Any]]] = {}
    for item in items:
        groups.setdefault(condition_of(item), []).append(item)
    return groups


def compare(runs: pd.DataFrame, test: str) -> list[dict[str, Any]]:
    """Every method against plain fine-tuning, under every condition.

    Args:
        runs: of all cells.
        test: the test that decides, of `statistics.INTERVALS`; its p-values are corrected after
            Holm over the methods of a condition, its intervals are those of one comparison.

    Returns:
        A dictionary for every condition and method: summaries of all measures, and for all but
        plain the comparison on the seeds that both have.
    """
    compared = []
    for group in runs_by_condition(runs).values():
        values = {name: measured(group, name) for name in (*MEASURES, *COSTS)}
        methods = [_method(own, values, test) for _, own in group.groupby("method", sort=False)]
        compared += methods
        for item in methods:
            if item["against_plain"]:
                item["against_plain"]["cost_ratio"] = _cost_ratio(group, item["method"])
        against = [item["against_plain"] for item in methods if item["against_plain"]]
        _correct(against, [item["p"][test] for item in against])
        _add_power(against)
        for measure in SECONDARY:
            tested = [item["secondary"][measure] for item in against if item["secondary"][measure]]
            _correct(tested, [item["p"] for item in tested])
    return compared


def _method(own: pd.DataFrame, values: Mapping[str, Measured], test: str) -> dict[str, Any]:
    """One method under one condition.

    Args:
        own: its runs.
        values: all measures of the condition.
        test: the one that decides.
    """
    done, first = own[own["status"] == "done"], own.iloc[0]
    lost = own["status"][~own["status"].isin(["done", "missing"])]
    mine = {name: list(of.get(first["method"], {}).values()) for name, of in values.items()}
    return {
        **{name: first[name] for name in (*CONDITION, "method", "setting")},
        "metric": done["metric"].iloc[0] if len(done) else None,
        "trivial_baseline": max(done["trivial_baseline"].fillna(0.0), default=None),
        "not_above_constant": _not_above_constant(done),
        "asked": len(own),
        "missing": int((own["status"] == "missing").sum()),
        "failed": {status: int((lost == status).sum()) for status in lost.unique()},
        "measures": {name: statistics.summary(of) if of else None for name, of in mine.items()},
        "against_plain": _against(values, first["method"], test),
    }


def _not_above_constant(done: pd.DataFrame) -> int:
    """How many finished runs score no more than the best constant answer."""
    pairs = zip(done["score"], done["trivial_baseline"], strict=True)
    return sum(score <= constant + ROUNDING for score, constant in pairs if constant is not None)


def measured(runs: pd.DataFrame, measure: str) -> Measured:
    """A measure of the finished runs of one condition that have it, by method and seed."""
    found: Measured = {}
    columns = (runs[name].tolist() for name in ("method", "seed", "status", measure))
    for method, seed, status, value in zip(*columns, strict=True):
        if status == "done" and value is not None:
            found.setdefault(method, {})[seed] = float(value)
    return found


def paired(values: Measured, method: str) -> Pairs:
    """What a method and plain have on the seeds of both, in the order of the method's runs."""
    ours, plain = values.get(method, {}), values.get(PLAIN, {})
    seeds = [seed for seed in ours if seed in plain]
    a, b = (np.array([of[seed] for seed in seeds], np.float64) for of in (ours, plain))
    return Pairs(seeds, a, b)


def _against(values: Mapping[str, Measured], method: str, test: str) -> dict[str, Any] | None:
    """A method against plain on one condition; None for plain, and without common seeds."""
    seeds, a, b = paired(values["score"], method)
    if method == PLAIN or not seeds:
        return None
    ratio = statistics.variance_ratio(a, b)
    return {
        "seeds": seeds,
        "difference": asdict(statistics.mean_difference(a, b, test)),
        "sd": float((a - b).std(ddof=1)) if len(seeds) > 1 else None,
        "equal": bool((a == b).all()),
        "p": statistics.p_values(a, b),
        "improvement": asdict(statistics.probability_of_improvement(a, b)),
        "variance_ratio": ratio and asdict(ratio),
        "p_variance": statistics.variance_test(a, b),
        "secondary": {name: _tested(paired(values[name], method), test) for name in SECONDARY},
        "test": test,
    }


def _cost_ratio(runs: pd.DataFrame, method: str) -> float | None:
    """Training time relative to plain's, under one condition."""
    done = runs[(runs["status"] == "done") & runs["train_seconds"].notna()]
    ours, plain = (
        {
            run.seed: statistics.TrainingTime(run.train_seconds, run.device)
            for run in done[done["method"] == name].itertuples()
        }
        for name in (method, PLAIN)
    )
    return statistics.time_ratio((ours[seed], plain[seed]) for seed in ours if seed in plain)


def _tested(pairs: Pairs, test: str) -> dict[str, Any] | None:
    """Mean difference in a measure and its uncorrected p-value; None where it is not measured."""
    seeds, a, b = pairs
    if not seeds:
        return None
    effect = statistics.mean_difference(a, b, test)
    return {"difference": asdict(effect), "p": statistics.p_value(a, b, test)}


def over_tasks(runs: pd.DataFrame, measure: str = "score") -> list[dict[str, Any]]:
    """Mean difference from plain over all conditions, for methods that have every one of them.

    Args:
        runs: of all cells.
        measure: the score, or one of `SECONDARY`, for which conditions where it is not measured do
            not count.

    Returns:
        A dictionary for every method: effect, p-value with the name of its test, the p-value
        corrected after Holm over methods, the smallest difference that would have been shown, and
        the seeds and number of conditions behind it.
        Empty for fewer than two conditions.
    """
    found = (measured(group, measure) for group in runs_by_condition(runs).values())
    conditions = [values for values in found if values or measure == "score"]
    compared: list[dict[str, Any]] = []
    if len(conditions) < 2:
        return []
    for name in runs["method"].unique():
        by_seed = [
            dict(zip(seeds, a - b, strict=True))
            for seeds, a, b in (paired(of, name) for of in conditions)
        ]
        common = sorted(set[int].intersection(*map(set, by_seed)))
        if name == PLAIN or not common:
            continue
        gaps = np.array([[of[seed] for seed in common] for of in by_seed])
        effect, p, test = statistics.mean_over_tasks(list(gaps))
        compared.append(
            {
                "method": name,
                "conditions": len(conditions),
                "seeds": common,
                "difference": asdict(effect),
                "sd": float(gaps.mean(0).std(ddof=1)) if len(common) > 1 else None,
                "equal": bool((gaps == 0).all()),
                "p": p,
                "test": test,
            }
        )
    _correct(compared, [item["p"] for item in compared])
    _add_power(compared)
    return compared


def _add_power(compared: Sequence[dict[str, Any]]) -> None:
    """Add `smallest`, the difference that the seeds would show with a power of 80 %."""
    for item in compared:
        item["smallest"] = smallest_difference(item["sd"], len(item["seeds"]), len(compared))


def _correct(tested: Sequence[dict[str, Any]], p_values: Sequence[float | None]) -> None:
    """Add `p_holm`, the p-values corrected after Holm over methods."""
    for item, p in zip(tested, statistics.holm(p_values), strict=True):
        item["p_holm"] = p


def secondary(
    compared: Iterable[Mapping[str, Any]],
) -> dict[str, dict[str, Mapping[str, Any] | None]]:
    """Tests of what is measured beside the score, by measure and method, of one condition.

    Each with the `seeds` behind it.
    """
    against = {item["method"]: item["against_plain"] for item in compared if item["against_plain"]}
    return {
        measure: {
            method: tested and {**tested, "seeds": item["seeds"]}
            for method, item in against.items()
            for tested in [item["secondary"][measure]]
        }
        for measure in SECONDARY
    }


def secondary_over_tasks(content: Mapping[str, Any]) -> dict[str, dict[str, Mapping[str, Any]]]:
    """The same over all conditions, from the content of ``results.json``."""
    tested = content["over_tasks_secondary"]
    return {name: {item["method"]: item for item in tested[name]} for name in SECONDARY}
