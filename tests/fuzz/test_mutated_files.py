"""300 mutated files, each read by the commands that read it.

A command ends with a message of the project and its exit code, or it has read what other libraries
(csv, json, pyarrow, PyYAML) read in the file: no traceback, no hang, nothing taken wrongly.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
import random
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
import yaml
from rich.console import Console
from transformers import AutoModelForSequenceClassification, AutoTokenizer
from typer.testing import CliRunner

from helpers import mutants
from smoothtune.cli import app
from smoothtune.config.run import RunConfig, load_config
from smoothtune.errors import ConfigError
from smoothtune.run.inputs import read_inputs
from smoothtune.run.output import newest_checkpoint
from smoothtune.run.train import train
from smoothtune.study.config import load_study
from smoothtune.study.run import run_study

pytestmark = [
    pytest.mark.slow,
    # what libraries warn of is no error for users
    pytest.mark.filterwarnings("ignore"),
]
SILENT = Console(quiet=True)
TIMES = int(os.environ.get("SMOOTHTUNE_FUZZ", "300")) / 300
"""More on demand."""
SECONDS = 60
"""After which a command hangs."""


def draws(kind: str, count: int) -> Iterator[tuple[int, random.Random]]:
    """A generator for each mutant."""
    for number in range(round(count * TIMES)):
        yield number, random.Random(f"{kind} {number}")


@contextmanager
def no_hang() -> Iterator[None]:
    def end(*_: Any) -> None:
        raise AssertionError(f"it takes more than {SECONDS} seconds")

    before = signal.signal(signal.SIGALRM, end)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def smoothtune(*words: object) -> str | None:
    """What a command prints; None if it ends with a message and an exit code."""
    with no_hang():
        result = CliRunner().invoke(app, list(map(str, words)))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise AssertionError(f"a traceback of {words}") from result.exception
    assert "Traceback" not in result.output
    assert result.exit_code in (0, 1, 2, 3)
    assert result.exit_code == 0 or result.output.strip(), "an error without words"
    return result.output if result.exit_code == 0 else None


def told(kind: str, number: int, content: bytes) -> str:
    return f"{kind}, mutant {number}: {content[:2000]!r}"


# --- run and study files ---------------------------------------------------------------------

RUN = """\
task: quality
data: {inputs}/data
text_columns: [text]
label_column: label
model: {inputs}/model
output_dir: out
methods:
  lnsr:
    weight: 1.5
learning_rate: 1e-3
weight_decay: 0.01
max_steps: 4
max_seq_length: 16
per_device_train_batch_size: 8
eval_strategy: "no"
bf16: false
seed: 7
"""
STUDY = """\
task: quality
data: {inputs}/data
text_columns: [text]
model: {inputs}/model
learning_rate: [1e-3, 1e-2]
max_steps: 2
per_device_train_batch_size: 8
eval_strategy: "no"
methods: [plain, lnsr]
seeds: [0, 1]
more_epochs: null
max_eval_samples: 8
title: A study
"""


def is_read_as(text: Any, value: Any) -> bool:
    """Whether what YAML's texts say is the value of a setting."""
    if isinstance(text, dict):
        return isinstance(value, dict) and all(is_read_as(t, value.get(k)) for k, t in text.items())
    if isinstance(value, list | tuple):
        listed = text if isinstance(text, list) else [text]
        return len(listed) == len(value) and all(map(is_read_as, listed, value))
    if isinstance(text, list) and len(text) == 1:  # of a study: what varies
        text = text[0]
    if isinstance(text, list):
        return False
    if value is None:
        return text in ("", "~", "null", "Null", "NULL")
    if isinstance(value, bool):
        return text.lower() == str(value).lower()
    if isinstance(value, int | float):
        return text.isascii() and "_" not in text and float(text) == value
    return text == value


def plainly(content: bytes) -> Any:
    """A YAML file, all scalars as texts."""
    return yaml.load(content.decode("utf-8-sig"), yaml.BaseLoader)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def yaml_mutants(kind: str, text: str, count: int) -> Iterator[tuple[int, bytes]]:
    whole = mutants.as_a_whole(text)
    for number, draw in draws(kind, count):
        yield number, whole[number] if number < len(whole) else mutants.of_yaml(text, draw)


