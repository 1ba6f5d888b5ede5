"""Draw the README's picture, docs/brings.svg, from a committed study: python scripts/brings.py.

Score and Brier score of plain fine-tuning and of one method, a line for each seed.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from smoothtune.report.plots import GRAY, drawn

ROOT = Path(__file__).parent.parent
CELLS = ROOT / "results" / "fit" / "cells"
PICTURE = ROOT / "docs" / "brings.svg"
TASK, METHOD, TITLE = "sst2", "vat", "VAT"
BLUE = "#2f6db5"


class Pair(NamedTuple):
    """A run of plain and one of the method with the same seed."""

    seed: int
    plain: dict[str, float]
    method: dict[str, float]


def pairs(folder: Path, task: str, method: str) -> list[Pair]:
    """The pairs of a study's folder of cells, by seed.

    Args:
        folder: one JSON file for each run.
        task: whose runs are taken.
        method: beside plain.
    """
    metrics: dict[tuple[str, int], dict[str, float]] = {}
    for path in folder.glob("*.json"):
        result = json.loads(path.read_text(encoding="utf-8")).get("result") or {}
        if result.get("task") == task and len(result["methods"]) == 1:
            metrics[next(iter(result["methods"])), result["seed"]] = result["metrics"]
    seeds = sorted(seed for name, seed in metrics if name == method and ("plain", seed) in metrics)
    return [Pair(seed, metrics["plain", seed], metrics[method, seed]) for seed in seeds]


def main() -> None:
    """Draw it."""
    found = pairs(CELLS, TASK, METHOD)

    def paint(figure: Any) -> None:
        panels = zip(figure.subplots(1, 2), ("accuracy", "brier"), strict=True)
        titles = {"accuracy": "accuracy: more is better", "brier": "Brier score: less is better"}
        for axes, measure in panels:
            for pair in found:
                values = [pair.plain[measure], pair.method[measure]]
                axes.plot([0, 1], values, "o-", color=BLUE, lw=1.5)
            axes.set_xticks([0, 1], ["plain", TITLE])
            axes.set_xlim(-0.4, 1.4)
            axes.set_title(titles[measure], color=GRAY, fontsize=11)

    PICTURE.write_bytes(drawn(7.0, 3.2, paint)["svg"])


if __name__ == "__main__":
    main()
