"""Tables: numbers by hand, verdicts, averages, gains, models that stand in for others."""

from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from helpers.made_records import made_cells, score_of
from smoothtune.errors import ConfigError
from smoothtune.report.tables import Summary
from smoothtune.reproduce.runs import finished_runs
from smoothtune.reproduce.verdict import difference, interval
from smoothtune.study.config import load_study
from smoothtune.study.plan import Plan
from smoothtune.study.records import Records

LAYOUT = """
methods: [lnsr]
more_epochs: null
seeds: [0, 1, 2]
layout:
  - table: "A table"
    statistics: [mean, sd, max]
    baseline: FT
    printed_seeds: 25
    about: {model: their-model}
    rows:
      - {name: FT, method: plain}
      - {name: LNSR, method: lnsr}
      - {name: cited, not_run: "others' number"}
    columns:
      - {name: one, task: one}
      - {name: two, task: two}
      - {name: both, average_of: [one, two], statistics: [mean]}
    printed:
      FT: {one: [70.0, 2.0, 75.0]}
      LNSR: {one: [71.0, 2.0, 76.0], both: [50.0]}
      cited: {one: [99.0, null, null]}
"""
TASKS = "task: [{name: one, text_columns: [text]}, {name: two, text_columns: [text]}]\n"


def cells(content) -> dict:
    return {(c["row"], c["column"]): c for c in content["tables"][0]["cells"]}


def test_numbers_of_a_table(write, reproduced) -> None:
    study = load_study(write(LAYOUT + TASKS, common=""))
    found = cells(reproduced(study))
    made = made_cells(study)
    scores = {
        (task, label): np.array(
            [
                100 * score_of(c, "accuracy")
                for c in made
                if (c.condition.task, c.label) == (task, label)
            ]
        )
        for task in ("one", "two")
        for label in ("plain", "lnsr")
    }
    ours, plain = scores["one", "lnsr"], scores["one", "plain"]
    cell = found["LNSR", "one"]
    assert cell["ours"]["mean"] == pytest.approx(ours.mean())
    assert cell["ours"]["sd"] == pytest.approx(ours.std(ddof=1))
    assert cell["ours"]["max"] == pytest.approx(ours.max())
    low, high = stats.t.interval(0.95, 2, ours.mean(), ours.std(ddof=1) / 3**0.5)
    assert cell["interval"] == pytest.approx((low, high))
    test = stats.ttest_ind_from_stats(ours.mean(), ours.std(ddof=1), 3, 71, 2, 25, equal_var=False)
    assert (cell["verdict"] == "agrees") == (test.pvalue >= 0.05)
    assert cell["printed_gain"] == pytest.approx(1.0)
    gain = stats.ttest_rel(ours, plain)
    assert cell["gain"]["value"] == pytest.approx((ours - plain).mean())
    bounds = gain.confidence_interval(0.95)
    assert cell["gain"]["interval"] == pytest.approx((bounds.low, bounds.high))
    mean = (ours + scores["two", "lnsr"]) / 2
    assert found["LNSR", "both"]["ours"]["mean"] == pytest.approx(mean.mean())
    assert found["LNSR", "both"]["ours"]["sd"] == pytest.approx(mean.std(ddof=1))
    assert found["FT", "two"]["verdict"] == "not printed"
    assert found["FT", "both"]["gain"] is None
    assert found["cited", "one"]["verdict"] == "not run"


def test_an_average_needs_all_of_its_columns(write, reproduced, tmp_path: Path) -> None:
    study = load_study(write(LAYOUT + TASKS, common=""))
    found = cells(reproduced(study, skip=lambda c: c.condition.task == "two" and c.label == "lnsr"))
    assert found["LNSR", "both"]["verdict"] == "not run"
    assert found["FT", "both"]["ours"]["n"] == 3
    text = (tmp_path / "01-a-table.csv").read_text()
    assert text.count("\n") == 1 + 9
    tex = (tmp_path / "01-a-table.tex").read_text()
    assert "LNSR & here" in tex
    assert "70.00 & 2.00 & 75.00" in tex


