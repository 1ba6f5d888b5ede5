"""Token classification from words to entity scores."""

import json
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from datasets import ClassLabel, Dataset, Features, Sequence, Value
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from seqeval.metrics import f1_score, precision_score, recall_score
from seqeval.scheme import BILOU
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import (
    DataCollatorForTokenClassification,
    PreTrainedTokenizerFast,
    pipeline,
)
from typer.testing import CliRunner

from helpers.tiny_tasks import tag_data, write
from smoothtune.cli import app
from smoothtune.config.run import load_config
from smoothtune.core.quantities import QUANTITIES
from smoothtune.data.batches import Collator
from smoothtune.errors import DataError, ModelError
from smoothtune.evaluation.predictor import Predictor
from smoothtune.models.load import load_base, load_classifier
from smoothtune.run.train import train
from smoothtune.tasks.prepare import prepare
from smoothtune.tasks.presets import describe_task
from smoothtune.tasks.token_classification import TagHead

TASK = describe_task("names", "token-classification")


@pytest.fixture(scope="session")
def data(tmp_path_factory):
    return tag_data(tmp_path_factory.mktemp("tags") / "tags")


@pytest.fixture(scope="session")
def tuned(bert, data, tmp_path_factory):
    out = tmp_path_factory.mktemp("tuned") / "tuned"
    options = {
        "task": "names",
        "task_type": "token-classification",
        "data": str(data),
        "model": str(bert),
        "output_dir": str(out),
        "max_steps": 40,
        "learning_rate": 1e-2,
    }
    fixed = ["cost_steps=2", "eval_strategy=no"]
    return out, train(load_config(None, fixed, options, ["r3f"]), console=Console(quiet=True))


def test_it_learns_and_the_folder_works_in_a_pipeline(tuned) -> None:
    folder, result = tuned
    assert result["metrics"]["f1"] > 0.9
    assert result["trivial_baseline"] == 0
    assert list(result["metrics"]) == ["f1", "precision", "recall", "accuracy"]
    found = pipeline("token-classification", model=str(folder))("the good film was very")
    tags = {entity["word"]: entity["entity"] for entity in found if entity["entity"] != "O"}
    assert tags == {"good": "B-F", "film": "I-F"}
    assert "pipeline_tag: token-classification" in (folder / "README.md").read_text()


@pytest.mark.usefixtures("no_plots")
def test_every_part_is_there_or_says_why_not(tuned, tmp_path) -> None:
    arguments = [tuned[0], "--all", "--output-dir", tmp_path / "out", "--num-resamples", 20]
    found = CliRunner().invoke(app, ["evaluate", *map(str, arguments)])
    assert found.exit_code == 0, found.output
    parts = json.loads((tmp_path / "out" / "evaluation.json").read_text())["parts"]
    for name, value in tuned[1]["metrics"].items():
        assert parts["metrics"]["numbers"]["metrics"][name]["value"] == pytest.approx(value)
    assert list(parts["robustness"]["curves"]) == ["gaussian", "in_manifold", "fgm", "pgd"]
    for name in ("calibration", "corruption", "substitution"):
        assert parts[name]["skipped"].startswith("not for token-classification: ")
    effect = parts["effect"]["numbers"]
    assert "many tags" in effect["not measured"].pop("calibration error")
    derivatives = {"layer Jacobian", "layer Hessian", "logit Jacobian", "logit Hessian"}
    assert set(effect["not measured"]) == derivatives
    assert {*derivatives, *effect["quantities"], "calibration error"} == set(QUANTITIES)
    page = tmp_path / "page.md"
    report = CliRunner().invoke(app, ["report", str(tmp_path / "out"), "--to", str(page)])
    assert report.exit_code == 0, report.output


def pieces(folder):
    """A tokenizer that cuts words into letters."""
    vocabulary = {token: i for i, token in enumerate(["[PAD]", "[CLS]", "[SEP]", "[UNK]", *"abc"])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    specials = [("[CLS]", 1), ("[SEP]", 2)]
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=specials
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="[PAD]")


