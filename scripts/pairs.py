"""One way to train minus another of the same seeds, from the committed runs.

python scripts/pairs.py uegr-dropout sst2 "uegr rates 0.1 to 0.5" "dropout 0.3"
python scripts/pairs.py uegr-sizes "1,000 rows" "uegr rates 0.1 to 0.5" vat sizes
python scripts/pairs.py fit-encoder+fit-fresh all vat plain
python scripts/pairs.py sift-table-1-small tweets_hate_speech_detection smart plain

Over `all` tasks the mean of those that both have; of several studies, joined by +, all seeds. On
other data, also after further training on a part of it, the mean over the sets.
"""

import json
import re
import sys
from statistics import mean

import pandas as pd
from archive import RUNS
from scipy import stats

TEMPERATURE = "calibration/judged_rows_after"
"""Of rows on which no temperature was fitted, both ways with one."""
COLUMNS = ["score", "nll", "brier", "ece", "noise"]
OTHER = re.compile(
    r"ood: [^/]*?(?P<after> after [^/]*)?/metrics/(?P<metric>accuracy|brier|nll)/value"
)
"""A number on other data, as it was trained or after further training on a part of it."""


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
    others = pd.DataFrame([on_other_data(x) for x in own["parts"].fillna("{}")], table.index)
    return table.join(others)


def on_other_data(parts: str) -> dict[str, float]:
    """Means over the sets, by metric, from the JSON of a run's parts."""
    values: dict[str, list[float]] = {}
    for name, value in json.loads(parts).items():
        if match := OTHER.fullmatch(name):
            title = f"{match['metric']} on other data{match['after'] or ''}"
            values.setdefault(title, []).append(value)
    return {title: mean(each) for title, each in values.items()}


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
