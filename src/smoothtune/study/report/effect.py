"""Does each method move the quantity it is about? From the part `effect` of a study's runs.

Beside these stand, for every method, what the parts `robustness` (or `noise_curve`), `corruption`
and `substitution` say where a study has them, with the part `effect` or without: more is better.

Differences are taken relative to plain's mean on each condition, because units and sizes differ,
and averaged over conditions for every seed; p-values are those of a paired t-test. A method names
its quantities itself (`claims`); of each, less is what its paper claims.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from smoothtune.report.tables import Effect
from smoothtune.study.comparison import (
    Comparison,
    ConditionKey,
    Paired,
    Pairs,
    Value,
    compare,
    over_conditions,
    paired,
)
from smoothtune.study.config import PLAIN
from smoothtune.study.report.effect_rows import ROBUSTNESS, WITHOUT_SCALE, MeasuredRun
from smoothtune.study.report.statistics import LEVEL, mean_difference, time_ratio

ALL = "all conditions"
MORE, LESS = "more robust", "less robust"
MOVES, WEAKLY = "moves it", "moves it, not after Holm"
NOTHING, WRONG, FEW = "no effect seen", "moves it the wrong way", "too few seeds"


@dataclass(frozen=True)
class QuantityComparison:
    """A method against plain in one quantity."""

    condition: str
    """Its title, or `ALL`."""
    method: str
    quantity: str
    seeds: list[int]
    plain: float | None
    """Mean; None over several conditions, as `with_method` and `difference`."""
    with_method: float | None
    difference: Effect | None
    change: Effect
    """Difference relative to plain's mean."""
    p: float | None
    p_holm: float | None
    score: Effect
    """Difference in score of the same runs."""
    cost_ratio: float | None
    verdict: str
    layer: int | None = None
    """1 is the first block, 0 the embeddings; None: all layers together."""


@dataclass(frozen=True)
class Compared:
    """All comparisons of a study's quantities."""

    claimed: list[QuantityComparison]
    """Methods in the quantities that they are about."""
    scale_free: list[QuantityComparison]
    """Methods in what does not depend on the size of the logits."""
    robust: list[QuantityComparison]
    layers: list[QuantityComparison]
    """The claimed ones layer by layer; no p-value is corrected."""

    @property
    def rows(self) -> list[QuantityComparison]:
        """Of the table."""
        return [*self.claimed, *self.scale_free, *self.robust]


def compare_quantities(runs: Sequence[MeasuredRun]) -> Compared:
    """Every method in every quantity against plain, under every condition and over all of them.

    p-values are corrected after Holm over the comparisons of a kind under a condition.
    """
    table = _Table.of(runs)
    claims = list(dict.fromkeys((r.method, claim) for r in runs for claim in r.claims or ()))
    free = [(method, WITHOUT_SCALE[claim]) for method, claim in claims if claim in WITHOUT_SCALE]
    methods = dict.fromkeys(run.method for run in runs if run.method != PLAIN)
    robust = [(method, name) for name in ROBUSTNESS for method in methods]
    return Compared(
        table.compare(claims, claim_verdict),
        table.compare(list(dict.fromkeys(free)), claim_verdict),
        table.compare(robust, robustness_verdict),
        _by_layer(runs, claims),
    )


def _by_layer(
    runs: Sequence[MeasuredRun], claims: Sequence[tuple[str, str]]
) -> list[QuantityComparison]:
    """The claimed quantities that are one number for several layers, layer by layer."""
    table = _Table.of(runs)
    found = []
    for condition in table.conditions:
        own = [run for run in runs if run.condition == condition]
        claimed = {(run.method, claim) for run in own for claim in run.claims or ()}
        for method, quantity in (each for each in claims if each in claimed):
            layers = {layer for run in own for layer in run.layers.get(quantity, ())}
            for layer in sorted(layers):
                pairs = table.pairs.get((condition, layer_measure(quantity, layer), method))
                if pairs:
                    (tested,) = compare([pairs.relative()])
                    found.append(
                        table.described([condition], quantity, pairs, tested, NOTHING, layer)
                    )
    return found


