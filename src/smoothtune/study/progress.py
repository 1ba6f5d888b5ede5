"""What a study or a search shows while its cells run."""

from __future__ import annotations

from rich.console import Console

from smoothtune.console import Bar, say
from smoothtune.study.pool import Ended
from smoothtune.study.records import Records


class Progress(Bar):
    """A bar in a terminal, and a line for every cell that ended."""

    def __init__(self, console: Console, unit: str, records: Records | None = None) -> None:
        super().__init__(console, unit)
        self.records = records

    def ended(self, ended: Ended, *, again: bool) -> None:
        """A cell has ended, and may be tried again."""
        if not again:
            self.advance()
        outcome = f"{ended.status}: {ended.message}" + "; tried again" * again
        if ended.status == "done":
            row = self.records.row(ended.cell.id) if self.records else None
            if row is None or row.score is None:
                return
            outcome = f"{row.score:.4f}"
        say(self.console, f"{self.done}/{self.total} {ended.cell.title}: {outcome}")

    def state(self) -> str:
        """How far it is: ``3 of 8 runs done``."""
        return f"{self.done} of {self.total} {self.unit} done"
