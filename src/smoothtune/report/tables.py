"""Tables of methods and tasks, as LaTeX and on the console."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.table import Column
from rich.table import Table as RichTable
from scipy import stats

from smoothtune.console import plain_text, say
from smoothtune.errors import printable
from smoothtune.report.page import DASH, Table, number, with_interval

LATEX: dict[str, str | int | None] = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "`": r"\textasciigrave{}",
    "–": "--",
    "±": r"$\pm$",
    "×": r"$\times$",
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
}
_FIRST = re.compile(r"^(?=\s*[\[*])")
"""Before what the end of the line above would take as its argument."""
POINTS = 100
"""A difference of 0.01 of score is one point."""
FIT = r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%"
"""Begins a box no wider than the text."""
DIGITS = 12
"""After the point, up to which means that differ are not the same."""
EQUAL = 1e-9
"""Relative difference of numbers up to which they are the same but for rounding."""
EDGE, PADDING = 1, 3
"""Characters of a table's edge, and those of a column beside its text: two spaces, and an edge."""


def latex_text(text: str) -> str:
    r"""Text without any meaning to LaTeX; hyphens before numbers become minus signs.

    >>> print(latex_text("lnsr_x: -0.5 & 3 %"))
    lnsr\_x: $-$0.5 \& 3 \%
    """
    escaped = printable(text).translate(str.maketrans(LATEX))
    return re.sub(r"(?<![\w)}-])-(?=\d)", "$-$", escaped)


def latex_table(table: Table, *, caption: str = "", label: str = "") -> str:
    r"""A table for a paper, in the style of booktabs.

    Args:
        table: its first column is set to the left, the others to the right.
        caption: above the table; without caption and label there is only the tabular.
        label: for ``\ref``.

    Returns:
        LaTeX that needs ``\usepackage{booktabs}``; with caption or label also ``graphicx``, by
        which a table that is wider than the text shrinks to it.
    """
    rows = [[latex_text(cell) for cell in row] for row in table.rows]
    for y, x in table.bold:
        rows[y][x] = rf"\textbf{{{rows[y][x]}}}"
    head = [latex_text(cell) for cell in table.head]
    body = [_FIRST.sub("{}", " & ".join(row)) + r" \\" for row in [head, *rows]]
    lines = [
        rf"\begin{{tabular}}{{l{'r' * (len(head) - 1)}}}",
        *(r"\toprule", body[0], r"\midrule", *body[1:], r"\bottomrule"),
        r"\end{tabular}",
    ]
    needed = r"\usepackage{booktabs}"
    if caption or label:
        needed = r"\usepackage{booktabs,graphicx}"
        lines = [FIT, *lines, "}"]
        titles = [rf"\caption{{{latex_text(caption)}}}", rf"\label{{{label}}}"]
        lines = [r"\begin{table}", r"\centering", *titles, *lines, r"\end{table}"]
    return "\n".join([f"% needs {needed}", *lines, ""])


def show_table(content: Table, title: str, console: Console) -> None:
    """Print a table: framed in a terminal where every word has room, else as aligned lines.

    No number is cut, whatever the width.
    """
    lines = [list(map(printable, cells)) for cells in (content.head, *content.rows)]
    columns = list(zip(*lines, strict=True))
    least = [max(cell_len(word) for cell in column for word in cell.split()) for column in columns]
    if console.is_terminal and EDGE + sum(size + PADDING for size in least) <= console.width:
        sizes = zip(content.head, least, strict=True)
        heads = [Column(plain_text(head), min_width=size, overflow="fold") for head, size in sizes]
        table = RichTable(*heads, title=plain_text(title))
        for cells in content.rows:
            table.add_row(*map(plain_text, cells))
        console.print(table)
        return
    widths = [max(map(cell_len, column)) for column in columns]
    say(console, title)
    for cells in lines:
        padded = map(set_cell_size, cells, widths)
        say(console, "  ".join(padded).rstrip())


@dataclass(frozen=True)
class Effect:
    """A number with its 95 % interval."""

    value: float
    interval: tuple[float, float] | None
    """None where there is too little to judge by."""

    @property
    def bounds(self) -> tuple[float | None, float | None]:
        """Low and high."""
        return self.interval or (None, None)

    @property
    def excludes_zero(self) -> bool:
        """Whether the interval is on one side of 0."""
        return self.interval is not None and (self.interval[0] > 0 or self.interval[1] < 0)


