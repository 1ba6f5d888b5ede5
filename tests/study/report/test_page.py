"""What a study says about made-up runs: tables, sentences, plots, pages."""

import csv
import io
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from scipy import stats

from helpers.study_files import content_of, made_result, made_runs
from smoothtune.report.page import page_text
from smoothtune.study.comparison import paired
from smoothtune.study.fields import ConditionKey
from smoothtune.study.plan import Choice
from smoothtune.study.records import Records
from smoothtune.study.report.content import StudyContent
from smoothtune.study.report.findings import MOST_NAMED, findings
from smoothtune.study.report.methods import compare_methods, devices, over_tasks, values_of
from smoothtune.study.report.page import show, write_tables
from smoothtune.study.report.plots import Plots, study_plots
from smoothtune.study.report.sections import study_sections
from smoothtune.study.report.tables import (
    COMPARISON_COLUMNS,
    beside_table,
    comparison_rows,
    over_tasks_table,
    score_table,
)

SEEDS = range(5)


def rows(shift: dict[str, float], tasks=("one", "two"), spread: float = 0.01) -> list[dict]:
    """Runs whose scores are plain's plus a shift and noise of their own."""
    draw = np.random.default_rng(0)
    return [
        dict(
            task=task,
            model="m",
            max_train_samples=100,
            method=method,
            setting=method,
            seed=seed,
            status="done",
            metric="accuracy",
            score=0.8 + gap + float(draw.normal(0, spread)),
            trivial_baseline=0.5,
            train_score=0.9,
            generalization_gap=0.1,
            brier=0.3,
            nll=0.5,
            ece=0.05,
            steps=10,
            train_seconds=10.0 * (1 + gap),
            evaluation_seconds=1.0,
            cell=f"{task}{method}{seed}",
        )
        for task in tasks
        for method, gap in ({"plain": 0.0} | shift).items()
        for seed in SEEDS
    ]


def content(found: list[dict], **changes) -> StudyContent:
    runs = made_runs(found)
    made = StudyContent(
        name="study",
        title="A study",
        seeds=list(SEEDS),
        methods=compare_methods(runs),
        over_tasks=over_tasks(runs),
        versions={"torch": ["2"]},
        devices=devices(runs),
        runs=runs,
    )
    return replace(made, **changes)


def chosen(method: str) -> Choice:
    condition = ConditionKey("one", "m", 100)
    return Choice(condition, method, 4, 0, "x", complete=True, scores={})


def texts(found: StudyContent) -> str:
    return "\n".join(f"{s.verdict}: {s.text}" for s in findings(found))


def test_comparisons_pair_by_seed_and_correct_over_methods() -> None:
    found = rows({"good": 0.05, "same": 0.0}, tasks=["one"])
    found = [r for r in found if (r["method"], r["seed"]) != ("good", 3)][::-1]
    runs = made_runs(found)
    by_name = {item.method: item for item in compare_methods(runs)}
    pairs = paired(values_of(runs))[ConditionKey("one", "m", 100), "score", "good"]
    seeds, (a,), (b,) = pairs.seeds, pairs.values, pairs.plain
    assert seeds == by_name["good"].score_against_plain.seeds == [4, 2, 1, 0]
    lookup = {(r["method"], r["seed"]): r["score"] for r in found}
    assert a.tolist() == [lookup["good", s] for s in seeds]
    assert b.tolist() == [lookup["plain", s] for s in seeds]
    p = {m: by_name[m].score_against_plain.p for m in ("good", "same")}
    assert p["good"] == pytest.approx(stats.ttest_rel(a, b).pvalue)
    assert by_name["good"].score_against_plain.p_holm == pytest.approx(2 * p["good"])
    assert by_name["good"].planned == 4
    assert by_name["good"].cost_ratio == pytest.approx(1.05)
    assert by_name["plain"].score_against_plain is None


