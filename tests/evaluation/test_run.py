"""`smoothtune evaluate`, end to end."""

import csv
import io
import json
import re
import shutil
import sys
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from rich.console import Console
from transformers import (
    AutoModelForSequenceClassification,
    BertConfig,
    BertForSequenceClassification,
    DataCollatorWithPadding,
    GPT2Config,
    GPT2ForSequenceClassification,
    Trainer,
    TrainingArguments,
)
from typer.testing import CliRunner, Result

from helpers.tiny_folder import tiny_gpt2
from smoothtune import ReInit, regularize
from smoothtune.cli import app
from smoothtune.config.evaluation import OtherData, Settings
from smoothtune.config.run import load_config
from smoothtune.console import Bar
from smoothtune.evaluation import parts
from smoothtune.evaluation.output import read_predictions
from smoothtune.evaluation.report import write_report
from smoothtune.evaluation.run import evaluate
from smoothtune.evaluation.settings import is_training_data, resolve, training_record
from smoothtune.models.load import load_base
from smoothtune.report import plots
from smoothtune.run.train import train

CURVES = {
    "metrics": [],
    "calibration": ["reliability"],
    "robustness": ["gaussian", "in_manifold", "fgm", "pgd"],
    "corruption": ["tokens", "typos", "dropped_words", "swapped_words"],
    "substitution": ["words"],
    "smoothness": ["jacobian", "hessian", "attenuation", "distance", "expansion", "spectrum"],
    "drift": ["cosine", "distance", "cka"],
    "effect": ["gradient_spread", "noise_sensitivity", "jacobian", "hessian"],
    "ood: train rows": [],
}


def call(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["evaluate", *map(str, arguments), "--num-resamples", "20"])


def content_of(folder: Path) -> dict:
    return json.loads((folder / "evaluation.json").read_text())


def test_data_is_that_of_training_unless_the_task_is_another() -> None:
    run = {"task": "sst2", "data": "folder", "text_columns": ["text"]}
    run["task_type"] = "text-classification"
    record = {"config": run | {"max_seq_length": 64, "seed": 3}}
    same = resolve(Settings(model="m", output_dir="o"), record)
    assert (same.task, same.data, same.text_columns) == ("sst2", "folder", ["text"])
    other = resolve(Settings(model="m", output_dir="o", task="cola"), record)
    assert (other.data, other.text_columns, other.task_type) == (None, None, None)
    assert (other.max_seq_length, other.data_seed) == (64, 3)


def test_shares_that_round_alike_are_different_parts() -> None:
    def names(share: float) -> list[str]:
        data = {"r": OtherData("rows.csv")}
        settings = Settings(model="m", output_dir="o", ood=data, further_share=share)
        return list(parts.requested_parts(settings))

    assert names(0.07) == ["metrics", "ood: r", "ood: r after 7% of it"]
    assert names(0.074)[-1] == "ood: r after 7.4% of it"


def test_every_part_has_its_numbers_tables_and_plots(everything: tuple[Path, str]) -> None:
    folder, said = everything
    found = content_of(folder)["parts"]
    assert {name: list(part["curves"]) for name, part in found.items()} == CURVES
    assert [part["skipped"] for part in found.values()] == [""] * len(CURVES)
    for name, curves in CURVES.items():
        assert f"{name}: done in" in said
        for curve in curves:
            with (folder / f"{name}_{curve}.csv").open() as file:
                rows = list(csv.reader(file))
            written = found[name]["curves"][curve]
            assert rows[0][1:3] == [written["x_label"], written["y_label"]]
            assert len(rows) == 1 + sum(map(len, written["series"].values())) > 2
            assert ElementTree.parse(folder / f"{name}_{curve}.svg").getroot().tag.endswith("svg")
    assert (folder / "evaluation.html").read_text().count("<svg") == sum(map(len, CURVES.values()))


