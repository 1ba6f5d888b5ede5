"""The comparison with plain against scipy on pairs that are put together by hand."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from smoothtune.study.comparison import ALL, Value, compare, over_conditions, paired
from smoothtune.study.fields import ConditionKey

ONE, TWO = ConditionKey("one", "m", None), ConditionKey("two", "m", 100)
DRAW = np.random.default_rng(5)
PLAIN = {ONE: DRAW.random(4), TWO: 10 + DRAW.random(4)}
GAPS = {ONE: 0.1 + 0.1 * DRAW.random(4), TWO: DRAW.random(4)}
SEEDS = {ONE: [3, 0, 1, 2], TWO: [0, 1, 2, 3]}


def values() -> list[Value]:
    found = []
    for condition, plain in PLAIN.items():
        for place, seed in enumerate(SEEDS[condition]):
            gap = GAPS[condition][place]
            found.append(Value(condition, "a", seed, "score", plain[place] + gap))
            found.append(Value(condition, "plain", seed, "score", plain[place]))
    return [
        *(value for value in found if value[:3] != (TWO, "plain", 2)),
        Value(ONE, "a", 0, "nll", 1.0),
        Value(ONE, "b", 9, "score", 1.0),
    ]


def test_pairs_are_of_seeds_that_both_have() -> None:
    pairs = paired(values())
    assert set(pairs) == {(ONE, "score", "a"), (TWO, "score", "a")}
    assert pairs[ONE, "score", "a"].seeds == [3, 0, 1, 2]
    assert pairs[TWO, "score", "a"].seeds == [0, 1, 3]
    assert pairs[ONE, "score", "a"].gaps == pytest.approx(GAPS[ONE])


def test_a_family_is_tested_and_corrected() -> None:
    pairs = paired(values())
    first, second = compare(list(pairs.values()))
    wanted = stats.ttest_1samp(GAPS[ONE], 0)
    assert first.p == pytest.approx(wanted.pvalue)
    assert first.difference.value == pytest.approx(GAPS[ONE].mean())
    assert first.difference.interval == pytest.approx(tuple(wanted.confidence_interval(0.95)))
    assert first.sd == pytest.approx(GAPS[ONE].std(ddof=1))
    least = min((first, second), key=lambda tested: tested.p)
    assert least.p_holm == pytest.approx(2 * least.p)
    (alone,) = compare([pairs[ONE, "score", "a"]])
    assert alone.p_holm == pytest.approx(alone.p)
    assert alone.smallest < first.smallest


def test_a_method_of_one_seed_is_no_test_of_the_family() -> None:
    pairs = paired([*values(), Value(ONE, "c", 0, "score", 0.5)])
    (alone,) = compare([pairs[ONE, "score", "a"]])
    first, begun = compare([pairs[ONE, "score", "a"], pairs[ONE, "score", "c"]])
    assert (begun.p, begun.smallest) == (None, None)
    assert (first.p_holm, first.smallest) == (alone.p_holm, alone.smallest)


def test_over_conditions_seeds_are_those_of_all() -> None:
    pairs = paired(values())
    both = over_conditions(pairs, [ONE, TWO], "score", "a")
    assert both.seeds == [3, 0, 1]
    gaps = (GAPS[ONE][[0, 1, 2]] + GAPS[TWO][[3, 0, 1]]) / 2
    assert both.gaps == pytest.approx(gaps)
    (tested,) = compare([both])
    assert tested.p == pytest.approx(stats.ttest_1samp(gaps, 0).pvalue)
    assert (tested.conditions, tested.condition) == (["one, m", "two, m, 100 examples"], ALL)
    both_means = np.r_[PLAIN[ONE][[0, 1, 2]], PLAIN[TWO][[3, 0, 1]]].mean()
    assert (tested.plain, tested.with_method) == pytest.approx(
        (both_means, both_means + gaps.mean())
    )
    relative = GAPS[ONE][[0, 1, 2]] / PLAIN[ONE][[0, 1, 2]].mean()
    relative = (relative + GAPS[TWO][[3, 0, 1]] / PLAIN[TWO][[3, 0, 1]].mean()) / 2
    assert replace(both, relative=True).gaps == pytest.approx(relative)
    assert over_conditions(pairs, [ONE, TWO], "score", "b") is None


def test_runs_that_equal_plain_have_no_p() -> None:
    same = [
        Value(ONE, method, seed, "score", 0.5) for method in ("a", "plain") for seed in range(3)
    ]
    (tested,) = compare(list(paired(same).values()))
    assert tested.equal
    assert (tested.p, tested.p_holm, tested.smallest) == (None, None, None)