def test_times_are_compared_on_one_device() -> None:
    """Seed by seed: 3 times plain's on one device; the other pairs say something else."""
    found = rows({"good": 0.05}, tasks=["one"])
    for run in found:
        run["device"] = "a" if run["seed"] < 3 else "b"
        run["train_seconds"] = 3.0 if run["method"] == "good" else 1.0
    good = {run["seed"]: run for run in found if run["method"] == "good"}
    good[0] |= {"device": "b", "train_seconds": 9.0}
    good[3] |= {"device": "a", "train_seconds": 8.0}

    def ratio() -> float | None:
        (_, item) = compare_methods(made_runs(found))
        return item.cost_ratio

    assert ratio() == 3.0
    assert "several kinds of device, and times are compared only on one and the same: a; b." in (
        texts(content(found))
    )
    for seed in (1, 2, 4):
        good[seed]["device"] = "c"
    assert ratio() is None
    for run in found:
        if run["method"] == "plain":
            run["device"] = None  # not recorded: that of no run that names its own
    assert ratio() is None
    assert "one and the same: a; b; c; one that is not recorded." in texts(content(found))
    for run in found:
        run["device"] = None
    good[4]["train_seconds"] = 8.5
    assert ratio() == 8.0  # the median of 9, 3, 3, 8 and 8.5
    assert "device" not in texts(content(found))


def test_failed_runs_are_counted_and_in_no_mean() -> None:
    found = rows({"bad": -0.1}, tasks=["one"])
    asked = {"task": "one", "model": "m", "max_train_samples": 100, "method": "bad"}
    lost = asked | {"seed": 9, "status": "nan"}
    missing = asked | {"seed": 10, "status": "missing"}
    (_, bad) = compare_methods(made_runs([*found, lost, missing]))
    assert (bad.planned, bad.failed, bad.missing) == (7, {"nan": 1}, 1)
    assert bad.score.n == 5
    assert "10 of 12 runs are done, 1 failed. Failed runs are in no mean." in texts(
        content([*found, lost, missing])
    )
    assert "Nothing was run of" not in texts(content([*found, lost, missing]))
    other = missing | {"method": "other"}
    said = "10 of 11 runs are done, 0 failed. Nothing was run of other on one, m, 100 examples."
    assert said in texts(content([*found, other]))
    plain = [r for r in found if r["method"] == "plain"]
    only = compare_methods(made_runs([*plain, lost]))[1]
    assert only.score_against_plain is None
    assert score_table([only]).rows[0][:2] == ["bad", "0 of 1"]


def test_sentences_say_what_helps_and_what_does_not() -> None:
    shifts = {"good": 0.05, "bad": -0.05, "plain_more_epochs": 0.0}
    found = texts(content(rows(shifts, spread=0.001)))
    assert found.startswith("good: Use good: +5.0 points [+4.")
    task = "good on two, m, 100 examples (+"
    assert "note: Score, task by task after Holm's correction (paired t-test): better than" in found
    assert task in found
    assert "worse than plain: bad on one, m, 100 examples (-" in found
    assert "plain_more_epochs took 1.00 times plain's training time" in found
    null = texts(content(rows({"x": 0.0, "y": 0.0}, spread=0.02)))
    assert "none of the methods is shown to differ from plain" in null
    assert re.search(r"truly been \d\.\d points better on average over 2 tasks \(median", null)
    assert "truly been" not in found
    two_seeds = [
        row for row in rows({f"x{i}": 0.0 for i in range(9)}, spread=0.02) if row["seed"] < 2
    ]
    few = content(two_seeds)
    assert "hardly a difference that is possible would have been shown" in texts(few)
    assert score_table(few.methods[:10]).rows[1][10] == "> 100"
    easy = [row | {"trivial_baseline": 0.95} for row in rows({"x": 0.0}, tasks=["one"])]
    hard = [row | {"task": "two"} for row in rows({"x": 0.0}, tasks=["one"])]
    weak = texts(content([*easy, *hard]))
    assert "Not above a constant answer, so of no meaning: one, m, 100 examples." in weak
    asked = ("task", "model", "max_train_samples", "method", "seed")
    missing = [
        {k: row[k] for k in asked} | {"task": "not run", "status": "missing"} for row in hard
    ]
    to_do = texts(content([*easy, *hard, *missing]))
    assert "so of no meaning: one, m, 100 examples." in to_do
    begun = [row for row in rows({"x": 0.0}) if row["seed"] < 1 or row["method"] == "plain"]
    assert "seeds are few" not in texts(content(begun))
    assert "2 seeds are few" in texts(content([row for row in begun if row["seed"] < 2]))
    assert "1 seed is few" in texts(content([row for row in begun if row["seed"] < 1]))
    mixed = texts(content(rows({"x": 0.0}), versions={"torch": ["2.1", "2.2"]}))
    assert "several versions of torch" in mixed
    uneven = texts(content(rows({"x": 0.0}), choices=[chosen("x")]))
    assert "did not get the same number of settings: plain 1, x 4" in uneven


