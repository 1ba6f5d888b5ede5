"""The runs of a study, and each of its methods against plain fine-tuning."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pandas as pd

from smoothtune.study.comparison import (
    Comparison,
    ConditionKey,
    Paired,
    Value,
    compare,
    over_conditions,
    paired,
)
from smoothtune.study.config import PLAIN
from smoothtune.study.records import Cell, Records
from smoothtune.study.report import statistics
from smoothtune.study.report.statistics import Summary, TrainingTime
from smoothtune.study.table import Row

SECONDARY = ("generalization_gap", "brier", "nll", "ece", "noise", "ood")
"""Measures that are tested against plain's beside the score; noise: the mean score under Gaussian
noise on the embeddings; ood: the mean score on the other data sets."""
MEASURES = ("score", "train_score", *SECONDARY)
ROUNDING = 1e-9
COSTS = ("steps", "train_seconds", "evaluation_seconds")
COLUMNS = (
    *(*ConditionKey._fields, "method", "setting", "seed", "status", "metric", "score"),
    *("trivial_baseline", "train_score", *SECONDARY, *COSTS, "device", "cell"),
)
"""Of a table of runs. `method` is the label of the study's entry; `status` done, nan, killed, out
of memory, error or missing; None stands for what was not measured."""


@dataclass(frozen=True)
class AgainstPlain(Comparison):
    """The score of a method against plain's under one condition, with all that goes with it."""

    p_by_test: dict[str, float | None]
    """Uncorrected p-value of every test of `statistics.NAMES`."""
    improvement: statistics.Effect
    """Probability of a higher score than plain's."""
    variance_ratio: statistics.Effect | None
    """Variance over seeds relative to plain's."""
    p_variance: float | None
    secondary: dict[str, Comparison | None]
    """By measure."""
    cost_ratio: float | None
    """Training time relative to plain's."""


@dataclass(frozen=True)
class MethodResult:
    """A method under one condition."""

    condition: ConditionKey
    method: str
    setting: str
    metric: str | None
    trivial_baseline: float | None
    not_above_constant: int
    """How many finished runs score no more than the best constant answer."""
    asked: int
    missing: int
    failed: dict[str, int]
    """Number of runs by how they failed."""
    measures: dict[str, Summary | None]
    against_plain: AgainstPlain | None
    """None for plain, and without common seeds."""
    configured: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Fields of its methods."""
    changes: dict[str, Any] = field(default_factory=dict)
    """Fields of the run that it changes."""

    @property
    def score(self) -> Summary | None:
        """The main metric."""
        return self.measures["score"]

    @property
    def is_at_chance(self) -> bool:
        """Whether the mean score is not above that of a constant answer."""
        score, constant = self.score, self.trivial_baseline
        return score is not None and constant is not None and score.mean <= constant


# --- runs --------------------------------------------------------------------------------------


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
    names = set(runs.loc[runs["status"] == "done", "device"])
    return sorted(names - {None}) + ["one that is not recorded"] * (None in names)


def runs_by_condition(runs: pd.DataFrame) -> dict[ConditionKey, pd.DataFrame]:
    """The runs of each condition, in the order in which these appear."""
    groups = runs.groupby(list(ConditionKey._fields), sort=False, dropna=False)
    return {ConditionKey(*group.iloc[0][list(ConditionKey._fields)]): group for _, group in groups}


def by_condition(methods: Iterable[MethodResult]) -> dict[ConditionKey, list[MethodResult]]:
    """The methods of each condition."""
    groups: dict[ConditionKey, list[MethodResult]] = {}
    for item in methods:
        groups.setdefault(item.condition, []).append(item)
    return groups


def values_of(runs: pd.DataFrame) -> list[Value]:
    """What the finished runs measured."""
    return [
        Value(condition, run.method, run.seed, measure, float(value))
        for condition, group in runs_by_condition(runs[runs["status"] == "done"]).items()
        for run in group.itertuples()
        for measure in (*MEASURES, *COSTS)
        if (value := getattr(run, measure)) is not None
    ]


# --- comparisons -------------------------------------------------------------------------------


def compare_methods(runs: pd.DataFrame, test: str) -> list[MethodResult]:
    """Every method, compared with plain fine-tuning under every condition.

    Args:
        runs: of all cells.
        test: the test that decides, of `statistics.INTERVALS`; its p-values are corrected after
            Holm over the methods of a condition, its intervals are those of one comparison.
    """
    values = values_of(runs)
    pairs, samples = paired(values), _samples(values)
    results = []
    for condition, group in runs_by_condition(runs).items():
        names = list(group["method"].unique())
        tested = {
            measure: {item.method: item for item in compare(family, test)}
            for measure in ("score", *SECONDARY)
            for family in [_family(pairs, condition, measure, names)]
        }
        for name in names:
            found = tested["score"].get(name)
            against = None
            if found is not None:
                others = {measure: tested[measure].get(name) for measure in SECONDARY}
                against = _with_spread(found, pairs, condition, others, group)
            own = group[group["method"] == name]
            measures = {
                measure: statistics.summary(list(sample.values())) if sample else None
                for measure in (*MEASURES, *COSTS)
                for sample in [samples.get((condition, name, measure))]
            }
            results.append(_method_result(condition, own, measures, against))
    return results


def _samples(values: Iterable[Value]) -> dict[tuple[ConditionKey, str, str], dict[int, float]]:
    """All values by condition, method and measure, then by seed."""
    found: dict[tuple[ConditionKey, str, str], dict[int, float]] = {}
    for condition, method, seed, measure, value in values:
        found.setdefault((condition, method, measure), {})[seed] = value
    return found


def _family(
    pairs: Paired, condition: ConditionKey, measure: str, methods: Sequence[str]
) -> list[Any]:
    return [pairs[key] for name in methods if (key := (condition, measure, name)) in pairs]


def _with_spread(
    found: Comparison,
    pairs: Paired,
    condition: ConditionKey,
    secondary: dict[str, Comparison | None],
    runs: pd.DataFrame,
) -> AgainstPlain:
    """Add what is compared beside the mean."""
    score = pairs[condition, "score", found.method]
    a, b = score.values[0], score.plain[0]
    return AgainstPlain(
        **vars(found),
        p_by_test=statistics.p_values(a, b),
        improvement=statistics.probability_of_improvement(a, b),
        variance_ratio=statistics.variance_ratio(a, b),
        p_variance=statistics.variance_test(a, b),
        secondary=secondary,
        cost_ratio=_cost_ratio(runs, found.method),
    )


def _cost_ratio(runs: pd.DataFrame, method: str) -> float | None:
    """Training time relative to plain's, under one condition."""
    done = runs[(runs["status"] == "done") & runs["train_seconds"].notna()]
    own, plain = (
        {
            run.seed: TrainingTime(run.train_seconds, run.device)
            for run in done[done["method"] == name].itertuples()
        }
        for name in (method, PLAIN)
    )
    return statistics.time_ratio((own[seed], plain[seed]) for seed in own if seed in plain)


