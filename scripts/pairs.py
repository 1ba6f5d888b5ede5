"""One way to train minus another of the same seeds, from the committed runs.

python scripts/pairs.py uegr-dropout sst2 "uegr rates 0.1 to 0.5" "dropout 0.3"
python scripts/pairs.py uegr-sizes "1,000 rows" "uegr rates 0.1 to 0.5" vat sizes
"""

import json
import sys

import pandas as pd
from archive import RUNS
from scipy import stats

TEMPERATURE = "calibration/judged_rows_after"
"""Of rows on which no temperature was fitted, both ways with one."""


def measures(study: str, task: str, method: str) -> pd.DataFrame:
    """Score, NLL, Brier score and ECE, with a temperature too, by seed."""
    runs = pd.read_parquet(RUNS)
    own = runs[(runs["study"] == study) & (runs["task"] == task) & (runs["method"] == method)]
    table = own.set_index("seed")[["score", "nll", "brier", "ece"]]
    for name in ("nll", "brier"):
        read = [json.loads(x).get(f"{TEMPERATURE}/{name}") for x in own["parts"].fillna("{}")]
        table[f"{name} with a temperature"] = pd.array(read, dtype="Float64").to_numpy(float)
    return table


def main(study: str, task: str, method: str, other: str, others_study: str = "") -> None:
    """Print differences, their 95 % intervals by Student's t, and p before a correction."""
    gaps = measures(study, task, method) - measures(others_study or study, task, other)
    for name, column in gaps.items():
        if len(values := column.dropna()) > 1:
            test = stats.ttest_1samp(values, 0)
            low, high = test.confidence_interval()
            print(
                f"{name}: {values.mean():+.4f} ({low:+.4f} to {high:+.4f}), "
                f"p {test.pvalue:.2g}, {len(values)} seeds"
            )


if __name__ == "__main__":
    main(*sys.argv[1:])