def test_only_one_model_stands_in_for_another(write, reproduced) -> None:
    text = LAYOUT + TASKS
    content = reproduced(load_study(write(text, common="")))
    assert content["stand_ins"] == {"their-model": "model"}
    said = " ".join(finding["text"] for finding in content["findings"])
    assert "model stands in for their-model" in said
    two = text.replace("{name: two, task: two}", "{name: two, task: two, model: second-model}")
    found = cells(reproduced(load_study(write(two, common=""))))
    assert found["FT", "two"]["verdict"] == "not run"  # nothing is left to stand in for it
    assert found["FT", "one"]["ours"] is not None


OF_MODELS = """
methods: [lnsr]
more_epochs: null
seeds: [0, 1]
layout:
  - table: "A table"
    rows:
      - {name: "one, FT", group: one, method: plain, model: model-one}
      - {name: "one, LNSR", group: one, method: lnsr, model: model-one}
      - {name: "two, FT", group: two, method: plain, model: model-two}
      - {name: "two, LNSR", group: two, method: lnsr, model: model-two}
    columns: [{name: score}]
"""
TASK = "task: {name: one, text_columns: [text]}\n"


def test_a_row_says_whose_runs_it_shows_and_empty_rows_take_a_line(
    write, reproduced, tmp_path: Path
) -> None:
    reproduced(load_study(write(OF_MODELS + TASK, common="")), skip=lambda c: c.label == "lnsr")
    page = (tmp_path / "reproduce.md").read_text()
    assert "| one, FT | here, model |" in page
    assert "| one, LNSR |" not in page
    assert "Not run: one, LNSR; two.\n" in page
    assert "Not run: one, LNSR; two." in (tmp_path / "reproduce.html").read_text()
    assert (tmp_path / "01-a-table.csv").read_text().count("not run") == 3


def test_columns_of_which_nothing_is_known_take_a_line(write, reproduced, tmp_path: Path) -> None:
    text = OF_MODELS.replace(
        "[{name: score}]", "[{name: first, task: one}, {name: second, task: 2nd}]"
    )
    reproduced(load_study(write(text + TASK, common="")))
    page = (tmp_path / "reproduce.md").read_text()
    assert "| first |" in page
    assert "second |" not in page.partition("Cell by cell")[0]
    assert "Columns not run: second\n" in page
    assert "Columns not run: second<" in (tmp_path / "reproduce.html").read_text()
    assert "second" in (tmp_path / "01-a-table.csv").read_text()
    printed = "\n    printed: {'one, FT': {second: [70]}}\n"
    reproduced(load_study(write(text + printed + TASK, common="")))
    assert "| second |" in (tmp_path / "reproduce.md").read_text()


def test_a_study_says_which_model_stands_in(write, reproduced, tmp_path: Path) -> None:
    text = OF_MODELS + TASK + "stand_ins: {model-two: model}\n"
    content = reproduced(load_study(write(text, common="")))
    assert content["stand_ins"] == {"model-two": "model"}
    assert cells(content)["one, FT", "score"]["verdict"] == "not run"
    assert "Not run: one.\n" in (tmp_path / "reproduce.md").read_text()
    for wrong, message in (
        ("{model-too: model}", "did you mean 'model-two'"),
        ("{model-two: modle}", "did you mean 'model'"),
    ):
        with pytest.raises(ConfigError, match=message):
            load_study(write(text.replace("{model-two: model}", wrong), common=""))


def test_a_mean_over_tasks(write, reproduced) -> None:
    text = LAYOUT.replace("average_of: [one, two]", "average_of: tasks")
    found = cells(reproduced(load_study(write(text + TASKS, common=""))))
    parts = [found["LNSR", task]["ours"]["mean"] for task in ("one", "two")]
    assert found["LNSR", "both"]["ours"]["mean"] == pytest.approx(np.mean(parts))


def test_a_mean_over_tasks_is_of_those_that_have_the_number(write, reproduced) -> None:
    brier = LAYOUT.replace("average_of: [one, two]", "value: brier, average_of: tasks")
    tasks = "task: [{name: one, text_columns: [text]}, stsb]\n"
    study = load_study(write(brier.replace("task: two", "task: stsb") + tasks, common=""))
    begun = reproduced(study, skip=lambda cell: cell.condition.task == "one")
    assert cells(begun)["FT", "both"]["ours"] is None
    assert cells(reproduced(study))["FT", "both"]["ours"]["mean"] == pytest.approx(30)


