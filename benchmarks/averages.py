r"""An average of three plain runs beside one run of each method, which costs about as much.

    smoothtune study recipes/sizes.yaml --data DIR --output-dir OUT
    smoothtune study recipes/sizes.yaml --data DIR --output-dir OUT --methods plain \
        --seeds 550,551,552,553,554,555,556,557,558,559
    python benchmarks/averages.py OUT --data DIR

DIR is a folder of data sets with `sst2`. The average of a seed 540 + i is of the plain models of
this seed, of 550 + 2i and of 551 + 2i: the mean of their probabilities, as `smoothtune evaluate`
takes it for several models. A temperature is fitted on half of the validation rows and judged on
the other half, as in the study. Differences are paired by seed. What is evaluated already is not
again. Writes benchmarks/results/averages.md.
"""

import argparse
import json
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np
from scipy.stats import t, ttest_rel

from smoothtune.results import CellRecord

RESULTS = Path(__file__).parent / "results"
FIRST, FURTHER = range(540, 545), 550
AVERAGE = "average of three"
MEASURES = ("accuracy", "NLL", "Brier score", "NLL, with a temperature")


def finished(folder):
    """By task and method: by seed the measures of a run, and its model's folder."""
    runs = defaultdict(dict)
    for path in sorted((folder / "cells").glob("*.json")):
        cell = CellRecord.parse(json.loads(path.read_text("utf-8")))
        if cell.result is None or cell.extras is None:
            continue
        metrics, numbers = cell.result.metrics, cell.extras.parts["calibration"].numbers
        method = "+".join(cell.result.methods)
        runs[cell.result.task, method][cell.result.seed] = (
            (*(metrics[name] for name in ("accuracy", "nll", "brier")), after(numbers)),
            folder / "models" / cell.id,
        )
    return runs


def after(numbers):
    """NLL of the rows that a temperature was not fitted on, with it."""
    return numbers["judged_rows_after"]["nll"]


def averaged(name, seed, plain, folder, data):
    """The measures of an average; None if one of its runs is not done."""
    further = FURTHER + 2 * (seed - FIRST[0])
    members = [plain[each][1] for each in (seed, further, further + 1) if each in plain]
    if len(members) < 3:
        return None
    out = folder / "averages" / f"{name}-{seed}"
    if not (out / "evaluation.json").exists():
        command = [sys.executable, "-m", "smoothtune", "evaluate", *map(str, members)]
        command += [
            "--calibration",
            "--task",
            "sst2",
            "--data",
            str(data / "sst2"),
            "--output-dir",
            str(out),
        ]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    parts = json.loads((out / "evaluation.json").read_text("utf-8"))["parts"]
    metrics = parts["metrics"]["numbers"]["metrics"]
    values = (metrics[name]["value"] for name in ("accuracy", "nll", "brier"))
    return (*values, after(parts["calibration"]["numbers"]))


def cell(values, plain):
    """Mean difference from plain with its interval, and p."""
    difference = np.array(values) - np.array(plain)
    half = t.ppf(0.975, len(difference) - 1) * difference.std(ddof=1) / len(difference) ** 0.5
    mean, p = difference.mean(), ttest_rel(values, plain).pvalue
    return f"{mean:+.3f} ({mean - half:+.3f} to {mean + half:+.3f}; p {p:.2g})"


def lines(name, by_method):
    """The rows of one condition; of each method the seeds that plain has, too."""
    plain = by_method["plain"]
    means = [f"{np.mean([of[i] for of in plain.values()]):.3f}" for i in range(len(MEASURES))]
    yield f"| {name} | plain, {len(plain)} seeds | {' | '.join(means)} |"
    for method, by_seed in by_method.items():
        seeds = sorted({*by_seed} & {*plain})
        if method == "plain" or len(seeds) < 2:
            continue
        pairs = ([[of[s][i] for s in seeds] for of in (by_seed, plain)] for i in range(4))
        yield f"| | {method} | {' | '.join(cell(*pair) for pair in pairs)} |"
    dear, average = by_method.get("vat", {}), by_method[AVERAGE]
    if len(seeds := sorted({*dear} & {*average})) > 1:
        pairs = ([[of[s][i] for s in seeds] for of in (dear, average)] for i in range(4))
        yield f"| | vat, minus the average | {' | '.join(cell(*pair) for pair in pairs)} |"


def main():
    """Average, compare, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--data", type=Path, required=True)
    arguments = parser.parse_args()
    runs = finished(arguments.folder)
    page = ["# An average of three runs", "", "`python benchmarks/averages.py OUT --data DIR`", ""]
    page += [
        "MiniLM, rows of SST-2: the runs of [sizes](../../results/sizes.md). Under plain are",
        "differences from it, paired by seed, with 95 % intervals and p before a correction. The",
        "last row is VAT, whose training costs about as much as three, minus their average.",
        "",
    ]
    page += [f"| rows | way | {' | '.join(MEASURES)} |", "|---|---|---|---|---|---|"]
    for name in dict.fromkeys(task for task, _ in runs):
        every = {m: of for (task, m), of in runs.items() if task == name}
        by_method = {
            m: {seed: values for seed, (values, _) in of.items() if seed in FIRST}
            for m, of in every.items()
        }
        plain = every["plain"]
        averages = {
            seed: averaged(name, seed, plain, arguments.folder, arguments.data) for seed in FIRST
        }
        by_method[AVERAGE] = {seed: of for seed, of in averages.items() if of is not None}
        page += lines(name, by_method)
    (RESULTS / "averages.md").write_text("\n".join(page) + "\n", encoding="utf-8")
    print("\n".join(page))


if __name__ == "__main__":
    main()