def test_runs(inputs: Path, place: Path) -> None:
    used = 0
    for number, content in yaml_mutants("run", RUN.format(inputs=inputs), 60):
        (file := place / "run.yaml").write_bytes(content)
        output = smoothtune("validate", *["--fields-only"] * (number % 3 > 0), file)
        if output is None:
            if number % 3 > 0:
                with pytest.raises(ConfigError):
                    load_config(file)
            continue
        used += 1
        assert smoothtune("train", "--dry-run", file) or number % 3, told("run", number, content)
        read = load_config(file).model_dump()
        for key, text in plainly(content).items():
            assert is_read_as(text, read[key]), (key, text, read[key], number)
    assert 5 < used < 50 * max(TIMES, 1)


def test_studies(inputs: Path, place: Path) -> None:
    used = 0
    for number, content in yaml_mutants("study", STUDY.format(inputs=inputs), 40):
        (file := place / "study.yaml").write_bytes(content)
        if smoothtune("validate", "--fields-only", file) is None:
            continue
        used += 1
        fields = plainly(content)
        if not {"methods", "seeds", "more_epochs", "title"} & fields.keys():
            continue  # it is a run now
        dry = smoothtune("study", file, "--dry-run")
        study = load_study(file)
        for key, text in fields.items():
            if hasattr(study.config, key) and key not in ("methods", "task", "model"):
                assert is_read_as(text, getattr(study.config, key)), (key, text, number)
            for run in study.runs.values() if key in RunConfig.model_fields else ():
                value = getattr(run, key)
                one_of = isinstance(text, list) and any(is_read_as(t, value) for t in text)
                if key not in ("methods", "text_columns", "task", "model", "data"):
                    assert is_read_as(text, value) or one_of, (key, text, value, number)
        assert dry is None or study.name in dry or "runs" in dry
    assert 5 < used < 35 * max(TIMES, 1)


# --- rows ------------------------------------------------------------------------------------


def csv_rows(content: bytes, sep: str, *, quoted: bool) -> list[dict[str, Any]]:
    """As the csv module reads them; a row that ends early has None."""
    text = io.StringIO(content.decode("utf-8-sig"), newline="")
    quoting = csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE
    lines = [line for line in csv.reader(text, delimiter=sep, quoting=quoting) if line]
    header, *rows = [line for line in lines if len(line) > 1 or line[0].strip()]
    names = [name or f"Unnamed: {index}" for index, name in enumerate(header)]
    assert len(set(names)) == len(names), "columns of one name"
    assert all(len(row) <= len(names) for row in rows), "a row that is too long"
    return [dict(zip(names, row + [None] * len(names), strict=False)) for row in rows]


def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    assert len(dict(pairs)) == len(pairs), "a name that stands twice"
    return dict(pairs)


def json_rows(content: bytes) -> list[dict[str, Any]]:
    text = content.decode("utf-8-sig")
    if text.lstrip().startswith("["):
        rows = json.loads(text, object_pairs_hook=once)
    else:
        rows = [json.loads(r, object_pairs_hook=once) for r in text.split("\n") if r.strip()]
    names = dict.fromkeys(name for row in rows for name in row)
    return [{name: row.get(name) for name in names} for row in rows]


def rows_of(file: Path) -> list[dict[str, Any]]:
    """The rows of a file, read without smoothtune."""
    content = file.read_bytes()
    match file.suffix:
        case ".csv":
            return csv_rows(content, ",", quoted=True)
        case ".tsv":
            return csv_rows(content, "\t", quoted=False)
        case ".parquet":
            return pq.read_table(io.BytesIO(content)).to_pylist()
    return json_rows(content)


def means(label: Any, number: float, names: tuple[str, ...]) -> bool:
    """Whether a label is what the model learns."""
    if not names:
        return float(label) == pytest.approx(number, rel=1e-6)
    name = names[int(number)]
    return str(label) == name or (type(label) is float and str(int(label)) == name)


