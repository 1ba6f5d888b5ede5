"""Tables on the console: no number is cut, whatever the width."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.table import Column
from rich.table import Table as RichTable

from smoothtune.console import plain_text, say
from smoothtune.errors import printable
from smoothtune.report.page import DASH, Table

EDGE, PADDING = 1, 3
"""Characters of a table's edge, and those of a column beside its text: two spaces, and an edge."""
INTERVAL = " ["


def show_table(
    content: Table, title: str, console: Console, first: Sequence[str] = ()
) -> list[str]:
    """Print a table: in a terminal the columns that fit, elsewhere all of them, aligned.

    Args:
        content: the table; `bold` is not shown.
        title: of the table.
        console: where to print.
        first: heads of the columns that stay when there is little room, most important first; of
            the others those to the right go before those to the left, and all before a line of
            these has to be broken.

    Returns:
        Heads of the columns for which there was no room.
    """
    if console.is_terminal:
        table, left_out = fitted(content, console.width, first, title)
        console.print(table)
        return left_out
    lines = [list(map(printable, cells)) for cells in (content.head, *content.rows)]
    widths = [max(map(cell_len, column)) for column in zip(*lines, strict=True)]
    say(console, title)
    for cells in lines:
        padded = map(set_cell_size, cells, widths)
        say(console, "  ".join(padded).rstrip())
    return []


def say_left_out(left_out: Sequence[str], where: str, console: Console) -> None:
    """Say once which columns had no room, and which file has them."""
    if left_out:
        names = "; ".join(dict.fromkeys(left_out))
        say(console, f"no room at a width of {console.width} for: {names}. They are in {where}")


def fitted(
    content: Table, width: int, first: Sequence[str] = (), title: str | None = None
) -> tuple[RichTable, list[str]]:
    """A table for a terminal, as `show_table`, and the heads of the columns that are left out.

    Args:
        content: the table.
        width: of the terminal, in characters.
        first: heads of the columns that stay.
        title: of the table.
    """
    columns = [
        [printable(cell) for cell in cells]
        for cells in zip(content.head, *content.rows, strict=True)
    ]
    priority = [content.head.index(head) for head in first if head in content.head]
    visible = _fitting(columns, priority, width)
    shown, room = [columns[index] for index in visible], width - EDGE - PADDING * len(visible)
    if sum(_width(column, str.splitlines) for column in shown) > room:
        shown = [[text.replace(INTERVAL, "\n[") for text in column] for column in shown]
    widths = [_width(column, str.split) for column in shown]
    widths[0] = max(1, min(widths[0], room))
    for lines in (_unbroken, str.splitlines):
        _grow(widths, [_width(column, lines) for column in shown], room)
    table = RichTable(title=None if title is None else plain_text(title))
    for (head, *_), size in zip(shown, widths, strict=True):
        table.columns.append(Column(plain_text(head), width=size, overflow="fold"))
    for cells in zip(*(cells for _, *cells in shown), strict=True):
        table.add_row(*map(plain_text, cells))
    order = [*priority, *(index for index in range(len(columns)) if index not in priority)]
    return table, [content.head[index] for index in order if index not in visible]


def _fitting(columns: Sequence[Sequence[str]], first: Sequence[int], width: int) -> list[int]:
    """The columns that are shown, from left to right; one is there in any case."""
    others = [index for index in range(len(columns)) if index not in first]
    visible: list[int] = []
    for indices, lines in ((first, str.split), (others, _unbroken)):
        needed = [_width(column, lines) + PADDING for column in columns]
        for index in indices:
            if visible and EDGE + sum(needed[each] for each in [*visible, index]) > width:
                return sorted(visible)
            visible.append(index)
    return sorted(visible)


def _width(column: Sequence[str], lines: Callable[[str], list[str]]) -> int:
    """Of a column whose texts are broken into such lines, its head between words; at least 1."""
    head, *cells = column
    pieces = head.splitlines() if lines is str.splitlines else head.split()
    pieces += [line for text in cells for line in lines(text)]
    return max(1, *map(cell_len, pieces))


def _unbroken(text: str) -> list[str]:
    """Lines of a text that are better not broken: numbers with what belongs to them, words."""
    is_number = text[:1].isdigit() or text[:1] in ("+", "-", DASH)
    return text.replace(INTERVAL, "\n[").splitlines() if is_number else text.split()


def _grow(widths: list[int], targets: Sequence[int], room: int) -> None:
    """Widen columns while there is room, first those that want most."""
    for _ in range(room - sum(widths)):
        column = max(range(len(widths)), key=lambda i: targets[i] - widths[i])
        if widths[column] >= targets[column]:
            break
        widths[column] += 1
