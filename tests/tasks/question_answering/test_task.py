"""Question answering from rows to scores, in training and in evaluation."""

import json
import random
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from datasets import Dataset, load_dataset
from rich.console import Console
from transformers import (
    AutoModelForQuestionAnswering,
    DataCollatorWithPadding,
    Trainer,
    TrainingArguments,
)
from typer.testing import CliRunner

from helpers.tiny_tasks import squad_data, squad_row, write
from smoothtune.cli import app
from smoothtune.config.run import load_config
from smoothtune.core.quantities import QUANTITIES
from smoothtune.errors import ConfigError, DataError
from smoothtune.models.load import load_base, load_classifier
from smoothtune.run.train import train
from smoothtune.tasks.prepare import prepare
from smoothtune.tasks.presets import TASKS
from smoothtune.tasks.question_answering import squad

SQUAD = TASKS["squad"]
METHODS = ["plain", "lnsr", "smart", "jachess", "uegr", "mixout"]
METHODS += [pytest.param(name, marks=pytest.mark.slow) for name in ("sift", "r3f")]  # as smart


@pytest.fixture(scope="session")
def data(tmp_path_factory):
    return squad_data(tmp_path_factory.mktemp("squad") / "squad")


def run(bert, data, out, *methods, **options):
    settings = {
        "task": "squad",
        "data": str(data),
        "model": str(bert),
        "output_dir": str(out),
        "max_steps": 2,
    }
    fixed = ["max_seq_length=16", "doc_stride=4", "cost_steps=0", "eval_strategy=no"]
    config = load_config(None, [*fixed, "logging_steps=1"], settings | options, methods)
    return train(config, console=Console(quiet=True))


@pytest.fixture(scope="session")
def tuned(bert, data, tmp_path_factory):
    """A model that has learned the rule of `squad_row`."""
    out = tmp_path_factory.mktemp("tuned") / "tuned"
    result = run(bert, data, out, max_steps=250, learning_rate=5e-3)
    return out, result


def test_it_learns_and_the_folder_loads_with_transformers(tuned, data) -> None:
    folder, result = tuned
    assert result["metrics"]["f1"] > 0.9 > 0.6 > result["trivial_baseline"]
    assert list(result["metrics"]) == ["f1", "exact_match"]
    assert result["data"]["splits"]["train"]["labels"]["answers outside every window"] == 0
    assert result["config"]["doc_stride"] == 4
    base = load_base(str(folder))
    model = AutoModelForQuestionAnswering.from_pretrained(folder).eval()
    task = replace(SQUAD, doc_stride=4)
    prepared = prepare(data, task, base.tokenizer, max_seq_length=32)
    rows, right = prepared.validation, 0
    for row in rows:  # one window each, decoded by hand
        inputs = {k: torch.tensor([row[k]]) for k in base.tokenizer.model_input_names if k in row}
        with torch.no_grad():
            found = model(**inputs)
        first, words = row["context_start"], row["context"].split()
        start, end = found.start_logits[0, first:-1], found.end_logits[0, first:-1]
        pairs = [(start[s] + end[e], s, e) for s in range(len(words)) for e in range(s, len(words))]
        _, s, e = max(pairs)
        right += " ".join(words[s : e + 1]) == row["answers"][0]
    predictions = SQUAD.head.predictions(_outputs(model, base, rows), rows)
    statistics = SQUAD.scorer.example_statistics(predictions, rows)
    assert statistics[:, 0].sum() == right
    card = (folder / "README.md").read_text()
    assert "pipeline_tag: question-answering" in card
    assert "AutoModelForQuestionAnswering" in card


def _outputs(model, base, rows):
    batch = SQUAD.head.collator(base.tokenizer)([rows[i] for i in range(len(rows))])
    names = {"input_ids", "attention_mask", "token_type_ids"}
    with torch.no_grad():
        found = model(**{name: batch[name] for name in names & set(batch)})
    return {name: found[name].numpy() for name in SQUAD.head.outputs}


