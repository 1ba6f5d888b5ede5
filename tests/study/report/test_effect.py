"""Quantities that methods are about, of made-up runs whose paired differences are known."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from helpers.study_files import finished, made_curve
from smoothtune.report.curves import Curve
from smoothtune.results import CellRecord, Measured, Part
from smoothtune.study.comparison import ALL, Comparison
from smoothtune.study.fields import ConditionKey
from smoothtune.study.report.findings import effect_findings
from smoothtune.study.report.methods import Run, compare_quantities
from smoothtune.study.report.tables import effect_table, quantity_table, verdict
from smoothtune.study.table import NOISE, WORDS, robustness_of, row_of

SEEDS = range(5)
DRAW = np.random.default_rng(3)
PLAIN = {"one": 2 + 0.3 * DRAW.random(5), "two": 40 + 9 * DRAW.random(5)}
GAPS = {
    "lnsr": {task: -0.5 * PLAIN[task] + 0.01 * DRAW.random(5) for task in PLAIN},
    "r_drop": {task: 0.2 * PLAIN[task] + 0.01 * DRAW.random(5) for task in PLAIN},
    "sam": {task: 0.1 * PLAIN[task] * DRAW.normal(size=5) for task in PLAIN},
}
CLAIM = {"lnsr": "noise sensitivity", "r_drop": "dropout divergence", "sam": "sharpness"}


def run(task: str, method: str, seed: int, measures: dict[str, float], *claims: str) -> Run:
    condition = ConditionKey(task, "minilm", 100)
    measures = {"score": 0.8 + 0.001 * seed} | measures
    about = {"condition": condition, "method": method, "seed": seed}
    return Run(**about, measures=measures, claims=claims)


def study() -> list[Run]:
    runs = []
    for task, plain in PLAIN.items():
        for seed in SEEDS:
            base = dict.fromkeys(CLAIM.values(), float(plain[seed]))
            runs.append(run(task, "plain", seed, base))
            for method, claim in CLAIM.items():
                value = float(plain[seed] + GAPS[method][task][seed])
                runs.append(run(task, method, seed, base | {claim: value}, claim))
    return runs


def under(compared: list[Comparison], condition: str) -> dict[str, Comparison]:
    return {item.method: item for item in compared if item.condition == condition}


def test_differences_are_paired_tested_and_corrected() -> None:
    compared = compare_quantities(study())
    for task, plain in PLAIN.items():
        found = under(compared, f"{task}, minilm, 100 examples")
        expected = {}
        for method, item in found.items():
            gaps = GAPS[method][task]
            expected[method] = stats.ttest_rel(plain + gaps, plain).pvalue
            assert item.p == pytest.approx(expected[method], rel=1e-9)
            assert (item.plain, item.with_method) == pytest.approx(
                (plain.mean(), (plain + gaps).mean())
            )
            interval = stats.ttest_rel(plain + gaps, plain).confidence_interval(0.95)
            relative = np.array([interval.low, interval.high]) / plain.mean()
            assert item.difference.value == pytest.approx(gaps.mean() / plain.mean())
            assert item.difference.interval == pytest.approx(relative)
        first = min(expected, key=lambda name: expected[name])
        assert found[first].p_holm == pytest.approx(3 * expected[first])


def test_over_conditions_relative_changes_are_averaged_for_each_seed() -> None:
    over = under(compare_quantities(study()), ALL)
    for method, gaps in GAPS.items():
        relative = np.mean([gaps[task] / PLAIN[task].mean() for task in PLAIN], axis=0)
        assert over[method].difference.value == pytest.approx(relative.mean())
        assert over[method].p == pytest.approx(stats.ttest_1samp(relative, 0).pvalue)
    assert {method: verdict(item) for method, item in over.items()} == {
        "lnsr": "better",
        "r_drop": "worse",
        "sam": "no difference seen",
    }


def test_a_change_that_holm_does_not_leave_is_called_so() -> None:
    gaps = np.array([-1.0, -0.4, -0.9, -0.2, -0.6])
    one = [each for each in study() if each.condition.task == "one"]
    for each in one:
        if each.method == "sam":
            each.measures["sharpness"] = PLAIN["one"][each.seed] + gaps[each.seed]
    found = under(compare_quantities(one), "one, minilm, 100 examples")["sam"]
    assert found.p == pytest.approx(stats.ttest_1samp(gaps, 0).pvalue)
    assert verdict(found) == "better"
    copies = [
        replace(each, method=f"sam {n}") for n in range(10) for each in one if each.method == "sam"
    ]
    found = under(compare_quantities(one + copies), "one, minilm, 100 examples")["sam"]
    assert found.p_holm > 0.05
    assert verdict(found) == "open: not after Holm"


def test_smaller_logits_are_told_from_smoother_ones() -> None:
    """By classes that change, in a family of tests of its own."""
    name = "changed by the worst perturbation"
    gaps = {"plain": np.zeros(5), "smart": np.array([0.1, -0.1, 0.05, -0.06, 0.02])}
    gaps["r3f"] = np.array([-0.2, -0.21, -0.19, -0.2, -0.18])
    runs = [
        run(
            *("one", method, seed),
            {
                "worst divergence": (1.0 + 0.1 * seed) * (1 if method == "plain" else 0.1),
                name: 0.5 + float(gap[seed]),
            },
            *["worst divergence"] * (method != "plain"),
        )
        for method, gap in gaps.items()
        for seed in SEEDS
    ]
    compared = compare_quantities(runs)
    claimed, beside = compared[:2], compared[2:]
    assert {(item.measure, verdict(item)) for item in claimed} == {("worst divergence", "better")}
    assert {item.measure for item in beside} == {name}
    verdicts = {item.method: verdict(item) for item in beside}
    assert verdicts == {"smart": "no difference seen", "r3f": "better"}
    (r3f,) = (item for item in beside if item.method == "r3f")
    assert r3f.p_holm == pytest.approx(2 * stats.ttest_1samp(gaps["r3f"], 0).pvalue)
    said = [sentence.text for sentence in effect_findings(compared)]
    change = 100 * gaps["r3f"].mean() / 0.5
    start = "Relative to the size of the logits, after Holm's correction: better than plain"
    assert f"{start}: r3f ({name} {change:+.0f} %)." in said
    assert {cells[0] for cells in quantity_table(beside).rows} == {name}


def test_there_is_no_percentage_of_nothing() -> None:
    name, gaps = "changed by the worst perturbation", np.array([0.1, 0.12, 0.08, 0.1, 0.11])
    runs = [
        run("one", method, seed, {"worst divergence": 1.0, name: share}, *claims)
        for method, claims in (("plain", ()), ("smart", ["worst divergence"]))
        for seed in SEEDS
        for share in [float(gaps[seed]) if claims else 0.0]
    ]
    (found,) = (item for item in compare_quantities(runs) if item.measure == name)
    (row,) = effect_table([found]).rows
    assert row[6].startswith("+0.102 [")
    assert not row[6].endswith("%")
    assert any(f"smart ({name} +0.102)" in said.text for said in effect_findings([found]))


def test_robustness_is_compared_for_every_method() -> None:
    bears = {"plain": np.ones(5), "lnsr": 3 + 0.1 * DRAW.random(5), "noise": np.ones(5)}
    bears["noise"] += [0.1, -0.1, 0.1, -0.1, 0.1]
    runs = [
        run("one", method, seed, {NOISE: float(values[seed]), WORDS: 0.4})
        for method, values in bears.items()
        for seed in SEEDS
    ]
    compared = compare_quantities(runs)
    noise = {item.method: item for item in compared if item.measure == NOISE}
    for method in ("lnsr", "noise"):
        expected = stats.ttest_rel(bears[method], bears["plain"]).pvalue
        assert noise[method].p == pytest.approx(expected)
    assert verdict(noise["lnsr"]) == "better"
    assert verdict(noise["noise"]) == "no difference seen"
    said = [sentence.text for sentence in effect_findings(compared)]
    assert said[0].startswith("Robustness, after Holm's correction: better than plain: lnsr (")
    (null,) = effect_findings([noise["noise"]])
    assert null == ("note", "Robustness: no method is shown to differ from plain.")


def test_few_seeds_establish_nothing() -> None:
    few = compare_quantities([each for each in study() if each.seed < 3])
    assert verdict(under(few, ALL)["lnsr"]) == "too few seeds"
    (said,) = effect_findings(few)
    assert said == ("fragile", "3 seeds are few: nothing here is established.")
    alone = compare_quantities([each for each in study() if each.seed == 0])
    assert {verdict(item) for item in alone} == {"too few seeds"}
    assert effect_findings([]) == []


def test_only_seeds_that_both_have_count() -> None:
    runs = [each for each in study() if (each.method, each.seed) != ("plain", 2)]
    assert {tuple(item.seeds) for item in compare_quantities(runs)} == {(0, 1, 3, 4)}
    assert compare_quantities([each for each in study() if each.method != "plain"]) == []


def test_no_difference_at_all_is_no_effect() -> None:
    runs = [replace(r, measures=r.measures | {"noise sensitivity": 1.0}) for r in study()]
    found = under(compare_quantities(runs), ALL)["lnsr"]
    assert verdict(found) == "equal to plain in every run"


def test_the_table_has_means_under_one_condition_and_changes_everywhere() -> None:
    compared = compare_quantities(study())
    rows = {(row[0], row[1]): row for row in effect_table(compared).rows}
    assert len(rows) == len(compared) == 9
    plain = PLAIN["one"].mean()
    assert rows["one, minilm, 100 examples", "lnsr"][4] == f"{plain:.4g}"
    assert rows[ALL, "lnsr"][4:6] == ["–", "–"]
    assert rows[ALL, "lnsr"][6].startswith("-49.")


# --- from records ------------------------------------------------------------------------------


def record(**extras) -> CellRecord:
    content = finished(0.9)
    content.extras = Measured.parse({"parts": {}} | extras)
    content.result.methods = {"lnsr": {}, "sam": {}}
    return CellRecord(id="1", identity={}, **vars(content))


def test_quantities_and_claims_come_from_the_record() -> None:
    numbers = {"rows": 64, "quantities": {"sharpness": 2.0}, "beside": {"x": 1}, "not measured": {}}
    part = {"numbers": numbers, "curves": {}}
    claims = {"lnsr": ["noise sensitivity"], "sam": ["sharpness", "noise sensitivity"]}
    row = row_of(record(parts={"effect": part}, claims=claims))
    assert (row.measures["sharpness"], row.measures["x"]) == (2.0, 1.0)
    assert row.claims == ("noise sensitivity", "sharpness")
    with pytest.raises(ValueError, match="quantities"):
        record(parts={"effect": {"numbers": {"quantities": {"a": "b"}}, "curves": {}}})


def part_of(curve: Curve) -> Part:
    return Part(numbers={}, curves={"gaussian": curve, "tokens": curve, "words": curve})


def test_what_never_costs_ten_points_bears_all_that_was_tried() -> None:
    line = made_curve({"x": [[0, 0.9], [10, 0.85]]}, {"area": 0.8})
    assert robustness_of(Measured(parts={"robustness": part_of(line)}), 0.4) == {NOISE: 10}
    noise = {"area": 0.8, "clean": 0.9, "0": 0.9, "0.5": 0.89, "1.5": 0.7}
    assert robustness_of(Measured(noise=noise), 0.4) == {NOISE: 1.5}
    assert robustness_of(Measured(noise=noise | {"loses 10 points at": 1.2}), 0.4) == {NOISE: 1.2}
    assert robustness_of(Measured(), 0.4) == {}
    assert robustness_of(Measured(noise={"2nd": 0.1, "²": 0.2, "": 0.3}), 0.4) == {}


def test_what_has_no_ten_points_to_lose_is_not_compared() -> None:
    line = made_curve({"x": [[0, 0.5], [10, 0.5]]})
    parts = dict.fromkeys(("robustness", "corruption", "substitution"), part_of(line))
    assert robustness_of(Measured(parts=parts), 0.09) == {WORDS: 0.5}
    assert robustness_of(Measured(noise={"0": 0.5, "1.5": 0.5}), 0.0) == {}