def layer_measure(quantity: str, layer: int) -> str:
    """Name of a quantity's value at one layer."""
    return f"{quantity}, layer {layer}"


def claim_verdict(tested: Comparison) -> str:
    """Whether a method lowers what it is to lower."""
    if len(tested.seeds) < 2:
        return FEW
    if tested.p is None or tested.p_holm is None or tested.p >= LEVEL:
        return NOTHING
    if tested.difference.value > 0:
        return WRONG
    return MOVES if tested.p_holm < LEVEL else WEAKLY


def robustness_verdict(tested: Comparison) -> str:
    """Whether a method is more robust than plain, or less."""
    if len(tested.seeds) < 2:
        return FEW
    if tested.p_holm is None or tested.p_holm >= LEVEL:
        return NOTHING
    return MORE if tested.difference.value > 0 else LESS


@dataclass(frozen=True)
class _Table:
    """All pairs of a study, with the times of its runs."""

    conditions: list[ConditionKey]
    pairs: Paired
    times: Mapping[tuple[ConditionKey, str, int], MeasuredRun]

    @classmethod
    def of(cls, runs: Sequence[MeasuredRun]) -> _Table:
        return cls(
            list(dict.fromkeys(run.condition for run in runs)),
            paired(chain.from_iterable(map(_values, runs))),
            {(run.condition, run.method, run.seed): run for run in runs},
        )

    def compare(
        self, asked: Sequence[tuple[str, str]], judge: Callable[[Comparison], str]
    ) -> list[QuantityComparison]:
        """Methods and quantities under every condition, and over all of them."""
        groups = [[condition] for condition in self.conditions]
        groups += [self.conditions] * (len(self.conditions) > 1)
        compared = []
        for conditions in groups:
            family = [
                found
                for method, quantity in asked
                if (found := over_conditions(self.pairs, conditions, quantity, method))
            ]
            tested = compare([pairs.relative() for pairs in family])
            for pairs, each in zip(family, tested, strict=True):
                verdict = judge(each)
                compared.append(self.described(conditions, pairs.measure, pairs, each, verdict))
        return compared

    def described(
        self,
        conditions: Sequence[ConditionKey],
        quantity: str,
        pairs: Pairs,
        tested: Comparison,
        verdict: str,
        layer: int | None = None,
    ) -> QuantityComparison:
        """A comparison with the score and the time of the same runs."""
        alone = len(conditions) == 1
        scores = over_conditions(self.pairs, conditions, "score", pairs.method)
        assert scores is not None
        times = (
            (self.times[c, pairs.method, seed].time, self.times[c, PLAIN, seed].time)
            for c in conditions
            for seed in pairs.seeds
        )
        return QuantityComparison(
            condition=conditions[0].title if alone else ALL,
            method=pairs.method,
            quantity=quantity,
            seeds=pairs.seeds,
            plain=float(pairs.plain.mean()) if alone else None,
            with_method=float(pairs.values.mean()) if alone else None,
            difference=_mean(pairs) if alone else None,
            change=tested.difference,
            p=tested.p,
            p_holm=tested.p_holm,
            score=_mean(scores.on(pairs.seeds)),
            cost_ratio=time_ratio(times),
            verdict=verdict,
            layer=layer,
        )


def _mean(pairs: Pairs) -> Effect:
    return mean_difference(pairs.gaps, np.zeros(len(pairs.seeds)))


def _values(run: MeasuredRun) -> Iterable[Value]:
    """All numbers of a run."""
    where = run.condition, run.method, run.seed
    yield Value(*where, "score", run.score)
    for quantity, value in run.values.items():
        yield Value(*where, quantity, value)
    for quantity, layers in run.layers.items():
        for layer, value in layers.items():
            yield Value(*where, layer_measure(quantity, layer), value)
