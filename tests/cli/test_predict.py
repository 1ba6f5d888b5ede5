"""`smoothtune predict`, end to end."""

import csv
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from datasets import Dataset
from rich.console import Console
from safetensors.torch import load_file, save_file
from transformers import (
    BertConfig,
    BertForMultipleChoice,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
)
from typer.testing import CliRunner, Result

from helpers.tiny_folder import WORDS, tiny_bert, tiny_data
from smoothtune.cli import app
from smoothtune.config.run import load_config
from smoothtune.evaluation import load_predictor
from smoothtune.models.load import load_base
from smoothtune.run.train import train
from smoothtune.tasks.presets import describe_task
from smoothtune.tasks.unlabeled import unlabeled_rows

TEXTS = [" ".join(WORDS[i % 3 : 3 + (7 * i) % 6]) for i in range(1, 40)]
"""Of different lengths in no order."""


def call(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["predict", *map(str, arguments)])


def done(*arguments: object) -> Result:
    found = call(*arguments)
    assert found.exit_code == 0, found.output
    return found


def write_csv(path: Path, **columns: list) -> Path:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([columns, *zip(*columns.values(), strict=True)])
    return path


def write_lines(path: Path, rows: list[dict]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def read_csv(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def read_lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_bert(tmp_path_factory.mktemp("base") / "model")


@pytest.fixture(scope="module")
def trained(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `smoothtune train` writes, trained until "good" is fine and "bad" is poor."""
    folder = tmp_path_factory.mktemp("trained")
    options = {
        "task": "quality",
        "text_columns": ["text"],
        "data": str(tiny_data(folder / "data")),
        "model": str(base),
        "output_dir": str(folder / "tuned"),
        "max_steps": 60,
        "learning_rate": 5e-3,
        "cost_steps": 0,
    }
    train(load_config(None, ["eval_strategy=no"], options), console=Console(quiet=True))
    return folder / "tuned"


def saved(
    folder: Path, base: Path, kind: type, names: tuple[str, ...] = (), **more: object
) -> Path:
    """A random fine-tuned model of transformers."""
    config = BertConfig.from_pretrained(base, num_labels=len(names) or 2, **more)
    config.initializer_range = 1.0
    if names:
        config.id2label = dict(enumerate(names))
        config.label2id = {name: index for index, name in enumerate(names)}
    torch.manual_seed(1)
    kind(config).save_pretrained(folder)
    load_base(str(base)).tokenizer.save_pretrained(folder)
    return folder


def test_rows_without_labels_keep_their_order_and_columns(trained: Path, tmp_path: Path) -> None:
    moods = ["good" if i % 3 else "bad" for i in range(30)]
    texts = [f"{mood} {'the film ' * (i % 5)}" for i, mood in enumerate(moods)]
    ids = [f"{i:03}" for i in range(30)]
    data = write_csv(tmp_path / "new.csv", id=ids, text=texts, change=["-1.50"] * 30)
    found = done(trained, "--data", data, "--to", tmp_path / "out.csv", "--batch-size", 4)
    assert "labels fine, poor; 30 rows" in found.stdout
    assert "out.csv holds 30 rows with the column prediction" in found.stdout
    rows = read_csv(tmp_path / "out.csv")
    assert [(row["id"], row["text"]) for row in rows] == list(zip(ids, texts, strict=True))
    assert {row["change"] for row in rows} == {"-1.50"}
    expected = ["fine" if mood == "good" else "poor" for mood in moods]
    assert [row["prediction"] for row in rows] == expected


def test_predictions_are_those_of_the_predictor(trained: Path, tmp_path: Path) -> None:
    data = write_csv(tmp_path / "new.csv", text=TEXTS, label=["?"] * len(TEXTS))
    out = tmp_path / "out.csv"
    done(trained, "--data", data, "--to", out, "--probabilities", "--batch-size", 5)
    task = describe_task(text_columns="text", label_names=("fine", "poor"))
    base = load_base(str(trained))
    raw = Dataset.from_dict({"text": TEXTS})
    tokens, _ = unlabeled_rows(raw, task, base.tokenizer, "rows")
    logits = load_predictor(base, task).predict(tokens)
    shares = torch.tensor(logits).softmax(-1).numpy()
    rows = read_csv(out)
    assert list(rows[0]) == [
        *("text", "label", "prediction", "probability", "probability_fine", "probability_poor")
    ]
    assert {row["label"] for row in rows} == {"?"}
    for name, column in {"fine": 0, "poor": 1}.items():
        given = [float(row[f"probability_{name}"]) for row in rows]
        np.testing.assert_allclose(given, shares[:, column], atol=1e-5)
    assert [row["prediction"] for row in rows] == [("fine", "poor")[i] for i in logits.argmax(1)]
    np.testing.assert_allclose(
        [float(row["probability"]) for row in rows], shares.max(1), atol=1e-5
    )


def test_every_format_holds_the_same(trained: Path, tmp_path: Path) -> None:
    rows = [{"n": i, "more": {"a": [i]}, "text": text} for i, text in enumerate(TEXTS)]
    data = write_lines(tmp_path / "new.jsonl", rows)
    for suffix in ("csv", "jsonl", "parquet"):
        done(trained, "--data", data, "--to", tmp_path / f"out.{suffix}")
    lines = read_lines(tmp_path / "out.jsonl")
    assert [{name: row[name] for name in rows[0]} for row in lines] == rows
    assert Dataset.from_parquet(str(tmp_path / "out.parquet")).to_list() == lines
    cells = read_csv(tmp_path / "out.csv")
    assert [{**row, "n": int(row["n"]), "more": json.loads(row["more"])} for row in cells] == [
        {**row, "probability": str(row["probability"])} for row in lines
    ]


def test_objects_and_dates_are_kept(trained: Path, tmp_path: Path) -> None:
    rows = [
        {"text": "good", "day": "2020-01-01T10:00:00", "more": {"a": 1}},
        {"text": "bad", "day": "2020-01-02T10:00:00", "more": {"b": [2]}},
    ]
    data = write_lines(tmp_path / "new.jsonl", rows)
    done(trained, "--data", data, "--to", tmp_path / "out.jsonl")
    done(trained, "--data", data, "--to", tmp_path / "out.csv")
    lines = read_lines(tmp_path / "out.jsonl")
    assert [{name: row[name] for name in rows[0]} for row in lines] == rows
    assert [json.loads(row["more"]) for row in read_csv(tmp_path / "out.csv")] == [
        row["more"] for row in rows
    ]


def test_no_cell_is_a_formula_or_controls_a_terminal(trained: Path, tmp_path: Path) -> None:
    note = ["=1+1", "a\x1b[2Jb", "+good", "-2"]
    data = write_csv(tmp_path / "new.csv", text=["good film"] * 4, note=note)
    done(trained, "--data", data, "--to", tmp_path / "out.csv")
    written = [row["note"] for row in read_csv(tmp_path / "out.csv")]
    assert written == ["'=1+1", "a\\x1b[2Jb", "'+good", "-2"]


def test_a_file_is_replaced_only_if_asked(trained: Path, tmp_path: Path) -> None:
    data = write_csv(tmp_path / "new.csv", text=["good film"])
    out = tmp_path / "deep" / "out.csv"
    done(trained, "--data", data, "--to", out)
    out.write_text("mine")
    found = call(trained, "--data", data, "--to", out)
    assert found.exit_code == 2
    assert "out.csv exists; choose another name or replace it with --overwrite" in found.stderr
    assert out.read_text() == "mine"
    done(trained, "--data", data, "--to", out, "--overwrite")
    assert [row["prediction"] for row in read_csv(out)] == ["fine"]
    assert [path.name for path in out.parent.iterdir()] == ["out.csv"]
    found = call(trained, "--data", data, "--to", data, "--overwrite")
    assert found.exit_code == 2
    assert "is a folder or the data itself" in found.stderr


@pytest.mark.parametrize(
    ("rows", "more", "code", "message"),
    [
        ([{"sentence": "good"}], [], 3, "has no column 'text'; its columns are 'sentence'"),
        (
            [{"text": "good"}, {"text": None}],
            [],
            3,
            "line 2, column 'text': None is a missing text",
        ),
        ([{"text": 1}, {"text": 2}], [], 3, "line 1, column 'text': 1 is of type int, not text"),
        ([{"text": "a", "prediction": 1}], [], 3, "has a column 'prediction' already; rename it"),
        ([{"text": "a"}], ["--task", "other"], 2, "unknown task 'other'"),
        ([{"text": "a"}], ["--batch-size", "0"], 2, "--batch-size"),
        ([{"text": "a"}], ["--data", "none.csv"], 3, "none.csv: no such file"),
        ([{"text": "a"}], ["--to", "out.xlsx"], 2, "must end in .csv, .jsonl or .parquet"),
        ([{"text": "a"}], ["--task", "stsb"], 3, "has no column 'sentence1', 'sentence2'"),
    ],
)
def test_errors(
    trained: Path, tmp_path: Path, rows: list[dict], more: list[str], code: int, message: str
) -> None:
    data = write_lines(tmp_path / "new.jsonl", rows)
    found = call(trained, "--data", data, "--to", tmp_path / "out.csv", *more)
    assert found.exit_code == code, found.output
    assert message in found.stderr
    assert not (tmp_path / "out.csv").exists()


def test_a_missing_option_is_named(trained: Path, tmp_path: Path) -> None:
    data = write_lines(tmp_path / "new.jsonl", [{"text": "good"}])
    found = call(trained, "--data", data)
    assert (found.exit_code, found.stderr) == (2, "error: --to: is missing\n")


def test_an_empty_cell_of_csv_is_named(trained: Path, tmp_path: Path) -> None:
    data = write_csv(tmp_path / "new.csv", id=[1, 2, 3], text=["good", "12", ""])
    found = call(trained, "--data", data, "--to", tmp_path / "out.csv")
    assert found.exit_code == 3
    assert "line 4, column 'text': '' is an empty text" in found.stderr


def test_damaged_weights_predict_nothing(trained: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(trained, tmp_path / "model")
    weights = load_file(folder / "model.safetensors")
    weights["classifier.bias"][0] = float("nan")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    record = json.loads((folder / "result.json").read_text())
    del record["files"]
    (folder / "result.json").write_text(json.dumps(record))
    data = write_csv(tmp_path / "new.csv", text=["good"])
    found = call(folder, "--data", data, "--to", tmp_path / "out.csv")
    assert found.exit_code == 2
    assert "weight classifier.bias is not finite" in found.stderr


def test_scores_of_any_model_folder(base: Path, tmp_path: Path) -> None:
    folder = saved(tmp_path / "model", base, BertForSequenceClassification, ("score",))
    data = write_csv(tmp_path / "new.csv", first=TEXTS, second=TEXTS[::-1])
    options = ["--task", "x", "--text-column", "first", "--text-column", "second", "--data", data]
    done(folder, *options, "--to", tmp_path / "out.jsonl")
    rows = read_lines(tmp_path / "out.jsonl")
    model = BertForSequenceClassification.from_pretrained(folder).eval()
    tokenizer = load_base(str(base)).tokenizer
    with torch.no_grad():
        expected = [
            model(**tokenizer(*pair, return_tensors="pt")).logits.item()
            for pair in zip(TEXTS, TEXTS[::-1], strict=True)
        ]
    np.testing.assert_allclose([row["prediction"] for row in rows], expected, rtol=1e-4, atol=1e-5)
    assert list(rows[0]) == ["first", "second", "prediction"]
    found = call(folder, *options, "--to", tmp_path / "out.csv", "--probabilities")
    assert found.exit_code == 2
    assert "--probabilities: only for classes" in found.stderr


@pytest.mark.parametrize(
    ("names", "more", "message"),
    [
        (("a", "b"), {"problem_type": "multi_label_classification"}, "several labels"),
        (("a", "a"), {}, "id2label and label2id of the model do not agree"),
    ],
)
def test_models_whose_outputs_have_another_meaning_are_refused(
    base: Path, tmp_path: Path, names: tuple[str, ...], more: dict, message: str
) -> None:
    folder = saved(tmp_path / "model", base, BertForSequenceClassification, names, **more)
    data = write_csv(tmp_path / "new.csv", text=["good"])
    options = ["--task", "x", "--text-column", "text", "--data", data]
    found = call(folder, *options, "--to", tmp_path / "out.csv")
    assert found.exit_code == 2, found.output
    assert message in found.stderr


def test_tags_stand_at_their_words(base: Path, tmp_path: Path) -> None:
    names = ("O", "B-F", "I-F")
    folder = saved(tmp_path / "model", base, BertForTokenClassification, names)
    lists = [TEXTS[i].split() for i in (5, 2, 8, 3)]
    lists[1] = ["good", "well-made", "\u200b", "film"]  # three tokens, and none
    data = write_lines(tmp_path / "new.jsonl", [{"tokens": words} for words in lists])
    options = ["--task", "x", "--task-type", "token-classification", "--data", data]
    done(folder, *options, "--to", tmp_path / "out.jsonl", "--batch-size", 2)
    found = read_lines(tmp_path / "out.jsonl")
    model = BertForTokenClassification.from_pretrained(folder).eval()
    tokenizer = load_base(str(base)).tokenizer
    for words, row in zip(lists, found, strict=True):
        assert row["tokens"] == words
        encoded = tokenizer(words, is_split_into_words=True, return_tensors="pt")
        with torch.no_grad():
            tags = model(**encoded).logits[0].argmax(-1).tolist()
        ids = encoded.word_ids()
        expected = [names[tags[ids.index(i)]] if i in ids else None for i in range(len(words))]
        assert row["prediction"] == expected
    done(folder, *options, "--to", tmp_path / "out.csv")
    cells = [json.loads(row["prediction"]) for row in read_csv(tmp_path / "out.csv")]
    assert cells == [row["prediction"] for row in found]
    found = done(folder, *options, "--to", tmp_path / "cut.jsonl", "--max-seq-length", 4)
    assert "4 rows are longer than 4 tokens: cut" in found.stdout
    cut = read_lines(tmp_path / "cut.jsonl")
    assert [len(row["prediction"]) for row in cut] == [len(words) for words in lists]
    assert cut[0]["prediction"][2:] == [None] * (len(lists[0]) - 2)


def test_choices_are_numbered_from_0(base: Path, tmp_path: Path) -> None:
    folder = saved(tmp_path / "model", base, BertForMultipleChoice)
    rows = [{"q": "the film", "choices": [TEXTS[i], TEXTS[i + 1], TEXTS[-i - 1]]} for i in range(9)]
    data = write_lines(tmp_path / "new.jsonl", rows)
    options = ["--task", "x", "--task-type", "multiple-choice", "--text-column", "q"]
    options += ["--choice-column", "choices", "--data", data]
    done(folder, *options, "--to", tmp_path / "out.jsonl", "--probabilities", "--batch-size", 2)
    model = BertForMultipleChoice.from_pretrained(folder).eval()
    tokenizer = load_base(str(base)).tokenizer
    for row in read_lines(tmp_path / "out.jsonl"):
        pairs = [[row["q"]] * 3, row["choices"]]
        encoded = tokenizer(*pairs, padding=True, return_tensors="pt")
        with torch.no_grad():
            shares = model(**{k: v[None] for k, v in encoded.items()}).logits[0].softmax(-1)
        given = [row[f"probability_{number}"] for number in range(3)]
        np.testing.assert_allclose(given, shares.tolist(), atol=1e-4)
        assert row["prediction"] == np.argmax(given)  # two choices with the same text have a tie
        assert row["probability"] == max(given)


def test_answers_are_texts_of_their_contexts(base: Path, tmp_path: Path) -> None:
    folder = saved(tmp_path / "model", base, BertForQuestionAnswering)
    rows = [
        {
            "id": i,
            "question": WORDS[i % 10],
            "context": " ".join(WORDS[: 3 + i % 7]),
            "answers": "?",
        }
        for i in range(12)
    ]
    data = write_lines(tmp_path / "new.jsonl", rows)
    options = ["--task", "squad", "--data", data, "--max-seq-length", 10, "--doc-stride", 2]
    options += ["--batch-size", 3, "--max-answer-length", 1]
    found = done(folder, *options, "--to", tmp_path / "out.jsonl")
    assert "longer than 10 tokens: read in overlapping windows" in found.stdout
    written = read_lines(tmp_path / "out.jsonl")
    assert [{name: row[name] for name in rows[0]} for row in written] == rows
    short = [row for row in written if len(row["context"].split()) <= 6]  # one window
    model = BertForQuestionAnswering.from_pretrained(folder).eval()
    tokenizer = load_base(str(base)).tokenizer
    for row in short:
        encoded = tokenizer(row["question"], row["context"], return_tensors="pt")
        with torch.no_grad():
            output = model(**encoded)
        scores = (output.start_logits + output.end_logits)[
            0, 3:-1
        ]  # [CLS] question [SEP] ... [SEP]
        assert row["prediction"] == row["context"].split()[scores.argmax()]
    assert len(short) == 8
    assert all(row["prediction"] in row["context"].split() for row in written)


def test_sets_of_classes_have_the_coverage_that_was_asked_for(
    trained: Path, tmp_path: Path
) -> None:
    data = write_csv(tmp_path / "new.csv", text=[*TEXTS, "good film", "bad film"])
    arguments = (trained, "--data", data, "--to", tmp_path / "out.jsonl", "--coverage")
    told = call(*arguments, 0.9).stderr
    assert "holds no calibration.json" in told
    assert told.strip().endswith(f"smoothtune evaluate {trained} --calibration")
    out = ("--calibration", "--num-resamples", 20, "--output-dir", tmp_path / "e")
    assert CliRunner().invoke(app, ["evaluate", *map(str, (trained, *out))]).exit_code == 0
    kept = json.loads((trained / "calibration.json").read_text())
    assert len(kept["conformal_scores"]) == kept["fitted_on"] == 12
    done(*arguments, 0.9)
    rows = read_lines(tmp_path / "out.jsonl")
    assert all(row["prediction"] in row["prediction_set"] for row in rows)
    assert all(set(row["prediction_set"]) <= {"fine", "poor"} for row in rows)
    assert [row["prediction_set"] for row in rows[-2:]] == [["fine"], ["poor"]]
    told = call(*arguments, 0.95, "--overwrite")
    assert "needs 19 held-out rows, not 12" in told.stderr
    found = call(*arguments, 0.9, "--overwrite", "--task-type", "token-classification")
    assert found.exit_code != 0
    other = write_csv(tmp_path / "other.csv", text=TEXTS[1:], label=["fine", "poor"] * 19)
    out = ("--calibration", "--data", other, "--num-resamples", 20, "--output-dir", tmp_path / "t")
    found = CliRunner().invoke(app, ["evaluate", *map(str, (trained, *out))])
    assert "calibration.json stays as it is: it was fitted on other rows." in found.stdout
    assert json.loads((trained / "calibration.json").read_text()) == kept
    (trained / "calibration.json").unlink()
