"""The best answer spans from start and end logits, within and over windows of a context."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from scipy.special import log_softmax

START, END, SCORE, NULL, LOG_PROBABILITY, NO_ANSWER = range(6)
"""Columns of `best_spans`."""


def best_spans(
    start_logits: np.ndarray,
    end_logits: np.ndarray,
    windows: Mapping[str, Any],
    *,
    n_best_size: int = 20,
    max_answer_length: int = 30,
) -> np.ndarray:
    """The span of highest score in each window, among all pairs of the best starts and best ends.

    Args:
        start_logits: (N, T).
        end_logits: (N, T).
        windows: columns context_start, offset_start, offset_end and cls_index.
        n_best_size: number of best starts, and of best ends, that are combined.
        max_answer_length: longest span in tokens.

    Returns:
        (N, 6): the span's first character and the one after its last; its score, the sum of both
        logits, -inf where there is none; the score of no answer; and the log-probabilities of the
        span and of no answer, start and end each a distribution over the context and the no-answer
        token.

    Raises:
        ValueError: a logit on the context is not finite.
    """
    first, cls_index = np.asarray(windows["context_start"]), np.asarray(windows["cls_index"])
    count = np.array([len(offsets) for offsets in windows["offset_start"]])
    positions, rows = np.arange(start_logits.shape[1]), np.arange(len(first))
    context = (positions >= first[:, None]) & (positions < (first + count)[:, None])
    # the best starts and ends
    choices, log_probabilities, logits, no_answer = [], [], [], np.zeros(len(context))
    for values in (start_logits, end_logits):
        values = np.asarray(values, np.float64)
        if wrong := np.flatnonzero(~np.isfinite(values).all(axis=1, where=context)).tolist():
            raise ValueError(f"the prediction for row {wrong[0]} is not finite")
        inside = np.where(context, values, -np.inf)
        choices.append(np.argsort(-inside, axis=1, kind="stable")[:, :n_best_size])
        logits.append(np.take_along_axis(inside, choices[-1], axis=1))
        inside[rows, cls_index] = values[rows, cls_index]
        shares = log_softmax(inside, axis=1)
        log_probabilities.append(np.take_along_axis(shares, choices[-1], axis=1))
        no_answer += shares[rows, cls_index]
    # the best pair
    starts, ends = choices[0][:, :, None], choices[1][:, None, :]
    valid = (starts <= ends) & (ends - starts < max_answer_length)
    scores = np.where(valid, logits[0][:, :, None] + logits[1][:, None, :], -np.inf)
    scores = scores.reshape(len(context), -1)
    best = scores.argmax(axis=1)
    score, (start, end) = scores[rows, best], np.divmod(best, choices[1].shape[1])
    log_probability = log_probabilities[0][rows, start] + log_probabilities[1][rows, end]
    tokens = zip(choices[0][rows, start] - first, choices[1][rows, end] - first, strict=True)
    characters = [
        (windows["offset_start"][row][i], windows["offset_end"][row][j]) if fits else (0, 0)
        for row, ((i, j), fits) in enumerate(zip(tokens, np.isfinite(score), strict=True))
    ]
    null = start_logits[rows, cls_index].astype(np.float64) + end_logits[rows, cls_index]
    return np.column_stack([characters, score, null, log_probability, no_answer])


def best_windows(
    spans: np.ndarray, example_ids: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The window that holds the best span of each question.

    From (N, 6) of `best_spans` and (N,) the question of each window to (E,) each, in the order of
    the questions' first windows: index of the window, score of its span, and the lowest no-answer
    score over all windows.
    """
    _, first, group = np.unique(example_ids, return_index=True, return_inverse=True)
    question = first.argsort().argsort()[group]  # from the order of ids to that of first windows
    score, null = np.full(len(first), -np.inf), np.full(len(first), np.inf)
    np.maximum.at(score, question, spans[:, SCORE])
    np.minimum.at(null, question, spans[:, NULL])
    is_best = np.flatnonzero(spans[:, SCORE] == score[question])
    windows = np.full(len(first), len(example_ids))
    np.minimum.at(windows, question[is_best], is_best)
    return windows, score, null
