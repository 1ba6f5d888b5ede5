"""The table of effects, of made-up runs whose paired differences are known."""

import csv
import io
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from scipy import stats
from typer.testing import CliRunner

from helpers.study_files import finished, made_curve
from smoothtune.cli import app
from smoothtune.results import CellContent, Measured, Part
from smoothtune.study.records import STUDY, Extras, Records, digest
from smoothtune.study.report.effect import ALL, compare_quantities
from smoothtune.study.report.effect_page import write_effects
from smoothtune.study.report.effect_rows import (
    NOISE,
    ROBUSTNESS,
    WORDS,
    claims_of,
    is_compared,
    measured_runs,
    robustness_of,
)
from smoothtune.study.report.effect_table import (
    beside_sentences,
    effect_sentences,
    effect_table,
    findings_of,
    quantity_table,
    robustness_sentences,
)

SEEDS = range(5)
DRAW = np.random.default_rng(3)
PLAIN = {"one": 2 + 0.3 * DRAW.random(5), "two": 40 + 9 * DRAW.random(5)}
GAPS = {
    "lnsr": {task: -0.5 * PLAIN[task] + 0.01 * DRAW.random(5) for task in PLAIN},
    "r_drop": {task: 0.2 * PLAIN[task] + 0.01 * DRAW.random(5) for task in PLAIN},
    "sam": {task: 0.1 * PLAIN[task] * DRAW.normal(size=5) for task in PLAIN},
}
CLAIM = {"lnsr": "noise sensitivity", "r_drop": "dropout divergence", "sam": "sharpness"}
SCORES = {
    "smart": 0.8,
    "r3f": 0.8,
    "plain": 0.8,
    "lnsr": 0.79,
    "r_drop": 0.81,
    "sam": 0.797,
    "reinit": 0.8,
}


def record(task: str, method: str, seed: int, values: dict[str, float]) -> CellContent:
    found = finished(SCORES[method] + 0.001 * seed)
    found.result.config = {
        "task": task,
        "model": "minilm",
        "max_train_samples": 100,
        "seed": seed,
        "methods": {method: {}},
    }
    found.result.cost.train_seconds = 10.0 if method == "plain" else 25.0
    numbers = {"rows": 64, "quantities": values, "beside": {}, "not measured": {}}
    found.extras.parts = {"effect": Part(numbers=numbers, curves={})}
    return found


def study(methods=("lnsr", "r_drop", "sam")) -> list[tuple[str, CellContent]]:
    runs = []
    for task, plain in PLAIN.items():
        for seed in SEEDS:
            base = dict.fromkeys(CLAIM.values(), float(plain[seed]))
            runs.append(("plain", record(task, "plain", seed, base)))
            for method in methods:
                value = float(plain[seed] + GAPS[method][task][seed]) if method in GAPS else 0.0
                values = base | ({CLAIM[method]: value} if method in GAPS else {})
                runs.append((method, record(task, method, seed, values)))
    return runs


def test_differences_are_paired_tested_and_corrected() -> None:
    compared = compare_quantities(measured_runs(study())).claimed
    for number, (task, plain) in enumerate(PLAIN.items()):
        items = compared[3 * number : 3 * number + 3]
        assert {item.condition for item in items} == {f"{task}, minilm, 100 examples"}
        expected = {}
        for item in items:
            gaps = GAPS[item.method][task]
            expected[item.method] = stats.ttest_rel(plain + gaps, plain).pvalue
            assert item.p == pytest.approx(expected[item.method], rel=1e-9)
            assert item.plain == pytest.approx(plain.mean())
            assert item.with_method == pytest.approx((plain + gaps).mean())
            interval = stats.ttest_rel(plain + gaps, plain).confidence_interval(0.95)
            assert item.difference.value == pytest.approx(gaps.mean())
            assert item.difference.interval == pytest.approx([interval.low, interval.high])
            assert item.change.value == pytest.approx(gaps.mean() / plain.mean())
        by_name = {item.method: item.p_holm for item in items}
        ranked = sorted(expected, key=lambda name: expected[name])
        assert by_name[ranked[0]] == pytest.approx(3 * expected[ranked[0]])


def test_over_conditions_relative_changes_are_averaged_for_each_seed() -> None:
    compared = compare_quantities(measured_runs(study())).claimed
    over = {item.method: item for item in compared if item.condition == ALL}
    for method, gaps in GAPS.items():
        relative = np.mean([gaps[task] / PLAIN[task].mean() for task in PLAIN], axis=0)
        assert over[method].change.value == pytest.approx(relative.mean())
        assert over[method].p == pytest.approx(stats.ttest_1samp(relative, 0).pvalue)
        assert over[method].cost_ratio == 2.5
    assert over["lnsr"].score.value == pytest.approx(-0.01)
    assert {method: item.verdict for method, item in over.items()} == {
        "lnsr": "moves it",
        "r_drop": "moves it the wrong way",
        "sam": "no effect seen",
    }