@pytest.mark.parametrize("method", METHODS)
def test_every_kind_of_method_trains(method, bert, data, tmp_path) -> None:
    few = {"max_steps": 5, "max_train_samples": 16, "max_eval_samples": 8}
    result = run(bert, data, tmp_path / "out", method, **few)
    assert 0 <= result["metrics"]["f1"] <= 1
    logs = [log for log in result["log_history"] if "loss/task" in log or "loss" in log]
    terms = [log[f"loss/{method}"] for log in logs if f"loss/{method}" in log]
    assert bool(terms) == (method not in ("plain", "mixout"))
    known = 2 if method == "jachess" else 1  # updates, before a share and a clip are
    assert not terms or len(terms) > known
    assert all(value > 0 for value in terms[known:])


def prepared_rows(bert, folder, rows, *, length=12, stride=2, **spans):
    task = replace(SQUAD, doc_stride=stride, **spans)
    write(folder, train=rows, validation=rows)
    base = load_base(str(bert))
    return task, prepare(folder, task, base.tokenizer, max_seq_length=length)


def test_the_best_window_wins_and_equals_the_scores_of_squad(bert, tmp_path) -> None:
    """Random logits on several windows: F1 and exact match by `squad_metrics` on the same texts."""
    draw, rng = random.Random(1), np.random.default_rng(0)
    rows = [squad_row(i, draw) for i in range(20)]
    task, prepared = prepared_rows(bert, tmp_path, rows)
    windows = prepared.validation
    assert len(windows) > len(rows)
    shape = len(windows), max(windows["length"])
    outputs = {name: rng.normal(size=shape) for name in SQUAD.head.outputs}
    predictions = task.head.predictions(outputs, windows)
    texts = {}
    for question in range(len(rows)):
        candidates = []
        for number in np.flatnonzero(np.array(windows["example_id"]) == question):
            row, first = windows[int(number)], windows[int(number)]["context_start"]
            for s, begin in enumerate(row["offset_start"]):
                for e in range(s, len(row["offset_end"])):
                    score = outputs["start_logits"][number, first + s]
                    score += outputs["end_logits"][number, first + e]
                    text = rows[question]["context"][begin : row["offset_end"][e]]
                    candidates.append((score, text))
        texts[str(question)] = max(candidates)[1]
    assert task.scorer.answers(predictions, windows) == list(texts.values())
    answers = {str(i): row["answers"]["text"] for i, row in enumerate(rows)}
    expected = squad.squad_metrics(texts, answers)
    found = task.scorer.scores(task.scorer.example_statistics(predictions, windows))
    assert {name: 100 * value for name, value in found.items()} == pytest.approx(expected)


def test_no_answer_is_given_where_its_least_score_is_higher(bert, tmp_path) -> None:
    draw = random.Random(2)
    rows = [squad_row(i, draw, answerable=i > 0) for i in range(3)]
    task, prepared = prepared_rows(bert, tmp_path, rows, length=32, version_2_with_negative=True)
    windows = prepared.validation
    assert prepared.report.splits["train"].labels["no answer"] == 1
    outputs = {name: np.zeros((3, max(windows["length"]))) for name in SQUAD.head.outputs}
    outputs["start_logits"][:, 0] = [1.0, -1.0, 0.5]  # minus the best span's 0: 1, -1, 0.5
    predictions = task.head.predictions(outputs, windows)
    empty = [text == "" for text in task.scorer.answers(predictions, windows)]
    assert empty == [True, False, True]
    higher = replace(task, null_score_diff_threshold=0.7)
    empty = [text == "" for text in higher.scorer.answers(predictions, windows)]
    assert empty == [True, False, False]
    assert task.scorer.example_statistics(predictions, windows)[0].tolist() == [1, 1]


