"""Parts of the training rows."""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from datasets import Dataset
from rich.console import Console

from helpers.tiny_tasks import choice_data, squad_data, tag_data, topic_data
from smoothtune.config.run import load_config
from smoothtune.errors import DataError
from smoothtune.run.inputs import read_inputs
from smoothtune.study.parts import TrainingRows, training_rows, write_parts, write_split
from smoothtune.tune.split import check_parts, parts_of

TEXTS = [f"text {number}" for number in range(53)]


def held_out(training: TrainingRows, parts: np.ndarray, folder: Path) -> tuple[list, list]:
    write_split(training, parts == 0, folder)
    return tuple(
        pq.read_table(folder / f"{name}.parquet").to_pylist() for name in ("train", "validation")
    )


def rows_of(texts: list[str], labels: list) -> TrainingRows:
    rows = Dataset.from_dict({"text": texts, "label": labels})
    classes = np.unique(labels, return_inverse=True)[1]
    return TrainingRows(rows, texts, classes, "fingerprint")


def test_classes_are_spread_evenly() -> None:
    labels = ["rare"] * 13 + ["common"] * 40
    parts = parts_of(TEXTS, labels, 5, seed=3)
    assert set(parts) == set(range(5))
    for name, count in (("rare", 13), ("common", 40)):
        sizes = Counter(part for part, label in zip(parts, labels, strict=True) if label == name)
        assert all(abs(size - count / 5) < 2 for size in sizes.values()), (name, sizes)


def test_scores_are_spread_evenly() -> None:
    scores = [float(number) for number in range(50)]
    parts = parts_of(TEXTS[:50], scores, 5, seed=0)
    means = [np.mean([s for s, p in zip(scores, parts, strict=True) if p == k]) for k in range(5)]
    assert np.ptp(means) < 5  # of 50 scores at random they differ by about 12


def test_a_cut_depends_on_its_seed_alone() -> None:
    labels = ["a", "b"] * 20
    one, same, other = (parts_of(TEXTS[:40], labels, 4, seed) for seed in (1, 1, 2))
    assert (one == same).all()
    assert (one != other).any()


def test_rows_with_the_same_texts_share_a_part() -> None:
    texts = [f"text {number // 3}" for number in range(60)]
    parts = parts_of(texts, None, 5, seed=0)
    assert all(len({*parts[start : start + 3]}) == 1 for start in range(0, 60, 3))


def test_a_part_and_the_rest_are_all_rows(tmp_path: Path) -> None:
    training = rows_of(TEXTS, ["a", "b"] * 26 + ["a"])
    train, validation = held_out(training, parts_of(TEXTS, training.labels, 5, 0), tmp_path)
    assert sorted(row["text"] for row in train + validation) == sorted(TEXTS)
    assert 9 <= len(validation) <= 12


def test_a_class_of_one_row_stays_in_training(tmp_path: Path) -> None:
    labels = ["a"] * 26 + ["b"] * 26 + ["only"]
    parts = parts_of(TEXTS, labels, 5, seed=0)
    parts[-1] = 0
    train, validation = held_out(rows_of(TEXTS, labels), parts, tmp_path)
    assert "only" in {row["label"] for row in train}
    assert "only" not in {row["label"] for row in validation}


def test_too_few_rows(tmp_path: Path) -> None:
    parts = parts_of(TEXTS[:8], ["a", "b"] * 4, 5, seed=0)
    with pytest.raises(DataError, match="8 training rows are too few"):
        write_split(rows_of(TEXTS[:8], ["a", "b"] * 4), parts == 0, tmp_path)
    assert json.dumps([path.name for path in tmp_path.iterdir()]) == "[]"


def test_a_part_that_is_too_small_is_found_among_others() -> None:
    """Three classes have a single row; in the second cut two of them are in one part."""
    labels = [["a", "b"][row % 2] for row in range(19)] + ["c", "d", "e"]
    training = rows_of(TEXTS[:22], labels)
    first = [(42, part) for part in range(3)]
    check_parts(training, 5, first)
    with pytest.raises(DataError, match="22 training rows are too few: .* has 3 that can be"):
        check_parts(training, 5, first + [(43, part) for part in range(5)])


TYPES = {
    "token-classification": (tag_data, {}),
    "question-answering": (squad_data, {"max_seq_length": 24, "doc_stride": 4}),
    "multi-label-classification": (topic_data, {"text_columns": ["text"]}),
    "multiple-choice": (choice_data, {"text_columns": ["context"], "choice_columns": ["endings"]}),
}


@pytest.mark.parametrize("kind", TYPES)
def test_parts_of_every_type_of_task_can_be_trained_on(
    kind: str, inputs: Path, tmp_path: Path
) -> None:
    make, fields = TYPES[kind]
    data = make(tmp_path / "data")
    common = {"task": "own", "task_type": kind, "data": str(data), "output_dir": "unset"}
    config = load_config(options=common | {"model": str(inputs / "model")} | fields)
    training = training_rows(config)
    lines = (data / "train.jsonl").read_text().splitlines()
    assert len(training.texts) == len(lines)
    parts = parts_of(training.texts, training.labels, 4, 0)
    write_split(training, parts == 1, tmp_path / "part")
    part = config.model_copy(update={"data": str(tmp_path / "part")})
    prepared = read_inputs(part, Console(quiet=True)).prepared
    rows = [
        len(np.unique(split["example_id"][:])) for split in (prepared.train, prepared.validation)
    ]
    assert sum(rows) == len(lines)
    assert rows[1] >= 4


