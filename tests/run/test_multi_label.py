"""Several labels of a text from the command line to the report."""

import csv
import json
import shutil

import numpy as np
import pytest
import torch
import yaml
from rich.console import Console
from transformers import AutoModelForSequenceClassification, pipeline
from typer.testing import CliRunner

from helpers.tiny_folder import tiny_bert
from helpers.tiny_tasks import topic_csv, topic_rows, write
from smoothtune.cli import app
from smoothtune.config.evaluation import OtherData
from smoothtune.config.run import load_config
from smoothtune.core.quantities import QUANTITIES
from smoothtune.errors import ConfigError, DataError
from smoothtune.evaluation.transfer import as_task
from smoothtune.models.load import load_base
from smoothtune.run.inputs import read_inputs
from smoothtune.tasks.presets import describe_task

NAMES = ["film", "good", "not"]
RUN = """\
task: topics
task_type: multi-label-classification
data: {data}
text_columns: [text]
label_column: labels
label_separator: ";"
model: {model}
methods: {{r_drop: {{alpha: 0.1}}}}
max_steps: 150
per_device_train_batch_size: 16
learning_rate: 1e-2
cost_steps: 0
eval_strategy: "no"
output_dir: {out}
"""


def call(*arguments: object) -> str:
    found = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert found.exit_code == 0, found.output
    return found.output


@pytest.fixture(scope="module")
def tuned(tmp_path_factory):
    folder = tmp_path_factory.mktemp("topics")
    model = tiny_bert(folder / "bert")
    data = topic_csv(folder / "data", train=topic_rows(96), validation=topic_rows(24, seed=1))
    file = folder / "run.yaml"
    file.write_text(RUN.format(data=data, model=model, out=folder / "out"))
    call("validate", file)
    call("train", file)
    return folder, json.loads((folder / "out" / "result.json").read_text())


def test_it_learns_and_a_pipeline_reads_the_folder(tuned) -> None:
    folder, result = tuned
    metrics = result["metrics"]
    assert list(metrics) == ["f1_micro", "f1_macro", "accuracy", "brier", "nll"]
    assert metrics["f1_micro"] > 0.9 > result["trivial_baseline"]
    config = json.loads((folder / "out" / "config.json").read_text())
    assert config["problem_type"] == "multi_label_classification"
    assert [config["id2label"][str(index)] for index in range(3)] == NAMES
    classify = pipeline("text-classification", model=str(folder / "out"), top_k=None)
    squares, right = [], 0
    for row in topic_rows(24, seed=1):
        found = {each["label"]: each["score"] for each in classify([row["text"]])[0]}
        squares += [(found[name] - (name in row["labels"])) ** 2 for name in NAMES]
        right += {name for name in NAMES if found[name] > 0.5} == set(row["labels"])
    assert np.mean(squares) == pytest.approx(metrics["brier"], rel=1e-4)
    assert right / 24 == pytest.approx(metrics["accuracy"])
    card = (folder / "out" / "README.md").read_text()
    assert "pipeline_tag: text-classification" in card
    assert 'pipeline("text-classification"' in card


def test_calibration_is_of_pairs_of_a_row_and_a_label(tuned, tmp_path) -> None:
    out = tmp_path / "evaluation"
    options = ["--calibration", "--output-dir", out, "--num-resamples", 20]
    call("evaluate", tuned[0] / "out", *options)
    parts = json.loads((out / "evaluation.json").read_text())["parts"]
    assert 0 <= parts["calibration"]["numbers"]["all_rows"]["brier"] <= 1


@pytest.mark.slow
def test_every_part_of_an_evaluation(tuned) -> None:
    folder, result = tuned
    texts = ["good plot", "bad film", "the plot", "a film"]
    named = ["good", "film", "", "film"]
    rows = [{"text": text, "labels": label} for text, label in zip(texts, named, strict=True)]
    other = write(folder / "other", test=rows)
    out = folder / "evaluation"
    options = ["--all", "--output-dir", out, "--num-resamples", 20, "--ood", f"other={other}"]
    call("evaluate", folder / "out", *options, "--further-share", "0.5")
    content = json.loads((out / "evaluation.json").read_text())
    parts = content["parts"]
    scores = parts["metrics"]["numbers"]["metrics"]
    assert scores["f1_micro"]["value"] == pytest.approx(result["metrics"]["f1_micro"])
    assert scores["f1_micro"]["low"] <= scores["f1_micro"]["value"] <= scores["f1_micro"]["high"]
    assert 0.9 < scores["average_precision_micro"]["value"] <= 1
    assert not [name for name, part in parts.items() if part["skipped"] and "further" not in name]
    pooled = parts["calibration"]["numbers"]
    assert pooled["all_rows"]["brier"] == pytest.approx(result["metrics"]["brier"])
    assert list(pooled["ece_by_label"]) == NAMES
    assert parts["robustness"]["curves"]["fgm"]["numbers"]["clean"] == pytest.approx(
        result["metrics"]["f1_micro"]
    )
    assert pooled["judged_on"] + pooled["temperature_fitted_on"] == 24
    sentences = json.loads((out / "examples.json").read_text())
    assert {len(each) for each in sentences["labels"]} == {3}
    assert len(sentences["predictions"]) == 3
    page = (out / "evaluation.html").read_text()
    assert "change labels" in page
    assert "(no label)" in page
    effect = parts["effect"]["numbers"]
    assert set(effect["quantities"]) == set(QUANTITIES)
    with (out / "predictions.csv").open() as opened:
        rows = list(csv.DictReader(opened))
    assert list(rows[0]) == [
        "example_id",
        *(f"label_{i}" for i in range(3)),
        *(f"logit_{i}" for i in range(3)),
    ]
    again = shutil.copytree(out, folder / "again")
    call("report", out, again, "--to", folder / "report.html")
    assert "do not differ beyond the noise" in (folder / "report.html").read_text()


