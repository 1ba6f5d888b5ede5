"""The best method against the best plain setting, on seeds and parts that the search has not seen.

The best of many noisy scores is too high, so what the search saw does not decide.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy import stats

from smoothtune.report.tables import Effect

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
    gain: Effect | None
    """Mean difference over the runs that both finished; None with fewer than `FEWEST`.

    No interval where all differences are the same: they do not say how much chance moves them.
    """

    @property
    def pairs(self) -> int:
        """Number of runs that both finished."""
        return len(_gaps(self.plain, self.method))

    @property
    def diverged(self) -> int:
        """Runs of the method that ended with a loss that was not finite."""
        return sum(score is not None and math.isnan(score) for score in self.method)

    @property
    def better(self) -> bool:
        """Whether the method is shown to score higher."""
        interval = self.gain.interval if self.gain else None
        return interval is not None and interval[0] > 0 and not self.diverged


def search_run(fold: int, seed: int) -> Fresh:
    """Seed and part of a fold of the search: all folds are of one cut."""
    return Fresh((seed + fold) % 2**32, seed, fold)


def fresh_runs(count: int, num_parts: int, seed: int) -> list[Fresh]:
    """Seeds and parts of the confirming runs, none of which a `search_run` has."""
    return [
        Fresh(
            seed=(seed + num_parts + run) % 2**32,
            cut=(seed + 1 + run // num_parts) % 2**32,
            part=run % num_parts,
        )
        for run in range(count)
    ]


def compare(
    plain: Sequence[float | None], method: Sequence[float | None], num_parts: int
) -> Comparison:
    """Mean paired difference with Student's interval.

    More runs than parts score the same rows again: they tell of other seeds, but not of other rows,
    so the mean is never taken to be surer than that of one cut (Bouckaert, Frank: Evaluating the
    Replicability of Significance Tests for Comparing Learning Algorithms, PAKDD 2004).

    Args:
        plain: (R,) scores.
        method: (R,) scores of the same runs.
        num_parts: parts of the rows, one of which is scored on.
    """
    gaps = np.array(_gaps(plain, method))
    if len(gaps) < FEWEST:
        return Comparison(list(plain), list(method), None)
    mean, interval = float(gaps.mean()), None
    if np.ptp(gaps) >= ROUNDING:
        error = float(gaps.std(ddof=1)) / math.sqrt(min(len(gaps), num_parts))
        half = float(stats.t.ppf((1 + LEVEL) / 2, len(gaps) - 1)) * error
        interval = (mean - half, mean + half)
    return Comparison(list(plain), list(method), Effect(mean, interval))


def _gaps(plain: Sequence[float | None], method: Sequence[float | None]) -> list[float]:
    """Method minus plain in the runs that both finished."""
    return [
        m - p
        for p, m in zip(plain, method, strict=True)
        if p is not None and m is not None and math.isfinite(p) and math.isfinite(m)
    ]
