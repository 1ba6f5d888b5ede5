"""Records of cells as a table of runs, and its methods compared with plain fine-tuning."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import pandas as pd

from smoothtune.study.config import PLAIN
from smoothtune.study.records import Cell, Records
from smoothtune.study.report import statistics

Condition = tuple[str, str, int | None]
"""Task, model and number of training examples."""
CONDITION = ["task", "model", "max_train_samples"]
SECONDARY = ("generalization_gap", "brier", "nll", "ece", "noise")
"""Measures that are tested against plain's beside the score; noise: the mean score under Gaussian
noise on the embeddings."""
MEASURES = ("score", "train_score", *SECONDARY)
COSTS = ("steps", "train_seconds", "evaluation_seconds")
COLUMNS = (
    *(*CONDITION, "method", "setting", "seed", "status", "metric", "score", "trivial_baseline"),
    *("train_score", *SECONDARY, *COSTS, "cell"),
)
"""Of a table of runs. `method` is the label of the study's entry; `status` done, nan, killed, out
of memory, error or missing; None stands for what was not measured."""


def table_of_runs(rows: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """One row for each run that is reported, with `COLUMNS`; what a row lacks is None."""
    table = pd.DataFrame(rows, columns=COLUMNS, dtype=object)
    return table.where(table.notna(), None)


def run_of(cell: Cell, records: Records) -> dict[str, Any]:
    """The row of a cell, done or not."""
    known: dict[str, Any] = {
        "task": cell.task,
        "model": cell.model,
        "max_train_samples": cell.max_train_samples,
        "method": cell.label,
        "setting": cell.setting,
        "seed": cell.seed,
    }
    record = records.read(cell.id) or records.failure(cell.id) or {"status": "missing"}
    known["cell"] = record.get("id", cell.id)  # of the file, which may have a former id
    if record["status"] != "done":
        return known | {"status": record["status"]}
    result, extras = record["result"], record["extras"]
    metric, metrics, cost = result["headline"], result["metrics"], result["cost"]
    return known | {
        "status": "done",
        "metric": metric,
        "score": metrics[metric],
        "trivial_baseline": result["trivial_baseline"],
        "train_score": result["train_metrics"][metric],
        "generalization_gap": result["generalization_gap"],
        "brier": metrics.get("brier"),
        "nll": metrics.get("nll"),
        "ece": extras.get("ece"),
        "noise": extras.get("noise", {}).get("area"),
        **{name: cost[name] for name in COSTS},
    }


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
        methods = [_method(own, group, test) for _, own in group.groupby("method", sort=False)]
        compared += methods
        against = [item["against_plain"] for item in methods if item["against_plain"]]
        _correct(against, [item["p"][test] for item in against])
        for measure in SECONDARY:
            measured = [
                item["secondary"][measure] for item in against if item["secondary"][measure]
            ]
            _correct(measured, [item["p"] for item in measured])
    return compared


def _method(own: pd.DataFrame, group: pd.DataFrame, test: str) -> dict[str, Any]:
    """One method under one condition."""
    done, first = own[own["status"] == "done"], own.iloc[0]
    lost = own["status"][~own["status"].isin(["done", "missing"])]
    summaries = {}
    for measure in (*MEASURES, *COSTS):
        values = done[measure].dropna()
        summaries[measure] = statistics.summary(values) if len(values) else None
    return {
        **{name: first[name] for name in (*CONDITION, "method", "setting")},
        "metric": done["metric"].iloc[0] if len(done) else None,
        "trivial_baseline": max(done["trivial_baseline"].fillna(0.0), default=None),
        "asked": len(own),
        "missing": int((own["status"] == "missing").sum()),
        "failed": {status: int((lost == status).sum()) for status in lost.unique()},
        "measures": summaries,
        "against_plain": _against(group, first["method"], test),
    }


def paired(group: pd.DataFrame, method: str, measure: str) -> pd.DataFrame:
    """A measure of a method and of plain, where both have it.

    Args:
        group: runs of one condition.
        method: one of its methods.
        measure: one of its columns.

    Returns:
        Columns `method` and `plain` by seed, in the order of the method's runs.
    """
    done = group[group["status"] == "done"].set_index("seed")
    ours = done.loc[done["method"] == method, measure].rename("method")
    plain = done.loc[done["method"] == PLAIN, measure].rename("plain")
    return ours.to_frame().join(plain, how="left").dropna().astype(np.float64)


def _against(group: pd.DataFrame, method: str, test: str) -> dict[str, Any] | None:
    """A method against plain on one condition; None for plain, and without common seeds."""
    pairs = paired(group, method, "score")
    if method == PLAIN or pairs.empty:
        return None
    a, b = pairs["method"], pairs["plain"]
    ratio, times = statistics.variance_ratio(a, b), paired(group, method, "train_seconds")
    return {
        "seeds": pairs.index.tolist(),
        "difference": asdict(statistics.mean_difference(a, b, test)),
        "sd": float((a - b).std(ddof=1)) if len(pairs) > 1 else None,
        "equal": bool((a == b).all()),
        "p": statistics.p_values(a, b),
        "improvement": asdict(statistics.probability_of_improvement(a, b)),
        "variance_ratio": ratio and asdict(ratio),
        "p_variance": statistics.variance_test(a, b),
        "secondary": {name: _tested(paired(group, method, name), test) for name in SECONDARY},
        "cost_ratio": float(np.median(times["method"] / times["plain"])) if len(times) else None,
        "test": test,
    }


def _tested(pairs: pd.DataFrame, test: str) -> dict[str, Any] | None:
    """Mean difference in a measure and its uncorrected p-value; None where it is not measured."""
    if pairs.empty:
        return None
    a, b = pairs["method"], pairs["plain"]
    effect = statistics.mean_difference(a, b, test)
    return {"difference": asdict(effect), "p": statistics.p_values(a, b)[test]}


def over_tasks(runs: pd.DataFrame, measure: str = "score") -> list[dict[str, Any]]:
    """Mean difference from plain over all conditions, for methods that have every one of them.

    Args:
        runs: of all cells.
        measure: the score, or one of `SECONDARY`, for which conditions where it is not measured do
            not count.

    Returns:
        A dictionary for every method: effect, p-value with the name of its test, the p-value
        corrected after Holm over methods, and the seeds and number of conditions behind it.
        Empty for fewer than two conditions.
    """
    conditions = [
        group
        for group in runs_by_condition(runs).values()
        if measure == "score" or group[measure].notna().any()
    ]
    compared: list[dict[str, Any]] = []
    if len(conditions) < 2:
        return []
    for name in runs["method"].unique():
        pairs = [paired(group, name, measure) for group in conditions]
        gaps = pd.concat([p["method"] - p["plain"] for p in pairs], axis=1, join="inner")
        if name == PLAIN or gaps.empty:
            continue
        gaps = gaps.sort_index()
        effect, p, test = statistics.mean_over_tasks(gaps.to_numpy().T)
        compared.append(
            {
                "method": name,
                "conditions": len(conditions),
                "seeds": gaps.index.tolist(),
                "difference": asdict(effect),
                "sd": float(gaps.mean(axis=1).std(ddof=1)) if len(gaps) > 1 else None,
                "equal": bool((gaps == 0).all(axis=None)),
                "p": p,
                "test": test,
            }
        )
    _correct(compared, [item["p"] for item in compared])
    return compared


def _correct(tested: Sequence[dict[str, Any]], p_values: Sequence[float | None]) -> None:
    """Add `p_holm`, the p-values corrected after Holm over methods."""
    for item, p in zip(tested, statistics.holm(p_values), strict=True):
        item["p_holm"] = p


def secondary(
    compared: Iterable[Mapping[str, Any]],
) -> dict[str, dict[str, Mapping[str, Any] | None]]:
    """Tests of what is measured beside the score, by measure and method, of one condition."""
    against = {item["method"]: item["against_plain"] for item in compared if item["against_plain"]}
    return {
        measure: {method: item["secondary"][measure] for method, item in against.items()}
        for measure in SECONDARY
    }


def secondary_over_tasks(content: Mapping[str, Any]) -> dict[str, dict[str, Mapping[str, Any]]]:
    """The same over all conditions, from the content of ``results.json``."""
    tested = content["over_tasks_secondary"]
    return {name: {item["method"]: item for item in tested[name]} for name in SECONDARY}
