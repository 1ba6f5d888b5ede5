"""Names and texts of users in terminals, tables and pages."""

import csv
import io

import pytest
from rich.console import Console

from smoothtune.cli.output import fail
from smoothtune.console import plain_text, say
from smoothtune.errors import printable
from smoothtune.report.curves import csv_text
from smoothtune.report.page import Table, markdown_text, page_text
from smoothtune.report.tables import show_table

CONTROLS = ["\x1b[31m", "\x07", "\r", "\x9b2J", "\u202e", "\u2066", "\u200f", "\ufeff", "\ud800"]
PLAIN = ["é", "中文", "שלום", "👩‍🔬", "a\tb", "a\nb", "<b>", "[red]"]


@pytest.mark.parametrize("control", CONTROLS)
def test_controls_are_shown_and_not_obeyed(control: str) -> None:
    assert printable(f"a{control}b").isprintable()
    console = Console(file=io.StringIO())
    say(console, f"a{control}b")
    console.print(plain_text(f"a{control}b"))
    assert control not in console.file.getvalue()
    assert control not in page_text("md", f"a{control}b", [])


@pytest.mark.parametrize("text", PLAIN)
def test_other_text_stays(text: str) -> None:
    assert printable(text) == text


def test_the_message_of_an_error_is_printable(capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(Exception, match="2"):
        fail("label '\x1b]0;evil\x07' is unknown", 2)
    assert "\x1b" not in capsys.readouterr().err


def test_brackets_are_no_markup_in_a_table() -> None:
    for terminal in (True, False):
        console = Console(file=io.StringIO(), width=60, force_terminal=terminal, color_system=None)
        show_table(Table(["[/red]"], [["[/]"], ["[red]a\x1b]0;evil\x07"]]), "[b]", console)
        shown = console.file.getvalue()
        assert all(text in shown for text in ("[/red]", "[/]", "[red]a", "[b]"))
        assert "\x1b" not in shown


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1+2", "@A1", "\t=1", "\r=1", " =1", "＝1"])
def test_no_text_is_a_formula(text: str) -> None:
    head, row = csv.reader(io.StringIO(csv_text([text], [[text]])))
    assert head[0].startswith("'")
    assert row[0].startswith("'")


def test_numbers_are_numbers() -> None:
    assert csv_text(["a", "b", "c"], [[-1.5, None, "x"]]) == "a,b,c\n-1.5,,x\n"
    assert csv_text(["-1.50", "-2e-05"], [["-1", "-1+2"]]) == "-1.50,-2e-05\n-1,'-1+2\n"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("http://evil", r"http:\//evil"),
        ("www.evil.com", r"www\.evil.com"),
        ("@all", r"\@all"),
        ("- a", r"\- a"),
        ("=== ", r"\==="),
        ("[a](b)", r"\[a\](b)"),
        ("<b>", "&lt;b&gt;"),
    ],
)
def test_markdown(text: str, shown: str) -> None:
    assert markdown_text(text) == shown