def test_the_confidence_in_no_answer_is_its_own(bert, tmp_path) -> None:
    """A model that is sure of no answer, and right, is not one that has no confidence."""
    draw = random.Random(2)
    rows = [squad_row(i, draw, answerable=i > 0) for i in range(2)]
    task, prepared = prepared_rows(bert, tmp_path, rows, length=32, version_2_with_negative=True)
    windows = prepared.validation
    outputs = {name: np.zeros((2, max(windows["length"]))) for name in SQUAD.head.outputs}
    for values in outputs.values():
        values[0, 0] = 9.0
    predictions = task.head.predictions(outputs, windows)
    confidence, right = task.scorer.confidence(predictions, windows)
    count = len(windows[0]["offset_start"])
    assert confidence[0] == pytest.approx((np.exp(9) / (np.exp(9) + count)) ** 2)
    assert right[0] == 1
    # without unanswerable questions the span counts, however low it is
    confidence, _ = SQUAD.scorer.confidence(predictions, windows)
    assert confidence[0] == pytest.approx((1 / (np.exp(9) + count)) ** 2)


def test_the_baseline_is_the_best_constant_answer(bert, tmp_path) -> None:
    draw = random.Random(3)
    rows = [squad_row(i, draw) for i in range(12)]
    _, prepared = prepared_rows(bert, tmp_path, rows)
    answers = [row["answers"]["text"][0] for row in rows]
    expected = max(answers.count(word) for word in set(answers)) / 12
    assert SQUAD.scorer.baseline(prepared.validation) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        ({"text": ["plot"], "answer_start": [1]}, "line 2, column 'answers'.*is not at"),
        ({"text": ["plot"], "answer_start": [None]}, "line 2, column 'answers'.*is not at"),
        ({"text": ["w"], "answer_start": [-3]}, "line 2, column 'answers'.*is not at"),
        ({"text": ["plot"], "answer_start": []}, "as many text as answer_start"),
        ({"text": [], "answer_start": []}, "is empty.*set version_2_with_negative"),
        ({"text": [" "], "answer_start": [4]}, "empty text"),
        (["plot"], "is not a mapping with the lists text and answer_start"),
        ({"text": "plot", "answer_start": 1}, "is not a mapping with the lists text and answer"),
        ({"text": [1990], "answer_start": [1]}, "empty text, or none at all"),
        ({"text": ["the"], "answer_start": [0.0]}, "is not at its answer_start, in characters"),
        ({"text": ["the"], "answer_start": ["0"]}, "is not at its answer_start, in characters"),
    ],
)
def test_wrong_answers_are_named(answers, message, bert, tmp_path) -> None:
    rows = [squad_row(i, random.Random(i)) for i in range(2)]
    rows[1]["answers"] = answers
    if not isinstance(answers, dict) or message.startswith(("is not", "empty text, or")):
        rows[0]["answers"] = answers  # of one type
    with pytest.raises(DataError, match=message):
        prepared_rows(bert, tmp_path, rows)


def test_a_missing_column_is_named(bert, tmp_path) -> None:
    rows = [{"question": "film", "context": "the film"}]
    with pytest.raises(DataError, match="split 'train': has no column 'answers'"):
        prepared_rows(bert, tmp_path, rows)


@pytest.mark.parametrize(
    ("options", "overrides", "message"),
    [
        ({"task": "rte"}, ["doc_stride=8"], "doc_stride.*needs task_type: question-answering"),
        ({"task": "mine", "task_type": "question-answering"}, [], "data.*is missing"),
        ({"task": "squad", "unlabeled": "x"}, [], "unlabeled.*not with question-answering"),
        ({"task": "squad"}, ["choice_columns=[a]"], "needs task_type: multiple-choice"),
    ],
)
def test_fields_that_do_not_fit(options, overrides, message) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config(None, overrides, {"output_dir": "out"} | options)


def test_windows_are_384_tokens_unless_said() -> None:
    assert load_config(None, (), {"task": "squad", "output_dir": "x"}).max_seq_length == 384
    short = load_config(None, ["max_seq_length=64"], {"task": "squad", "output_dir": "x"})
    assert short.max_seq_length == 64
    assert load_config(None, (), {"task": "rte", "output_dir": "x"}).max_seq_length == 128


