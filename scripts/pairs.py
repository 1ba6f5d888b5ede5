"""One way to train minus another of the same seeds, from the committed runs.

python scripts/pairs.py uegr-dropout sst2 "uegr rates 0.1 to 0.5" "dropout 0.3"
python scripts/pairs.py uegr-sizes "1,000 rows" "uegr rates 0.1 to 0.5" vat sizes
python scripts/pairs.py fit-encoder+fit-fresh all vat plain

Over `all` tasks the mean of those that both have; of several studies, joined by +, all seeds.
"""

import json
import sys

import pandas as pd
from archive import RUNS
from scipy import stats

TEMPERATURE = "calibration/judged_rows_after"
"""Of rows on which no temperature was fitted, both ways with one."""
COLUMNS = ["score", "nll", "brier", "ece", "noise"]


def measures(studies: str, task: str, method: str) -> pd.DataFrame:
    """Score, NLL, Brier score, ECE and score under noise, by seed and task."""
    runs = pd.read_parquet(RUNS)
    runs = runs[runs["reported"] & runs["study"].isin(studies.split("+"))]
    own = runs[runs["task"].isin(runs["task"] if task == "all" else [task])]
    own = own[own["method"] == method]
    table = own.set_index(["seed", "task"])[COLUMNS].astype(float)
    for name in ("nll", "brier"):
        read = [json.loads(x).get(f"{TEMPERATURE}/{name}") for x in own["parts"].fillna("{}")]
        table[f"{name} with a temperature"] = pd.array(read, dtype="Float64").to_numpy(float)
    return table


def main(studies: str, task: str, method: str, other: str, others_studies: str = "") -> None:
    """Print differences, their 95 % intervals by Student's t, and p before a correction."""
    gaps = measures(studies, task, method) - measures(others_studies or studies, task, other)
    for name, column in gaps.items():
        by_task = column.unstack().dropna(axis="columns", how="all")
        values = by_task.mean(axis="columns", skipna=False).dropna()
        if len(values) > 1:
            test = stats.ttest_1samp(values, 0)
            low, high = test.confidence_interval()
            print(
                f"{name}: {values.mean():+.4f} ({low:+.4f} to {high:+.4f}), "
                f"p {test.pvalue:.2g}, {len(values)} seeds"
            )


if __name__ == "__main__":
    main(*sys.argv[1:])