def test_one_run_is_no_verdict(write, reproduced) -> None:
    study = load_study(write(LAYOUT + TASKS, common=""), options={"seeds": [0]})
    found = cells(reproduced(study))
    assert found["FT", "one"]["verdict"] == "no interval"
    assert found["FT", "one"]["interval"] is None


def test_intervals_have_their_coverage() -> None:
    """Two samples of one mean: 95 % of the intervals hold zero."""
    draw, held = np.random.default_rng(0), 0
    for _ in range(2000):
        ours, theirs = draw.normal(0, 1, 5), draw.normal(0, 3, 25)
        found = Summary.of(ours.tolist())
        gap = difference(found, theirs.mean(), theirs.std(ddof=1), 25)
        held += not gap.excludes_zero
    assert 0.935 < held / 2000 < 0.965
    assert interval(Summary(1, 0.5, None, 0.5, 0.5)) is None
    assert difference(Summary(1, 0.5, None, 0.5, 0.5), 0.5) is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("one: [70.0, 2.0, 75.0]", "one: [70.0, 2.0]"), "another count of numbers"),
        (("one: [70.0, 2.0, 75.0]", "three: [70.0, 2.0, 75.0]"), "no cell 'FT', 'three'"),
        (("baseline: FT", "baseline: BERT"), "is no row"),
        (("average_of: [one, two]", "average_of: [one, six]"), "which is no column"),
        (("  - table:", "  - tabel:"), "must begin with table: TITLE or figure: TITLE"),
        (("name: LNSR, method", "name: FT, method"), "two rows have the same name"),
    ],
)
def test_mistakes_in_a_layout(write, change, message) -> None:
    with pytest.raises(ConfigError, match=message):
        load_study(write(LAYOUT.replace(*change) + TASKS, common=""))


P_VALUES = """
methods: [lnsr, {name: lnsr, label: deeper, layer: 1}]
more_epochs: null
seeds: [0, 1, 2]
layout:
  - table: P
    baseline: FT
    percent: false
    rows:
      - {name: FT, method: plain}
      - {name: LNSR, method: lnsr}
      - {name: best, best_of: [lnsr, deeper]}
      - {name: cited, not_run: "others' number"}
    columns: [{name: p, value: p}, {name: max, statistics: [max]}]
    printed: {LNSR: {p: [1e-3]}, best: {max: [0.9]}}
"""


def test_p_values_and_the_best_of_several(write, reproduced) -> None:
    study = load_study(write(P_VALUES))
    found = cells(reproduced(study))
    made = made_cells(study)
    by = {
        label: [score_of(c, "accuracy") for c in made if c.label == label]
        for label in ("plain", "lnsr", "deeper")
    }
    p = stats.ttest_rel(by["lnsr"], by["plain"]).pvalue
    assert found["LNSR", "p"]["ours"]["mean"] == pytest.approx(p)
    assert found["LNSR", "p"]["verdict"] == "no interval"
    assert found["best", "max"]["ours"]["max"] == pytest.approx(max(by["lnsr"] + by["deeper"]))
    assert found["best", "max"]["ours"]["n"] == 6
    assert found["best", "p"]["ours"] is None  # a seed has several runs, and no pair
    assert found["best", "p"]["verdict"] == "not printed"
    assert found["cited", "p"]["verdict"] == "not run"
    assert found["cited", "p"]["ours"] is None


def test_gains_over_the_best_of_several_have_no_pairs(write, reproduced) -> None:
    of_best = P_VALUES.replace("baseline: FT", "baseline: best")
    found = cells(reproduced(load_study(write(of_best))))
    assert found["LNSR", "max"]["gain"] is None
    assert found["LNSR", "p"]["ours"] is None


