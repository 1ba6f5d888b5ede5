"""Tables on the console: no number is cut, whatever the width."""

from __future__ import annotations

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.table import Column
from rich.table import Table as RichTable

from smoothtune.console import plain_text, say
from smoothtune.errors import printable
from smoothtune.report.page import Table

EDGE, PADDING = 1, 3
"""Characters of a table's edge, and those of a column beside its text: two spaces, and an edge."""


def show_table(content: Table, title: str, console: Console) -> None:
    """Print a table: framed in a terminal where every word has room, else as aligned lines."""
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
