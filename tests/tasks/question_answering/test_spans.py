"""Decoding of spans, against a search through all pairs."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import softmax

from smoothtune.tasks.question_answering.spans import (
    END,
    LOG_PROBABILITY,
    SCORE,
    START,
    best_spans,
)


def windows(first: np.ndarray, count: np.ndarray) -> dict:
    """Windows with a context of so many tokens, each of one character with the token's number."""
    tokens = [np.arange(a, a + n) for a, n in zip(first, count, strict=True)]
    ends = [numbers + 1 for numbers in tokens]
    cls_index = np.zeros(len(first), int)
    columns = {"context_start": first, "offset_start": tokens, "offset_end": ends}
    return columns | {"cls_index": cls_index}


@given(st.integers(0, 10_000), st.integers(1, 12), st.integers(1, 6))
def test_spans_are_those_of_a_search_through_all_pairs(seed, n_best_size, max_answer_length):
    """As transformers' example finds them: the best starts with the best ends."""
    rng = np.random.default_rng(seed)
    starts, ends = rng.normal(size=(2, 3, 10))
    first, count = np.array([3, 2, 4]), np.array([6, 8, 1])
    positions = np.arange(10)
    context = (positions >= first[:, None]) & (positions < (first + count)[:, None])
    found = best_spans(
        starts,
        ends,
        windows(first, count),
        n_best_size=n_best_size,
        max_answer_length=max_answer_length,
    )
    for row in range(3):
        best_starts = np.argsort(-starts[row])[: np.count_nonzero(starts[row] > -np.inf)]
        best_starts = [t for t in best_starts if context[row, t]][:n_best_size]
        best_ends = [t for t in np.argsort(-ends[row]) if context[row, t]][:n_best_size]
        pairs = [
            (starts[row, s] + ends[row, e], s, e)
            for s in best_starts
            for e in best_ends
            if s <= e < s + max_answer_length
        ]
        assert np.isfinite(found[row, SCORE]) == bool(pairs)
        if pairs:
            score, start, end = max(pairs)
            assert (found[row, START], found[row, END]) == (start, end + 1)
            np.testing.assert_allclose(found[row, SCORE], score)


def test_probability_is_over_the_context_and_no_answer():
    starts, ends = np.array([[1.0, 9.0, 2.0, 0.5]]), np.array([[0.0, 9.0, 1.0, 3.0]])
    (found,) = best_spans(starts, ends, windows(np.array([2]), np.array([2])))
    expected = softmax([1.0, 2.0, 0.5])[1] * softmax([0.0, 1.0, 3.0])[2]
    assert (found[START], found[END]) == (2, 4)
    assert np.exp(found[LOG_PROBABILITY]) == pytest.approx(expected)


def test_a_logit_that_is_not_finite_is_refused():
    starts = np.zeros((2, 4))
    starts[1, 2] = np.nan
    with pytest.raises(ValueError, match="row 1 is not finite"):
        best_spans(starts, np.zeros((2, 4)), windows(np.zeros(2, int), np.full(2, 4)))
