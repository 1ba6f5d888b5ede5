"""The runs of a study, and each of its methods against plain fine-tuning."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from smoothtune.report.tables import Effect, Summary
from smoothtune.study.comparison import (
    Comparison,
    Pairs,
    Value,
    compare,
    family,
    paired,
)
from smoothtune.study.fields import PLAIN, ConditionKey
from smoothtune.study.records import NOT_SUPPORTED, Cell, Records
from smoothtune.study.report.statistics import (
    TrainingTime,
    time_ratio,
    variance_ratio,
    variance_test,
)
from smoothtune.study.table import ROBUSTNESS, Row

SECONDARY = {
    "generalization_gap": "gap",
    "brier": "Brier",
    "nll": "NLL",
    "ece": "ECE",
    "brier_calibrated": "Brier with a temperature",
    "nll_calibrated": "NLL with a temperature",
    "noise": "score under noise",
    "ood": "score on other data",
}
"""Measures that are tested against plain's beside the score, and their titles; temperatures are
judged on rows on which they were not fitted, noise and other data are means."""
TESTED = ("score", *SECONDARY)
MEASURES = (
    *("score", "train_score", *SECONDARY, "nll_uncalibrated"),
    *("steps", "train_seconds", "evaluation_seconds"),
)
"""All others are `ROBUSTNESS`, and quantities that methods are about."""
MORE_IS_BETTER = {"score", "noise", "ood", *ROBUSTNESS}
RELATIVE_TO_LOGITS = {
    "worst divergence": "changed by the worst perturbation",
    "logit Jacobian": "logit Jacobian, relative to the logits",
    "logit Hessian": "logit Hessian, relative to the logits",
}
"""What is compared beside quantities that also fall where a model predicts smaller logits."""
ROUNDING = 1e-9
T = TypeVar("T", Cell, "Run", "MethodResult")


@dataclass(frozen=True, kw_only=True)
class Run(Row):
    """A run that is reported; its status may also be how it failed, or missing."""

    condition: ConditionKey
    method: str
    """Label of the study's entry."""
    seed: int
    setting: str = ""

    def flat(self) -> dict[str, Any]:
        """As plain data, a value for each column."""
        own = vars(self) | self.condition._asdict() | dict.fromkeys(MEASURES) | self.measures
        inner = {"condition", "measures", "claims", "message", "methods", "applied", "versions"}
        return {name: value for name, value in own.items() if name not in inner}


COLUMNS = (
    *(*ConditionKey._fields, "method", "setting", "seed", "status", "metric", "score"),
    *("trivial_baseline", *MEASURES[1:], "device", "cell"),
)
"""Of ``results.csv``, before those of quantities; None stands for what was not measured."""


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
    planned: int
    missing: int
    failed: dict[str, int]
    """Number of runs by how they failed."""
    measures: dict[str, Summary]
    """By name; of finished runs."""
    against_plain: dict[str, Comparison]
    """Those of `TESTED` that both have; empty for plain."""
    variance_ratio: Effect | None = None
    """Variance of the score over seeds relative to plain's."""
    p_variance: float | None = None
    cost_ratio: float | None = None
    """Training time relative to plain's."""

    @property
    def score(self) -> Summary | None:
        """The main metric."""
        return self.measures.get("score")

    @property
    def score_against_plain(self) -> Comparison | None:
        """None for plain, and without common seeds."""
        return self.against_plain.get("score")

    @property
    def is_at_chance(self) -> bool:
        """Whether the mean score is not above that of a constant answer."""
        score, constant = self.score, self.trivial_baseline
        return score is not None and constant is not None and score.mean <= constant + ROUNDING


# --- runs --------------------------------------------------------------------------------------


def run_of(cell: Cell, records: Records) -> Run:
    """The run of a cell, done or not."""
    row = records.row(cell.id)
    if row is None:
        failure = records.failure(cell.id) or {"status": "missing", "message": ""}
        row = Row(cell.id, failure["status"], failure["message"])
    about: dict[str, Any] = {"condition": cell.condition, "method": cell.label, "seed": cell.seed}
    return Run(**about, setting=cell.setting, **vars(row))


def devices(runs: Iterable[Run]) -> list[str]:
    """The kinds of device of the finished runs; those that do not name theirs count as one."""
    names = {run.device for run in runs if run.status == "done"}
    return sorted(name for name in names if name) + ["one that is not recorded"] * (None in names)


def by_condition(items: Iterable[T]) -> dict[ConditionKey, list[T]]:
    """What belongs to each condition, in the order in which these appear."""
    groups: dict[ConditionKey, list[T]] = {}
    for item in items:
        groups.setdefault(item.condition, []).append(item)
    return groups


def method_names(items: Iterable[Run | MethodResult | Comparison]) -> list[str]:
    """Each once, in their order."""
    return list(dict.fromkeys(item.method for item in items))


