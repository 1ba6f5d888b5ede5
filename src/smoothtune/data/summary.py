"""Numbers about the splits, and their table that is printed before training."""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from rich.table import Column, Table

from smoothtune.console import plain_text

_QUANTILES = {"min": 0.0, "median": 0.5, "p95": 0.95, "max": 1.0}
SHOWN = 50
"""Labels whose counts are printed."""


@dataclass(frozen=True)
class SplitReport:
    """The numbers of one split as it is used."""

    rows: int
    """Examples used."""
    source_rows: int
    """Examples in the source."""
    labels: dict[str, float]
    """Count by label name; minimum, mean and maximum for regression; windows and answers outside
    them for question answering."""
    lengths: dict[str, int]
    """Minimum, median, 95th percentile and maximum of the number of tokens."""
    truncated: int
    """Examples whose text was longer than `max_seq_length`."""
    note: str = ""
    """How the split was made, if it is not the source's own."""
    left_out: str = ""
    """How many rows were left out for want of a text or a label, and where they stand."""


@dataclass(frozen=True)
class Report:
    """The numbers of every split; prints as text, and as a table with rich."""

    max_seq_length: int
    splits: dict[str, SplitReport]

    def to_dict(self) -> dict[str, Any]:
        """The report as plain data for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        lines = []
        for name, split in self.splits.items():
            cells = self._cells(split).items()
            lines.append(f"{name}: " + "; ".join(f"{title} {', '.join(c)}" for title, c in cells))
        return "\n".join(lines)

    def __rich__(self) -> Table:
        table = Table(Column("split", overflow="fold"))
        for name, split in self.splits.items():
            cells = self._cells(split)
            if not table.row_count:
                for title in cells:
                    table.add_column(title, overflow="fold")
            table.add_row(name, *(plain_text("\n".join(lines)) for lines in cells.values()))
        return table

    def _cells(self, split: SplitReport) -> dict[str, list[str]]:
        rows = f"{split.rows}"
        if split.rows < split.source_rows:
            rows += f" of {split.source_rows}"
        labels = [f"{name} {value:g}" for name, value in split.labels.items()]
        more = [f"and {len(labels) - SHOWN} more"] * (len(labels) > SHOWN)
        return {
            "rows": [text for text in (rows, split.note, split.left_out) if text],
            "labels": labels[:SHOWN] + more,
            "tokens": [f"{name} {value}" for name, value in split.lengths.items()],
            "cut": [f"{split.truncated} at {self.max_seq_length} tokens"],
        }


def lengths_of(lengths: np.ndarray) -> dict[str, int]:
    """Minimum, median, 95th percentile and maximum of the numbers of tokens, (N,)."""
    quantiles = np.quantile(lengths, list(_QUANTILES.values()))
    return {name: round(value) for name, value in zip(_QUANTILES, quantiles, strict=True)}
