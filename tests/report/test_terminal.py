"""Tables in terminals of several widths: what is shown is whole."""

import io
import re

import pytest
from rich.cells import cell_len
from rich.console import Console

from smoothtune.report.page import Table
from smoothtune.report.tables import show_table

HEAD = ["method", "quantity", "change", "p, Holm", "verdict"]
ROWS = [
    ["double_backprop", "logit Jacobian, relative to the logits"]
    + ["-82.0 [-101.2, -62.8] %", "0.0083", "open: not after Holm"],
    ["中文 [red]", "noise sensitivity", "+0.4 [-0.6, +0.1] %", "–", "no difference seen"],
]
VERDICTS = [HEAD[-1], *(row[-1] for row in ROWS)]
NUMBER = re.compile(r"[+-]?\d+(?:\.\d+)?")


def printed(width: int, *, terminal: bool = True) -> str:
    file = io.StringIO()
    console = Console(file=file, width=width, force_terminal=terminal, color_system=None)
    show_table(Table(HEAD, ROWS), "a title", console)
    return file.getvalue()


def numbers(text: str) -> set[str]:
    return set(NUMBER.findall(text))


@pytest.mark.parametrize("width", [20, 40, 60, 80, 100, 200])
def test_no_number_is_cut(width: int) -> None:
    """Where words do not have room beside one another, the terminal breaks whole lines."""
    text = printed(width)
    assert "…" not in text
    if width >= 80:
        assert max(map(cell_len, text.splitlines())) <= width
        assert "┃" in text
    if width >= 40:
        assert numbers(text) == {number for row in ROWS for cell in row for number in numbers(cell)}


def test_elsewhere_all_columns_are_there_one_below_the_other() -> None:
    title, *lines = printed(20, terminal=False).splitlines()
    assert title == "a title"
    assert [re.split(" {2,}", line) for line in lines] == [HEAD, *ROWS]
    starts = {
        cell_len(line[: line.index(verdict)]) for line, verdict in zip(lines, VERDICTS, strict=True)
    }
    assert len(starts) == 1