def test_rows_with_a_tag_that_no_other_part_has_stay_in_training(
    inputs: Path, tmp_path: Path
) -> None:
    data = tag_data(tmp_path / "data")
    lines = [json.loads(line) for line in (data / "train.jsonl").read_text().splitlines()]
    lines[5]["tags"][0] = "B-RARE"
    (data / "train.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    common = {"task": "own", "task_type": "token-classification", "output_dir": "unset"}
    config = load_config(options=common | {"data": str(data), "model": str(inputs / "model")})
    training = training_rows(config)
    parts = np.arange(len(lines)) % 4
    write_split(training, parts == parts[5], tmp_path / "part")
    part = config.model_copy(update={"data": str(tmp_path / "part")})
    prepared = read_inputs(part, Console(quiet=True)).prepared
    assert "B-RARE" in prepared.task.label_names
    assert len(prepared.validation) == (parts == parts[5]).sum() - 1


NUMBERED = {
    "text-classification": {"text_columns": ["text"], "label_column": "label"},
    "token-classification": {"label_column": "tags"},
    "multi-label-classification": {"text_columns": ["text"], "label_column": "labels"},
}


@pytest.mark.parametrize("kind", NUMBERED)
def test_a_sample_that_lacks_a_number_of_a_label(kind: str, inputs: Path, tmp_path: Path) -> None:
    """Label 1 is that of one row, which the sample lacks."""
    numbers = [1 if row == 5 else row % 2 * 2 for row in range(60)]
    rows = [
        {"text": f"good {row}", "label": number}
        | {"tokens": ["good", str(row)], "tags": [number, 0], "labels": [number, 3]}
        for row, number in enumerate(numbers)
    ]
    rows[6]["label"] = 3
    rows[6]["tags"] = [3, 0]
    (tmp_path / "data").mkdir()
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    for name in ("train", "validation"):
        (tmp_path / "data" / f"{name}.jsonl").write_text(lines)
    common = {"task": "own", "task_type": kind, "data": str(tmp_path / "data")}
    common |= {"output_dir": "unset", "model": str(inputs / "model"), "max_train_samples": 40}
    config = load_config(options=common | NUMBERED[kind] | {"seed": 1})
    training = training_rows(config)
    assert rows[5]["text"] not in training.rows["text"][:]
    parts = parts_of(training.texts, training.labels, 4, 0)
    write_split(training, parts == 0, tmp_path / "part")
    changes = {"data": str(tmp_path / "part"), "max_train_samples": None}
    task = read_inputs(config.model_copy(update=changes), Console(quiet=True)).prepared.task
    assert task.label_names == ("0", "1", "2", "3")


def test_other_labels_are_other_rows(inputs: Path, tmp_path: Path) -> None:
    """What was trained on the former ones is not taken for them."""
    data = tag_data(tmp_path / "data")
    common = {"task": "own", "task_type": "token-classification", "output_dir": "unset"}
    options = common | {"data": str(data), "model": str(inputs / "model")}
    before = training_rows(load_config(options=options)).fingerprint
    assert training_rows(load_config(options=options)).fingerprint == before
    rows = [json.loads(line) for line in (data / "train.jsonl").read_text().splitlines()]
    rows[3]["tags"] = ["O"] * len(rows[3]["tags"])
    (data / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert training_rows(load_config(options=options)).fingerprint != before


def test_rows_with_a_label_that_no_other_part_has_stay_in_training(tmp_path: Path) -> None:
    sets = np.zeros((48, 2), np.float32)
    sets[:, 0] = 1
    sets[7, 1] = 1  # alone with its label
    rows = Dataset.from_dict({"text": TEXTS[:48], "number": list(range(48))})
    training = TrainingRows(rows, TEXTS[:48], None, "fingerprint", sets)
    parts = np.arange(48) % 4
    parts[7] = 0
    train, out = held_out(training, parts, tmp_path)
    numbers = [row["number"] for row in out]
    assert numbers == [number for number in range(48) if parts[number] == 0 and number != 7]
    assert 7 in [row["number"] for row in train]


@pytest.mark.parametrize("label", [int, "class {}".format], ids=["numbers", "names"])
def test_a_grid_of_a_study_chooses_on_rows_with_rare_classes(
    label: Callable[[int], Any], inputs: Path, tmp_path: Path
) -> None:
    """Each of 12 classes has a row or two of the sample, and some have none."""
    (tmp_path / "data").mkdir()
    rows = [{"text": f"text {n}", "label": label(min(n % 40, 11))} for n in range(400)]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    for name in ("train", "validation"):
        (tmp_path / "data" / f"{name}.jsonl").write_text(lines)
    common = {"task": "own", "text_columns": ["text"], "data": str(tmp_path / "data")}
    common |= {"output_dir": "unset", "model": str(inputs / "model"), "max_train_samples": 30}
    for seed in range(3):
        config = load_config(options=common | {"seed": seed})
        write_parts(config, 0.3, tmp_path / f"part-{seed}")
        changes = {"data": str(tmp_path / f"part-{seed}"), "max_train_samples": None}
        prepared = read_inputs(config.model_copy(update=changes), Console(quiet=True)).prepared
        assert 4 <= len(prepared.validation) <= 9
        assert len(prepared.train) + len(prepared.validation) == 30
