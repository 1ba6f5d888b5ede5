"""`smoothtune report`: what it says, and what hostile names cannot do."""

import json
import re
import shutil
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from smoothtune.cli import app
from smoothtune.errors import OutputError
from smoothtune.evaluation import Curve, CurvePoint, draw
from smoothtune.evaluation.compare import Run, comparison, load_runs, paired_differences
from smoothtune.evaluation.findings import sentences
from smoothtune.evaluation.report import provenance_table, summary_table
from smoothtune.report.tables import Effect

HOSTILE = "<script>alert(1)</script>\"'&|`$x^$ javascript:"


class Page(HTMLParser):
    """Tags, attributes and text of a page."""

    def __init__(self, text: str):
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data):
        self.text += data


def call(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def edited(folder: Path, copy: Path, **changes: object) -> Path:
    """A copy of an evaluation with other content."""
    shutil.copytree(folder, copy)
    path = copy / "evaluation.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return copy


@pytest.fixture(scope="module")
def evaluated(everything: tuple[Path, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two evaluations, of which one has other numbers."""
    folder = tmp_path_factory.mktemp("reports")
    content = json.loads((everything[0] / "evaluation.json").read_text())
    edited(everything[0], folder / "first")
    settings = content["settings"] | {"seed": 43}
    (points,) = content["parts"]["robustness"]["curves"]["gaussian"]["series"].values()
    points[-1][1] /= 2
    edited(everything[0], folder / "second", settings=settings, parts=content["parts"])
    return folder


def test_html_stands_alone(evaluated: Path, tmp_path: Path) -> None:
    """Of some parts; the page of one evaluation has the figures of all."""
    to = tmp_path / "report.html"
    for name in ("first", "second"):
        parts = json.loads((evaluated / name / "evaluation.json").read_text())["parts"]
        few = ("metrics", "calibration", "robustness", "drift", "ood: train rows")
        edited(evaluated / name, tmp_path / name, parts={part: parts[part] for part in few})
    found = call("report", tmp_path / "first", tmp_path / "second", "--to", to)
    assert found.exit_code == 0, found.output
    page = Page(to.read_text())
    assert page.tags.count("svg") == 8
    assert not {"script", "link", "img", "iframe", "object", "foreignobject"} & set(page.tags)
    for name, value in page.attributes:
        assert not name.startswith("on")
        if name in ("src", "href", "xlink:href"):
            assert (value or "").startswith("#")
    plain = to.read_text().replace("http://www.w3.org", "").replace("http-equiv", "")
    assert "http" not in plain
    for wanted in ("In short", "generalization gap", "95 % bootstrap", "accuracy on train rows"):
        assert wanted in page.text
    assert 'name="viewport"' in to.read_text()


def test_hostile_names_are_text(evaluated: Path, tmp_path: Path) -> None:
    bad = edited(evaluated / "first", tmp_path / "<b>bold<!--", model=HOSTILE, task=HOSTILE)
    content = json.loads((bad / "evaluation.json").read_text())
    for part in content["parts"].values():
        for curve in part["curves"].values():
            curve["title"] = curve["x_label"] = HOSTILE
            curve["series"] = dict.fromkeys([HOSTILE], *list(curve["series"].values())[:1])
    content["parts"]["smoothness"]["curves"].pop("attenuation")
    content["parts"]["drift"]["curves"].pop("distance")
    (bad / "evaluation.json").write_text(json.dumps(content))
    to = tmp_path / "report.html"
    found = call("report", bad, "--to", to)
    assert found.exit_code == 0, found.output
    page = Page(to.read_text())
    assert HOSTILE in page.text
    assert not {"script", "b"} & set(page.tags)
    assert page.tags.count("svg") == 21
    markdown = tmp_path / "report.md"
    assert call("report", bad, "--to", markdown).exit_code == 0
    assert "<script" not in markdown.read_text()
    assert "<b>" not in markdown.read_text()


def test_markdown_tables_are_whole(evaluated: Path, tmp_path: Path) -> None:
    to = tmp_path / "report.md"
    assert call("report", evaluated / "first", evaluated / "second", "--to", to).exit_code == 0
    lines = to.read_text().splitlines()
    tables = [index for index, line in enumerate(lines) if set(line) == {"|", "-"}]
    assert len(tables) >= 5
    for index in tables:
        assert lines[index - 1].startswith("|  | first | second |")
        assert lines[index].count("|") == 4
        assert lines[index + 1].count("|") == 4
        assert lines[index - 2] == ""
    assert "- **cost**: This evaluation took" in to.read_text()


def test_existing_files_and_wrong_input_are_refused(evaluated: Path, tmp_path: Path) -> None:
    to = tmp_path / "report.md"
    assert call("report", evaluated / "first", "--to", to).exit_code == 0
    before = to.read_text()
    again = call("report", evaluated / "second", "--to", to)
    assert (again.exit_code, "--overwrite" in again.stderr) == (2, True)
    assert to.read_text() == before
    assert call("report", evaluated / "second", "--to", to, "--overwrite").exit_code == 0
    assert to.read_text() != before
    none = call("report", tmp_path, "--to", tmp_path / "x.html")
    assert (none.exit_code, "holds no finished evaluation.json" in none.stderr) == (2, True)
    ending = call("report", evaluated / "first", "--to", tmp_path / "x.pdf")
    assert (ending.exit_code, ".html or .md" in ending.stderr) == (2, True)
    other = edited(evaluated / "first", tmp_path / "other", task="rte")
    mixed = call("report", evaluated / "first", other, "--to", tmp_path / "x.html")
    assert (mixed.exit_code, "one task" in mixed.stderr) == (2, True)


def test_runs_of_one_folder_name_are_told_apart(evaluated: Path, tmp_path: Path) -> None:
    copy = edited(evaluated / "first", tmp_path / "first")
    runs = load_runs([evaluated / "first", copy])
    assert [run.name for run in runs] == [str(evaluated / "first"), str(copy)]
    assert len({run.label for run in runs}) == 2  # however long their paths are


def predicted(folder: Path, right: int, total: int = 200) -> None:
    """Predictions of which so many of `total` are right."""
    labels = np.arange(total) % 2
    sign = np.where(np.arange(total) < right, 1, -1) * (2 * labels - 1)
    rows = [f"{row},{label},0,{s}" for row, (label, s) in enumerate(zip(labels, sign, strict=True))]
    text = "example_id,label,logit_0,logit_1\n" + "\n".join(rows) + "\n"
    (folder / "predictions.csv").write_text(text)


def test_seeds_of_training_and_evaluation_are_told_apart(evaluated: Path) -> None:
    (run,) = load_runs([evaluated / "first"])
    for training, shown in (({"seed": 5}, "5"), (None, "not known")):
        rows = dict(
            provenance_table([replace(run, content=run.content | {"training": training})]).rows
        )
        assert rows["seed of the training"] == shown
        assert rows["seed of the evaluation"] == str(run.content["settings"]["seed"])
        assert rows["data"] == run.content["settings"]["data"]


def test_differences_beyond_noise(evaluated: Path, tmp_path: Path) -> None:
    settings = {"num_resamples": 100, "seed": 1}
    names = ("a", "b", "c")
    copies = [edited(evaluated / "first", tmp_path / name, settings=settings) for name in names]
    for copy, right in zip(copies, (150, 152, 190), strict=True):
        predicted(copy, right)
    plain, near, far = load_runs(copies)
    found = paired_differences(plain, far)
    gap = found["accuracy"]
    assert gap.value == pytest.approx(0.2)
    # Paired: 40 of 200 examples changed, so the deviation is sqrt(0.2 * 0.8 / 200) = 0.0283.
    assert gap.interval == pytest.approx((0.2 - 0.0554, 0.2 + 0.0554), abs=0.015)
    assert gap.excludes_zero
    assert "accuracy +0.200" in comparison(plain, far, found)
    small = {"accuracy": paired_differences(plain, near)["accuracy"]}
    assert not small["accuracy"].excludes_zero
    text = comparison(plain, near, small)
    assert "do not differ beyond" in text
    assert "nor in" not in text  # a single metric has been compared


def test_better_probabilities_decide_where_the_main_metric_does_not(
    evaluated: Path, tmp_path: Path
) -> None:
    copies = [edited(evaluated / "first", tmp_path / name) for name in ("a", "b")]
    for copy in copies:
        predicted(copy, 150)
    sure = copies[0] / "predictions.csv"  # wrong as often, and surer of it
    sure.write_text(re.sub(r",(-?1)$", r",\g<1>000", sure.read_text(), flags=re.M))
    first, second = load_runs(copies)
    found = paired_differences(first, second)
    assert found["accuracy"].value == 0
    assert found["nll"].excludes_zero
    text = comparison(first, second, found)
    assert text.startswith("Prefer b for its probabilities. b differs from a")
    back = comparison(second, first, paired_differences(second, first))
    assert back.startswith("Prefer b for its probabilities. a differs from b")
    alike = comparison(first, second, dict.fromkeys(found, Effect(0.1, (-0.2, 0.3))))
    assert "accuracy +0.100 (95 % interval -0.200 to +0.300), nor in " in alike
    assert "nll" in alike


def test_a_few_rows_are_no_reason_to_prefer_a_model(evaluated: Path, tmp_path: Path) -> None:
    """Five that all differ alike do so by chance once in 16 times."""
    copies = [edited(evaluated / "first", tmp_path / name) for name in ("a", "b")]
    for total in (5, 6):
        for copy, right in zip(copies, (0, total), strict=True):
            predicted(copy, right, total)
        first, second = load_runs(copies)
        found = paired_differences(first, second)
        assert found["accuracy"].excludes_zero == (total == 6)
        text = comparison(first, second, found)
        assert text.startswith("Prefer b") == (total == 6)
        assert ("noise of the evaluated examples: accuracy +1.000, nor in" in text) == (total < 6)


@pytest.mark.parametrize(("more", "shown"), [(5, False), (6, True)])
def test_a_few_rows_of_many_are_no_reason_either(
    more: int, shown: bool, evaluated: Path, tmp_path: Path
) -> None:
    """Hardly a resample of 1,000 has none of five, but the sign test has p = 0.06."""
    copies = [edited(evaluated / "first", tmp_path / name) for name in ("a", "b")]
    for copy, right in zip(copies, (500, 500 + more), strict=True):
        predicted(copy, right, 1000)
    found = paired_differences(*load_runs(copies))
    assert found["accuracy"].value == pytest.approx(more / 1000)
    assert found["accuracy"].excludes_zero == shown


def test_rows_that_another_tokenizer_has_cut_are_compared(evaluated: Path, tmp_path: Path) -> None:
    copies = [edited(evaluated / "first", tmp_path / name) for name in ("a", "b")]
    before, after = load_runs(copies)
    report = after.content["data"]["splits"]["validation"]
    report["lengths"], report["truncated"] = dict.fromkeys(report["lengths"], 6), report["rows"]
    assert paired_differences(before, after)["accuracy"].value == 0
    after.content["fingerprints"]["data"] = "of another size of the training split"
    assert paired_differences(before, after)["accuracy"].value == 0
    report["source_rows"] += 1
    assert paired_differences(before, after) is None


def test_other_examples_are_not_compared(evaluated: Path, tmp_path: Path) -> None:
    copies = [edited(evaluated / "first", tmp_path / name) for name in ("a", "b")]
    predicted(copies[0], 100)
    first, second = load_runs(copies)
    assert paired_differences(first, second) is None
    assert "cannot be tested" in comparison(first, second, None)


@pytest.mark.parametrize(("low", "high", "beyond"), [(0.1, 0.2, True), (-0.1, 0.1, False)])
def test_beyond_noise(low: float, high: float, beyond: bool) -> None:
    assert Effect(0.1, (low, high)).excludes_zero is beyond


def test_words_follow_the_numbers(evaluated: Path, tmp_path: Path) -> None:
    copy = edited(evaluated / "first", tmp_path / "copy")
    (run,) = load_runs([copy])
    numbers = run.numbers("metrics")
    numbers["metrics"]["accuracy"] = {"value": 0.9, "low": 0.8, "high": 0.95}
    numbers["trivial_baseline"] = 0.5
    assert sentences(run)[1].verdict == "good"
    numbers["trivial_baseline"] = 0.85
    assert sentences(run)[1].verdict == "fragile"
    numbers["trivial_baseline"] = 0.5
    gaussian = run.content["parts"]["robustness"]["curves"]["gaussian"]["series"]
    ((name, points),) = gaussian.items()
    for verdict, loss in (("good", 0.01), ("fragile", 0.2)):
        gaussian[name] = [[x, 0.9 if x < 0.3 else 0.9 - loss, None, None] for x, *_ in points]
        said = [s for s in sentences(run) if f"Gaussian noise at 0.3 (-{loss:.3f})" in s.text]
        assert [s.verdict for s in said] == [verdict]


def test_nothing_left_out_is_no_line() -> None:
    numbers = {"rows": 3, "not_measured": {}, "all_rows": {"ece": 0.1}}
    run = Run("run", Path(), {"parts": {"effect": {"numbers": numbers, "curves": {}}}})
    assert summary_table([run], "effect").rows == [["rows", "3"], ["all rows: ece", "0.1"]]


def test_plots_escape_names_and_do_not_read_them_as_formulas() -> None:
    curve = Curve(
        HOSTILE,
        "x (1)",
        "y (1)",
        {HOSTILE: [CurvePoint(0, 1), CurvePoint(1, 2)], "b": [CurvePoint(0, 1)]},
    )
    svg = draw({"$\\frac{": curve, HOSTILE: curve})
    assert "<script" not in svg
    assert svg == draw({"$\\frac{": curve, HOSTILE: curve})


def test_without_matplotlib_numbers_and_markdown_remain(
    tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    out = tmp_path / "out"
    arguments = ["evaluate", tiny_folder / "tuned", "--calibration", "--num-resamples", 20]
    found = call(*arguments, "--output-dir", out)
    assert found.exit_code == 0, found.output
    assert 'pip install "smoothtune[report]"' in found.stdout
    last = found.stdout.splitlines()[-1]
    assert (
        last == f"{out} holds evaluation.json, evaluation.html, evaluation.md, predictions.csv, "
        "examples.json, 1 table"
    )
    assert (out / "calibration_reliability.csv").exists()
    assert not list(out.glob("*.svg"))
    html = call("report", out, "--to", tmp_path / "x.html")
    assert html.exit_code == 0, html.output
    assert "x.html is written, without figures: plots need matplotlib" in html.stdout
    assert "Figures were left out: plots need matplotlib" in (tmp_path / "x.html").read_text()
    assert call("report", out, "--to", tmp_path / "x.md").exit_code == 0


def put(content: dict, path: str, value: object) -> None:
    *parents, last = path.split("/")
    for part in parents:
        content = content[part]
    content[last] = value


DAMAGE = [
    ("model", 7),
    ("task", ["x"]),
    ("task_type", "evil"),
    ("headline", "evil"),
    ("headline", 3),
    ("metrics", "accuracy"),
    ("label_names", {"a": 1}),
    ("label_names", ["a"]),
    ("training", []),
    ("training", {"methods": 3, "config": {}}),
    ("training", {"cost": {"train_seconds": "long"}}),
    ("data", None),
    ("data", {"splits": {}}),
    ("settings", {"seed": 1}),
    ("settings/num_resamples", -1),
    ("fingerprints", 3),
    ("versions", {"torch": 2}),
    ("parts", []),
    ("parts/metrics/numbers", {}),
    ("parts/metrics/numbers/metrics", {}),
    ("parts/metrics/numbers/metrics/accuracy/value", "high"),
    ("parts/metrics/numbers/generalization_gap", "wide"),
    ("parts/metrics/numbers/train_metrics", {}),
    ("parts/calibration/numbers", {"all_rows": 3}),
    ("parts/calibration/numbers/temperature", "hot"),
    ("parts/robustness/curves/gaussian/series", {}),
    ("parts/robustness/curves/gaussian/series", {"a": []}),
    ("parts/robustness/curves/gaussian/series", {"a": [[0]]}),
    ("parts/robustness/curves/gaussian/series", {"a": [[0, "x"]]}),
    ("parts/robustness/curves/gaussian/series", {"a": [[0, 1]]}),
    ("parts/robustness/curves/gaussian/series", {"a": [[0, None]]}),
    ("parts/robustness/curves/gaussian/series", {"a": [[0, 1]], "b": [[0, 1]]}),
    ("parts/robustness/curves/gaussian/log_y", "yes"),
    ("parts/smoothness/curves/attenuation/series", {"other": [[0, 1]]}),
    ("parts/smoothness/curves/jacobian/series", {"a": [[0, -1], [1, -1]]}),
    ("parts/drift/curves/distance/series", {"other": [[0, 1]]}),
    ("parts/drift/seconds", "long"),
    ("parts/drift/skipped", 3),
    ("parts/ood: train rows/numbers", {"metrics": 3}),
    ("parts/ood: train rows/numbers", {"metrics": {"accuracy": 1}}),
    ("parts/ood: train rows/numbers/rows", {}),
]


@pytest.mark.parametrize(("path", "value"), DAMAGE)
def test_damaged_evaluation(path: str, value: object, evaluated: Path, tmp_path: Path) -> None:
    """Of two evaluations one was changed: it is shown with what it says, or refused by its name."""
    shutil.copytree(evaluated / "first", tmp_path / "first")
    file = tmp_path / "first" / "evaluation.json"
    content = json.loads(file.read_text())
    put(content, path, value)
    file.write_text(json.dumps(content))
    page = tmp_path / "page.md"
    found = call("report", tmp_path / "first", evaluated / "second", "--to", page)
    assert (found.exit_code, page.exists()) in ((0, True), (2, False)), found.output
    assert found.exception is None or isinstance(found.exception, SystemExit)
    if found.exit_code:
        assert str(file) in found.stderr
        assert "make it again" in found.stderr


BAD_TABLES = ["", "a,b\n", "a,b\n1\n", "a,b\n1,x\n", "a,b\n1,nan\n", "a\n1\n2\n"]


@pytest.mark.parametrize("text", BAD_TABLES)
def test_damaged_predictions(text: str, evaluated: Path, tmp_path: Path) -> None:
    for name in ("first", "second"):
        shutil.copytree(evaluated / name, tmp_path / name)
        (tmp_path / name / "predictions.csv").write_text(text)
    page = tmp_path / "page.md"
    found = call("report", tmp_path / "first", tmp_path / "second", "--to", page)
    assert found.exit_code == 2, found.output
    assert not page.exists()
    assert "again" in found.stderr


def test_one_task_with_two_metrics(evaluated: Path, tmp_path: Path) -> None:
    shutil.copytree(evaluated / "first", tmp_path / "first")
    file = tmp_path / "first" / "evaluation.json"
    content = json.loads(file.read_text()) | {"headline": "f1"}
    file.write_text(json.dumps(content))
    with pytest.raises(OutputError, match=r"first by f1, second by accuracy") as caught:
        load_runs([tmp_path / "first", evaluated / "second"])
    assert "quality, quality" not in str(caught.value)