def _method_result(
    condition: ConditionKey,
    own: pd.DataFrame,
    measures: dict[str, Summary | None],
    against: AgainstPlain | None,
) -> MethodResult:
    done, first = own[own["status"] == "done"], own.iloc[0]
    lost = own["status"][~own["status"].isin(["done", "missing"])]
    baselines = zip(done["score"], done["trivial_baseline"], strict=True)
    return MethodResult(
        condition=condition,
        method=first["method"],
        setting=first["setting"],
        metric=done["metric"].iloc[0] if len(done) else None,
        trivial_baseline=max(done["trivial_baseline"].fillna(0.0), default=None),
        not_above_constant=sum(
            score <= constant + ROUNDING for score, constant in baselines if constant is not None
        ),
        asked=len(own),
        missing=int((own["status"] == "missing").sum()),
        failed={status: int((lost == status).sum()) for status in lost.unique()},
        measures=measures,
        against_plain=against,
    )


def over_tasks(runs: pd.DataFrame, measure: str = "score") -> list[Comparison]:
    """Mean difference from plain over all conditions, for methods that have every one of them.

    Args:
        runs: of all cells.
        measure: the score, or one of `SECONDARY`, for which conditions where it is not measured do
            not count.

    Returns:
        A t-test of the seeds' mean differences for every method; empty for fewer than two
        conditions.
    """
    values = [value for value in values_of(runs) if value.measure == measure]
    measured = {value.condition for value in values}
    conditions = [c for c in runs_by_condition(runs) if c in measured or measure == "score"]
    if len(conditions) < 2:
        return []
    pairs = paired(values)
    found = (over_conditions(pairs, conditions, measure, name) for name in runs["method"].unique())
    return compare([each for each in found if each])


def secondary(group: Iterable[MethodResult]) -> dict[str, dict[str, Comparison | None]]:
    """Comparisons in what is measured beside the score, by measure and method, of a condition."""
    against = {item.method: item.against_plain for item in group if item.against_plain}
    return {
        measure: {method: item.secondary[measure] for method, item in against.items()}
        for measure in SECONDARY
    }


def with_fields(methods: Iterable[MethodResult], cells: Sequence[Cell]) -> list[MethodResult]:
    """Add what the runs of each method were configured with."""
    by_key = {
        (ConditionKey(cell.task, cell.model, cell.max_train_samples), cell.label): cell
        for cell in cells
    }
    found = []
    for item in methods:
        cell = by_key[item.condition, item.method]
        found.append(replace(item, configured=cell.config.methods, changes=cell.changes))
    return found
