"""`train`, `validate`, `evaluate` and `predict` mean the same by a label."""

import csv
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from helpers.tiny_folder import tiny_bert
from smoothtune.cli import app


def call(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def write(file: Path, rows: list[tuple[str, str]]) -> Path:
    file.write_text("text,label\n" + "".join(f"{text},{label}\n" for text, label in rows))
    return file


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of classes 1, 2 and 5, which are no numbers of outputs."""
    folder = tmp_path_factory.mktemp("stars")
    write(folder / "train.csv", [("good film", "5"), ("bad film", "1"), ("a plot", "2")] * 4)
    run = {
        "data": str(folder / "train.csv"),
        "text_columns": ["text"],
        "model": str(tiny_bert(folder / "base")),
        "max_steps": 1,
        "cost_steps": 0,
        "output_dir": str(folder / "out"),
    }
    (folder / "run.yaml").write_text(json.dumps(run))
    refused = call("validate", folder / "run.yaml")
    assert refused.exit_code == 3
    assert "found 1, 2, 5; if they name classes, give label_type: text" in refused.stderr
    assert call("train", folder / "run.yaml").exit_code == 3
    (folder / "run.yaml").write_text(json.dumps(run | {"label_type": "text"}))
    assert call("validate", folder / "run.yaml").exit_code == 0
    found = call("train", folder / "run.yaml")
    assert found.exit_code == 0, found.output
    return folder / "out"


def test_an_evaluation_reads_labels_by_name(trained: Path, tmp_path: Path) -> None:
    data = write(tmp_path / "new.csv", [("good film", "5"), ("bad film", "1"), ("film", "5")])
    few = ("--num-resamples", 20, "--output-dir", tmp_path / "e")
    found = call("evaluate", trained, "--data", data, *few)
    assert found.exit_code == 0, found.output
    content = json.loads((tmp_path / "e" / "evaluation.json").read_text())
    assert content["label_names"] == ["1", "2", "5"]
    assert content["data"]["splits"]["validation"]["labels"] == {"1": 1, "2": 0, "5": 2}


def test_numbers_of_outputs_are_refused(trained: Path, tmp_path: Path) -> None:
    data = write(tmp_path / "new.csv", [("good film", "2"), ("bad film", "0"), ("film", "1")])
    found = call("evaluate", trained, "--data", data, "--output-dir", tmp_path / "e")
    assert found.exit_code != 0
    assert "has the outputs 1, 2, 5, and the labels are 0, 1, 2" in found.stderr


def test_predictions_are_names_and_digits_are_texts(trained: Path, tmp_path: Path) -> None:
    (tmp_path / "new.csv").write_text("text,id\n2012,007\n1984,1.50\n")
    to = tmp_path / "predicted.csv"
    found = call("predict", trained, "--data", tmp_path / "new.csv", "--to", to)
    assert found.exit_code == 0, found.output
    with to.open(newline="") as opened:
        rows = list(csv.DictReader(opened))
    assert [(row["text"], row["id"]) for row in rows] == [("2012", "007"), ("1984", "1.50")]
    assert {row["prediction"] for row in rows} <= {"1", "2", "5"}


@pytest.mark.parametrize(
    ("task_type", "label_type", "message"),
    [
        ("multi-label-classification", "float", "label_type: must be text, or left out, with mul"),
        ("question-answering", "text", "label_type: does not go with question-answering"),
        ("text-classification", "words", "label_type: "),
    ],
)
def test_types_that_a_task_does_not_have(
    tmp_path: Path, task_type: str, label_type: str, message: str
) -> None:
    run = {"task": "t", "task_type": task_type, "data": "x.csv", "text_columns": ["text"]}
    file = tmp_path / "run.yaml"
    file.write_text(json.dumps(run | {"label_type": label_type, "output_dir": "out"}))
    found = call("validate", file)
    assert found.exit_code == 2
    assert message in found.stderr