def test_the_first_token_of_a_word_has_its_tag(tmp_path) -> None:
    rows = [{"tokens": ["ab", "c", "abc"], "tags": ["O", "B-X", "I-X"]}] * 2
    prepared = prepare(write(tmp_path, train=rows, validation=rows), TASK, pieces(tmp_path))
    assert prepared.task.label_names == ("B-X", "I-X", "O")
    assert prepared.train["labels"][0] == [-100, 2, -100, 0, 1, -100, -100, -100]
    assert prepared.report.splits["train"].labels == {"B-X": 2, "I-X": 2, "O": 2}
    cut = prepare(tmp_path, TASK, pieces(tmp_path), max_seq_length=6)
    assert cut.train["labels"][0] == [-100, 2, -100, 0, 1, -100]
    assert cut.report.splits["train"].truncated == 2


def test_batches_may_be_padded_beyond_the_longest_row(bert, data, monkeypatch) -> None:
    """As they are on a GPU, to multiples of 8."""
    base = load_base(str(bert))
    prepared = prepare(data, TASK, base.tokenizer)
    model, _ = load_classifier(base, prepared.task, seed=0)
    predictor = Predictor(model.eval(), base.tokenizer, prepared.task)
    expected = predictor.predict(prepared.validation)
    longer = partial(Collator, base.tokenizer, 32, padding=DataCollatorForTokenClassification)
    monkeypatch.setattr(TagHead, "collator", lambda head, tokenizer: longer())
    assert expected.shape[1] < 32
    assert (predictor.predict(prepared.validation) == expected).all()


def test_names_come_from_the_columns_type(tmp_path) -> None:
    names = ["O", "B-X", "I-X"]
    types = {"tokens": Sequence(Value("string")), "tags": Sequence(ClassLabel(names=names))}
    table = Dataset.from_dict({"tokens": [["a", "b"]], "tags": [[1, 2]]}, features=Features(types))
    assert TASK.with_labels(table).label_names == tuple(names)


def test_tags_without_entities_are_scored_by_accuracy(tmp_path) -> None:
    rows = [{"tokens": ["a", "b"], "tags": ["NOUN", "VERB"]}] * 2
    task = prepare(write(tmp_path, train=rows, validation=rows), TASK, pieces(tmp_path)).task
    assert task.metrics == ("accuracy",)


NAMES = ("O", "B-X", "I-X", "B-Y", "I-Y")


