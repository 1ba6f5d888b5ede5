"""The rows of `gpu_cost.py`, written as they come."""

import dataclasses
import json
import time
from pathlib import Path

STARTED = time.perf_counter()


@dataclasses.dataclass
class Row:
    """One way to take a step, or what there was no time for."""

    section: str
    way: str
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    flops: float | None = None
    ms: float | None = None
    kernels: int | None = None
    busy: float | None = None
    waits: int | None = None
    gib: float | None = None
    note: str = ""

    def cells(self) -> list[str]:
        """Of the table."""
        span = "" if self.low is None else f" ({self.low:.2f}-{self.high:.2f})"
        ratio = "" if self.ratio is None else f"{self.ratio:.2f}{span}"
        over = f"{self.ratio / self.flops:.2f}" if self.ratio and self.flops else ""
        numbers = [self.flops, over, self.ms, self.kernels, self.busy, self.waits, self.gib]
        shown = [
            f"{n:.2f}" if isinstance(n, float) else "" if n is None else str(n) for n in numbers
        ]
        return [self.way, ratio, *shown, self.note]


COLUMNS = ("way", "ratio", "FLOPs", "over", "ms", "kernels", "busy", "waits", "GiB", "")


class Page:
    """The rows so far, on disk after every one."""

    def __init__(self, output: Path, title: str):
        self.output, self.title, self.rows = output, title, list[Row]()
        output.with_suffix(".jsonl").write_text("")

    def add(self, row: Row) -> None:
        """Write it."""
        self.rows.append(row)
        line = json.dumps({k: v for k, v in dataclasses.asdict(row).items() if v not in (None, "")})
        print(line, flush=True)
        with self.output.with_suffix(".jsonl").open("a") as file:
            file.write(line + "\n")

    def write(self, end: str) -> None:
        """All of it as Markdown."""
        seconds = time.perf_counter() - STARTED
        lines = [
            "# Cost of a step on an accelerator",
            "",
            self.title,
            "",
            f"{seconds:.0f} s, {end}.",
        ]
        for section in dict.fromkeys(row.section for row in self.rows):
            lines += ["", f"## {section}", "", f"| {' | '.join(COLUMNS)} |", "|---" * 10 + "|"]
            of_it = [row for row in self.rows if row.section == section]
            lines += [f"| {' | '.join(row.cells())} |" for row in of_it]
        self.output.with_suffix(".md").write_text("\n".join(lines) + "\n", encoding="utf-8")
