"""The best method against the best plain setting, on seeds and parts that the search has not seen.

The best of many noisy scores is too high, so what the search saw does not decide. Each run trains
both on the same part of the training rows, with the same seed, and scores them on the rest; the
parts of one cut are disjoint, so after as many runs as there are parts every row was scored once.

The rule is set before: the method is used if the lower end of an interval is above 0 whose error on
that side is 5 %. The interval is Student's for the mean of paired differences. More runs than there
are parts score the same rows again. They tell of other seeds, but not of other rows, so the mean is
never taken to be surer than that of one cut.

Reference: Bouckaert, Frank: Evaluating the Replicability of Significance Tests for Comparing
Learning Algorithms, PAKDD 2004, on what repeated cuts may be taken to tell.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy import stats

LEVEL = 0.9
"""Of the interval; that the truth is below it has half of the rest as its chance, 5 %."""
FEWEST = 3
"""Pairs without which nothing is said."""
ROUNDING = 1e-9
"""Differences that are closer to each other are the same."""


class Fresh(NamedTuple):
    """What a setting is trained with."""

    seed: int
    cut: int
    """Seed of the cut into parts."""
    part: int
    """The held-out part."""


@dataclass(frozen=True)
class Comparison:
    """Scores of the best method and of plain, by run."""

    plain: list[float | None]
    """None: the run failed; NaN: the loss was not finite."""
    method: list[float | None]
    gain: float | None
    """Mean difference over the runs that both finished; None with fewer than `FEWEST`."""
    low: float | None
    """Ends of the interval; None without a gain, and where all differences are the same: they do
    not say how much chance moves them."""
    high: float | None

    @property
    def pairs(self) -> int:
        """Number of runs that both finished."""
        return len(_finished(self.plain, self.method))

    @property
    def diverged(self) -> int:
        """Runs of the method that ended with a loss that was not finite."""
        return sum(score is not None and math.isnan(score) for score in self.method)

    @property
    def better(self) -> bool:
        """Whether the method is shown to score higher."""
        return self.low is not None and self.low > 0 and not self.diverged

    @property
    def worse(self) -> bool:
        """Whether the method is shown to score lower."""
        return self.high is not None and self.high < 0


def search_run(fold: int, seed: int) -> Fresh:
    """Seed and part of a fold of the search: all folds are of one cut."""
    return Fresh((seed + fold) % 2**32, seed, fold)


def fresh_runs(count: int, num_parts: int, seed: int) -> list[Fresh]:
    """Seeds and parts of the confirming runs, none of which a `search_run` has."""
    return [
        Fresh(
            (seed + num_parts + run) % 2**32, (seed + 1 + run // num_parts) % 2**32, run % num_parts
        )
        for run in range(count)
    ]


def compare(
    plain: Sequence[float | None], method: Sequence[float | None], num_parts: int
) -> Comparison:
    """Mean paired difference with its interval.

    Args:
        plain: (R,) scores.
        method: (R,) scores of the same runs.
        num_parts: parts of the rows, one of which is scored on.
    """
    pairs = _finished(plain, method)
    scores = (list(plain), list(method))
    if len(pairs) < FEWEST:
        return Comparison(*scores, None, None, None)
    gaps = np.array([m - p for p, m in pairs])
    gain = float(gaps.mean())
    if np.ptp(gaps) < ROUNDING:
        return Comparison(*scores, gain, None, None)
    spread = float(gaps.std(ddof=1)) / math.sqrt(min(len(gaps), num_parts))
    half = float(stats.t.ppf((1 + LEVEL) / 2, len(gaps) - 1)) * spread
    return Comparison(*scores, gain, gain - half, gain + half)


def _finished(
    plain: Sequence[float | None], method: Sequence[float | None]
) -> list[tuple[float, float]]:
    """Scores of plain and of the method in the runs that both finished."""
    return [
        (p, m)
        for p, m in zip(plain, method, strict=True)
        if p is not None and m is not None and math.isfinite(p) and math.isfinite(m)
    ]
