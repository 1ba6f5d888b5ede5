from types import SimpleNamespace

import numpy as np
import pytest
from datasets import Dataset
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import expit, logit, softmax
from sklearn.calibration import calibration_curve
from sklearn.metrics import brier_score_loss, log_loss

from smoothtune.evaluation import brier, fit_temperature, nll, reliability, split_for_temperature
from smoothtune.evaluation.calibration import (
    ANSWERS,
    LABELS,
    calibration_report,
    error_of,
    judged_error,
)
from smoothtune.evaluation.reliability import chance_errors

sample = st.tuples(st.integers(2, 80), st.integers(2, 5), st.integers(0, 10_000))


def draw(size, classes, seed, scale=2.0):
    """Logits and labels that have something to do with them."""
    rng = np.random.default_rng(seed)
    logits = scale * rng.normal(size=(size, classes))
    labels = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
    return logits, labels


@given(sample)
def test_brier_and_nll_are_those_of_scikit_learn(numbers):
    logits, labels = draw(*numbers)
    probabilities, classes = softmax(logits, axis=1), np.arange(logits.shape[1])
    assert nll(logits, labels) == pytest.approx(log_loss(labels, probabilities, labels=classes))
    expected = brier_score_loss(labels, probabilities, labels=classes, scale_by_half=False)
    assert brier(logits, labels) == pytest.approx(expected)


def test_brier_is_a_sum_over_classes():
    assert brier(np.log([[0.8, 0.2], [0.3, 0.7]]), [0, 0]) == pytest.approx((0.08 + 0.98) / 2)


@pytest.mark.parametrize(("bins", "strategy"), [("width", "uniform"), ("mass", "quantile")])
@given(numbers=sample, num_bins=st.integers(1, 20))
@settings(max_examples=60)
def test_reliability_is_scikit_learns_calibration_curve(bins, strategy, numbers, num_bins):
    logits, labels = draw(*numbers)
    found = reliability(logits, labels, num_bins=num_bins, bins=bins)
    probabilities = softmax(logits, axis=1)
    correct = probabilities.argmax(axis=1) == labels
    accuracy, confidence = calibration_curve(
        correct,
        probabilities.max(axis=1),
        n_bins=num_bins,
        strategy=strategy,
        pos_label=True,
    )
    np.testing.assert_allclose(found.accuracy, accuracy)
    np.testing.assert_allclose(found.confidence, confidence)
    assert found.count.sum() == len(labels)


def test_calibration_errors_by_hand():
    # Confidences 0.6, 0.7 (right, wrong) share the bin (0.5, 0.75]; 0.9 (right) is alone.
    logits = np.log([[0.6, 0.4], [0.3, 0.7], [0.9, 0.1]])
    found = reliability(logits, [0, 0, 0], num_bins=4)
    assert found.count.tolist() == [2, 1]
    assert found.expected_error == pytest.approx(2 / 3 * abs(0.5 - 0.65) + 1 / 3 * 0.1)
    assert found.maximum_error == pytest.approx(0.15)


def test_equal_mass_bins_hold_alike_many():
    logits, labels = draw(100, 3, 0)
    assert reliability(logits, labels, num_bins=5, bins="mass").count.tolist() == [20] * 5


def test_no_examples_are_refused():
    with pytest.raises(ValueError, match="0 examples"):
        reliability(np.empty((0, 2)), [])


def test_temperature_undoes_overconfidence():
    logits, labels = draw(20_000, 3, 1)
    assert fit_temperature(3 * logits, labels) == pytest.approx(3, rel=0.05)


@given(sample)
@settings(max_examples=30)
def test_no_other_temperature_is_better(numbers):
    logits, labels = draw(*numbers)
    temperature = fit_temperature(logits, labels)
    best = nll(logits / temperature, labels)
    for other in (0.1, 0.5, 0.9, 1.1, 2.0, 10.0):
        if np.exp(-5) < other * temperature < np.exp(5):
            assert best <= nll(logits / (other * temperature), labels) + 1e-9


def test_halves_are_disjoint_and_keep_the_classes():
    labels = np.array([0] * 20 + [1] * 10)
    fit, judge = split_for_temperature(labels, seed=1)
    assert sorted([*fit, *judge]) == list(range(30))
    assert (labels[fit].sum(), labels[judge].sum()) == (5, 5)
    assert not np.array_equal(fit, split_for_temperature(labels, seed=2)[0])
    with pytest.raises(ValueError, match="too few"):
        split_for_temperature([0, 1, 0], seed=0)


