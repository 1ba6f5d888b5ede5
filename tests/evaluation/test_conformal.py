"""Sets of classes hold the right one as often as they promise."""

import numpy as np
import pytest

from smoothtune.evaluation import conformal_scores, conformal_threshold, prediction_sets
from smoothtune.evaluation.conformal import rows_needed, set_numbers


def draw(size: int, seed: int, classes: int = 5) -> tuple[np.ndarray, np.ndarray]:
    """Logits that are three times too large, and labels; the rows are exchangeable."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(size, classes))
    return 3 * logits, (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)


def test_threshold_by_hand() -> None:
    probabilities = np.array([[0.9, 0.1], [0.4, 0.6], [0.3, 0.7], [0.8, 0.2]])
    scores = conformal_scores(np.log(probabilities), [0, 0, 1, 0])
    np.testing.assert_allclose(scores, [0.1, 0.2, 0.3, 0.6])
    assert conformal_threshold(scores, 0.6) == scores[2]  # ceil(5 * 0.6)
    assert conformal_threshold(scores, 0.61) == conformal_threshold(scores, 0.8) == scores[3]
    assert conformal_threshold(scores, 0.01) == scores[0]
    with pytest.raises(ValueError, match="needs 9 held-out rows, not 4"):
        conformal_threshold(scores, 0.9)


@pytest.mark.parametrize("coverage", [0.5, 0.8, 0.9, 0.95, 0.99])
def test_rows_needed_are_the_fewest_that_suffice(coverage: float) -> None:
    enough = np.linspace(0, 1, rows_needed(coverage))
    assert conformal_threshold(enough, coverage) == enough[-1]
    with pytest.raises(ValueError, match="held-out rows"):
        conformal_threshold(enough[1:], coverage)


def test_a_set_holds_all_that_is_as_likely_and_always_the_prediction() -> None:
    logits = np.log([[0.7, 0.2, 0.1], [0.4, 0.35, 0.25]])
    assert prediction_sets(logits, 0.8 + 1e-9).tolist() == [[True, True, False], [True] * 3]
    assert prediction_sets(logits, 0.1).tolist() == [[True, False, False]] * 2


@pytest.mark.parametrize("coverage", [0.8, 0.9])
def test_new_rows_are_covered_as_often_as_is_promised(coverage: float) -> None:
    """Over draws of 99 held-out rows and 100 new ones; the mean is exactly the coverage."""
    measured = []
    for seed in range(300):
        logits, labels = draw(199, seed)
        threshold = conformal_threshold(conformal_scores(logits[:99], labels[:99]), coverage)
        measured.append(prediction_sets(logits[99:], threshold)[np.arange(100), labels[99:]].mean())
    variance = coverage * (1 - coverage) * (1 / 101 + 1 / 100)  # of a beta-binomial share
    assert np.mean(measured) == pytest.approx(coverage, abs=3 * (variance / 300) ** 0.5)


def test_measured_coverage_is_that_of_rows_that_did_not_set_the_threshold() -> None:
    logits, labels = draw(8000, 0)
    found = set_numbers(logits, labels, np.arange(4000), np.arange(4000, 8000))
    assert list(found) == ["0.8", "0.9", "0.95"]
    for coverage, numbers in found.items():
        assert numbers["low"] < numbers["coverage"] < numbers["high"]
        assert numbers["low"] - 0.01 < float(coverage) < numbers["high"] + 0.01
    sizes = [numbers["mean_size"] for numbers in found.values()]
    assert 1 < sizes[0] < sizes[1] < sizes[2] < 5
    few = set_numbers(logits, labels, np.arange(10), np.arange(10, 20))
    assert list(few) == ["0.8", "0.9"]