@pytest.mark.parametrize("width", [72, 80])
def test_a_narrow_terminal_keeps_what_decides(width: int) -> None:
    file = io.StringIO()
    console = Console(file=file, width=width, force_terminal=True, color_system=None)
    tasks = ("one", "two", "three", "a task of a long name", "five")
    show(content(rows({"good": 0.05, "plain_more_epochs": 0.0}, tasks=tasks)), Path("out"), console)
    shown = file.getvalue()
    assert "…" not in shown
    assert max(map(len, shown.splitlines())) <= width
    assert all(f" {head} " in shown for head in ("method", "verdict"))
    assert "all numbers are in out/report.md" in " ".join(shown.split())


def test_without_a_pair_nothing_is_said_of_differences() -> None:
    of_plain = [row for row in rows({"a": 0.1}) if row["method"] == "plain"]
    said = " ".join(sentence.text for sentence in findings(content(of_plain)))
    assert "a method beside plain has no finished run" in said
    assert "task by task" not in said


def test_of_many_methods_that_are_left_out_the_first_are_named() -> None:
    found = content(rows({"a": 0.05}))
    nothing: dict[str, Any] = {"planned": 0, "measures": {}, "against_plain": {}}
    refused = [replace(found.methods[-1], method=f"m{i}", **nothing) for i in range(MOST_NAMED + 2)]
    texts = [s.text for s in findings(replace(found, methods=[*found.methods, *refused]))]
    said = next(text for text in texts if "Not supported, and left out: m0 on" in text)
    assert f"m{MOST_NAMED - 1} on" in said
    assert f"m{MOST_NAMED} on" not in said
    assert " and 2 more." in said


def test_runs_that_learned_nothing_are_counted_by_method() -> None:
    found = rows({"good": 0.05, "bad": 0.0})
    for row in found:
        low = {"plain": row["seed"] == 1, "bad": row["seed"] < 3}.get(row["method"], False)
        if low and row["task"] == "one":
            row["score"] = row["trivial_baseline"] - 0.01 * (row["seed"] % 2)  # 2: the same
    begin = "fragile: Runs that end no better than the best constant answer:"
    said = texts(content(found))
    assert f"{begin} 3 of 10 of bad, 1 of 10 of plain; none of the other methods." in said
    for row in found:
        row["trivial_baseline"] = None  # not recorded
    assert [item.not_above_constant for item in compare_methods(made_runs(found))] == ([0] * 6)


def test_in_short_is_short_and_begins_with_what_to_do() -> None:
    shifts = {f"m{number}": (-1) ** number * 0.02 for number in range(9)} | {"plain_more_epochs": 0}
    tasks = ("one", "two", "three", "four")
    found = with_brier(rows(shifts, tasks=tasks, spread=0.003), {"m1": -0.1, "m2": 0.1})
    lost = {"task": "one", "model": "m", "max_train_samples": 100, "method": "m1", "status": "nan"}
    everything = content([*found, lost | {"seed": 9}], choices=[chosen("m1")])
    said = findings(everything)
    assert 5 <= len(said) <= 7
    assert said[0].text.startswith("Use m")
    first, scores_section, *_ = study_sections(everything, Plots())
    assert first.blocks[0] == said[0]
    main = scores_section.blocks[1]
    assert [row[0] for row in main.rows] == ["plain", *shifts]
    scores = [r["score"] for r in found if (r["task"], r["method"]) == ("two", "m3")]
    shown = f"{100 * np.mean(scores):.1f} ± {100 * np.std(scores, ddof=1):.1f}"
    assert main.rows[4][2] == shown