def values_of(runs: Iterable[Run]) -> Iterator[Value]:
    """What the finished runs measured."""
    for run in runs:
        for measure, value in run.measures.items() if run.status == "done" else ():
            yield Value(run.condition, run.method, run.seed, measure, value)


# --- comparisons -------------------------------------------------------------------------------


def compare_methods(runs: Sequence[Run]) -> list[MethodResult]:
    """Every method, compared with plain fine-tuning under every condition.

    p-values are corrected after Holm over the methods of a condition, for each measure apart.
    """
    pairs, results = paired(values_of(runs)), []
    for condition, group in by_condition(runs).items():
        names = method_names(group)
        families = (
            family(pairs, [condition], [(name, measure) for name in names]) for measure in TESTED
        )
        tested = [item for each in families for item in compare(each)]
        for name in names:
            against = {item.measure: item for item in tested if item.method == name}
            own = pairs.get((condition, "score", name))
            results.append(_method_result(group, name, against, own))
    return results


def _method_result(
    group: Sequence[Run], method: str, against: dict[str, Comparison], pairs: Pairs | None
) -> MethodResult:
    """Counts and means of a method's runs, with its comparisons."""
    own = [run for run in group if run.method == method]
    done = [run for run in own if run.status == "done"]
    status = Counter(run.status for run in own)
    samples: dict[str, list[float]] = {}
    for run in done:
        for measure, value in run.measures.items():
            samples.setdefault(measure, []).append(value)
    both = (pairs.values[0], pairs.plain[0]) if pairs else None
    no_failure = ("done", "missing", NOT_SUPPORTED)
    return MethodResult(
        condition=group[0].condition,
        method=method,
        setting=own[0].setting,
        metric=done[0].metric if done else None,
        trivial_baseline=max((run.trivial_baseline or 0.0 for run in done), default=None),
        not_above_constant=sum(
            run.trivial_baseline is not None
            and run.measures["score"] <= run.trivial_baseline + ROUNDING
            for run in done
        ),
        planned=len(own) - status[NOT_SUPPORTED],
        missing=status["missing"],
        failed={name: n for name, n in status.items() if name not in no_failure},
        measures={name: Summary.of(values) for name, values in samples.items()},
        against_plain=against,
        variance_ratio=variance_ratio(*both) if both else None,
        p_variance=variance_test(*both) if both else None,
        cost_ratio=_cost_ratio(done, group) if both else None,
    )


def _cost_ratio(done: Iterable[Run], group: Iterable[Run]) -> float | None:
    """Training time of runs relative to that of plain's in their group."""
    own = _times(done)
    plain = _times(run for run in group if run.method == PLAIN and run.status == "done")
    return time_ratio((own[seed], plain[seed]) for seed in own if seed in plain)


def _times(runs: Iterable[Run]) -> dict[int, TrainingTime]:
    """By seed."""
    return {
        run.seed: TrainingTime(run.measures["train_seconds"], run.device)
        for run in runs
        if "train_seconds" in run.measures
    }


def over_tasks(runs: Sequence[Run]) -> dict[str, list[Comparison]]:
    """By measure of `TESTED`, mean differences from plain over the conditions of several.

    Of methods that have every condition; those in which a measure beside the score is missing do
    not count, so there may be a single one.
    """
    values = list(values_of(runs))
    pairs, names, several = paired(values), method_names(runs), len(by_condition(runs)) > 1
    compared = {}
    for measure in TESTED:
        measured = {value.condition for value in values if value.measure == measure}
        conditions = [c for c in by_condition(runs) if c in measured or measure == "score"]
        common = family(pairs, conditions, [(name, measure) for name in names])
        if several and common:
            compared[measure] = compare(common)
    return compared


def compare_quantities(runs: Sequence[Run]) -> list[Comparison]:
    """Methods against plain in the quantities that they are about, and in robustness.

    Under every condition and, where there are several, over all of them. Differences are relative
    to plain's mean, unless it is 0. p-values are corrected after Holm under a condition for each of
    three families: quantities that methods are about; what stands beside these and does not depend
    on the size of the logits; robustness.
    """
    measured = [run for run in runs if run.measures.keys() - set(MEASURES)]
    pairs, conditions = paired(values_of(measured)), list(by_condition(measured))
    claims = list(dict.fromkeys((run.method, name) for run in measured for name in run.claims))
    beside = [(m, RELATIVE_TO_LOGITS[name]) for m, name in claims if name in RELATIVE_TO_LOGITS]
    robust = [(name, of) for of in ROBUSTNESS for name in method_names(measured)]
    groups = [[condition] for condition in conditions]
    groups += [conditions] * (len(conditions) > 1)
    compared = []
    for measures in (claims, list(dict.fromkeys(beside)), robust):
        for group in groups:
            own = family(pairs, group, measures)
            compared += compare(
                [replace(each, relative=bool(each.plain.mean(1).all())) for each in own]
            )
    return compared
