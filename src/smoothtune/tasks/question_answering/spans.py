"""Answers from the start and end scores of tokens."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.special import log_softmax


class SpanScores(NamedTuple):
    """The best spans of N windows, best first."""

    start: np.ndarray
    """(N, K) first token."""
    end: np.ndarray
    """(N, K) last token."""
    score: np.ndarray
    """(N, K) sum of both logits; -inf where there are fewer than K spans."""
    log_probability: np.ndarray
    """(N, K) of start and end, each a distribution over the context and the no-answer token."""


def n_best_spans(
    start_logits: np.ndarray,
    end_logits: np.ndarray,
    context: np.ndarray,
    cls_index: np.ndarray,
    *,
    n_best_size: int = 20,
    max_answer_length: int = 30,
) -> SpanScores:
    """Spans of highest score among all pairs of the best starts and the best ends.

    Args:
        start_logits: (N, T).
        end_logits: (N, T).
        context: (N, T) True on tokens of the context.
        cls_index: (N,) the token that stands for no answer.
        n_best_size: so many starts, and ends, are combined, and so many spans are given.
        max_answer_length: longest span in tokens.

    Returns:
        K = min(n_best_size, T) spans for every window.

    Raises:
        ValueError: A logit on the context is not finite.
    """
    count, rows = min(n_best_size, context.shape[1]), np.arange(len(context))[:, None]
    choices, log_probabilities, logits = [], [], []
    for values in (start_logits, end_logits):
        values = np.asarray(values, np.float64)
        if wrong := np.flatnonzero(~np.isfinite(values).all(axis=1, where=context)).tolist():
            raise ValueError(f"the prediction for row {wrong[0]} is not finite")
        inside = np.where(context, values, -np.inf)
        choices.append(np.argsort(-inside, axis=1, kind="stable")[:, :count])
        logits.append(np.take_along_axis(inside, choices[-1], axis=1))
        inside[rows[:, 0], cls_index] = values[rows[:, 0], cls_index]
        log_probabilities.append(
            np.take_along_axis(log_softmax(inside, axis=1), choices[-1], axis=1)
        )
    start, end = choices[0][:, :, None], choices[1][:, None, :]
    valid = (start <= end) & (end - start < max_answer_length)
    score = np.where(valid, logits[0][:, :, None] + logits[1][:, None, :], -np.inf)
    score = score.reshape(len(context), -1)
    order = np.argsort(-score, axis=1, kind="stable")[:, :count]
    first, last = order // count, order % count
    return SpanScores(
        choices[0][rows, first],
        choices[1][rows, last],
        score[rows, order],
        log_probabilities[0][rows, first] + log_probabilities[1][rows, last],
    )