@dataclass(frozen=True)
class Summary:
    """Numbers of some seeds, or of some rows."""

    n: int
    mean: float
    sd: float | None
    """N - 1 in the denominator; None for one number."""
    median: float
    max: float

    @classmethod
    def of(cls, values: ArrayLike) -> Summary:
        """Of values (N,), one at least; those that are the same but for rounding have no deviation.

        >>> Summary.of([1.0, 3.0])
        Summary(n=2, mean=2.0, sd=1.4142135623730951, median=2.0, max=3.0)
        """
        x = np.asarray(values, np.float64)
        sd = None
        if len(x) > 1:
            same = np.ptp(x) <= EQUAL * np.abs(x).max()
            sd = 0.0 if same else float(x.std(ddof=1))
        return cls(len(x), float(x.mean()), sd, float(np.median(x)), float(x.max()))

    @property
    def effect(self) -> Effect:
        """The mean with its 95 % interval by Student's t; one number has none."""
        if self.sd is None:
            return Effect(self.mean, None)
        half = float(stats.t.ppf(0.975, self.n - 1)) * self.sd / self.n**0.5
        return Effect(self.mean, (self.mean - half, self.mean + half))


def effect_text(effect: Effect | None, factor: float, spec: str) -> str:
    """A difference with its interval, if that has a width; `factor` 100 makes points of scores.

    >>> effect_text(Effect(0.01, (-0.02, 0.04)), 100, "+.1f")
    '+1.0 [-2.0, +4.0]'
    >>> effect_text(Effect(0.0, (0.0, 0.0)), 100, "+.1f")
    '+0.0'
    """
    if effect is None:
        return DASH
    interval = None
    if effect.interval is not None and len(set(effect.interval)) > 1:
        low, high = effect.interval
        interval = factor * low, factor * high
    return with_interval(factor * effect.value, interval, spec)


def p_text(value: float | None) -> str:
    """A p-value; two digits after the point from 0.1.

    >>> p_text(0.5), p_text(0.0123)
    ('0.50', '0.012')
    """
    return DASH if value is None else f"{value:.2g}" if value < 0.1 else f"{value:.2f}"


def score_grid(
    scores: Mapping[str, Mapping[Any, Summary]],
    columns: Mapping[Any, str],
) -> Table:
    """Methods x tasks in points: means with the standard deviation; the best of a column is bold.

    Args:
        scores: by method and task, from 0 to 1; a task without finished runs is missing.
        columns: title of each task.

    Returns:
        With average and mean rank (1 is best, ties share their mean rank) for more than one task,
        of the methods that have all of them.
    """
    head = ["method", *columns.values()]
    rows = [
        [name, *(_mean_and_sd(by_task.get(task)) for task in columns)]
        for name, by_task in scores.items()
    ]
    means = {
        task: {name: round(of[task].mean, DIGITS) for name, of in scores.items() if task in of}
        for task in columns
    }
    ranked = list(means.values())
    if len(columns) > 1:
        head += ["average", "mean rank"]
        average, rank = averages_and_ranks(means)
        ranked += [average, {name: -value for name, value in rank.items()}]
        for row in rows:
            mean = average.get(row[0])
            row += [number(mean and POINTS * mean, ".1f"), number(rank.get(row[0]), ".1f")]
    bold = {
        (y, x)
        for x, values in enumerate(ranked, 1)
        for y, name in enumerate(scores)
        if name in values and values[name] == max(values.values())
    }
    return Table(head, rows, frozenset(bold))


def averages_and_ranks(
    means: Mapping[Any, Mapping[str, float]],
) -> tuple[dict[str, float], dict[str, float]]:
    """Mean score and mean rank over tasks, of the methods that have all tasks.

    >>> averages_and_ranks({"one": {"a": 0.5, "b": 0.7}, "two": {"a": 0.9, "b": 0.9, "c": 1.0}})
    ({'a': 0.7, 'b': 0.8}, {'a': 1.75, 'b': 1.25})
    """
    table = pd.DataFrame(means).dropna()
    ranks = table.rank(ascending=False)
    return table.mean(axis=1).round(DIGITS).to_dict(), ranks.mean(axis=1).to_dict()


def _mean_and_sd(score: Summary | None) -> str:
    if score is None:
        return DASH
    mean = f"{POINTS * score.mean:.1f}"
    return mean if score.sd is None else f"{mean} ± {POINTS * score.sd:.1f}"