def check_training_rows(config: RunConfig, rows: list[dict[str, Any]], tokenizer: Any) -> None:
    read = read_inputs(config, SILENT)
    names, seen = read.task.known_label_names, []
    for split in (read.prepared.train, read.prepared.validation):
        for example in split:
            row = rows[example["example_id"]]
            seen.append(example["example_id"])
            expected = tokenizer(row["text"], truncation=True, max_length=config.max_seq_length)
            assert isinstance(row["text"], str)
            assert list(example["input_ids"]) == expected["input_ids"]
            assert means(row["label"], float(example["labels"]), names), (row, example["labels"])
    assert len(set(seen)) == len(seen)
    texts = {rows[number]["text"] for number in seen}
    assert texts == {row["text"] for row in rows}, "rows are missing"


def same_value(written: Any, value: Any) -> bool:
    if hasattr(value, "isoformat"):
        return written == value.isoformat()
    return written == value or (isinstance(value, list) and list(map(list, value)) == written)


@pytest.fixture(scope="module")
def trained(inputs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trained model with checkpoints, named otherwise than where it was made."""
    folder = tmp_path_factory.mktemp("trained")
    (file := folder / "run.yaml").write_text(
        RUN.format(inputs=inputs) + "save_strategy: steps\nsave_steps: 1\ncost_steps: 0\n"
    )
    train(load_config(file, options={"output_dir": str(folder / "model")}), console=SILENT)
    return folder / "model"


def row_mutants(kind: str, rows: mutants.Rows, count: int) -> Iterator[tuple[int, bytes]]:
    for number, draw in draws(kind, count):
        mutated = mutants.of_rows(rows, draw) if draw.random() < 0.8 else rows
        match kind:
            case "csv" | "tsv":
                content = mutants.as_csv(mutated, "," if kind == "csv" else "\t")
                whole = mutants.as_a_whole(content.decode("utf-8", "replace"))
                if draw.random() < 0.2:
                    content = draw.choice(whole)
                elif draw.random() < 0.4:
                    content = mutants.in_bytes(content, draw)
            case "jsonl":
                content = mutants.as_jsonl(mutated, draw)
                if draw.random() < 0.3:
                    content = mutants.in_bytes(content, draw)
            case _:
                content = mutants.as_parquet(mutated, draw)
        yield number, content


@pytest.mark.parametrize(
    ("kind", "count"), [("csv", 40), ("tsv", 10), ("jsonl", 40), ("parquet", 40)]
)
def test_rows(kind: str, count: int, inputs: Path, trained: Path, place: Path) -> None:
    rows: mutants.Rows = csv_rows((inputs / "data" / "train.csv").read_bytes(), ",", quoted=True)
    rows = [row | {"more": number} for number, row in enumerate(rows * 6)]
    tokenizer = AutoTokenizer.from_pretrained(inputs / "model")
    used = predicted = 0
    for number, content in row_mutants(kind, rows, count):
        (file := place / f"rows-{number}.{kind}").write_bytes(content)
        text = RUN.format(inputs=inputs).replace(f"{inputs}/data", str(file))
        (run := place / "run.yaml").write_text(text)
        what = told(kind, number, content)
        if smoothtune(*(("validate",), ("train", "--dry-run"))[number % 2], run) is not None:
            used += 1
            try:
                check_training_rows(load_config(run), rows_of(file), tokenizer)
            except (AssertionError, ValueError, TypeError, LookupError) as error:
                raise AssertionError(what) from error
        to = place / f"predictions-{number}.jsonl"
        if smoothtune("predict", trained, "--data", file, "--to", to) is not None:
            predicted += 1
            written = [json.loads(line) for line in to.read_text().split("\n")[:-1]]
            expected = rows_of(file)
            assert len(written) == len(expected), what
            for row, original in zip(written, expected, strict=True):
                assert row.pop("prediction") in ("fine", "poor"), what
                row.pop("probability")
                assert row.keys() == original.keys(), what
                wrong = [k for k in row if not same_value(row[k], original[k])]
                assert not wrong, (what, [(row[k], original[k]) for k in wrong])
    assert used > count * TIMES / 20
    assert predicted > count * TIMES / 10


# --- records ---------------------------------------------------------------------------------


def json_mutants(kind: str, content: bytes, count: int) -> Iterator[tuple[int, bytes]]:
    for number, draw in draws(kind, count):
        if number % 4 == 0:
            yield number, mutants.in_bytes(content, draw)
        else:
            mutated = mutants.of_json(json.loads(content), draw)
            yield number, mutated.encode("utf-8", "surrogatepass")


def test_results(inputs: Path, trained: Path, place: Path) -> None:
    """Predictions are those of transformers alone, with the texts and length that the file says."""
    model = AutoModelForSequenceClassification.from_pretrained(trained).eval()
    tokenizer = AutoTokenizer.from_pretrained(trained)
    data, used = inputs / "data" / "validation.csv", 0
    intact = (trained / "result.json").read_bytes()
    shutil.copytree(trained, copy := place / "model")
    for number, content in json_mutants("result", intact, 25):
        (copy / "result.json").write_bytes(content)
        to = place / f"{number}.jsonl"
        if smoothtune("predict", copy, "--data", data, "--to", to) is None:
            continue
        used += 1
        config = json.loads(content)["config"]
        column, length = config["text_columns"], config.get("max_seq_length") or 128
        column = column if isinstance(column, str) else column[0]
        rows = rows_of(data)
        batch = tokenizer(
            [row[column] for row in rows],
            truncation=True,
            max_length=length,
            padding=True,
            return_tensors="pt",
        )
        with torch.no_grad():
            classes = model(**batch).logits.argmax(1).tolist()
        written = [json.loads(line)["prediction"] for line in to.read_text().splitlines()]
        expected = [model.config.id2label[each] for each in classes]
        assert written == expected, told("result", number, content)
    assert used > 3 * TIMES


def test_evaluations(trained: Path, place: Path) -> None:
    assert smoothtune("evaluate", trained, "--output-dir", "whole", "--num-resamples", 20)
    intact = (place / "whole" / "evaluation.json").read_bytes()
    shutil.copytree(place / "whole", copy := place / "copy")
    used = 0
    for number, content in json_mutants("evaluation", intact, 20):
        (copy / "evaluation.json").write_bytes(content)
        again = ("evaluate", trained, "--output-dir", copy, "--num-resamples", 20)
        what = told("evaluation", number, content)
        if smoothtune("report", copy, "whole", "--to", to := place / f"{number}.md") is not None:
            used += 1
            read = json.loads(content)
            score = read["parts"]["metrics"]["numbers"]["metrics"][read["headline"]]["value"]
            assert f"{score:.4f}" in to.read_text() or f"{score:.3f}" in to.read_text(), what
        if number % 4 == 1 and smoothtune(*again) is not None:
            kept = json.loads((copy / "evaluation.json").read_text())
            assert kept["headline"] == "accuracy", what
    assert used > 3 * TIMES


def signed(content: dict[str, Any]) -> bytes:
    """A record with the checksum of its content."""
    record = {key: value for key, value in content.items() if key != "sha256"}
    text = json.dumps(record, sort_keys=True, allow_nan=True)
    return json.dumps(record | {"sha256": hashlib.sha256(text.encode()).hexdigest()}).encode()


def verifies(content: bytes) -> bool:
    """Whether a record's checksum is that of its content."""
    try:
        record = json.loads(content)
        return json.loads(signed(record))["sha256"] == record["sha256"]
    except (ValueError, TypeError, AttributeError, LookupError, RecursionError):
        return False


LAYOUT = """\
layout:
  - table: "1"
    rows: [{name: plain, method: plain}, {name: LNSR, method: lnsr}]
    columns: [{name: quality, task: quality}]
"""


@pytest.fixture(scope="module")
def finished(inputs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study of four runs that are done, and its file beside it."""
    folder = tmp_path_factory.mktemp("finished")
    text = STUDY.format(inputs=inputs).replace("[1e-3, 1e-2]", "1e-2")
    (file := folder / "study.yaml").write_text(text + "evaluate: [effect]\n" + LAYOUT)
    run_study(load_study(file), folder / "out", jobs=1, console=SILENT)
    return folder


def table(folder: Path) -> dict[str, dict[str, str]]:
    with (folder / "results.csv").open(newline="") as lines:
        return {row["cell"]: row for row in csv.DictReader(lines)}


def test_cells(finished: Path, place: Path) -> None:
    """A record counts if its checksum is right, with what it says; no other does."""
    cell = sorted((finished / "out" / "cells").glob("*.json"))[0]
    intact, used = cell.read_bytes(), 0
    for number, content in json_mutants("cell", intact, 25):
        if number % 3 and number % 4:  # a record that somebody wrote again
            content = signed(json.loads(content))
        shutil.rmtree(place / "out", ignore_errors=True)
        shutil.copytree(finished / "out", out := place / "out")
        (out / "cells" / cell.name).write_bytes(content)
        what, study = told("cell", number, content), finished / "study.yaml"
        status = smoothtune("study", "--status", out, "--json")
        assert status is not None, what
        done = json.loads(status[status.index("{") :])["done"]
        report = smoothtune("study", study, "--output-dir", out, "--report")
        if number % 3 == 1:
            smoothtune("reproduce", study, "--output-dir", out, "--report")
        assert done == 3 + (done == 4 and verifies(content)), what
        if report is None or done == 3:
            continue
        used += 1
        record = json.loads(content)
        row = table(out)[cell.stem]
        score = record["result"]["metrics"][record["result"]["headline"]]
        assert float(row["score"]) == pytest.approx(score), what
    assert used > 2 * TIMES


def test_lists_of_cells(finished: Path, place: Path) -> None:
    intact, used = (finished / "out" / "study.json").read_bytes(), 0
    shutil.copytree(finished / "out", out := place / "out")
    for number, content in json_mutants("study.json", intact, 15):
        (out / "study.json").write_bytes(content)
        what, study = told("study.json", number, content), finished / "study.yaml"
        status = smoothtune("study", "--status", out, "--json")
        smoothtune("study", study, "--output-dir", out, "--report")
        if status is not None:
            used += 1
            counts = json.loads(status[status.index("{") :])
            total = sum(count for name, count in counts.items() if name != "output_dir")
            assert total == len(json.loads(content)["cells"]), what
    assert used > 2 * TIMES


def test_checkpoints(trained: Path, inputs: Path, place: Path) -> None:
    """A checkpoint of which a file has changed is passed over."""
    last = trained / "checkpoints" / "checkpoint-4"
    names = sorted(p.name for p in last.iterdir() if p.is_file())
    accepted = 0
    for number, draw in draws("checkpoint", 25):
        name = "manifest.json" if number % 3 == 0 else draw.choice(names)
        shutil.rmtree(place / "model", ignore_errors=True)
        shutil.copytree(trained, copy := place / "model")
        shutil.copytree(last, copy / "checkpoints" / "checkpoint-3")  # as if two were kept
        file = copy / "checkpoints" / "checkpoint-4" / name
        content = file.read_bytes()
        if name == "manifest.json" and number % 2:
            content = mutants.of_json(json.loads(content), draw).encode("utf-8", "surrogatepass")
        else:
            content = mutants.in_bytes(content, draw)
        changed = content != file.read_bytes()
        file.write_bytes(content)
        found = newest_checkpoint(copy).folder
        assert found is not None
        what = told(name, number, content)
        if found.name == "checkpoint-3":
            assert changed, what
            continue
        accepted += 1
        manifest = json.loads((found / "manifest.json").read_text())
        for listed, entry in manifest["files"].items():
            sha = hashlib.sha256((found / listed).read_bytes()).hexdigest()
            assert sha == entry["sha256"], what
        assert name == "manifest.json" or not changed, what
    assert accepted < 10 * max(TIMES, 1)
