"""The real GLUE data sets in the folder that SMOOTHTUNE_DATA names."""

import os
from pathlib import Path

import numpy as np
import pytest

from helpers.hub_server import make_tokenizer
from smoothtune.tasks.prepare import prepare
from smoothtune.tasks.presets import TASKS, describe_task

pytestmark = pytest.mark.skipif(
    "SMOOTHTUNE_DATA" not in os.environ, reason="SMOOTHTUNE_DATA names no folder of data sets"
)
# Label counts of train and validation as the data's own README gives them.
COUNTS = {
    "cola": ([2528, 6023], [322, 721]),
    "sst2": ([29780, 37569], [428, 444]),
    "mrpc": ([1194, 2474], [129, 279]),
    "qqp": ([5747, 3252], [623, 377]),
    "mnli": ([3408, 3313, 3278], [3479, 3123, 3213]),
    "qnli": ([5027, 4972], [2702, 2761]),
    "rte": ([1249, 1241], [146, 131]),
}


def folder(name: str) -> Path:
    return Path(os.environ["SMOOTHTUNE_DATA"]) / name


@pytest.mark.parametrize("name", COUNTS)
def test_label_counts(name: str) -> None:
    task = TASKS[name]
    splits = task.load_splits(folder(name))
    used = {split: splits[split] for split in ("train", task.validation_split)}
    labels = task.rows.check(used, name)
    for split, expected in zip(used, COUNTS[name], strict=True):
        assert np.bincount(labels[split]).tolist() == expected


def test_similarity_scores() -> None:
    splits = TASKS["stsb"].load_splits(folder("stsb"))
    labels = TASKS["stsb"].rows.check(splits, "stsb")
    assert {split: len(scores) for split, scores in labels.items()} == {
        "train": 5749,
        "validation": 1500,
    }
    assert all(scores.min() == 0 and scores.max() == 5 for scores in labels.values())


@pytest.mark.parametrize("name", [*COUNTS, "stsb"])
def test_prepare(name: str) -> None:
    sample = {"max_train_samples": 50, "max_eval_samples": 20}
    prepared = prepare(folder(name), TASKS[name], make_tokenizer(), **sample)
    assert (len(prepared.train), len(prepared.validation)) == (50, 20)
    assert set(prepared.report.splits) == {"train", "validation"}


def test_mismatched_is_a_split_of_its_own() -> None:
    splits = TASKS["mnli"].load_splits(folder("mnli"))
    assert set(splits) == {"train", "validation_matched", "validation_mismatched"}
    assert len(splits["validation_mismatched"]) == 1000


def test_a_described_task_on_a_single_file() -> None:
    task = describe_task(text_columns="sentence")
    prepared = prepare(folder("uci_sentiment_labelled") / "yelp.parquet", task, make_tokenizer())
    assert prepared.task.label_names == ("0", "1")
    assert (len(prepared.train), len(prepared.validation)) == (900, 100)


def test_baseline_of_rte() -> None:
    rows = TASKS["rte"].load_splits(folder("rte"))["validation"].rename_column("label", "labels")
    assert TASKS["rte"].scorer.baseline(rows) == pytest.approx(146 / 277)
