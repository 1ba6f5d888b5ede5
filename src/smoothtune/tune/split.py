"""Parts of the training rows: one is held out to score on, the others are trained on.

Rows with the same texts stay in one part, so that nothing is scored on what was trained on.
Classes, or scores in regression, are spread evenly over the parts.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from smoothtune.study.parts import TrainingRows


def parts_of(
    texts: Sequence[str], labels: Sequence[Any] | np.ndarray | None, count: int, seed: int
) -> np.ndarray:
    """(N,) the part, from 0, that each row is in.

    Args:
        texts: (N,) rows with the same text share a part.
        labels: (N,) classes or scores that are spread evenly; None: spread at random.
        count: number of parts.
        seed: of the draw.
    """
    draw = np.random.default_rng(seed)
    by_text: dict[str, list[int]] = {}
    for row, text in enumerate(texts):
        by_text.setdefault(text, []).append(row)
    groups = list(by_text.values())
    order = list(draw.permutation(len(groups)))
    if labels is not None:
        order.sort(key=lambda group: labels[groups[group][0]])  # stable: at random within a class
    parts = np.empty(len(texts), np.int64)
    for start in range(0, len(order), count):  # every part gets one of each block
        block = order[start : start + count]
        for group, part in zip(block, draw.permutation(count), strict=False):
            parts[groups[group]] = part
    return parts


def check_parts(training: TrainingRows, count: int, chosen: Iterable[tuple[int, int]]) -> None:
    """Refuse rows that are too few, before anything is trained.

    Raises:
        DataError: too few rows are held out or trained on in one of them.
    """
    cuts: dict[int, np.ndarray] = {}
    for seed, part in chosen:
        if seed not in cuts:
            cuts[seed] = parts_of(training.texts, training.labels, count, seed)
        training.scored(cuts[seed] == part)