def test_a_cell_that_names_no_method_mixes_no_runs(write, reproduced) -> None:
    unnamed = OF_MODELS.replace(", method: lnsr, model: model-one", ", model: model-one")
    found = cells(reproduced(load_study(write(unnamed + TASK, common=""))))
    assert found["one, FT", "score"]["ours"]["n"] == 2
    assert found["one, LNSR", "score"]["ours"] is None


def test_what_is_known_of_the_own_data_alone_is_not_shown_of_others(write, reproduced) -> None:
    ood = "task: [{name: one, text_columns: [text], ood: {films: adv_sst2}}]\n"
    columns = (
        "{name: score, data: films}, {name: ece, value: ece, data: films}, "
        "{name: train, value: train, data: films}, {name: own, value: ece}"
    )
    text = OF_MODELS.replace("{name: score}", columns) + ood
    found = cells(reproduced(load_study(write(text, common=""))))
    verdicts = {
        name: found["one, FT", name]["verdict"] for name in ("score", "ece", "train", "own")
    }
    assert verdicts == {
        "score": "not printed",
        "ece": "not run",
        "train": "not run",
        "own": "not printed",
    }


def test_a_page_with_p_values_names_their_test(write, reproduced, tmp_path: Path) -> None:
    reproduced(load_study(write(P_VALUES)))
    page = (tmp_path / "reproduce.md").read_text()
    assert "as measured; p-values of the paired t-test" in page


def test_p_values_that_are_not_defined(write, reproduced) -> None:
    """Of one seed, and of runs that all score alike; without runs there is nothing."""
    one = cells(reproduced(load_study(write(P_VALUES), options={"seeds": [0]})))
    assert (one["LNSR", "p"]["ours"], one["LNSR", "p"]["verdict"]) == (None, "no interval")
    study = load_study(write(P_VALUES))
    alike = cells(reproduced(study, accuracy=0.5))
    assert (alike["LNSR", "p"]["ours"], alike["LNSR", "p"]["verdict"]) == (None, "no interval")


def test_p_values_without_runs(write, reproduced) -> None:
    found = cells(reproduced(load_study(write(P_VALUES)), skip=lambda c: c.label == "lnsr"))
    assert found["LNSR", "p"]["verdict"] == "not run"


def test_equal_scores_have_no_interval(write, reproduced) -> None:
    found = cells(reproduced(load_study(write(LAYOUT + TASKS, common="")), accuracy=0.7))
    assert found["FT", "one"]["ours"]["sd"] == 0
    assert found["FT", "one"]["interval"] is None
    assert found["FT", "one"]["verdict"] == "no interval"


def test_runs_that_end_early_are_not_compared(write, reproduced, tmp_path: Path) -> None:
    study = load_study(write(LAYOUT + TASKS + "max_steps: 1\n", common=""))
    content = reproduced(study)
    found = cells(content)
    assert found["FT", "one"]["verdict"] == "cut short"
    assert found["LNSR", "one"]["gain_verdict"] == "cut short"
    assert found["FT", "two"]["verdict"] == "not printed"
    said = " ".join(finding["text"] for finding in content["findings"])
    assert "Runs end after one update, before their epochs do" in said
    assert "cut short" in (tmp_path / "reproduce.md").read_text()


def test_runs_as_short_as_the_protocol_are_not_cut(write, tmp_path: Path) -> None:
    """Beside them plain has twice the steps, on purpose."""
    (tmp_path / "protocol.yaml").write_text("title: P\nsource: s\nfields: {max_steps: 1}\n")
    layout = LAYOUT.replace("more_epochs: null", "more_epochs: 2")
    file = write(layout + TASKS + f"protocol: {tmp_path / 'protocol.yaml'}\n", common="")
    study = load_study(file)
    assert {run.max_steps for run in study.runs.values()} == {1, 2}
    assert finished_runs(study, Plan(study, None, {}), Records(tmp_path)).updates is None


def test_a_model_that_has_learned_nothing_is_told(write, reproduced) -> None:
    study = load_study(write(LAYOUT + TASKS, common=""))
    told, silent = (
        [f["text"] for f in reproduced(study, accuracy=value)["findings"]] for value in (0.5, 0.51)
    )
    assert any("one, model: plain fine-tuning scores 0.500" in text for text in told)
    assert not any("a constant answer" in text for text in silent)
