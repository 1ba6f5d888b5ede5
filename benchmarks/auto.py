r"""`--method auto` against tuned plain fine-tuning, on three sets that no run of `auto` has seen.

    python benchmarks/auto.py --data DIR --folder OUT

DIR is a folder of data sets with `uci_sentiment_labelled` and `qqp`. What is done in OUT is not
done again. Writes benchmarks/results/auto.md.

Set before the first run: MiniLM, 400 training rows, drawn anew with each of the seeds 627 to 631,
which no study has had. `auto` searches by the Brier score, with 10 trials, so that each of the five
methods is tried once at plain's best setting, and 8 fresh runs. It trains its pick on the 400
rows; the best plain setting of the same search is trained on them with the same seed. Both are
judged by 500 other rows. Paired by seed, means over the sets: `auto` helps if its NLL or Brier
score is better (p below 0.05 after Holm's correction over the two) and the 95 % interval of its
score lies above -0.5 points. Where it stays with plain, both are the same run. The search is that
which was changed after qnli, tweets and amazon; other studies have trained on imdb, yelp and qqp.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from scipy.stats import t, ttest_1samp, ttest_rel

RESULTS = Path(__file__).parent / "results"
SEEDS = range(627, 632)
TRAINED, JUDGED = 400, 500
SETS = {
    "imdb": ("uci_sentiment_labelled/imdb.parquet", ["sentence"]),
    "yelp": ("uci_sentiment_labelled/yelp.parquet", ["sentence"]),
    "qqp": ("qqp/train.parquet", ["question1", "question2"]),
}
SEARCH = "auto:metric=brier,budget=10,confirm_runs=8"
MEASURES = {"accuracy": "accuracy", "nll": "NLL", "brier": "Brier score"}


def write_rows(data, folder, name, seed):
    """The rows of a seed: 400 to train on, and 500 others."""
    source, columns = SETS[name]
    table = pq.read_table(data / source, columns=[*columns, "label"])
    order = np.random.default_rng(seed).permutation(table.num_rows)
    parts = {"train": order[:TRAINED], "validation": order[TRAINED : TRAINED + JUDGED]}
    folder.mkdir(parents=True, exist_ok=True)
    for split, rows in parts.items():
        pq.write_table(table.take(rows), folder / f"{split}.parquet")


def train(name, seed, folder, out, *more):
    """`smoothtune train`, unless it is done."""
    if (out / "result.json").exists():
        return
    command = [sys.executable, "-m", "smoothtune", "train", "--task", name, "--model", "minilm"]
    for column in SETS[name][1]:
        command += ["--text-column", column]
    command += ["--data", str(folder), "--output-dir", str(out), "--seed", str(seed)]
    command += ["--max-seq-length", "64", "--per-device-train-batch-size", "16", *more]
    command += ["--resume-from-checkpoint"] * (out / "run.json").exists()
    print(" ".join(command), flush=True)
    subprocess.run(command, check=True)


def measures(out):
    """Of a run."""
    found = json.loads((out / "result.json").read_text("utf-8"))["metrics"]
    return [found[name] for name in MEASURES]


def pair(data, folder, name, seed):
    """What a search picked, and the measures of plain and of the pick."""
    place = folder / f"{name}-{seed}"
    write_rows(data, place / "data", name, seed)
    train(name, seed, place / "data", place / "auto", "--method", SEARCH)
    found = json.loads((place / "auto" / "tune" / "tune.json").read_text("utf-8"))
    picked, plain = (found[which]["changes"] for which in ("pick", "plain"))
    if found["use"] == "plain":
        return "plain", measures(place / "auto"), measures(place / "auto")
    more = ["--learning-rate", str(plain["learning_rate"])]
    more += ["--num-train-epochs", str(plain["num_train_epochs"])]
    train(name, seed, place / "data", place / "plain", *more)
    return "+".join(picked["methods"]), measures(place / "plain"), measures(place / "auto")


def row(title, picks, plain, auto):
    """Means of plain, and differences with their intervals and p, of (seeds, measures)."""
    cells = [title, picks, ", ".join(f"{mean:.3f}" for mean in plain.mean(0))]
    for number, measure in enumerate(MEASURES):
        factor, form = (100, "+.1f") if measure == "accuracy" else (1, "+.3f")
        gap = factor * (auto - plain)[:, number]
        cell = f"{gap.mean():{form}}"
        if gap.any():
            half = t.ppf(0.975, len(gap) - 1) * gap.std(ddof=1) / len(gap) ** 0.5
            p = ttest_rel(auto[:, number], plain[:, number]).pvalue
            cell += f" ({gap.mean() - half:{form}} to {gap.mean() + half:{form}}; p {p:.2g})"
        cells.append(cell)
    return f"| {' | '.join(cells)} |"


def verdict(plain, auto):
    """By the rule, of means over the sets (seeds, measures)."""
    score, nll, brier = (auto - plain).T
    lowest = 100 * (
        score.mean() - t.ppf(0.975, len(score) - 1) * score.std(ddof=1) / len(score) ** 0.5
    )
    smaller = [ttest_1samp(gap, 0).pvalue for gap in (nll, brier) if gap.mean() < 0]
    better = 2 * min(smaller, default=1) < 0.05  # Holm's first step, of two
    helps = "helps" if better and lowest > -0.5 else "is not shown to help"
    kept = "lies" if lowest > -0.5 else "does not lie"
    return f"By the rule `auto` {helps}. The interval of its score {kept} above -0.5 points."


def main():
    """Search, train, compare, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--only", help="a data set: train, and write no page")
    arguments = parser.parse_args()
    found = {
        name: [pair(arguments.data, arguments.folder, name, seed) for seed in SEEDS]
        for name in SETS
        if arguments.only in (None, name)
    }
    if arguments.only:
        return
    plain, auto = (np.array([[of[i] for of in found[name]] for name in SETS]) for i in (1, 2))
    page = ["# `auto` against tuned plain", ""]
    page += ["`python benchmarks/auto.py --data DIR --folder OUT`", ""]
    page += [__doc__.split("\n\n")[-1].strip(), ""]
    page += ["p is before the correction. Under `auto`: what it picked, by seed.", ""]
    titles = ["data", "`auto`", "plain: accuracy, NLL, Brier score", "accuracy, points"]
    page += [f"| {' | '.join([*titles, 'NLL', 'Brier score'])} |", "|---" * 6 + "|"]
    for number, name in enumerate(SETS):
        picks = ", ".join(of[0] for of in found[name])
        page.append(row(name, picks, plain[number], auto[number]))
    means = plain.mean(0), auto.mean(0)
    page += [row("mean of three", "", *means), "", verdict(*means)]
    (RESULTS / "auto.md").write_text("\n".join(page) + "\n", encoding="utf-8")
    print("\n".join(page))


if __name__ == "__main__":
    main()
