"""Multiple choice from rows to scores."""

import json
from dataclasses import replace

import pytest
import torch
from datasets import Dataset
from rich.console import Console
from transformers import AutoModelForMultipleChoice
from typer.testing import CliRunner

from helpers.tiny_tasks import choice_data, write
from smoothtune.cli import app
from smoothtune.config.run import load_config
from smoothtune.core.quantities import QUANTITIES
from smoothtune.errors import ConfigError, DataError
from smoothtune.models.load import load_base
from smoothtune.run.train import train
from smoothtune.tasks.prepare import labeled_splits, prepare
from smoothtune.tasks.presets import describe_task

ENDINGS = ["ending0", "ending1", "ending2"]
TASK = describe_task(
    "endings", "multiple-choice", text_columns=["context", "start"], choice_columns=ENDINGS
)


@pytest.fixture(scope="session")
def data(tmp_path_factory):
    return choice_data(tmp_path_factory.mktemp("choices") / "choices")


def run(bert, data, out, *methods, **options):
    settings = {
        "task": "endings",
        "task_type": "multiple-choice",
        "text_columns": ["context", "start"],
        "choice_columns": ENDINGS,
        "data": str(data),
        "model": str(bert),
        "output_dir": str(out),
        "max_steps": 40,
        "learning_rate": 5e-3,
    }
    fixed = ["cost_steps=0", "eval_strategy=no"]
    return train(load_config(None, fixed, settings | options, methods), console=Console(quiet=True))


@pytest.fixture(scope="session")
def tuned(bert, data, tmp_path_factory):
    out = tmp_path_factory.mktemp("tuned") / "tuned"
    return out, run(bert, data, out, "lnsr")


def test_it_learns_and_the_folder_loads_with_transformers(tuned, data) -> None:
    folder, result = tuned
    assert result["metrics"]["accuracy"] > 0.9 > result["trivial_baseline"]
    model = AutoModelForMultipleChoice.from_pretrained(folder).eval()
    tokenizer = load_base(str(folder)).tokenizer
    right = 0
    for line in (data / "validation.jsonl").read_text().splitlines():
        row = json.loads(line)
        seconds = [f"was {row[name]}" for name in ENDINGS]
        inputs = tokenizer(["the film"] * 3, seconds, padding=True, return_tensors="pt")
        with torch.no_grad():
            logits = model(**{name: x[None] for name, x in inputs.items()}).logits[0]
        right += int(logits.argmax()) == row["label"]
    assert right / 24 == pytest.approx(result["metrics"]["accuracy"])


@pytest.mark.usefixtures("no_plots")
def test_every_part_is_there_or_says_why_not(tuned, tmp_path) -> None:
    arguments = [tuned[0], "--all", "--output-dir", tmp_path / "out", "--num-resamples", 20]
    found = CliRunner().invoke(app, ["evaluate", *map(str, arguments)])
    assert found.exit_code == 0, found.output
    parts = json.loads((tmp_path / "out" / "evaluation.json").read_text())["parts"]
    accuracy = parts["metrics"]["numbers"]["metrics"]["accuracy"]["value"]
    assert accuracy == pytest.approx(tuned[1]["metrics"]["accuracy"])
    robust = parts["robustness"]["curves"]
    assert list(robust) == ["gaussian", "in_manifold", "fgm", "pgd"]
    assert robust["fgm"]["numbers"]["clean"] == pytest.approx(accuracy)
    for name in ("corruption", "substitution", "smoothness", "drift"):
        assert parts[name]["skipped"].startswith("not for multiple-choice: ")
    assert "temperature" in parts["calibration"]["numbers"]
    effect = parts["effect"]["numbers"]
    assert set(effect["quantities"]) | set(effect["not measured"]) == set(QUANTITIES)
    measured = {"worst divergence", "dropout divergence", "weight distance", "calibration error"}
    assert measured <= set(effect["quantities"])
    assert "several" in effect["not measured"]["noise sensitivity"]


@pytest.mark.parametrize(
    ("columns", "label"), [(ENDINGS, "label"), (["endings"], "label"), (["endings"], "answer")]
)
def test_columns_lists_and_letters_say_the_same(columns, label, data, bert) -> None:
    task = replace(TASK, label_column=label, choice_columns=tuple(columns))
    tokenizer = load_base(str(bert)).tokenizer
    prepared = prepare(data, task, tokenizer)
    expected = prepare(data, TASK, tokenizer)
    assert prepared.train.to_dict() == expected.train.to_dict()
    assert prepared.task.num_labels == 3


def test_batches_are_padded_over_all_choices(data, bert) -> None:
    tokenizer = load_base(str(bert)).tokenizer
    rows = prepare(data, TASK, tokenizer).train
    batch = TASK.head.collator(tokenizer)([rows[0], rows[1]])
    assert batch["input_ids"].shape == (2, 3, max(rows["length"][:2]))
    for i in range(2):
        for choice, ids in enumerate(rows[i]["input_ids"]):
            found = batch["input_ids"][i, choice][batch["attention_mask"][i, choice].bool()]
            assert found.tolist() == ids


def test_cut_rows_are_counted(data, bert) -> None:
    tokenizer = load_base(str(bert)).tokenizer
    uncut = prepare(data, TASK, tokenizer).validation
    cut = prepare(data, TASK, tokenizer, max_seq_length=9)
    longer = sum(length > 9 for length in uncut["length"][:])
    assert 0 < longer < 24
    assert cut.report.splits["validation"].truncated == longer


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"label": 3}, "line 2, column 'label': 3 is not the number or the letter of one of 3"),
        ({"label": -1}, "line 2, column 'label'"),
        ({"ending1": " "}, "line 2, column 'ending0, ending1, ending2'.*empty"),
        ({"context": ""}, "line 2, column 'context'.*empty text"),
    ],
)
def test_wrong_rows_are_named(change, message, data, bert, tmp_path) -> None:
    rows = [json.loads(line) for line in (data / "train.jsonl").read_text().splitlines()][:3]
    rows[1] |= change
    tokenizer = load_base(str(bert)).tokenizer
    with pytest.raises(DataError, match=message):
        prepare(write(tmp_path, train=rows, validation=rows), TASK, tokenizer)


@pytest.mark.parametrize("choices", [None, ["a"], "text"])
def test_a_first_row_without_choices_is_named(choices, tmp_path) -> None:
    task = describe_task("t", "multiple-choice", text_columns="q", choice_columns=["choices"])
    rows = [{"q": "b", "choices": choices, "label": 0}] * 2
    with pytest.raises(DataError, match="row 0 has . choices, but at least two are needed"):
        labeled_splits(write(tmp_path, train=rows), task)


def test_numbers_that_are_stored_as_real_ones_are_choices(tmp_path) -> None:
    fields = {"text_columns": "q", "choice_columns": ["a", "b"], "drop_missing": True}
    task = describe_task("t", "multiple-choice", **fields)
    rows = {"q": ["x", "y", "z"], "a": ["1"] * 3, "b": ["2"] * 3, "label": [1.0, None, 0.0]}
    Dataset.from_dict(rows).to_parquet(str(tmp_path / "train.parquet"))
    splits, task = labeled_splits(tmp_path, task)
    assert task.rows.check(splits, "source")["train"].tolist() == [1, 0]


def test_a_method_that_is_not_right_here_is_refused(bert, data, tmp_path) -> None:
    with pytest.raises(ConfigError, match="jachess .* multiple choice has several: use lnsr"):
        run(bert, data, tmp_path / "out", "jachess")