@given(st.integers(0, 10_000))
def test_scores_are_those_of_seqeval(seed) -> None:
    """Also over a resample, in which sentences occur twice or not at all."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 7, size=5)
    gold = [rng.integers(0, 5, size=n) for n in lengths]
    predicted = np.zeros((5, 8), int)
    labels = []
    for row, tags in enumerate(gold):
        labels.append([-100, *tags.tolist(), -100])
        wrong = rng.random(len(tags)) < 0.4
        predicted[row, 1 : 1 + len(tags)] = np.where(wrong, rng.integers(0, 5, len(tags)), tags)
    rows = Dataset.from_dict({"labels": labels, "example_id": list(range(5))})
    task = TASK.with_labels(Dataset.from_dict({"tokens": [["a"] * 5], "tags": [list(NAMES)]}))
    order = {name: task.label_names.index(name) for name in NAMES}
    renumber = np.array([order[name] for name in NAMES])
    rows = Dataset.from_dict(
        {
            "labels": [[t if t < 0 else int(renumber[t]) for t in row] for row in labels],
            "example_id": list(range(5)),
        }
    )
    statistics = task.scorer.example_statistics(renumber[predicted], rows)
    drawn = rng.integers(0, 5, size=5)
    found = task.scorer.scores(statistics[drawn])
    true = [[NAMES[t] for t in gold[row]] for row in drawn]
    guess = [[NAMES[t] for t in predicted[row, 1 : 1 + lengths[row]]] for row in drawn]
    assert found["f1"] == pytest.approx(f1_score(true, guess, zero_division=0))
    assert found["precision"] == pytest.approx(precision_score(true, guess, zero_division=0))
    assert found["recall"] == pytest.approx(recall_score(true, guess, zero_division=0))
    right = [a == b for x, y in zip(true, guess, strict=True) for a, b in zip(x, y, strict=True)]
    assert found["accuracy"] == pytest.approx(np.mean(right))


def test_the_last_word_and_the_only_one_of_an_entity_may_be_l_and_u() -> None:
    names = ("B-X", "I-X", "L-X", "O", "U-X")
    task = describe_task("names", "token-classification", label_names=names)
    rows = Dataset.from_dict({"labels": [[4, 4, 0, 2, 0, 2]], "example_id": [0]})
    found = task.scorer.score(np.array([[4, 3, 0, 2, 3, 3]]), rows)
    gold = [["U-X", "U-X", "B-X", "L-X", "B-X", "L-X"]]
    guess = [["U-X", "O", "B-X", "L-X", "O", "O"]]
    of_seqeval = f1_score(gold, guess, mode="strict", scheme=BILOU)
    assert found["f1"] == pytest.approx(of_seqeval) == pytest.approx(2 / 3)


def test_left_padding_is_refused(data, bert) -> None:
    """Predictions are read from the left."""
    tokenizer = load_base(str(bert)).tokenizer
    tokenizer.padding_side = "left"
    with pytest.raises(ModelError, match="token-classification needs .* pads on the right"):
        prepare(data, TASK, tokenizer)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"tokens": ["a", "b"], "tags": ["O"]}, "line 2, column 'tags'.*has 1 tags for 2 words"),
        ({"tokens": [], "tags": []}, "line 2, column 'tokens'.*is no list of words"),
        ({"tokens": ["a", " "], "tags": ["O", "O"]}, "holds a word that is empty"),
        ({"tokens": ["a", "b"], "tags": ["O", "B-Z"]}, "'B-Z', which is no label.*B-X"),
    ],
)
def test_wrong_rows_are_named(row, message, tmp_path) -> None:
    good = {"tokens": ["a", "b"], "tags": ["B-X", "O"]}
    write(tmp_path, train=[good, good], validation=[good, row])
    with pytest.raises(DataError, match=message):
        prepare(tmp_path, TASK, pieces(tmp_path))


def test_numbers_with_gaps_are_refused(tmp_path) -> None:
    rows = [{"tokens": ["a", "b"], "tags": [0, 2]}]
    data = write(tmp_path, train=rows, validation=rows)
    with pytest.raises(DataError, match=r"gaps, found 0, 2; if .* names, give label_type: text"):
        prepare(data, TASK, pieces(tmp_path))
    named = prepare(data, replace(TASK, label_type="text"), pieces(tmp_path))
    assert named.task.label_names == ("0", "2")


def test_lists_that_are_written_as_texts_are_refused(tmp_path) -> None:
    told = "write JSON Lines or Parquet with lists of words and of tags; CSV holds no lists"
    (tmp_path / "train.csv").write_text("tokens,tags\n" + "\"['a', 'b']\",\"['O', 'B-X']\"\n" * 3)
    with pytest.raises(DataError, match=f"column 'tags': holds no lists of tags; {told}"):
        prepare(tmp_path / "train.csv", TASK, pieces(tmp_path))
    rows = [{"tokens": "a b", "tags": ["O", "B-X"]}]
    with pytest.raises(DataError, match=f"'a b' is a text and no list of words; {told}"):
        prepare(write(tmp_path / "rows", train=rows, validation=rows), TASK, pieces(tmp_path))


@pytest.mark.parametrize("blank", [True, False])
def test_a_tokenizer_that_needs_a_blank_is_refused(blank, data, bert) -> None:
    tokenizer = load_base(str(bert)).tokenizer
    by_bytes = pre_tokenizers.ByteLevel(add_prefix_space=blank)
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence([by_bytes])
    if blank:
        assert prepare(data, TASK, tokenizer)
        return
    with pytest.raises(ModelError, match="add_prefix_space=True"):
        prepare(data, TASK, tokenizer)