@pytest.mark.parametrize("task", ["squad", "rte"])
def test_questions_come_in_random_order_unless_said(task) -> None:
    options = {"task": task, "output_dir": "x"}
    own = "random" if task == "squad" else "group_by_length"
    assert load_config(None, (), options).train_sampling_strategy == own
    other = load_config(None, ["train_sampling_strategy=group_by_length"], options)
    assert other.train_sampling_strategy == "group_by_length"


def test_the_seeded_head_is_a_span_head(bert) -> None:
    model, new = load_classifier(load_base(str(bert)), SQUAD, seed=0)
    assert new == ["qa_outputs.bias", "qa_outputs.weight"]
    assert model.config.num_labels == 2


def plain_script(model_folder, data, out, steps, length, stride):
    """Weights after a Trainer script of one's own, with the rows in the order of smoothtune."""
    base = load_base(str(model_folder))
    model, _ = load_classifier(base, SQUAD, seed=42)  # the same new head
    raw = load_dataset("json", data_files=str(data / "train.jsonl"), split="train")
    features = []
    for row in raw.select(np.random.default_rng(42).permutation(len(raw))[:24]):
        encoded = base.tokenizer(
            row["question"],
            row["context"],
            truncation="only_second",
            max_length=length,
            stride=stride,
            return_overflowing_tokens=True,
        )
        start = row["answers"]["answer_start"][0]
        last = start + len(row["answers"]["text"][0]) - 1
        for number in range(len(encoded["input_ids"])):
            places = [encoded.char_to_token(number, char, 1) for char in (start, last)]
            places = [0, 0] if None in places else places
            names = [name for name in base.tokenizer.model_input_names if name in encoded]
            inputs = {name: encoded[name][number] for name in names}
            features.append(inputs | {"start_positions": places[0], "end_positions": places[1]})

    arguments = TrainingArguments(
        str(out),
        max_steps=steps,
        learning_rate=3e-4,
        per_device_train_batch_size=8,
        seed=42,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
        dataloader_pin_memory=False,
    )
    collate = DataCollatorWithPadding(base.tokenizer)
    trainer = Trainer(
        model=model,
        args=arguments,
        train_dataset=Dataset.from_list(features),
        data_collator=collate,
    )
    trainer.train()
    return model.state_dict()


@pytest.mark.parametrize("model", ["tiny", pytest.param("minilm", marks=pytest.mark.slow)])
def test_plain_training_is_that_of_a_script_with_transformers_alone(
    model, bert, data, tmp_path
) -> None:
    folder = bert if model == "tiny" else "minilm"
    options = {"max_steps": 4, "learning_rate": 3e-4, "max_train_samples": 24}
    run(folder, data, tmp_path / "ours", **options)
    ours = AutoModelForQuestionAnswering.from_pretrained(tmp_path / "ours").state_dict()
    theirs = plain_script(folder, data, tmp_path / "theirs", 4, 16, 4)
    assert ours.keys() == theirs.keys()
    for name, weight in theirs.items():
        torch.testing.assert_close(ours[name], weight, rtol=0, atol=1e-6)


# --- evaluation ----------------------------------------------------------------------------------


def call(*arguments):
    return CliRunner().invoke(app, ["evaluate", *map(str, arguments), "--num-resamples", "20"])


@pytest.fixture(scope="module")
def evaluated(tuned, tmp_path_factory):
    folder = tmp_path_factory.mktemp("evaluated")
    draw = random.Random(9)
    other = write(folder / "other", validation=[squad_row(i, draw) for i in range(10)])
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "matplotlib", None)
        found = call(tuned[0], "--all", "--ood", f"other={other}", "--output-dir", folder / "all")
    assert found.exit_code == 0, found.output
    return folder / "all", json.loads((folder / "all" / "evaluation.json").read_text())


