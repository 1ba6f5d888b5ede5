"""Single sentences that change: what is kept of them, and in which order they are shown."""

import csv
import json
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy.special import softmax
from typer.testing import CliRunner

from smoothtune.cli import app
from smoothtune.errors import OutputError
from smoothtune.evaluation.compare import Run, load_runs
from smoothtune.evaluation.examples import CLEAN, NOISY, TYPOS, example_tables, read_examples


@pytest.fixture(scope="module")
def evaluated(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("examples") / "out"
    few = ["--max-diagnostic-samples", "6", "--num-resamples", "5"]
    arguments = ["evaluate", str(tiny_folder / "tuned"), "--corruption", "--robustness", *few]
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "matplotlib", None)
        found = CliRunner().invoke(app, [*arguments, "--output-dir", str(folder)])
    assert found.exit_code == 0, found.output
    return folder


def test_examples_are_rows_of_the_data(evaluated: Path, tiny_folder: Path) -> None:
    content = read_examples(evaluated)
    with (evaluated / "predictions.csv").open() as file:
        logits = {int(row[0]): [float(x) for x in row[2:]] for row in list(csv.reader(file))[1:]}
    with (tiny_folder / "data" / "validation.csv").open() as file:
        texts = [row["text"] for row in csv.DictReader(file)]
    assert len(content["example_id"]) == 6
    for number, row in enumerate(content["example_id"]):
        assert content["predictions"][CLEAN][number] == pytest.approx(logits[row])
        assert content["texts"][CLEAN][number] == texts[row]


def test_disturbed_sentences_are_other_sentences(evaluated: Path) -> None:
    content = read_examples(evaluated)
    clean, noisy = (np.array(content["predictions"][name]) for name in (CLEAN, NOISY))
    assert np.abs(clean - noisy).max() > 1e-4
    for before, after in zip(content["texts"][CLEAN], content["texts"][TYPOS], strict=True):
        words = before.split(), after.split()
        changed = sum(one != other for one, other in zip(*words, strict=True))
        assert changed == int(0.1 * len(words[0]) + 0.5)


def test_the_page_shows_them(evaluated: Path) -> None:
    page = (evaluated / "evaluation.html").read_text()
    sentence = read_examples(evaluated)["texts"][CLEAN][0]
    assert ">Examples</h2>" in page
    assert sentence in page
    assert sentence not in (evaluated / "evaluation.md").read_text()


def test_no_texts_where_none_are_wanted(tiny_folder: Path, tmp_path: Path) -> None:
    arguments = ["evaluate", str(tiny_folder / "tuned"), "--num-examples", "0"]
    found = CliRunner().invoke(
        app, [*arguments, "--num-resamples", "5", "--output-dir", str(tmp_path / "out")]
    )
    assert found.exit_code == 0, found.output
    assert not (tmp_path / "out" / "examples.json").exists()
    assert "Examples" not in (tmp_path / "out" / "evaluation.html").read_text()


TEXTS = ["same", "flips late", "flips at once", "moves"]
BEFORE = [[2.0, 0.0], [0.0, 0.1], [0.0, 3.0], [1.0, 0.0]]
AFTER = [[2.0, 0.1], [0.1, 0.0], [3.0, 0.0], [0.3, 0.0]]


def made(folder: Path, name: str, predictions: dict[str, list], *, shown: int = 3) -> Run:
    content = {
        **{"shown": shown, "example_id": [3, 1, 2, 0], "labels": [0, 1, 1, 0]},
        **{"texts": {CLEAN: TEXTS}, "predictions": predictions},
    }
    (folder / name).mkdir()
    (folder / name / "examples.json").write_text(json.dumps(content))
    return Run(name, folder / name, {"label_names": ["bad", "good"]})