def test_there_is_no_table_over_tasks_that_no_method_has_all_of() -> None:
    begun = [r for r in rows({"m": 0.02}) if (r["method"], r["task"]) != ("m", "two")]
    assert over_tasks(made_runs(begun)) == {}


def test_a_smaller_report_leaves_no_table_of_a_larger_one(tmp_path: Path) -> None:
    table = tmp_path / "tables" / "over-tasks.tex"
    write_tables(tmp_path, content(rows({"good": 0.05})))
    assert table.exists()
    write_tables(tmp_path, content(rows({"good": 0.05}, tasks=("one",))))
    assert [path.name for path in sorted(table.parent.iterdir())] == [
        "comparisons.csv",
        "scores.tex",
    ]


def test_over_tasks_takes_methods_that_have_all_tasks() -> None:
    found = rows({"everywhere": 0.02, "once": 0.02})
    found = [r for r in found if (r["method"], r["task"]) != ("once", "two")]
    (item,) = over_tasks(made_runs(found))["score"]
    assert (item.method, len(item.conditions), item.seeds) == ("everywhere", 2, list(SEEDS))
    table = {(r["task"], r["method"], r["seed"]): r["score"] for r in found}
    means = [
        np.mean([table[t, "everywhere", s] - table[t, "plain", s] for t in ("one", "two")])
        for s in SEEDS
    ]
    assert item.difference.value == pytest.approx(np.mean(means))
    assert item.p == pytest.approx(stats.ttest_1samp(means, 0).pvalue)
    assert over_tasks(made_runs(rows({"x": 0.1}, tasks=["one"]))) == {}


def with_brier(found: list[dict], shift: dict[str, float], without: str = "") -> list[dict]:
    """The same runs with Brier scores: plain's plus a shift and noise; one task has none."""
    draw = np.random.default_rng(1)
    return [
        row | {"nll": None, "ece": None, "brier": value if row["task"] != without else None}
        for row in found
        for value in [0.3 + shift.get(row["method"], 0.0) + float(draw.normal(0, 0.005))]
    ]


def test_measures_beside_the_score_are_tested_and_corrected() -> None:
    found = with_brier(rows({"calm": 0.0, "same": 0.0}, tasks=["one"]), {"calm": -0.05})
    lookup = {(r["method"], r["seed"]): r["brier"] for r in found}
    values = {m: [lookup[m, s] for s in SEEDS] for m in ("plain", "calm", "same")}
    p = {m: stats.ttest_rel(values[m], values["plain"]).pvalue for m in ("calm", "same")}
    group = compare_methods(made_runs(found))
    by_name = {item.method: item for item in group}
    calm = by_name["calm"].against_plain
    gap = np.mean(values["calm"]) - np.mean(values["plain"])
    assert calm["brier"].difference.value == pytest.approx(gap)
    assert calm["brier"].p_holm == pytest.approx(2 * p["calm"])
    same = by_name["same"].against_plain
    assert same["brier"].p_holm == pytest.approx(p["same"])
    assert "nll" not in calm
    table = beside_table(group)
    assert table.head[-1] == "Brier"
    p_calm = calm["brier"].p_holm
    mean = np.mean(values["calm"])
    assert table.rows[1][-1] == f"{mean:.4f}, {gap:+.4f} ({p_calm:.2g})"
    said = texts(content(found))
    calm_is = f"better than plain: calm (Brier {gap:+.3f})."
    short = f"Beside the score, after Holm within each measure: {calm_is}"
    assert f"good: {short}" in said
    worse = texts(content(with_brier(found, {"calm": 0.05})))
    assert "fragile: Beside the score, after Holm within each measure: worse than plain" in worse
    chance = texts(content([row | {"trivial_baseline": 0.95} for row in found]))
    assert f"fragile: {short} That means little where plain" in chance


