"""Other data sets: what their labels mean, and training on a share of them."""

import csv
import json
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from datasets import ClassLabel, Dataset
from typer.testing import CliRunner

from helpers.linear_network import rotation
from helpers.tiny_folder import WORDS
from smoothtune.cli import app
from smoothtune.config.evaluation import OtherData, load_settings
from smoothtune.errors import ConfigError, DataError
from smoothtune.evaluation.predictor import load_predictor
from smoothtune.evaluation.transfer import (
    other_rows,
    relabeled,
    split_for_further,
    trained_further,
)
from smoothtune.models.load import load_base
from smoothtune.tasks.presets import describe_task

TASK = describe_task(text_columns="text", label_names=("poor", "fine"))


@pytest.fixture(scope="module")
def reversed_data(tmp_path_factory) -> Path:
    """Sentences as in training, under other column names; 0 is the good class here."""
    file, draw = tmp_path_factory.mktemp("other") / "other.csv", random.Random(1)
    with file.open("w", newline="") as opened:
        writer = csv.writer(opened)
        writer.writerow(["sentence", "bad_one"])
        for index in range(120):
            words = draw.choices(WORDS[2:], k=draw.randint(3, 8))
            words.insert(0, "good" if index % 2 else "bad")
            writer.writerow([" ".join(words), 1 - index % 2])
    return file


def other(file: Path, labels: dict[str, str] | None) -> OtherData:
    return OtherData(str(file), ("sentence",), "bad_one", labels)


def test_labels_mean_what_is_said(tokenizer, reversed_data: Path) -> None:
    def labels(meaning):
        rows, _ = other_rows(
            other(reversed_data, meaning), TASK, tokenizer, max_seq_length=16, vocab_size=14
        )
        return np.asarray(rows["labels"][:])

    as_they_are, mapped = labels(None), labels({"0": "fine", "1": "poor"})
    assert np.array_equal(mapped, 1 - as_they_are)
    assert np.array_equal(labels({"0": "1", "1": "0"}), mapped)


def test_another_number_of_texts_is_refused(tokenizer, reversed_data) -> None:
    pair = OtherData(str(reversed_data), ("sentence", "bad_one"), "bad_one")
    with pytest.raises(DataError, match="2 text columns are named, but task custom reads 1"):
        other_rows(pair, TASK, tokenizer, max_seq_length=16, vocab_size=14)


def test_names_of_a_class_label_can_be_given_a_meaning() -> None:
    data = Dataset.from_dict({"text": ["a", "b"], "label": [1, 0]})
    data = data.cast_column("label", ClassLabel(names=["nice", "hateful"]))
    labels = {"nice": "fine", "hateful": "poor"}
    assert relabeled(data, labels, TASK, "tweets")["label"][:] == ["poor", "fine"]


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ({"0": "fine"}, "line 2, column 'bad_one': label 1 is not among"),
        ({"0": "great", "1": "poor"}, "'great', but the classes of task custom are poor, fine"),
    ],
)
def test_what_cannot_be_read_is_said(tokenizer, reversed_data, labels, message) -> None:
    with pytest.raises(DataError, match=message):
        other_rows(other(reversed_data, labels), TASK, tokenizer, max_seq_length=16, vocab_size=14)


def test_split_keeps_the_classes_in_proportion_and_loses_nothing(rows) -> None:
    many = Dataset.from_dict({"labels": [0] * 80 + [1] * 20, "example_id": list(range(100))})
    some, rest = split_for_further(many, 0.1, seed=3)
    assert sorted(some["example_id"][:] + rest["example_id"][:]) == list(range(100))
    assert (sum(some["labels"][:]), len(some)) == (2, 10)
    with pytest.raises(DataError, match="cannot be trained on"):
        split_for_further(rows, 0.1, seed=3)


def test_a_model_of_merged_adapters_is_trained_further(linear_predictor, rows) -> None:
    """Merging leaves no weight that is trained."""
    predictor = linear_predictor([rotation(0)])
    predictor.model.requires_grad_(False)
    trained = trained_further(predictor, rows, num_train_epochs=1)
    assert not torch.equal(trained.model.head.weight, predictor.model.head.weight)
    assert not any(weight.requires_grad for weight in predictor.model.parameters())


def test_further_training_turns_a_reversed_meaning(tiny_folder, reversed_data) -> None:
    base = load_base(str(tiny_folder / "tuned"))
    predictor = load_predictor(base, TASK)
    before = {name: weight.clone() for name, weight in predictor.model.state_dict().items()}
    rows, _ = other_rows(
        other(reversed_data, None), TASK, base.tokenizer, max_seq_length=16, vocab_size=14
    )
    some, rest = split_for_further(rows, 0.5, seed=0)
    torch.manual_seed(7)
    drawn = torch.rand(1)
    torch.manual_seed(7)
    trained = trained_further(predictor, some, num_train_epochs=80, learning_rate=2e-3)
    assert torch.equal(torch.rand(1), drawn)
    scores = [p.main_metric(p.predict(rest), rest) for p in (predictor, trained)]
    assert scores[0] < 0.3 < 0.7 < scores[1]
    assert all(torch.equal(w, before[n]) for n, w in predictor.model.state_dict().items())


