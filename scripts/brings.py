"""Draw the README's picture, docs/brings.svg, from a committed study: python scripts/brings.py.

Score and calibration error of plain fine-tuning and of two methods, a line for each seed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd

from smoothtune.report.plots import GRAY, drawn

ROOT = Path(__file__).parent.parent
RUNS = ROOT / "results" / "runs.parquet"
PICTURE = ROOT / "docs" / "brings.svg"
STUDY = "fit-fresh"
TITLES = {"plain": "plain", "lnsr": "LNSR", "vat": "VAT"}
MEASURES = {"score": "score: more is better", "ece": "calibration error: less is better"}
BLUE = "#2f6db5"


def by_seed(runs: pd.DataFrame, measure: str) -> pd.DataFrame:
    """A row for each seed: what plain and the methods have, means over the tasks.

    Args:
        runs: task, seed, method, and the measure.
        measure: a column.
    """
    table = runs.pivot_table(index=["task", "seed"], columns="method", values=measure)
    return table[list(TITLES)].dropna().groupby("seed").mean()


def main() -> None:
    """Draw it."""
    runs = pd.read_parquet(RUNS, filters=[("study", "==", STUDY)])

    def paint(figure: Any) -> None:
        panels = zip(figure.subplots(1, 2), MEASURES.items(), strict=True)
        for axes, (measure, title) in panels:
            for _, values in by_seed(runs, measure).iterrows():
                axes.plot(range(len(TITLES)), values, "o-", color=BLUE, lw=1.5)
            axes.set_xticks(range(len(TITLES)), list(TITLES.values()))
            axes.set_xlim(-0.3, len(TITLES) - 0.7)
            axes.set_title(title, color=GRAY, fontsize=11)

    PICTURE.write_bytes(drawn(7.0, 3.2, paint)["svg"])


if __name__ == "__main__":
    main()