@pytest.mark.slow
def test_a_study_has_their_calibration(tuned) -> None:
    folder, _ = tuned
    (folder / "study.yaml").write_text(
        "".join(
            f"{line}\n"
            for line in (folder / "run.yaml").read_text().splitlines()
            if not line.startswith(("methods", "output_dir"))
        )
        + "methods: [plain]\nseeds: [0]\nmore_epochs: null\n"
    )
    call("study", folder / "study.yaml", "--output-dir", folder / "study")
    (cell,) = (folder / "study" / "cells").glob("*.json")
    content = json.loads(cell.read_text())
    assert 0 < content["extras"]["ece"] < 0.5


def test_predictions_have_the_form_of_the_labels(tuned) -> None:
    folder, _ = tuned
    new = folder / "new.csv"
    new.write_text("text\ngood film\nplot\n")
    to = folder / "predicted.csv"
    call("predict", folder / "out", "--data", new, "--to", to, "--probabilities")
    with to.open() as opened:
        rows = list(csv.DictReader(opened))
    assert [row["prediction"] for row in rows] == ["film;good", ""]
    model = AutoModelForSequenceClassification.from_pretrained(folder / "out").eval()
    tokenizer = load_base(str(folder / "out")).tokenizer
    for row in rows:
        with torch.no_grad():
            logits = model(**tokenizer(row["text"], return_tensors="pt")).logits[0]
        found = [float(row[f"probability_{name}"]) for name in NAMES]
        np.testing.assert_allclose(found, logits.sigmoid().numpy(), rtol=1e-4, atol=1e-6)


def test_a_model_of_several_labels_names_the_task_type(tuned) -> None:
    folder, _ = tuned
    arguments = ["predict", folder / "out", "--task", "x", "--text-column", "text"]
    arguments += ["--data", folder / "new.csv", "--to", folder / "refused.csv"]
    (folder / "new.csv").write_text("text\ngood film\nplot\n")
    found = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert found.exit_code == 2
    assert "multi-label-classification" in found.output


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("label_noise: 0.1", "label_noise: replaces one class by another.*leave it out"),
        ("label_columns: [a, b]", "label_column: cannot stand beside label_columns"),
        ("task_type: text-classification", "label_separator: needs task_type: multi-label-cl"),
        ("doc_stride: 3", "doc_stride: needs task_type: question-answering"),
    ],
)
def test_fields_that_do_not_fit_are_refused(change, message, tmp_path) -> None:
    file = tmp_path / "run.yaml"
    text = RUN.format(data="d.csv", model="m", out="o")
    name = change.split(":")[0]
    kept = [line for line in text.splitlines() if not line.startswith(f"{name}:")]
    file.write_text("\n".join([*kept, change]))
    with pytest.raises(ConfigError, match=message):
        load_config(file)


@pytest.mark.parametrize("change", ["labels={good: film}", "label_column=other"])
def test_other_data_is_in_the_tasks_form(change) -> None:
    task = describe_task(
        "topics", "multi-label-classification", text_columns="text", label_columns=["good", "film"]
    )
    name, value = change.split("=")
    other = OtherData("other.csv", **{name: yaml.safe_load(value)})
    with pytest.raises(DataError, match="write the labels in the task's form"):
        as_task(other, task)


def test_balanced_weights_are_rows_without_by_rows_with(tuned, tmp_path) -> None:
    folder, _ = tuned
    file = tmp_path / "run.yaml"
    file.write_text(RUN.format(data=folder / "data", model=folder / "bert", out="out"))
    options = {"class_weights": "balanced"}
    config = load_config(file, options=options, methods=["plain"])
    rows = topic_rows(96)
    having = {name: sum(name in row["labels"] for row in rows) for name in NAMES}
    found = read_inputs(config, Console(quiet=True)).class_weights
    assert found == {name: pytest.approx((96 - having[name]) / having[name]) for name in NAMES}
    everywhere = [row | {"labels": ["good", *row["labels"][:1]]} for row in rows]
    data = topic_csv(tmp_path / "data", train=everywhere, validation=everywhere)
    with pytest.raises(ConfigError, match="every training row has the label 'good'"):
        read_inputs(config.model_copy(update={"data": str(data)}), Console(quiet=True))