@pytest.mark.parametrize("tasks", [("one",), ("one", "two")])
@pytest.mark.parametrize("seeds", [2, 4])
def test_few_seeds_are_no_ground_for_a_claim(seeds: int, tasks: tuple[str, ...]) -> None:
    """Of every pair the same difference but for a trifle: p is small, whatever is true."""
    kept = [r for r in rows({"m": 0.0}, tasks=tasks) if r["seed"] < seeds]
    for row in kept:
        seed, worse = row["seed"], row["method"] == "m"
        row["score"] = 0.8 + 0.1 * (seed % 2) - worse * (0.1 + 1e-6 * seed)
        row["ece"] = 0.05 + worse * (0.001 + 1e-6 * seed)
    found = content(kept)
    against = found.methods[1].against_plain
    assert against["score"].p_holm < 0.01
    assert against["ece"].p_holm < 0.01
    said = texts(found)
    assert f"{seeds} seeds are few: nothing here is established." in said
    assert "than plain" not in said
    assert "Score, task by task: m is not shown to differ from plain" in said
    assert score_table(found.methods[:2]).rows[1][9] == "too few seeds"


@pytest.mark.parametrize("others", [[], ["idle"]])
def test_methods_that_equal_plain_are_named(others: list[str]) -> None:
    found = rows(dict.fromkeys(["lnsr", *others], 0.0), tasks=["one"], spread=0.0)
    first, *_ = texts(content(found)).splitlines()
    names = ", ".join(["lnsr", *others])
    acts = "they act" if others else "it acts"
    assert first == f"fragile: Equal to plain in every run: {names}. Check that {acts} at all."
    one_differs = [
        *found,
        *(r for r in rows({"good": 0.05}, tasks=["one"], spread=0.0) if r["method"] == "good"),
    ]
    assert f"Equal to plain in every run: {names}." in texts(content(one_differs))


def test_over_tasks_leaves_out_tasks_without_the_measure() -> None:
    tasks = ("one", "two", "three")
    found = with_brier(rows({"calm": 0.0}, tasks=tasks), {"calm": -0.05}, without="two")
    lookup = {(r["task"], r["method"], r["seed"]): r["brier"] for r in found}
    compared = over_tasks(made_runs(found))
    (item,) = compared["brier"]
    gaps = [lookup[t, "calm", s] - lookup[t, "plain", s] for t in ("one", "three") for s in SEEDS]
    assert len(item.conditions) == 2
    assert item.difference.value == pytest.approx(np.mean(gaps))
    assert "nll" not in compared
    said = texts(content(found))
    assert "good: Beside the score over all tasks that have the measure, after Holm within" in said
    table = over_tasks_table(compared)
    assert table.head[-2:] == ["gap", "Brier"]
    (row,) = table.rows
    assert (row[0], row[-1]) == ("calm", f"{np.mean(gaps):+.4f} ({item.p_holm:.2g})")


def test_a_method_that_lacks_a_task_has_a_row_for_what_is_said_of_it() -> None:
    found = with_brier(rows({"calm": 0.0, "some": 0.0}, ("one", "two", "three")), {}, "two")
    found = [r for r in found if (r["method"], r["task"]) != ("some", "two")]
    first, second = over_tasks_table(over_tasks(made_runs(found))).rows
    assert (first[0], second[:6]) == ("calm", ["some", "5", *"––––"])
    assert second[-1] != "–"


