"""Draw the README's picture, docs/brings.svg, from the committed study: python scripts/brings.py.

Per method: its score and calibration error minus plain's, and the time of training.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from smoothtune.report.plots import GRAY, drawn, styles

ROOT = Path(__file__).parent.parent
RUNS = ROOT / "results" / "runs.parquet"
PICTURE = ROOT / "docs" / "brings.svg"
NAMES = {"plain_more_epochs": "plain, twice the epochs", "lnsr in_manifold": "lnsr, in-manifold"}


def differences(rows: pd.DataFrame, column: str) -> pd.DataFrame:
    """Mean over the tasks of the difference from plain, per method: mean, low, high (95 %, t).

    Args:
        rows: task, method, seed, and the column; rows without a value are left out.
        column: what is compared.
    """
    table = rows.dropna(subset=[column]).pivot(
        index=["task", "seed"], columns="method", values=column
    )
    by_seed = table.sub(table["plain"], axis=0).groupby("seed").mean()
    error = by_seed.sem() * stats.t.ppf(0.975, len(by_seed) - 1)
    mean = by_seed.mean()
    return pd.DataFrame({"mean": mean, "low": mean - error, "high": mean + error})


def main() -> None:
    """Draw it."""
    rows = pd.read_parquet(RUNS, filters=[("study", "==", "few-sample")])
    rows["points"] = 100 * rows["score"]
    score, ece = differences(rows, "points"), differences(rows, "ece")
    times = rows.groupby(["task", "method"])["train_seconds"].median().unstack()
    time = times.div(times["plain"], axis=0).mean()
    methods = [name for name in ece.sort_values("mean").index if name != "plain"]
    looks = styles(methods)

    def paint(figure: Any) -> None:
        panels = figure.subplots(1, 3, sharey=True, width_ratios=[3, 3, 2])
        found = zip(panels, (score, ece), strict=False)
        labels = ("score minus plain's, points", "calibration error (ECE) minus plain's")
        for (axes, values), label in zip(found, labels, strict=True):
            for place, name in enumerate(methods):
                look = looks[name]
                axes.plot(values.loc[name, ["low", "high"]], [place] * 2, color=look.color, lw=2)
                axes.plot(values.loc[name, "mean"], place, look.marker, color=look.color)
            axes.axvline(0, color=GRAY)
            axes.set_xlabel(label)
        panels[2].set_axisbelow(True)
        panels[2].barh(np.arange(len(methods)), time[methods], color=GRAY)
        panels[2].set_xlabel("time of training / plain's")
        panels[0].set_yticks(range(len(methods)), [NAMES.get(name, name) for name in methods])
        panels[0].invert_yaxis()

    PICTURE.write_bytes(drawn(9.5, 4.4, paint)["svg"])


if __name__ == "__main__":
    main()
