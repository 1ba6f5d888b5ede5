"""What all diagnostics return: lines to plot, with summary numbers."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from smoothtune.errors import printable

FORMULA = tuple("=+-@＝＋－＠")
"""What begins a formula; spreadsheets read the wide forms alike."""
NUMBER = re.compile(r"-\d+(\.\d+)?([eE][+-]?\d+)?")
"""A text that is a negative number, and no formula."""


SIGNED = ("matthews_correlation", "pearson", "spearman", "quadratic_weighted_kappa")
"""Metrics from -1 to 1."""
LOST, LOSES = 0.1, "loses 10 points at"
ROUNDING = 1e-9  # 0.9 - 0.1 is not 0.8 in floating point


class CurvePoint(NamedTuple):
    """A value, with the bounds of its interval or range where there is one."""

    x: float
    y: float
    low: float | None = None
    high: float | None = None


@dataclass
class Curve:
    """Lines over one pair of axes."""

    title: str
    x_label: str
    """With the unit."""
    y_label: str
    """With the unit."""
    series: dict[str, list[CurvePoint]]
    """Points by name of the line."""
    band: str = ""
    """What `low` and `high` are."""
    log_y: bool = False
    numbers: dict[str, float] = field(default_factory=dict)
    """Summaries by name, as the area under a line."""

    def to_dict(self) -> dict[str, Any]:
        """As plain data for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, plain: dict[str, Any]) -> Curve:
        """Read what `to_dict` wrote."""
        series = {
            name: [CurvePoint(*p) for p in points] for name, points in plain["series"].items()
        }
        return cls(**plain | {"series": series})

    def to_csv(self) -> str:
        """One row for every point: series, x, y, low, high; x and y under the axes' labels."""
        rows = ([name, *point] for name, points in self.series.items() for point in points)
        return csv_text(["series", self.x_label, self.y_label, "low", "high"], rows)


def csv_text(head: Iterable[object], rows: Iterable[Iterable[object]], *, sep: str = ",") -> str:
    """Rows under their head, as CSV with a separator; no text is a formula to a spreadsheet."""
    text = io.StringIO()
    lines = ([csv_cell(value) for value in row] for row in [head, *rows])
    csv.writer(text, delimiter=sep, lineterminator="\n").writerows(lines)
    return text.getvalue()


def csv_cell(value: object) -> object:
    """A value in a cell: text that a spreadsheet would run begins with an apostrophe.

    >>> csv_cell("=1+1"), csv_cell("  @SUM(A1)"), csv_cell(-1.5), csv_cell("-1.50")
    ("'=1+1", "'  @SUM(A1)", -1.5, '-1.50')
    """
    if not isinstance(value, str) or NUMBER.fullmatch(value):
        return value
    formula = value.startswith(("\t", "\r", "\n")) or value.lstrip().startswith(FORMULA)
    return printable("'" + value if formula else value)


def metric_label(name: str) -> str:
    """A metric as the label of an axis.

    >>> metric_label("f1"), metric_label("pearson")
    ('f1 (0 to 1)', 'pearson (-1 to 1)')
    """
    return f"{name} (-1 to 1)" if name in SIGNED else f"{name} (0 to 1)"


def area(points: Sequence[CurvePoint]) -> float:
    """Area under a line by the trapezoid rule, divided by its width: a mean height.

    >>> area([CurvePoint(0, 1), CurvePoint(1, 0.5), CurvePoint(2, 0.5)])
    0.625
    """
    x, y = [point.x for point in points], [point.y for point in points]
    return float(np.trapezoid(y, x) / (x[-1] - x[0]))


def crossing(points: Sequence[CurvePoint], y: float) -> float | None:
    """Where a line first comes down to a height; None if it stays above.

    >>> crossing([CurvePoint(0, 1), CurvePoint(1, 0.9), CurvePoint(3, 0.5)], 0.8)
    1.5
    >>> crossing([CurvePoint(0, 1), CurvePoint(1, 0.9)], 0.8)
    """
    for before, after in pairwise(points):
        if after.y <= y + ROUNDING:
            fall = before.y - after.y
            share = min(max((before.y - y) / fall, 0.0), 1.0) if fall else 0.0
            return float(before.x + share * (after.x - before.x))
    return None


def mean_and_range(x: float, samples: Sequence[float]) -> CurvePoint:
    """Mean of several samples, with the least and the greatest as bounds."""
    return CurvePoint(x, float(np.mean(samples)), float(min(samples)), float(max(samples)))