def test_every_figure_has_its_numbers(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    found = rows({"<b>&": 0.02})
    small = [row | {"max_train_samples": 50} for row in found]
    records = Records(tmp_path)
    runs = [*found, *small]
    history = {"log_history": [{"step": 1, "loss": 0.7}, {"step": 2, "loss": 0.5}]}
    ended = content_of({"status": "done", "result": made_result(0.5) | history, "extras": {}})
    records.read = lambda cell_id: ended  # type: ignore[method-assign]
    plots = study_plots(content(runs), records, Console(quiet=True))
    drawn = plots.all
    assert plots.first.name == "difference-all_tasks"
    names = [figure.name for figure in drawn]
    assert len(set(names)) == len(names)
    kinds = {name.partition("-")[0] for name in names}
    assert kinds == {"distribution", "difference", "training", "sizes"}
    for figure in drawn:
        assert figure.files["svg"].count(b"<svg") == 1
        assert b"<b>&" not in figure.files["svg"]
        assert figure.files["pdf"].startswith(b"%PDF")
        assert figure.files["png"].startswith(b"\x89PNG")
        table = list(csv.reader(io.StringIO(figure.csv)))
        assert len(table) > 1
    distribution = next(f for f in drawn if f.name.startswith("distribution"))
    values = {
        (m, int(s)): float(v) for m, s, v in list(csv.reader(io.StringIO(distribution.csv)))[1:]
    }
    assert values["plain", 2] == next(
        r["score"] for r in found if (r["task"], r["method"], r["seed"]) == ("one", "plain", 2)
    )
    sizes = next(f for f in drawn if f.name.startswith("sizes"))
    name, size, mean, low, high = list(csv.reader(io.StringIO(sizes.csv)))[1]
    scores = [r["score"] for r in found if (r["task"], r["method"]) == ("one", "plain")]
    assert (name, size) == ("plain", "50")
    assert [float(mean), float(low), float(high)] == [np.mean(scores), min(scores), max(scores)]


def test_of_several_tasks_those_are_drawn_that_show_a_difference(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    equal = [row | {"task": "equal"} for row in rows({"good": 0.0}, tasks=["one"])]
    plots = study_plots(
        content(rows({"good": 0.05}, tasks=["one"]) + equal),
        Records(tmp_path),
        Console(quiet=True),
    )
    assert plots.first.caption.endswith(" All tasks have the same axis.")
    one = study_plots(
        content(rows({"good": 0.05}, tasks=["one"])), Records(tmp_path), Console(quiet=True)
    )
    assert "same axis" not in one.first.caption
    ending = "one-m-100_examples"
    names = {plot.name for plot in plots.all}
    assert names == {"difference-all_tasks", f"difference-{ending}", f"distribution-{ending}"}
    alone = study_plots(content(equal), Records(tmp_path), Console(quiet=True))
    assert [plot.name.partition("-")[0] for plot in alone.all] == ["difference", "distribution"]


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag, attrs) -> None:
        self.found.append(tag)


@pytest.mark.parametrize("suffix", ["html", "md"])
def test_names_from_outside_are_only_text(suffix: str) -> None:
    hostile = "<script>alert(1)</script>|*x*"
    found = content(rows({hostile: 0.05}), title=hostile, notes=hostile)
    page = page_text(suffix, found.title, study_sections(found, Plots()))
    assert "<script" not in page
    tags = Tags()
    tags.feed(page)
    assert not {"script", "link", "img", "iframe"} & set(tags.found)
    assert "Differences from plain over all tasks" in page
    if suffix == "md":
        assert r"\|\*x\*" in page


def test_the_table_of_comparisons_has_all_measures_of_all_tasks() -> None:
    found = content(rows({"x": 0.1}))
    lines = [
        dict(zip(COMPARISON_COLUMNS, row, strict=True))
        for row in comparison_rows(found.comparisons)
    ]
    keys = {(line["condition"], line["measure"]) for line in lines}
    conditions = ("one, m, 100 examples", "two, m, 100 examples", "all conditions")
    measures = ("score", "generalization_gap", "brier", "nll", "ece")
    assert keys == {(condition, measure) for condition in conditions for measure in measures}
    item = found.methods[1].score_against_plain
    first = next(line for line in lines if line["measure"] == "score")
    assert (first["difference"], first["p_holm"]) == (item.difference.value, item.p_holm)
    assert (first["low"], first["high"]) == item.difference.interval


def test_every_plot_has_a_file_of_its_own(tmp_path: Path, monkeypatch) -> None:
    """Names that differ in signs that a file's name cannot hold, in case, or at their end."""
    pytest.importorskip("matplotlib")
    monkeypatch.setattr("smoothtune.study.report.plots.FORMATS", ("svg",))
    tasks = ("a b", "a_b", "A_b", "t" * 240, "é" * 120)
    plots = study_plots(content(rows({"x": 0.1}, tasks)), Records(tmp_path), Console(quiet=True))
    names = [plot.name.casefold() for plot in plots.all]
    assert len(set(names)) == len(names)
    for plot in plots.all:
        plot.write(tmp_path)
