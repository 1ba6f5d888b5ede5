import numpy as np
import pytest
from datasets import Dataset
from scipy import stats

from smoothtune.evaluation import bootstrap_intervals
from smoothtune.evaluation.intervals import scores_with_intervals
from smoothtune.tasks.presets import describe_task


def means(values):
    return {"mean": float(values.mean()), "double": float(2 * values.mean())}


@pytest.mark.parametrize("method", ["percentile", "bca"])
def test_interval_of_a_mean_is_the_normal_one(method):
    values = np.random.default_rng(0).normal(3, 2, 400)
    found = bootstrap_intervals(means, values, n_resamples=4000, method=method)
    low, high = stats.norm.interval(0.95, values.mean(), values.std() / 20)
    assert found["mean"] == pytest.approx((low, high), abs=0.03)
    assert found["double"] == pytest.approx((2 * found["mean"].low, 2 * found["mean"].high))


def test_bca_follows_skew():
    values = np.random.default_rng(0).exponential(size=60)
    plain = bootstrap_intervals(means, values)["mean"]
    corrected = bootstrap_intervals(means, values, method="bca")["mean"]
    assert corrected.high > plain.high
    assert corrected.low > plain.low


def test_arrays_are_resampled_together():
    x = np.arange(50.0)
    found = bootstrap_intervals(lambda a, b: {"gap": float((a - b).mean())}, x + 1, x)
    assert found["gap"] == pytest.approx((1, 1))


def test_the_seed_decides():
    values = np.random.default_rng(0).normal(size=30)
    first, again, other = (bootstrap_intervals(means, values, seed=s)["mean"] for s in (1, 1, 2))
    assert first == again != other


@pytest.mark.parametrize("method", ["percentile", "bca"])
def test_a_metric_that_never_moves(method):
    assert bootstrap_intervals(means, np.ones(9), method=method)["mean"] == (1, 1)


@pytest.mark.parametrize("right", [True, False])
def test_all_answers_right_or_wrong_of_a_few_rows_are_no_sure_score(right):
    """Four of four are right by chance in one of 16 times."""
    labels = np.array([0, 1, 0, 1])
    rows = Dataset.from_dict({"labels": labels, "example_id": range(4)})
    logits = np.eye(2)[labels if right else 1 - labels]
    task = describe_task(text_columns="text", label_names=("poor", "fine"))
    found = scores_with_intervals(task, logits, rows, num_resamples=20)["metrics"]["accuracy"]
    low, high = (0.025 ** (1 / 4), 1) if right else (0, 1 - 0.025 ** (1 / 4))
    assert (found["low"], found["high"]) == pytest.approx((low, high))


def test_the_correlation_of_a_constant_answer_is_no_share():
    """It is 0 in every resample, which is not the lower end of what it can be."""
    rows = Dataset.from_dict({"labels": [0, 1] * 20, "example_id": range(40)})
    task = describe_task(
        text_columns="text", label_names=("poor", "fine"), metrics=("matthews_correlation",)
    )
    found = scores_with_intervals(task, np.tile([1.0, 0.0], (40, 1)), rows, num_resamples=20)
    assert found["metrics"]["matthews_correlation"] == {"value": 0, "low": 0, "high": 0}


def test_one_example_has_no_interval():
    with pytest.raises(ValueError, match="two examples"):
        bootstrap_intervals(means, np.ones(1))