def test_metrics_are_those_of_training(evaluated, tuned) -> None:
    numbers = evaluated[1]["parts"]["metrics"]["numbers"]
    for name, value in tuned[1]["metrics"].items():
        found = numbers["metrics"][name]
        assert found["value"] == pytest.approx(value, abs=1e-6)
        assert found["low"] <= found["value"] <= found["high"]
    assert numbers["train_metrics"] == pytest.approx(tuned[1]["train_metrics"], abs=1e-6)
    assert (numbers["rows"], numbers["train_rows"]) == (32, 32)


def test_every_part_is_there_or_says_why_not(evaluated) -> None:
    parts = evaluated[1]["parts"]
    curves = {name: list(part["curves"]) for name, part in parts.items()}
    assert curves == {
        "metrics": [],
        "calibration": ["reliability"],
        "robustness": ["gaussian", "in_manifold", "fgm", "pgd"],
        "corruption": [],
        "substitution": [],
        "smoothness": ["attenuation", "distance", "expansion", "spectrum"],
        "drift": ["cosine", "distance", "cka"],
        "effect": ["gradient_spread", "noise_sensitivity"],
        "ood: other": [],
    }
    assert "not for question-answering" in parts["corruption"]["skipped"]
    effect = parts["effect"]["numbers"]
    derivatives = {"layer Jacobian", "layer Hessian", "logit Jacobian", "logit Hessian"}
    assert set(effect["not measured"]) == derivatives
    assert derivatives | set(effect["quantities"]) == set(QUANTITIES)
    assert parts["ood: other"]["numbers"]["rows"] == 10
    clean = parts["robustness"]["curves"]["gaussian"]["numbers"]["clean"]
    f1 = parts["metrics"]["numbers"]["metrics"]["f1"]["value"]
    assert clean == pytest.approx(f1)
    assert parts["calibration"]["numbers"]["mean_correct"] == pytest.approx(
        parts["metrics"]["numbers"]["metrics"]["exact_match"]["value"]
    )


def test_two_evaluations_can_be_compared(evaluated, tuned, bert, data, tmp_path) -> None:
    run(bert, data, tmp_path / "weak")
    found = call(tmp_path / "weak", "--output-dir", tmp_path / "weak_evaluated")
    assert found.exit_code == 0, found.output
    page = tmp_path / "report.md"
    report = CliRunner().invoke(
        app, ["report", str(evaluated[0]), str(tmp_path / "weak_evaluated"), "--to", str(page)]
    )
    assert report.exit_code == 0, report.output
    assert "beyond the noise" in page.read_text()
    assert "exact\\_match" in page.read_text()


def test_a_foreign_model_is_evaluated_on_a_named_task(tuned, data, tmp_path) -> None:
    foreign = tmp_path / "foreign"
    AutoModelForQuestionAnswering.from_pretrained(tuned[0]).save_pretrained(foreign)
    load_base(str(tuned[0])).tokenizer.save_pretrained(foreign)
    options = ["--data", data, "--output-dir", tmp_path / "out", "--max-seq-length", 16]
    named = ["--task", "mine", "--task-type", "question-answering", "--set", "doc_stride=4"]
    found = call(foreign, *options, *named)
    assert found.exit_code == 0, found.output
    content = json.loads((tmp_path / "out" / "evaluation.json").read_text())
    f1 = content["parts"]["metrics"]["numbers"]["metrics"]["f1"]["value"]
    assert f1 == pytest.approx(tuned[1]["metrics"]["f1"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["--task-type", "qa"],
            "--task-type: must be 'text-classification'",
        ),
        (["--set", "stride=4"], "did you mean 'doc_stride'"),
        (["--set", "doc_stride=0"], "must be greater than or equal to 1, not 0"),
        (["--set", "version_2_with_negative=1"], "must be a valid boolean, not 1"),
    ],
)
def test_wrong_options_are_named(options, message, tuned, tmp_path) -> None:
    found = call(tuned[0], "--output-dir", tmp_path / "out", *options)
    assert found.exit_code == 2
    assert message in found.output