def test_the_command_scores_both_and_keeps_them(tiny_folder, reversed_data, tmp_path) -> None:
    def call(*more: object, to: str = "out"):
        return CliRunner().invoke(
            app,
            [
                *("evaluate", str(tiny_folder / "tuned"), "--output-dir", str(tmp_path / to)),
                *("--num-resamples", "20", "--ood", f"reviews={reversed_data}"),
                *("--ood-set", "reviews.text_columns=sentence"),
                *("--ood-set", "reviews.label_column=bad_one"),
                *map(str, more),
            ],
        )

    meaning = ("--ood-set", "reviews.labels={0: fine, 1: poor}")
    found = call(*meaning, "--further-share", 0.25)
    assert found.exit_code == 0, found.output
    parts = json.loads((tmp_path / "out" / "evaluation.json").read_text())["parts"]
    whole, further = parts["ood: reviews"], parts["ood: reviews after 25% of it"]
    assert whole["numbers"]["metrics"]["accuracy"]["value"] > 0.7
    assert {"accuracy", "f1", "roc_auc"} <= set(whole["numbers"]["metrics"])
    rows = whole["numbers"]["rows"]
    trained_on = further["numbers"]["rows_trained_on"]
    assert trained_on == rows // 4
    assert further["numbers"]["rows"] == rows - trained_on
    assert further["numbers"]["metrics_before"]["accuracy"]["value"] > 0.7
    again = call(*meaning, "--further-share", 0.25)
    assert "ood: reviews after 25% of it: done before, kept" in again.stdout
    few = call(*meaning, "--further-share", 0.001, to="few")  # no row
    assert few.exit_code == 0, few.output
    parts = json.loads((tmp_path / "few" / "evaluation.json").read_text())["parts"]
    assert (
        "0% of 120 rows cannot be trained on" in parts["ood: reviews after 0.1% of it"]["skipped"]
    )
    assert parts["ood: reviews"] == whole | {"seconds": parts["ood: reviews"]["seconds"]}
    otherwise = call()
    assert otherwise.exit_code == 2
    assert "was evaluated before with" in otherwise.output


def test_other_data_are_checked_before_anything_is_computed(
    tiny_folder, reversed_data, tmp_path
) -> None:
    out = tmp_path / "out"
    options = ["--output-dir", str(out), "--num-resamples", "20", "--max-eval-samples", "10"]
    sets = ["--ood", f"a={reversed_data}", "--ood", f"again={tiny_folder / 'data' / 'train.csv'}"]
    command = ["evaluate", str(tiny_folder / "tuned"), *options, *sets]
    found = CliRunner().invoke(app, [*command, "--ood", "gone=gone.csv"])
    assert found.exit_code == 3
    assert "--ood a: " in found.stderr
    assert "--ood-set a.text_columns=COLUMN" in found.stderr
    assert "--ood gone: gone.csv: no such file" in found.stderr
    assert "--ood again" not in found.stderr
    assert not (out / "evaluation.json").exists()
    columns = ["--ood-set", "a.text_columns=sentence", "--ood-set", "a.label_column=bad_one"]
    found = CliRunner().invoke(app, [*command, *columns, "--ood-set", "again.max_rows=5"])
    assert found.exit_code == 0, found.output
    parts = json.loads((out / "evaluation.json").read_text())["parts"]
    assert [parts[f"ood: {name}"]["numbers"]["rows"] for name in ("a", "again")] == [10, 5]
    assert parts["metrics"]["numbers"]["rows"] == 10


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (["tweets.labels={0: 1}"], "data set 'tweets'"),
        (["yelp.split=test"], "--ood-set yelp.split=test: .* field 'split'"),
        (["yelp.sep=;;"], "--ood-set yelp.sep=;;: ood.yelp.sep: must be one character"),
        (["yelp.encoding=utf-80"], "is no encoding that Python knows"),
        (["yelp.labels=3"], "labels: cannot be 3"),
    ],
)
def test_wrong_fields_are_refused(fields, message) -> None:
    with pytest.raises(ConfigError, match=message):
        load_settings(ood=["yelp=yelp.csv"], ood_set=fields)


def test_a_tab_is_written_as_for_the_other_data() -> None:
    assert load_settings(["model=m"], ood=["a=a.csv"], ood_set=[r"a.sep=\t"]).ood["a"].sep == "\t"


def test_a_meaning_is_a_name_before_it_is_a_number() -> None:
    task = describe_task(text_columns="text", label_names=("1", "2"))
    data = Dataset.from_dict({"text": ["a", "b"], "label": ["bad", "good"]})
    assert relabeled(data, {"bad": "1", "good": "2"}, task, "x")["label"][:] == ["1", "2"]
    with pytest.raises(DataError, match="'0', but the classes of task custom are 1, 2"):
        relabeled(data, {"bad": "0", "good": "1"}, task, "x")