def test_labels_are_calibrated_over_pairs_and_by_label():
    """Two labels of three rows; bins of width 1/15."""
    probabilities = np.array([[0.9, 0.1], [0.9, 0.1], [0.3, 0.1]])
    gold = np.array([[1, 0], [0, 0], [0, 1]])
    numbers, curve = calibration_report(
        LABELS, logit(probabilities), gold, names=["a", "b"], seed=0
    )
    # a: two rows at 0.9, one right; one at 0.3, wrong. b: three at 0.1, one right.
    assert numbers["ece_by_label"]["a"] == pytest.approx((2 * 0.4 + 1 * 0.3) / 3)
    assert numbers["ece_by_label"]["b"] == pytest.approx(1 / 3 - 0.1)
    assert numbers["mean_ece_of_labels"] == pytest.approx((1.1 / 3 + 1 / 3 - 0.1) / 2)
    assert numbers["all_rows"]["ece"] == pytest.approx((2 * 0.4 + 0.3 + 3 * (1 / 3 - 0.1)) / 6)
    task = SimpleNamespace(head=SimpleNamespace(problem_type="multi_label_classification"))
    judged = judged_error(task, logit(probabilities), Dataset.from_dict({"labels": gold}))
    assert judged == error_of(numbers) == numbers["mean_ece_of_labels"]
    squares = [0.01, 0.01, 0.81, 0.01, 0.09, 0.81]
    assert numbers["all_rows"]["brier"] == pytest.approx(sum(squares) / 6)
    assert numbers["mean_correct"] == pytest.approx(2 / 6)
    heights = [point.y for point in curve.series["as it is"]]
    assert heights == pytest.approx([1 / 3, 0, 1 / 2])
    assert "temperature" not in numbers  # of three rows


def test_one_temperature_is_fitted_for_all_labels_on_half_of_the_rows():
    """Logits that are three times too large: 3 mends the rows that it was not fitted on."""
    rng = np.random.default_rng(0)
    true = rng.normal(0, 1.5, (4000, 2))
    gold = (rng.random(true.shape) < 1 / (1 + np.exp(-true))).astype(float)
    numbers, curve = calibration_report(LABELS, 3 * true, gold, names=["a", "b"], seed=0)
    assert numbers["temperature"] == pytest.approx(3, rel=0.1)
    assert numbers["temperature_fitted_on"] + numbers["judged_on"] == 4000
    before, after = numbers["judged_rows_before"], numbers["judged_rows_after"]
    assert after["nll"] < before["nll"] - 0.05
    assert after["ece"] < 0.02 < 0.1 < before["ece"]
    assert [name.split()[0] for name in curve.series] == ["perfect", "as", "temperature"]


def test_errors_by_chance_are_those_of_labels_drawn_from_the_probabilities():
    """Also where the draws are made otherwise: whole labels, and the ECE of `reliability`."""
    logits, _ = draw(60, 3, seed=5)
    probabilities = softmax(logits, axis=1)
    generator = np.random.default_rng(1)
    drawn = [
        reliability(logits, [generator.choice(3, p=row) for row in probabilities]).expected_error
        for _ in range(400)
    ]
    found = chance_errors(probabilities.max(axis=1))
    assert found.mean() == pytest.approx(np.mean(drawn), rel=0.05)
    assert np.quantile(found, 0.95) == pytest.approx(np.quantile(drawn, 0.95), rel=0.1)


def test_the_bound_by_chance_keeps_calibrated_models():
    """Of 200 calibrated models about 5 % are above their own bound."""
    beyond = 0
    for seed in range(200):
        generator = np.random.default_rng(seed)
        confidence = generator.uniform(0.5, 1, 80)
        right = generator.random(80) < confidence
        numbers, _ = calibration_report(ANSWERS, confidence, right, seed=0)
        beyond += numbers["all_rows"]["ece"] > numbers["ece_by_chance"]["high"]
    assert 3 <= beyond <= 20


def test_labels_have_chance_errors_of_their_own():
    generator = np.random.default_rng(0)
    logits = generator.normal(size=(50, 8))
    gold = (generator.random((50, 8)) < expit(logits)).astype(float)
    names = [f"label {number}" for number in range(8)]
    numbers, _ = calibration_report(LABELS, logits, gold, names=names, seed=0)
    alone, _ = calibration_report(LABELS, logits[:, :1], gold[:, :1], names=names[:1], seed=0)
    spread = numbers["ece_by_chance"]["high"] - numbers["ece_by_chance"]["mean"]
    spread_alone = alone["ece_by_chance"]["high"] - alone["ece_by_chance"]["mean"]
    assert spread < 0.6 * spread_alone  # a mean of eight independent ones
    assert numbers["mean_ece_of_labels"] < numbers["ece_by_chance"]["high"]
