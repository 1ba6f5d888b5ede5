"""Parts of the training rows."""

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from datasets import Dataset

from smoothtune.errors import DataError
from smoothtune.tune.split import TrainingRows, parts_of, write_split

TEXTS = [f"text {number}" for number in range(53)]


def held_out(training: TrainingRows, parts: np.ndarray, folder: Path) -> tuple[list, list]:
    write_split(training, parts, 0, folder)
    return tuple(
        pq.read_table(folder / f"{name}.parquet").to_pylist() for name in ("train", "validation")
    )


def rows_of(texts: list[str], labels: list) -> TrainingRows:
    rows = Dataset.from_dict({"text": texts, "label": labels})
    return TrainingRows(rows, texts, labels, "fingerprint")


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
        write_split(rows_of(TEXTS[:8], ["a", "b"] * 4), parts, 0, tmp_path)
    assert json.dumps([path.name for path in tmp_path.iterdir()]) == "[]"