def test_a_figure_is_drawn_once_for_its_file_and_the_page(
    tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures = []

    def draw_lines(*arguments):
        figures.append(plots.draw_lines(*arguments))
        return figures[-1]

    monkeypatch.setattr("smoothtune.evaluation.figures.draw_lines", draw_lines)
    settings = Settings(
        model=str(tiny_folder / "tuned"), output_dir=str(tmp_path), parts=("calibration",)
    )
    evaluate(settings, console=Console(quiet=True))
    ((_, svg),) = (item for files in figures for item in files.items())
    assert (tmp_path / "calibration_reliability.svg").read_bytes() == svg
    longest = max(re.findall(r' d="([^"]+)"', svg.decode()), key=len)
    assert longest in (tmp_path / "evaluation.html").read_text()


def test_one_name_has_one_number(everything: tuple[Path, str]) -> None:
    """Smoothness and effect take other rows and probes for the same derivatives."""
    page = (everything[0] / "evaluation.md").read_text()
    sections = page.split("\n## ")
    named = [
        dict(row.split(" | ") for row in section.splitlines() if row.startswith("| "))
        for section in sections
        if section.startswith(("Smoothness", "What methods are about"))
    ]
    assert len(named) == 2
    assert {"| ", "| rows"} >= named[0].keys() & named[1].keys()
    assert "Jacobian norm of every layer, 4 probes: logits" in page
    assert "Jacobian norm of every layer, 2 probes, 24 rows: logits" in page


def test_lists_are_rounded(everything: tuple[Path, str]) -> None:
    for name in ("evaluation.md", "evaluation.html"):
        page = (everything[0] / name).read_text()
        (row,) = re.findall("bins: confidence(.*)", page)[:1]
        assert not re.search(r"\d\.\d{5}", row)


def test_an_area_stands_beside_the_score_without_a_disturbance(
    everything: tuple[Path, str],
) -> None:
    found = content_of(everything[0])["parts"]["robustness"]["curves"]["fgm"]["numbers"]
    shown = f"{found['area']:.4f}; without: {found['clean']:.4f}"
    assert f"accuracy under FGM attack, area under the curve\t{shown}" in everything[1]
    assert re.search(r"^ece\t0\.\d{4}; of a calibrated model up to 0\.\d{4}$", everything[1], re.M)


def test_metrics_are_those_of_training(everything: tuple[Path, str], tiny_folder: Path) -> None:
    found = content_of(everything[0])["parts"]["metrics"]["numbers"]
    trained = json.loads((tiny_folder / "tuned" / "result.json").read_text())
    assert {name: found["metrics"][name]["value"] for name in trained["metrics"]} == pytest.approx(
        trained["metrics"], rel=1e-5
    )
    assert found["train_metrics"] == pytest.approx(trained["train_metrics"], rel=1e-5)
    assert found["generalization_gap"] == pytest.approx(trained["generalization_gap"])
    for metric in found["metrics"].values():
        assert metric["low"] <= metric["value"] <= metric["high"]


def test_other_data_is_scored_whole(everything: tuple[Path, str]) -> None:
    parts_found = content_of(everything[0])["parts"]
    other = parts_found["ood: train rows"]["numbers"]
    train = parts_found["metrics"]["numbers"]["train_metrics"]
    assert other["rows"] + other["repeated_rows_left_out"] == 24
    if not other["repeated_rows_left_out"]:
        assert other["metrics"]["accuracy"]["value"] == pytest.approx(train["accuracy"])


def lone_file(path: Path, labels: list[str]) -> list[object]:
    """Options for a file of labeled rows, each with its own text."""
    words = [f"{'good' if x == 'fine' else 'bad'} film {i}" for i, x in enumerate(labels)]
    path.parent.mkdir(exist_ok=True)
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([("text", "label"), *zip(words, labels, strict=True)])
    return ["--data", path if path.parent.name == "files" else path.parent]


@pytest.mark.usefixtures("no_plots")
def test_labels_with_other_names_than_the_outputs_are_told(
    tiny_folder: Path, tmp_path: Path
) -> None:
    options = [*lone_file(tmp_path / "files" / "rows.csv", ["no", "yes"] * 8), "--task", "other"]
    options += ["--text-column", "text", "--output-dir", tmp_path / "out"]
    found = call(tiny_folder / "tuned", *options)
    assert found.exit_code == 0, found.output
    assert "taken in order: fine is 'no', poor is 'yes'." in " ".join(found.stdout.split())


@pytest.mark.usefixtures("no_plots")
@pytest.mark.parametrize(
    "name",
    ["files/rows.csv", "folder/test.csv", pytest.param("other/train.csv", marks=pytest.mark.slow)],
)
def test_a_lone_set_is_evaluated_whole(name: str, tiny_folder: Path, tmp_path: Path) -> None:
    options = lone_file(tmp_path / name, ["poor", "fine"] * 16)
    found = call(tiny_folder / "tuned", *options, "--corruption", "--output-dir", tmp_path / "out")
    assert found.exit_code == 0, found.output
    assert "32 rows to evaluate on, no known training rows" in found.stdout
    assert "taken in order" not in found.stdout
    content = content_of(tmp_path / "out")
    numbers = content["parts"]["metrics"]["numbers"]
    assert (numbers["rows"], numbers["train_rows"]) == (32, 0)
    assert numbers["train_metrics"] is numbers["generalization_gap"] is None
    assert list(content["data"]["splits"]) == ["validation"]
    assert read_predictions(tmp_path / "out")[0].tolist() == list(range(32))
    page = tmp_path / "report.md"
    write_report([tmp_path / "out"], page)
    assert "| generalization gap | – |" in page.read_text()
    assert "On training rows" not in page.read_text()


def test_predictions_name_the_rows_of_the_file_where_some_are_left_out(
    tiny_folder: Path, tmp_path: Path
) -> None:
    options = lone_file(tmp_path / "files" / "rows.csv", ["poor", "", "fine", "poor", "", "fine"])
    found = call(
        tiny_folder / "tuned", *options, "--drop-missing", "--output-dir", tmp_path / "out"
    )
    assert found.exit_code == 0, found.output
    assert read_predictions(tmp_path / "out")[0].tolist() == [0, 2, 3, 5]


def test_rows_of_one_class_have_the_models_labels(tiny_folder: Path, tmp_path: Path) -> None:
    for labels in (["fine"] * 6, ["1"] * 6):
        options = lone_file(tmp_path / "files" / f"{labels[0]}.csv", labels)
        out = tmp_path / labels[0]
        found = call(tiny_folder / "tuned", *options, "--output-dir", out)
        assert found.exit_code == 0, found.output
        assert content_of(out)["label_names"] == ["fine", "poor"]
        ids, statistics = read_predictions(out)
        assert set(statistics[:, 0]) == {float(labels[0] == "1")}


def test_training_data_is_split_as_in_training(tiny_folder: Path, tmp_path: Path) -> None:
    """A file that a model was trained on holds its training rows, whether it is named or not."""
    train_file = tiny_folder / "data" / "train.csv"
    options = {"task": "quality", "text_columns": ["text"], "data": str(train_file)}
    options |= {"model": str(tiny_folder / "model"), "output_dir": str(tmp_path / "tuned")}
    config = load_config(None, ["cost_steps=0", "max_steps=2", "eval_strategy=no"], options)
    trained = train(config, console=Console(quiet=True))
    for named in ([], ["--data", train_file]):
        out = tmp_path / f"out{len(named)}"
        assert call(tmp_path / "tuned", *named, "--output-dir", out).exit_code == 0
        numbers = content_of(out)["parts"]["metrics"]["numbers"]
        assert numbers["rows"] == trained["data"]["splits"]["validation"]["rows"] == 2
        assert numbers["generalization_gap"] == pytest.approx(trained["generalization_gap"])


def test_predictions_are_kept(everything: tuple[Path, str]) -> None:
    ids, found = read_predictions(everything[0])
    labels, logits = found[:, 0], found[:, 1:]
    accuracy = content_of(everything[0])["parts"]["metrics"]["numbers"]["metrics"]["accuracy"]
    assert ids.tolist() == list(range(24))
    assert (logits.argmax(1) == labels).mean() == pytest.approx(accuracy["value"])


@pytest.mark.slow
def test_the_same_seed_gives_the_same_numbers(
    everything: tuple[Path, str], tiny_folder: Path, tmp_path: Path
) -> None:
    wanted = ["--robustness", "--corruption", "--smoothness", "--calibration"]
    assert call(tiny_folder / "tuned", *wanted, "--output-dir", tmp_path).exit_code == 0
    first, again = content_of(everything[0])["parts"], content_of(tmp_path)["parts"]
    for name in ("metrics", "robustness", "corruption", "smoothness", "calibration"):
        assert again[name] | {"seconds": 0} == first[name] | {"seconds": 0}
        for path in everything[0].glob(f"{name}_*.csv"):
            assert path.read_bytes() == (tmp_path / path.name).read_bytes()


@pytest.mark.usefixtures("no_plots")
def test_finished_parts_are_kept_when_a_later_one_fails(
    tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tiny_folder / "tuned" / "calibration.json").unlink(missing_ok=True)
    arguments = [tiny_folder / "tuned", "--calibration", "--drift", "--output-dir", tmp_path]
    with monkeypatch.context() as patch:
        patch.setitem(parts.PARTS, "drift", parts.Measurement("", lambda subject: 1 / 0))
        assert isinstance(call(*arguments).exception, ZeroDivisionError)
    kept = content_of(tmp_path)["parts"]
    assert list(kept) == ["metrics", "calibration"]
    assert (tiny_folder / "tuned" / "calibration.json").exists()
    again = call(*arguments)
    assert again.exit_code == 0, again.output
    assert "calibration: done before, kept" in again.stdout
    found = content_of(tmp_path)["parts"]
    assert list(found) == ["metrics", "calibration", "drift"]
    assert found["calibration"] == kept["calibration"]


def test_one_that_ended_in_its_first_part_begins_anew(
    tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it wrote of that part is no other program's; other settings are no other evaluation."""
    arguments = (tiny_folder / "tuned", "--output-dir", tmp_path / "out")
    with monkeypatch.context() as patch:
        patch.setattr("smoothtune.evaluation.run.add_examples", lambda *_: sys.exit(9))
        assert call(*arguments).exit_code == 9
    assert (tmp_path / "out" / "predictions.csv").exists()
    assert call(*arguments, "--seed", 5).exit_code == 0
    assert list(content_of(tmp_path / "out")["parts"]) == ["metrics"]


def test_another_evaluation_is_not_replaced_unasked(tiny_folder: Path, tmp_path: Path) -> None:
    arguments = [tiny_folder / "tuned", "--output-dir", tmp_path]
    assert call(*arguments, "--calibration").exit_code == 0
    (tmp_path / "notes.txt").write_text("mine")
    refused = call(*arguments, "--seed", 7)
    assert refused.exit_code == 2
    assert "seed 42, here 7" in refused.stderr
    assert content_of(tmp_path)["settings"]["seed"] == 42
    assert (tmp_path / "calibration_reliability.svg").exists()
    assert call(*arguments, "--seed", 7, "--overwrite-output-dir").exit_code == 0
    assert {path.name for path in tmp_path.iterdir()} == {
        "evaluation.json",
        "evaluation.html",
        "evaluation.md",
        "examples.json",
        "predictions.csv",
        "notes.txt",
    }
    assert content_of(tmp_path)["settings"]["seed"] == 7


def test_a_folder_with_other_files_is_left_alone(tiny_folder: Path) -> None:
    found = call(tiny_folder / "tuned", "--output-dir", tiny_folder / "tuned")
    assert found.exit_code == 2
    assert "holds other files" in found.stderr
    assert not (tiny_folder / "tuned" / "evaluation.json").exists()


def forget_checksums(folder: Path) -> None:
    """As the folder of a model that smoothtune has not trained."""
    record = json.loads((folder / "result.json").read_text())
    del record["files"]
    (folder / "result.json").write_text(json.dumps(record))


def test_changed_weights_are_noticed(tiny_folder: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny_folder / "tuned", tmp_path / "tuned")
    arguments = [tmp_path / "tuned", "--output-dir", tmp_path / "out"]
    assert call(*arguments).exit_code == 0
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path / "tuned")
    model.classifier.bias.data.add_(1)
    model.save_pretrained(tmp_path / "tuned")
    forget_checksums(tmp_path / "tuned")
    refused = call(*arguments)
    assert refused.exit_code == 2
    assert "other weights or data" in refused.stderr


def test_damaged_weights_are_named(tiny_folder: Path, tmp_path: Path) -> None:
    copy = tmp_path / "tuned"
    shutil.copytree(tiny_folder / "tuned", copy)
    weights = (copy / "model.safetensors").read_bytes()
    (copy / "model.safetensors").write_bytes(weights[: len(weights) // 2])
    forget_checksums(copy)
    found = call(copy, "--output-dir", tmp_path / "out")
    assert found.exit_code == 2
    assert f"the weights of {copy} cannot be loaded" in found.stderr


def test_progress_says_how_long_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    text = io.StringIO()
    monkeypatch.setattr("smoothtune.console.SECONDS_BETWEEN_LINES", 0.0)
    with Bar(Console(file=text)) as bar:
        bar.part = "robustness"
        bar.start("Gaussian noise", 2)
        bar.advance()
        bar.advance()
    lines = [line for line in text.getvalue().splitlines() if line]
    assert [line.split(" batches")[0] for line in lines] == [
        "robustness: Gaussian noise 1/2",
        "robustness: Gaussian noise 2/2",
    ]
    assert lines[-1].endswith(", 0 s left")


def foreign(folder: Path, tiny_folder: Path, kind: str) -> list[object]:
    """A model that this library did not train, and the options it needs."""
    torch.manual_seed(2)
    if kind == "decoder":
        tiny_gpt2(folder)
        config = GPT2Config.from_pretrained(folder, num_labels=2)
        GPT2ForSequenceClassification(config).save_pretrained(folder)
        data = tiny_folder / "data"
    else:
        config = BertConfig.from_pretrained(tiny_folder / "model", num_labels=1)
        BertForSequenceClassification(config).save_pretrained(folder)
        load_base(str(tiny_folder / "model")).tokenizer.save_pretrained(folder)
        data = folder / "scores.csv"
        with data.open("w", newline="") as file:
            draws = np.random.default_rng(0).normal(size=40)
            words = [f"{'good' if draw > 0 else 'bad'} film {i}" for i, draw in enumerate(draws)]
            csv.writer(file).writerows([("text", "label"), *zip(words, draws, strict=True)])
    return [folder, "--task", "x", "--text-column", "text", "--data", data]


@pytest.mark.usefixtures("no_plots")
@pytest.mark.parametrize("kind", ["decoder", pytest.param("regression", marks=pytest.mark.slow)])
def test_models_of_others(kind: str, tiny_folder: Path, tmp_path: Path) -> None:
    arguments = foreign(tmp_path / "model", tiny_folder, kind)
    model, out = tmp_path / "model", tmp_path / "out"
    options = ["--all", "--base-model", model, "--num-resamples", 20, "--output-dir", out]
    found = call(*arguments, *options)
    assert found.exit_code == 0, found.output
    parts_found = content_of(out)["parts"]
    skipped = {name for name, part in parts_found.items() if part["skipped"]}
    assert skipped == ({"calibration"} if kind == "regression" else set())
    headline = "pearson" if kind == "regression" else "accuracy"
    clean = parts_found["robustness"]["curves"]["gaussian"]["numbers"]["clean"]
    value = parts_found["metrics"]["numbers"]["metrics"][headline]["value"]
    assert clean == pytest.approx(value)


@pytest.mark.usefixtures("no_plots")
def test_a_model_of_a_regularized_trainer(tiny_folder: Path, tmp_path: Path, rows) -> None:
    """Its record has no task, no data but the number of rows, and no price of a step."""
    model = BertForSequenceClassification.from_pretrained(tiny_folder / "model")
    arguments = TrainingArguments(tmp_path, max_steps=1, use_cpu=True, report_to=[])
    few = rows.remove_columns(["length", "example_id"]).select(range(4))
    plain = Trainer(model, arguments, train_dataset=few)
    plain.processing_class = load_base(str(tiny_folder / "model")).tokenizer
    plain.data_collator = DataCollatorWithPadding(plain.processing_class)
    trainer = regularize(plain, ReInit())
    trainer.train()
    trainer.save_model(str(tmp_path / "final"))
    options = ["--task", "x", "--text-column", "text", "--data", tiny_folder / "data"]
    folder = tmp_path / "out"
    found = call(tmp_path / "final", *options, "--calibration", "--output-dir", folder)
    assert found.exit_code == 0, found.output
    assert content_of(folder)["training"]["methods"] == {"reinit": ReInit().settings()}
    assert re.search(r", training \d+ s\.", (folder / "evaluation.md").read_text())
    numbers = content_of(folder)["parts"]["metrics"]["numbers"]
    assert (numbers["train_rows"], numbers["generalization_gap"]) == (0, None)


def started_in(folder: Path, tiny_folder: Path) -> Path:
    """A model trained in a folder by relative paths: `data.csv` there to `out/model`."""
    folder.mkdir()
    shutil.copytree(tiny_folder / "tuned", folder / "out" / "model")
    shutil.copy(tiny_folder / "data" / "train.csv", folder / "data.csv")
    shutil.copytree(tiny_folder / "model", folder / "base")
    file = folder / "out" / "model" / "result.json"
    record = json.loads(file.read_text())
    record["config"] |= {"data": "data.csv", "output_dir": "out/model", "model": "base"}
    file.write_text(json.dumps(record))
    return folder


def test_paths_of_a_training_run_are_seen_from_where_it_was_started(
    tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = started_in(tmp_path / "a", tiny_folder)
    elsewhere = tmp_path / "c"
    elsewhere.mkdir()
    for folder, model in ((training, "out/model"), (elsewhere, "../a/out/model")):
        monkeypatch.chdir(folder)
        record = training_record(model)
        settings = resolve(Settings(model=model, output_dir="x"), record)
        assert settings.data is not None
        assert settings.base_model is not None
        assert Path(settings.data).samefile(training / "data.csv")
        assert Path(settings.base_model).samefile(training / "base")
        assert is_training_data(settings, record)
        assert (settings.data == "data.csv") == (folder == training)
    named = Settings(model="../a/out/model", output_dir="x", data="../a/data.csv")
    assert is_training_data(resolve(named, record), record)
    shutil.copy(training / "data.csv", elsewhere / "data.csv")  # other rows of the same name
    assert Path(resolve(settings, record).data or "").samefile(training / "data.csv")


@pytest.mark.usefixtures("no_plots")
def test_a_copy_of_the_training_data_is_split_as_in_training(
    tiny_folder: Path, tmp_path: Path
) -> None:
    """Else a moved model would be scored on rows that it was trained on."""
    file = tmp_path / "reviews.csv"
    words = [(f"{'good' if i % 2 else 'bad'} film {i}", i % 2) for i in range(60)]
    with file.open("w", newline="") as opened:
        csv.writer(opened).writerows([("text", "label"), *words])
    options = {"task": "x", "text_columns": ["text"], "data": str(file), "max_steps": 1}
    options |= {"model": str(tiny_folder / "model"), "output_dir": str(tmp_path / "model")}
    result = train(load_config(None, ["cost_steps=0"], options), console=Console(quiet=True))
    for name, rows in (("copy", words), ("longer", [*words, ("a film", 1)])):
        with (tmp_path / f"{name}.csv").open("w", newline="") as opened:
            csv.writer(opened).writerows([("text", "label"), *rows])
        out = tmp_path / name
        found = call(tmp_path / "model", "--data", tmp_path / f"{name}.csv", "--output-dir", out)
        assert found.exit_code == 0, found.output
        numbers = content_of(out)["parts"]["metrics"]["numbers"]
        assert numbers["rows"] == (6 if name == "copy" else 61)
        if name == "copy":
            assert numbers["metrics"]["accuracy"]["value"] == result["metrics"]["accuracy"]


def test_data_of_a_moved_model_are_asked_for(
    tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = started_in(tmp_path / "a", tiny_folder)
    shutil.move(training / "out" / "model", tmp_path / "moved")
    monkeypatch.chdir(tmp_path)
    found = call("moved", "--output-dir", "out")
    assert found.exit_code == 3
    assert "as seen from the folder where that run was started: name the data" in found.stderr
    assert "--data" in found.stderr


def test_another_architecture_is_no_base_model(tiny_folder: Path, tmp_path: Path) -> None:
    other = tiny_gpt2(tmp_path / "other")
    out = tmp_path / "out"
    found = call(tiny_folder / "tuned", "--drift", "--base-model", other, "--output-dir", out)
    assert found.exit_code == 2
    assert "no weights in common" in found.stderr
    assert list(content_of(out)["parts"]) == ["metrics"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["model", "--task", "rtee"], "unknown task 'rtee'; did you mean 'rte'?"),
        (["model"], "holds no record of its task, so say what it is"),
        (
            ["tuned", "--batch-size", 0],
            "--batch-size: must be greater than",
        ),
        (["tuned", "--ood", "imdb"], "'imdb' is not NAME=DATA"),
        (["tuned", "--ood", "../x=y.csv"], "'../x=y.csv' is not NAME=DATA"),
        (["tuned", "--ood", "a after b=y.csv"], "'a after b=y.csv' is not NAME=DATA"),
        (["model", "--task", "sst2", "--data", "data"], "sentence"),
    ],
)
def test_what_is_wrong_is_said(
    arguments: list, message: str, tiny_folder: Path, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.chdir(tiny_folder)
    found = call(*arguments, "--output-dir", tmp_path / "out")
    assert found.exit_code in (2, 3)
    assert message in found.stderr
    assert "Traceback" not in found.output


RESULT_DAMAGE = [
    "[" * 100_000,
    '{"config": {"task": "quality", "seed": NaN}}',
    "{",
    '{"config": {"task": ["quality"]}}',
    '{"config": {"task": "quality", "text_columns": "text"}}',
    '{"config": {"task": "quality", "text_columns": [3]}}',
    '{"config": {"task": "quality", "task_type": "evil", "data": "x.csv"}}',
    '{"config": {"task": "quality", "data": 3}}',
    '{"config": {"task": "quality", "seed": "x"}}',
    '{"config": {"task": "quality", "max_train_samples": "x"}}',
    '{"config": {"task": "quality", "max_seq_length": -3}}',
    '{"config": {"task": "quality", "model": {}}}',
    '{"config": {"task": "rte"}, "methods": 3}',
    '{"config": {"task": "rte"}, "cost": {"train_seconds": "x"}}',
    '{"config": {"task": "rte"}, "seed": []}',
]


@pytest.mark.parametrize("text", RESULT_DAMAGE, ids=range(len(RESULT_DAMAGE)))
def test_damaged_result_of_training(text: str, tiny_folder: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny_folder / "tuned", tmp_path / "tuned")
    (tmp_path / "tuned" / "result.json").write_text(text)
    found = call(tmp_path / "tuned", "--output-dir", tmp_path / "out")
    assert found.exit_code == 2, found.output
    assert isinstance(found.exception, SystemExit)
    assert str(tmp_path / "tuned" / "result.json") in found.stderr
    assert not (tmp_path / "out").exists()
