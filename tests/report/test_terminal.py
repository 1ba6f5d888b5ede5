"""Tables in terminals of several widths: what is shown is whole, what is not is named."""

import io
import re

import pytest
from rich.cells import cell_len
from rich.console import Console

from smoothtune.report.page import Table
from smoothtune.report.terminal import say_left_out, show_table

HEAD = ["method", "quantity", "seeds", "plain", "change", "p, Holm", "verdict"]
FIRST = ("method", "quantity", "change", "verdict", "p, Holm")
ROWS = [
    ["double_backprop", "logit Jacobian, relative to the logits", "5", "0.02601"]
    + ["-82.0 [-101.2, -62.8] %", "0.0083", "moves it, not after Holm"],
    ["中文 [red]", "noise sensitivity", "5", "1152", "+0.4 [-0.6, +0.1] %", "–", "no effect seen"],
]
VERDICTS = [HEAD[-1], *(row[-1] for row in ROWS)]
NUMBER = re.compile(r"[+-]?\d+(?:\.\d+)?")


def printed(width: int, *, terminal: bool = True) -> tuple[str, list[str]]:
    file = io.StringIO()
    console = Console(file=file, width=width, force_terminal=terminal, color_system=None)
    left_out = show_table(Table(HEAD, ROWS), "a title", console, FIRST)
    return file.getvalue(), left_out


def numbers(text: str) -> set[str]:
    return set(NUMBER.findall(text))


@pytest.mark.parametrize("width", [40, 60, 80, 100, 200])
def test_no_number_is_cut(width: int) -> None:
    text, left_out = printed(width)
    assert "…" not in text
    assert max(map(cell_len, text.splitlines())) <= width
    shown = [place for place, head in enumerate(HEAD) if head not in left_out]
    whole = {found for row in ROWS for place in shown for found in numbers(row[place])}
    assert numbers(text) == whole


def test_what_decides_stays_longest() -> None:
    assert printed(200)[1] == []
    assert printed(80)[1] == ["plain"]
    assert printed(60)[1] == ["p, Holm", "seeds", "plain"]
    lines = printed(80)[0].splitlines()
    assert any("[-101.2, -62.8] %" in line for line in lines), "an interval in two lines"


def test_a_head_that_begins_with_a_number_is_broken_between_words() -> None:
    heads = ["10 % wrong labels", "30 % wrong labels", "100 examples"]
    content = Table(["method", *heads], [["plain", "76.3 ± 1.3", "70.1 ± 1.0", "60.0 ± 2.0"]])
    file = io.StringIO()
    console = Console(file=file, width=60, force_terminal=True, color_system=None)
    assert show_table(content, "a title", console, ["method"]) == []
    assert numbers(file.getvalue()) >= {"76.3", "1.3", "70.1", "60.0"}


def test_elsewhere_all_columns_are_there_one_below_the_other() -> None:
    text, left_out = printed(20, terminal=False)
    title, *lines = text.splitlines()
    assert (title, left_out) == ("a title", [])
    assert [re.split(" {2,}", line) for line in lines] == [HEAD, *ROWS]
    starts = {
        cell_len(line[: line.index(verdict)]) for line, verdict in zip(lines, VERDICTS, strict=True)
    }
    assert len(starts) == 1


def test_what_is_left_out_is_named_once_with_its_place() -> None:
    file = io.StringIO()
    console = Console(file=file, width=60, force_terminal=True, color_system=None)
    say_left_out(["seeds", "plain", "seeds"], "out/effect.md", console)
    words = " ".join(file.getvalue().split())
    assert words == "no room at a width of 60 for: seeds; plain. They are in out/effect.md"
    say_left_out([], "out/effect.md", console)
    assert " ".join(file.getvalue().split()) == words