def test_times_on_other_devices_are_not_compared() -> None:
    runs = study(methods=("lnsr",))
    for method, run in runs:
        cost, seed = run.result.cost, run.result.config["seed"]
        cost.device = method if seed < 4 else "same"
        cost.train_seconds += seed
    assert {item.cost_ratio for item in compare_quantities(measured_runs(runs)).claimed} == {
        29 / 14
    }
    for method, run in runs:
        run.result.cost.device = method
    assert {item.cost_ratio for item in compare_quantities(measured_runs(runs)).claimed} == {None}
    assert "–" in effect_table(compare_quantities(measured_runs(runs)).claimed).rows[0]


def test_a_change_that_holm_does_not_leave_is_called_so() -> None:
    rows = measured_runs(study())
    gaps = np.array([-1.0, -0.4, -0.9, -0.2, -0.6])
    for row in rows:
        if row.method == "sam":
            row.values["sharpness"] = PLAIN[row.condition.task][row.seed] + gaps[row.seed]
    found = {i.method: i for i in compare_quantities(rows[: len(rows) // 2]).claimed}["sam"]
    assert found.p == pytest.approx(stats.ttest_1samp(gaps, 0).pvalue)
    assert found.p < 0.05
    assert found.verdict == "moves it"
    many = rows[: len(rows) // 2]
    for number in range(10):
        many += [replace(row, method=f"sam {number}") for row in many if row.method == "sam"]
    found = {i.method: i for i in compare_quantities(many).claimed}["sam"]
    assert found.p_holm > 0.05
    assert found.verdict == "moves it, not after Holm"


def test_robustness_is_compared_for_every_method() -> None:
    runs = study(["lnsr", "reinit"])
    bears = {"plain": np.array([1.0, 1.2, 0.8, 1.1, 0.9]), "lnsr": None, "reinit": None}
    bears["lnsr"] = bears["plain"] + [2.0, 2.1, 1.9, 2.0, 2.05]
    bears["reinit"] = bears["plain"] + [0.3, -0.3, 0.2, -0.2, 0.01]
    for method, found in runs:
        seed = found.result.config["seed"]
        line = {"Gaussian noise": [[0, 0.9, None, None], [10, 0.7, None, None]]}
        numbers = {"area": 0.8, "loses 10 points at": bears[method][seed]}
        curve = made_curve(line, numbers)
        found.extras.parts["robustness"] = Part(numbers={}, curves={"gaussian": curve})
        words = made_curve({"words": [[0, 0.9], [3, 0.4 + 0.001 * seed]]})
        found.extras.parts["substitution"] = Part(numbers={}, curves={"words": words})
    rows = measured_runs(runs)
    compared = [i for i in compare_quantities(rows).robust if i.condition != ALL]
    noise = {i.method: i for i in compared if i.quantity == NOISE}
    for method in ("lnsr", "reinit"):
        expected = stats.ttest_rel(bears[method], bears["plain"]).pvalue
        assert noise[method].p == pytest.approx(expected)
    assert noise["lnsr"].verdict == "more robust"
    assert noise["lnsr"].difference.value == pytest.approx(2.01)
    assert noise["reinit"].verdict == "no effect seen"
    plain = [i.plain for i in compared if i.quantity == WORDS]
    assert plain == pytest.approx([0.402] * 4)
    assert [claim for row in rows for claim in row.claims if claim in ROBUSTNESS] == []


def test_smaller_logits_are_told_from_smoother_ones() -> None:
    """By classes that change, in a family of tests of its own."""
    runs = study(["smart", "r3f"])
    name = "changed by the worst perturbation"
    gaps = {"plain": np.zeros(5), "smart": np.array([0.1, -0.1, 0.05, -0.06, 0.02])}
    gaps["r3f"] = np.array([-0.2, -0.21, -0.19, -0.2, -0.18])
    for method, found in runs:
        seed = found.result.config["seed"]
        numbers = found.extras.parts["effect"].numbers
        numbers["quantities"] = {"worst divergence": 1.0 + 0.1 * seed, "noise divergence": 1.0}
        if method != "plain":
            numbers["quantities"]["worst divergence"] *= 0.1
        numbers["beside"] = {name: 0.5 + float(gaps[method][seed])}
    rows = measured_runs(runs)
    alike = [
        item for item in compare_quantities(rows).claimed if item.quantity == "worst divergence"
    ]
    assert {item.verdict for item in alike} == {"moves it"}
    beside = [item for item in compare_quantities(rows).scale_free if item.condition != ALL]
    assert {item.quantity for item in beside} == {name}
    verdicts = {item.method: item.verdict for item in beside}
    assert verdicts == {"smart": "no effect seen", "r3f": "moves it"}
    p = {item.method: item.p_holm for item in beside}
    assert p["r3f"] == pytest.approx(2 * stats.ttest_1samp(gaps["r3f"], 0).pvalue)
    begin = "Of numbers that do not depend on the size of the logits"
    (said,) = beside_sentences(compare_quantities(rows).scale_free)
    assert said.text == f"{begin} 1 of 2 fall: r3f ({name})."
    (said,) = beside_sentences([item for item in beside if item.method == "smart"])
    assert said == ("fragile", f"{begin} 0 of 2 fall.")  # on two tasks
    assert beside_sentences(compare_quantities(measured_runs(study(["lnsr"]))).scale_free) == []
    shown = {cells[0] for cells in quantity_table(beside).rows}
    assert shown == {name}


def test_robustness_is_compared_without_the_part_effect() -> None:
    """Also where nothing but a curve of noise was asked for."""
    runs = study(["lnsr", "reinit"])
    for method, found in runs:
        seed = found.result.config["seed"]
        bears = {"plain": 1.0, "lnsr": 0.5 - 0.01 * seed, "reinit": 1.0 + 0.1 * (-1) ** seed}
        noise = {"clean": 0.9, "0": 0.9, "2": 0.6, "loses 10 points at": bears[method]}
        found.extras = Measured(noise=noise)
    rows = measured_runs(runs)
    assert compare_quantities(rows).claimed == effect_sentences([], rows) == []
    compared = compare_quantities(rows).robust
    assert {item.quantity for item in compared} == {NOISE}
    (said,) = robustness_sentences(compared)
    assert said.verdict == "fragile"
    assert said.text.startswith(
        "less robust than plain after Holm's correction: lnsr (noise that costs 10 points: -52.0 ["
    )
    (said,) = robustness_sentences([item for item in compared if item.method == "reinit"])
    assert said.text == "No method is shown to be more or less robust than plain."
    assert is_compared(Extras(noise_curve=True))
    assert is_compared(Extras(evaluate=("corruption",)))
    assert not is_compared(Extras(evaluate=("calibration", "drift")))
    for _, found in runs:
        found.extras.noise = {}
    assert measured_runs(runs) == []


def test_what_never_costs_ten_points_bears_all_that_was_tried() -> None:
    line = made_curve({"x": [[0, 0.9], [10, 0.85]]}, {"area": 0.8})
    parts = {"robustness": Part(numbers={}, curves={"gaussian": line})}
    assert robustness_of(Measured(parts=parts), 0.4) == {NOISE: 10}
    noise = {"area": 0.8, "clean": 0.9, "0": 0.9, "0.5": 0.89, "1.5": 0.7}
    assert robustness_of(Measured(noise=noise), 0.4) == {NOISE: 1.5}
    assert robustness_of(Measured(noise=noise | {"loses 10 points at": 1.2}), 0.4) == {NOISE: 1.2}
    assert robustness_of(Measured(), 0.4) == {}


def test_what_has_no_ten_points_to_lose_is_not_compared() -> None:
    line = made_curve({"x": [[0, 0.5], [10, 0.5]]})
    part = Part(numbers={}, curves={"gaussian": line, "tokens": line, "words": line})
    parts = dict.fromkeys(("robustness", "corruption", "substitution"), part)
    assert robustness_of(Measured(parts=parts), 0.09) == {WORDS: 0.5}
    assert robustness_of(Measured(noise={"0": 0.5, "1.5": 0.5}), 0.0) == {}
    runs = study(methods=("lnsr",))
    for method, run in runs:
        run.extras.noise = {"0": 0.8, "1.5": 0.6}
        if method == "lnsr":
            run.result.trivial_baseline = run.result.score - 0.05
    assert compare_quantities(measured_runs(runs)).robust == []


def test_of_few_seeds_the_first_thing_said_is_that_they_are_few() -> None:
    def said(runs: list[tuple[str, CellContent]]) -> list[str]:
        rows = measured_runs(runs)
        found = findings_of(rows, compare_quantities(rows))
        return [f"{sentence.verdict}: {sentence.text}" for sentence in found]

    few = said([r for r in study() if r[1].result.config["seed"] < 3])
    assert few[0].startswith("fragile: 3 seeds are few: nothing here is established")
    assert "note: moves it: 1 of 3: lnsr (noise sensitivity)." in few
    assert said(study())[0] == "good: moves it: 1 of 3: lnsr (noise sensitivity)."


def test_only_seeds_that_both_have_count() -> None:
    runs = [r for r in study() if (r[0], r[1].result.config["seed"]) != ("plain", 2)]
    for item in compare_quantities(measured_runs(runs)).claimed:
        assert item.seeds == [0, 1, 3, 4]
    alone = [r for r in study() if r[1].result.config["seed"] == 0]
    compared = compare_quantities(measured_runs(alone)).claimed
    assert {item.verdict for item in compared} == {"too few seeds"}
    (said, *_) = effect_sentences(compared, measured_runs(alone))
    assert said.text.startswith("too few seeds: 3 of 3: lnsr (noise sensitivity), ")
    missing = [r for r in study() if r[0] != "plain"]
    assert compare_quantities(measured_runs(missing)).claimed == []


def test_no_difference_at_all_is_no_effect() -> None:
    runs = study(["lnsr"])
    for _, found in runs:
        found.extras.parts["effect"].numbers["quantities"]["noise sensitivity"] = 1.0
    compared = compare_quantities(measured_runs(runs)).claimed
    assert {item.verdict for item in compared} == {"no effect seen"}


def test_compositions_are_about_what_their_methods_are_about() -> None:
    assert claims_of(["lnsr", "l2_sp"], {}) == ["noise sensitivity", "weight distance"]
    assert claims_of(["plain", "reinit"], {}) == []
    recorded = {"os:system": ["sharpness"], "lnsr": ["sharpness"]}
    assert claims_of(["os:system", "lnsr"], recorded) == ["sharpness", "noise sensitivity"]


def test_sentences_name_who_moves_what_and_who_loses() -> None:
    runs = study(["lnsr", "r_drop", "sam", "reinit"])
    numbers = runs[1][1].extras.parts["effect"].numbers
    numbers["not measured"] = {"noise sensitivity": "no blocks"}
    rows = measured_runs(runs)
    said = [sentence.text for sentence in effect_sentences(compare_quantities(rows).claimed, rows)]
    assert "moves it: 1 of 3: lnsr (noise sensitivity)." in said
    assert "moves it the wrong way: 1 of 3: r_drop (dropout divergence)." in said
    assert "more than 0.5 points of score lost on average: lnsr (-1.0)." in said
    assert "no quantity of their own: reinit." in said
    assert "not measured: noise sensitivity of lnsr: no blocks." in said


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A finished study."""
    cells = []
    records = Records(tmp_path)
    for number, (label, found) in enumerate(study()):
        identity = {"number": number}
        name = digest(identity)[:16]
        content = {"id": name, "identity": identity, **found.content()}
        (tmp_path / "cells").mkdir(exist_ok=True)
        path = tmp_path / "cells" / f"{name}.json"
        path.write_text(json.dumps(content | {"sha256": digest(content)}))
        assert records.read(name)
        cells.append({"id": name, "title": label, "label": label, "seed": 0})
    (tmp_path / STUDY).write_text(json.dumps({"cells": cells}))
    return tmp_path


def test_the_command_prints_and_writes_the_table(folder: Path) -> None:
    found = CliRunner().invoke(app, ["effect", str(folder)])
    assert found.exit_code == 0, found.output
    assert "lnsr noise sensitivity 5 " in " ".join(found.output.split())
    assert "good: moves it: 1 of 3: lnsr (noise sensitivity)." in found.output
    with (folder / "effect.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == 9
    gaps = GAPS["lnsr"]["one"]
    assert float(lines[0]["difference"]) == pytest.approx(gaps.mean())
    assert float(lines[0]["p"]) == pytest.approx(stats.ttest_1samp(gaps, 0).pvalue)
    page = (folder / "effect.md").read_text()
    assert "| moves it the wrong way |" in page
    assert "relative change of the hidden states" in page


def test_a_narrow_terminal_keeps_what_decides(folder: Path) -> None:
    file = io.StringIO()
    write_effects(folder, Console(file=file, width=80, force_terminal=True, color_system=None))
    shown = file.getvalue()
    assert "…" not in shown
    assert all(f" {head} " in shown for head in ("method", "quantity", "change", "verdict"))
    rest = "score, points; time, x plain. They are in "
    assert rest in " ".join(shown.split())
    assert max(map(len, shown.splitlines())) <= 80


def test_the_table_of_the_page_has_every_row(folder: Path) -> None:
    compared = write_effects(folder, Console(quiet=True))
    table = effect_table(compared)
    assert [row[-1] for row in table.rows] == [item.verdict for item in compared]
    assert {len(row) for row in table.rows} == {len(table.head)}


@pytest.mark.parametrize("cells", [None, []])
def test_a_folder_without_effects_says_what_to_do(tmp_path: Path, cells: list | None) -> None:
    if cells is not None:
        (tmp_path / STUDY).write_text(json.dumps({"cells": cells}))
    found = CliRunner().invoke(app, ["effect", str(tmp_path)])
    assert found.exit_code == 2
    assert ("holds no study" if cells is None else "evaluate: [effect]") in found.stderr
