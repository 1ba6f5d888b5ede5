import math

import numpy as np
import pytest
from datasets import Dataset
from numpy.typing import ArrayLike

from smoothtune.tasks.base import Task
from smoothtune.tasks.metrics import CLASS_METRICS, class_scores
from smoothtune.tasks.presets import TASKS, describe_task

BINARY = describe_task(text_columns="text", label_names=("no", "yes"))
THREE = describe_task(text_columns="text", label_names=("a", "b", "c"))


def compute_metrics(task: Task, predictions: ArrayLike, labels: ArrayLike) -> dict[str, float]:
    predicted, gold = np.asarray(predictions, float), np.asarray(labels)
    return task.scorer.scores(np.column_stack([gold, predicted.reshape(len(gold), -1)]))


def trivial_baseline(task: Task, labels: ArrayLike) -> float:
    return task.scorer.baseline(Dataset.from_dict({"labels": labels}))


def logits(probabilities: list[list[float]]) -> np.ndarray:
    return np.log(np.array(probabilities))


def test_binary_metrics_by_hand() -> None:
    # One true positive, one false positive, one false negative, one true negative.
    predictions = logits([[0.2, 0.8], [0.4, 0.6], [0.7, 0.3], [0.9, 0.1]])
    metrics = compute_metrics(BINARY, predictions, [1, 0, 1, 0])
    assert metrics["accuracy"] == 0.5
    assert metrics["f1"] == 0.5
    assert metrics["brier"] == pytest.approx(2 * (0.04 + 0.36 + 0.49 + 0.01) / 4)
    assert metrics["nll"] == pytest.approx(-math.log(0.8 * 0.4 * 0.3 * 0.9) / 4)


def test_multi_class_metrics_by_hand() -> None:
    predictions = logits([[0.7, 0.2, 0.1], [0.1, 0.6, 0.3], [0.5, 0.3, 0.2]])
    metrics = compute_metrics(THREE, predictions, [0, 1, 2])
    assert metrics["accuracy"] == pytest.approx(2 / 3)
    assert metrics["f1"] == pytest.approx((2 / 3 + 1 + 0) / 3)
    brier = (0.09 + 0.04 + 0.01) + (0.01 + 0.16 + 0.09) + (0.25 + 0.09 + 0.64)
    assert metrics["brier"] == pytest.approx(brier / 3)
    assert metrics["nll"] == pytest.approx(-math.log(0.7 * 0.6 * 0.2) / 3)


def test_brier_spans_zero_to_two() -> None:
    sure = [[100.0, -100.0]]
    assert compute_metrics(BINARY, sure, [0])["brier"] == pytest.approx(0)
    assert compute_metrics(BINARY, sure, [1])["brier"] == pytest.approx(2)


def test_nll_of_confident_mistakes_is_not_clipped() -> None:
    assert compute_metrics(BINARY, [[500.0, -500.0]], [1])["nll"] == pytest.approx(1000)


def test_matthews_correlation_by_hand() -> None:
    # tp 2, tn 1, fp 1, fn 0: (2 * 1 - 1 * 0) / sqrt(3 * 2 * 2 * 1)
    predictions = [[0, 1], [0, 1], [0, 1], [1, 0]]
    metrics = compute_metrics(TASKS["cola"], predictions, [1, 1, 0, 0])
    assert next(iter(metrics)) == "matthews_correlation"
    assert metrics["matthews_correlation"] == pytest.approx(2 / math.sqrt(12))


@pytest.mark.parametrize("shape", [(4,), (4, 1)])
def test_correlations_by_hand(shape: tuple[int, ...]) -> None:
    predictions = np.array([1.0, 2.0, 3.0, 10.0]).reshape(shape)
    metrics = compute_metrics(TASKS["stsb"], predictions, [0.0, 1.0, 3.0, 2.0])
    # Sums over deviations from the means 4 and 1.5; ranks 1 2 3 4 against 1 2 4 3.
    assert metrics == {
        "pearson": pytest.approx(7 / math.sqrt(50 * 5)),
        "spearman": pytest.approx(1 - 6 * 2 / (4 * 15)),
    }


@pytest.mark.parametrize(
    ("predictions", "labels"),
    [([2.0, 2.0, 2.0], [0.0, 1.0, 3.0]), ([0.0, 1.0, 3.0], [1.0, 1.0, 1.0]), ([1.0], [1.0])],
)
def test_undefined_correlations_are_zero(predictions: list[float], labels: list[float]) -> None:
    metrics = compute_metrics(TASKS["stsb"], predictions, labels)
    assert metrics == {"pearson": 0.0, "spearman": 0.0}


def test_prediction_of_one_class_only_scores_zero_without_warning() -> None:
    assert compute_metrics(TASKS["cola"], [[1, 0]] * 4, [0, 1, 1, 1])["matthews_correlation"] == 0
    assert compute_metrics(BINARY, [[1, 0]] * 4, [0, 1, 1, 1])["f1"] == 0


def test_every_preset_scores_a_perfect_prediction_with_one() -> None:
    for task in TASKS.values():
        if task.task_type != "text-classification":
            continue  # scored from other statistics
        labels = np.arange(12) % max(task.num_labels, 2 if task.label_names else 3)
        perfect = 50.0 * np.eye(task.num_labels)[labels] if task.label_names else labels
        metrics = compute_metrics(task, perfect, labels)
        assert [metrics[name] for name in task.metrics] == pytest.approx([1.0] * len(task.metrics))


@pytest.mark.parametrize(
    ("task", "labels", "expected"),
    [
        (BINARY, [0, 1, 1, 1], 0.75),
        (THREE, [2, 2, 1, 0, 2], 0.6),
        (TASKS["cola"], [0, 1, 1], 0.0),
        (TASKS["stsb"], [0.5, 2.0, 4.0], 0.0),
    ],
)
def test_trivial_baseline(task: Task, labels: list[float], expected: float) -> None:
    assert trivial_baseline(task, labels) == pytest.approx(expected)


def test_not_finite_prediction_is_refused() -> None:
    with pytest.raises(ValueError, match="example 1 is not finite"):
        compute_metrics(BINARY, [[0.0, 1.0], [np.nan, 0.0]], [0, 1])
    with pytest.raises(ValueError, match="example 2 is not finite"):
        compute_metrics(TASKS["stsb"], [0.0, 1.0, np.inf], [0.0, 1.0, 2.0])


@pytest.mark.parametrize("shape", [(2,), (2, 3), (3, 2), (0, 2)])
def test_wrong_shape_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="must have shape"):
        class_scores(CLASS_METRICS, np.zeros(shape), [0, 1], 2)
