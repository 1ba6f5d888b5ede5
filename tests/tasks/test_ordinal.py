"""Ordinal classes: whole numbers in their order, and metrics that count distances."""

import json
import random
from pathlib import Path

import numpy as np
import pytest
from datasets import ClassLabel, Dataset, Features, Value
from typer.testing import CliRunner

from helpers.tiny_folder import WORDS, tiny_bert
from helpers.tiny_tasks import write
from smoothtune.cli import app
from smoothtune.config.run import RunConfig
from smoothtune.errors import DataError
from smoothtune.report.curves import metric_label
from smoothtune.run.training_arguments import best_score
from smoothtune.tasks.presets import describe_task

RATINGS = describe_task("ratings", "ordinal-classification", text_columns="text")
THREE = describe_task("r", "ordinal-classification", text_columns="text", label_names=list("123"))


def labeled(labels: list) -> Dataset:
    return Dataset.from_dict({"text": ["a film"] * len(labels), "label": labels})


def test_classes_are_the_numbers_from_the_least_to_the_greatest() -> None:
    task = RATINGS.with_labels(labeled([5, 1, 2, 2, 4]))
    assert task.label_names == ("1", "2", "3", "4", "5")
    assert task.metrics == ("quadratic_weighted_kappa", "mean_absolute_error", "accuracy")
    assert task.rows.check({"train": labeled([3, 1, 5])}, "x")["train"].tolist() == [2, 0, 4]


def test_labels_of_the_hub_are_in_its_order() -> None:
    features = Features({"text": Value("string"), "label": ClassLabel(names=["bad", "ok", "good"])})
    rows = Dataset.from_dict({"text": ["a", "b"], "label": [2, 0]}, features=features)
    task = RATINGS.with_labels(rows)
    assert task.label_names == ("bad", "ok", "good")
    assert task.rows.check({"train": rows}, "x")["train"].tolist() == [2, 0]


@pytest.mark.parametrize("cells", [["3", "1", "2"], ["3.0", "1.0", "2.0"]])
def test_ratings_of_csv(tmp_path: Path, cells: list[str]) -> None:
    file = tmp_path / "ratings.csv"
    file.write_text("\n".join(["text,label", *(f"a film,{cell}" for cell in cells), ""]))
    train = RATINGS.load_splits(file)["train"]
    task = RATINGS.with_labels(train)
    assert task.label_names == ("1", "2", "3")
    assert task.rows.check({"train": train}, "x")["train"].tolist() == [2, 0, 1]


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (["bad", "good"], "ordinal classes are whole numbers, found 'bad', 'good'"),
        ([0.5, 2.0], "ordinal classes are whole numbers, found 0.5, 2.0"),
        ([4, 4], "from 4 to 4 are no ordinal classes"),
        ([1, 1000], "for scores use text-classification"),
    ],
)
def test_labels_without_an_order_are_refused(labels: list, message: str) -> None:
    with pytest.raises(DataError, match=message):
        RATINGS.with_labels(labeled(labels), "file.csv")


def test_metrics_by_hand() -> None:
    # Gold 0 1 2 2, predicted 0 1 1 0: squared distances 0 0 1 4.
    statistics = np.column_stack([[0, 1, 2, 2], np.eye(3)[[0, 1, 1, 0]]])
    scores = THREE.scorer.scores(statistics)
    assert scores["mean_absolute_error"] == pytest.approx(3 / 4)
    assert scores["accuracy"] == 0.5
    # By chance: gold shares 1/4 1/4 1/2, predicted shares 1/2 1/2 0.
    chance = sum(
        gold * predicted * (i - j) ** 2
        for i, gold in enumerate([1 / 4, 1 / 4, 1 / 2])
        for j, predicted in enumerate([1 / 2, 1 / 2, 0])
    )
    assert scores["quadratic_weighted_kappa"] == pytest.approx(1 - (5 / 4) / chance)
    assert list(scores)[:3] == list(THREE.metrics)
    assert metric_label("quadratic_weighted_kappa") == "quadratic_weighted_kappa (-1 to 1)"


def test_one_class_alone_has_a_kappa_of_zero() -> None:
    rows = Dataset.from_dict({"labels": [1, 1, 1]})
    assert THREE.scorer.baseline(rows) == 0


def test_less_absolute_error_is_better() -> None:
    fields = {"task": "r", "text_columns": ["text"], "data": "x.csv", "output_dir": "unset"}
    run = RunConfig(**fields, metric_for_best_model="mean_absolute_error")
    assert best_score(run, THREE) == ("eval_mean_absolute_error", False)
    assert best_score(RunConfig(**fields), THREE) == ("eval_quadratic_weighted_kappa", True)


def test_it_trains_evaluates_and_predicts(tmp_path: Path) -> None:
    draw = random.Random(0)

    def row() -> dict:
        words = draw.choices(WORDS, k=5)
        return {"text": " ".join(words), "rating": 1 + min(words.count("good"), 2)}

    write(tmp_path / "data", train=[row() for _ in range(48)], validation=[row() for _ in "ab" * 8])
    tiny_bert(tmp_path / "bert")
    run = {"task": "ratings", "task_type": "ordinal-classification", "text_columns": ["text"]}
    run |= {"label_column": "rating", "data": str(tmp_path / "data"), "max_steps": 60}
    run |= {"model": str(tmp_path / "bert"), "learning_rate": 1e-2, "cost_steps": 0}
    run |= {"per_device_train_batch_size": 16, "output_dir": str(tmp_path / "out")}
    (tmp_path / "run.yaml").write_text(json.dumps(run))
    few = ("--num-resamples", 20, "--output-dir", tmp_path / "eval")
    predict = ("predict", tmp_path / "out", "--data", tmp_path / "data" / "validation.jsonl")
    for command in (
        ("train", tmp_path / "run.yaml"),
        ("evaluate", tmp_path / "out", "--calibration", *few),
        (*predict, "--to", tmp_path / "rated.jsonl"),
    ):
        found = CliRunner().invoke(app, [str(argument) for argument in command])
        assert found.exit_code == 0, found.output
    result = json.loads((tmp_path / "out" / "result.json").read_text())
    assert next(iter(result["metrics"])) == "quadratic_weighted_kappa"
    assert result["metrics"]["quadratic_weighted_kappa"] > 0.6 > result["trivial_baseline"]
    rated = [json.loads(line) for line in (tmp_path / "rated.jsonl").read_text().splitlines()]
    error = np.mean([abs(int(each["prediction"]) - each["rating"]) for each in rated])
    assert error == pytest.approx(result["metrics"]["mean_absolute_error"])