def test_flips_come_first_then_the_largest_changes(tmp_path: Path) -> None:
    ((title, table),) = example_tables([made(tmp_path, "a", {CLEAN: BEFORE, NOISY: AFTER})])
    assert title == f"a: {NOISY}: 2 of 4 change class"
    assert [row[0] for row in table.rows] == ["flips at once", "flips late", "moves"]
    first = softmax(BEFORE[2])[1], softmax(AFTER[2])[0]
    assert table.rows[0][1:4] == ["good", f"good {first[0]:.2f}", f"bad {first[1]:.2f}"]
    assert table.rows[0][4] == f"{softmax(AFTER[2])[1] - first[0]:+.2f}"


def test_two_runs_are_compared_on_the_same_sentences(tmp_path: Path) -> None:
    one, other = made(tmp_path, "a", {CLEAN: BEFORE}), made(tmp_path, "b", {CLEAN: AFTER})
    ((title, table),) = example_tables([one, other])
    assert title == "a and b: 2 of 4 change class"
    assert table.head == ["sentence", "label", "a", "b", "change"]
    path = tmp_path / "b" / "examples.json"
    path.write_text(path.read_text().replace("moves", "other"))
    assert example_tables([one, other]) == []


def test_scores_change_by_their_difference(tmp_path: Path) -> None:
    scores = {CLEAN: [[1.0], [2.0], [3.0], [4.0]], NOISY: [[1.1], [1.0], [3.0], [6.0]]}
    ((title, table),) = example_tables([made(tmp_path, "a", scores)])
    assert title == f"a: {NOISY}"
    assert [row[4] for row in table.rows] == ["+2.00", "-1.00", "+0.10"]


def test_sets_of_labels_change_by_the_label_that_moves_most(tmp_path: Path) -> None:
    before = [[3.0, -1.0], [-2.0, -1.0], [1.0, 1.0], [-3.0, 0.5]]
    after = [[3.0, -1.1], [-2.0, 2.0], [1.0, 1.0], [-3.0, 0.1]]
    run = made(tmp_path, "a", {CLEAN: before, NOISY: after})
    path = tmp_path / "a" / "examples.json"
    gold = {"labels": [[1, 0], [0, 0], [1, 1], [0, 1]]}
    path.write_text(json.dumps(json.loads(path.read_text()) | gold))
    ((title, table),) = example_tables([run])
    assert title == f"a: {NOISY}: 1 of 4 change labels"
    assert [row[0] for row in table.rows] == ["flips late", "moves", "same"]
    none, some = 1 / (1 + np.exp(1.0)), 1 / (1 + np.exp(-2.0))
    assert table.rows[0][1:4] == ["(no label)", f"(no label) (good {none:.2f})", f"good {some:.2f}"]
    assert table.rows[0][4] == f"{some - none:+.2f}"
    assert table.rows[2][1] == "bad"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"labels": [[1]] * 4}))
    with pytest.raises(OutputError, match="a label or a prediction"):
        example_tables([run])


@pytest.mark.parametrize(
    "damage", [{"labels": [0]}, {"predictions": {}}, {"shown": 0}, {"texts": {CLEAN: [1, 2]}}]
)
def test_damaged_examples_are_named(tmp_path: Path, damage: dict) -> None:
    run = made(tmp_path, "a", {CLEAN: BEFORE})
    path = tmp_path / "a" / "examples.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | damage))
    with pytest.raises(OutputError, match=r"examples\.json.*make it again"):
        example_tables([run])


def test_runs_are_named_by_hand(evaluated: Path, tmp_path: Path) -> None:
    to = tmp_path / "page.md"
    found = CliRunner().invoke(app, ["report", f"my run={evaluated}", "--to", str(to)])
    assert found.exit_code == 0, found.output
    assert "### my run" in to.read_text()
    twice = CliRunner().invoke(
        app, ["report", f"x={evaluated}", f"x={evaluated}/.", "--to", str(tmp_path / "x.md")]
    )
    assert twice.exit_code == 2
    assert "NAME=DIR" in twice.stderr
    odd = tmp_path / "a=b"
    odd.symlink_to(evaluated)
    assert load_runs([odd])[0].name == evaluated.name
    same = CliRunner().invoke(app, ["report", str(odd), "--to", str(tmp_path / "y.md")])
    assert same.exit_code == 0, same.output
