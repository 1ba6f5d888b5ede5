"""One comparison with plain fine-tuning, for scores, calibration, quantities and costs.

A measure of a method and of plain is paired by seed under every condition (`paired`), averaged over
conditions seed by seed where several are compared at once (`over_conditions`), and tested
(`compare`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from smoothtune.report.tables import Effect, Summary
from smoothtune.study.fields import PLAIN, ConditionKey
from smoothtune.study.report.statistics import (
    ENOUGH_SEEDS,
    LEVEL,
    holm,
    p_value,
    smallest_difference,
)

ALL = "all conditions"


class Value(NamedTuple):
    """One number of one run."""

    condition: ConditionKey
    method: str
    seed: int
    measure: str
    value: float


@dataclass(frozen=True)
class Pairs:
    """A measure of a method and of plain fine-tuning, on the seeds that both have."""

    conditions: list[ConditionKey]
    method: str
    measure: str
    seeds: list[int]
    values: np.ndarray
    """(C, N) by condition and seed."""
    plain: np.ndarray
    """(C, N)"""
    relative: bool = False
    """Whether differences are in units of plain's mean under each condition."""

    @property
    def gaps(self) -> np.ndarray:
        """(N,) method minus plain, the mean over conditions."""
        gaps = self.values - self.plain
        if self.relative:
            gaps = gaps / np.abs(self.plain.mean(1, keepdims=True))
        return np.asarray(gaps.mean(0))

    def on(self, seeds: Sequence[int]) -> Pairs:
        """The same on some of the seeds."""
        places = [self.seeds.index(seed) for seed in seeds]
        values, plain = self.values[:, places], self.plain[:, places]
        return replace(self, seeds=list(seeds), values=values, plain=plain)


Paired = Mapping[tuple[ConditionKey, str, str], Pairs]
"""By condition, measure and method."""


@dataclass(frozen=True)
class Comparison:
    """A method against plain fine-tuning in one measure."""

    conditions: list[str]
    """Titles of the conditions that it is a mean over."""
    method: str
    measure: str
    seeds: list[int]
    plain: float
    """Mean over seeds and conditions."""
    with_method: float
    difference: Effect
    relative: bool
    """Whether the difference is in units of plain's mean."""
    sd: float | None
    """Standard deviation of the differences over seeds; None for one seed."""
    equal: bool
    """Whether all runs have plain's value."""
    p: float | None
    p_holm: float | None
    """Corrected after Holm for the comparisons of its family."""
    smallest: float | None
    """The true difference that the seeds would have shown with a power of 80 %."""

    @property
    def gap(self) -> float:
        """The mean difference."""
        return self.difference.value

    @property
    def condition(self) -> str:
        """The title of its condition, or `ALL`."""
        return ALL if len(self.conditions) > 1 else self.conditions[0]

    @property
    def differs(self) -> bool:
        """Whether the corrected p-value is below 5 %."""
        return self.p_holm is not None and self.p_holm < LEVEL

    @property
    def is_established(self) -> bool:
        """Whether it also has enough seeds to say so."""
        return self.differs and len(self.seeds) >= ENOUGH_SEEDS


def paired(values: Iterable[Value]) -> dict[tuple[ConditionKey, str, str], Pairs]:
    """Every method and measure with plain's, in the order of the method's runs."""
    by_seed: dict[tuple[ConditionKey, str, str], dict[int, float]] = {}
    for condition, method, seed, measure, value in values:
        by_seed.setdefault((condition, measure, method), {})[seed] = value
    pairs = {}
    for (condition, measure, method), own in by_seed.items():
        plain = by_seed.get((condition, measure, PLAIN), {})
        seeds = [seed for seed in own if seed in plain]
        if method != PLAIN and seeds:
            ours, base = (np.array([[of[seed] for seed in seeds]], float) for of in (own, plain))
            pairs[condition, measure, method] = Pairs(
                [condition], method, measure, seeds, ours, base
            )
    return pairs


def over_conditions(
    pairs: Paired, conditions: Sequence[ConditionKey], measure: str, method: str
) -> Pairs | None:
    """A method's pairs under all conditions together, on the seeds that it has under every one.

    None where a condition lacks the measure, or no seed is common.
    """
    each = [own for c in conditions if (own := pairs.get((c, measure, method)))]
    if not each or len(each) < len(conditions):
        return None
    seeds = [seed for seed in each[0].seeds if all(seed in of.seeds for of in each)]
    if not seeds:
        return None
    common = [of.on(seeds) for of in each]
    values, plain = (np.concatenate([getattr(of, n) for of in common]) for n in ("values", "plain"))
    return Pairs(list(conditions), method, measure, seeds, values, plain)


def family(
    pairs: Paired, conditions: Sequence[ConditionKey], compared: Iterable[tuple[str, str]]
) -> list[Pairs]:
    """`over_conditions` of each method and measure that has it."""
    each = (over_conditions(pairs, conditions, measure, method) for method, measure in compared)
    return [own for own in each if own]


def compare(family: Sequence[Pairs]) -> list[Comparison]:
    """Effect, interval, p-value and power of every pair; intervals are of one comparison.

    Over the family p-values are corrected after Holm.
    """
    p_values = [p_value(pairs.gaps) for pairs in family]
    tests = sum(p is not None for p in p_values)
    compared = []
    for pairs, p, p_holm in zip(family, p_values, holm(p_values), strict=True):
        gaps = Summary.of(pairs.gaps)
        compared.append(
            Comparison(
                conditions=[condition.title for condition in pairs.conditions],
                method=pairs.method,
                measure=pairs.measure,
                seeds=pairs.seeds,
                plain=float(pairs.plain.mean()),
                with_method=float(pairs.values.mean()),
                difference=gaps.effect,
                relative=pairs.relative,
                sd=gaps.sd,
                equal=bool((pairs.values == pairs.plain).all()),
                p=p,
                p_holm=p_holm,
                smallest=smallest_difference(gaps.sd, gaps.n, tests),
            )
        )
    return compared
