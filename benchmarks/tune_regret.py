"""How far the pick of `smoothtune tune` is from the best of all settings.

    python benchmarks/tune_regret.py study
    python benchmarks/tune_regret.py grid --data DIR [--jobs 2 --job 0]

Searches are simulated on recorded scores, which takes no training. `study` has those of the study
few-sample in results/runs.parquet: fourteen ways to train on three tasks, five seeds each. A search
sees some of the seeds, fresh runs are others, and what is picked is judged by the mean of all.

`grid` trains first: methods x strengths x learning rates on three tasks, every setting once for
every fold, scored on the fold's held-out rows and on rows that no search sees. DIR is a folder of
Parquet data sets with `sst2`, `stsb` and `uci_sentiment_labelled`. There are 63 runs for every
fold; those whose record is in out/tune-regret are not repeated. A search sees the held-out scores
and is judged by the others. The runs of the committed table are in results/runs.parquet. Two
processes share the work with `--jobs 2`, one of them with `--job 1`.

They write benchmarks/results/tune-regret-study and tune-regret-grid, as .json and .md.
"""

import argparse
import itertools
import json
import math
import os
import statistics
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

RESULTS = Path(__file__).parent / "results"
RUNS = Path(__file__).parents[1] / "results" / "runs.parquet"
GRID = Path(__file__).parents[1] / "out" / "tune-regret"
ROWS, TEST_ROWS, PARTS = 300, 400, 5
RATES = (5e-5, 1.5e-4, 4.5e-4)
VALUES = {
    "plain": {},
    "lnsr": {"share": (0.05, 0.3, 1.8)},
    "r3f": {"share": (0.05, 0.3, 1.8)},
}
TASKS = {
    "yelp": {"task": "yelp", "text_columns": ["sentence"]},
    "sst2": {"task": "sst2"},
    "stsb": {"task": "stsb"},
}
"""On CoLA and MRPC, tried first, 240 rows teach MiniLM nothing: there is nothing to regret."""
FIXED = {
    "model": "minilm",
    "num_train_epochs": 3.0,
    "per_device_train_batch_size": 16,
    "per_device_eval_batch_size": 64,
    "max_seq_length": 48,
    "eval_strategy": "no",
    "cost_steps": 0,
    "output_dir": "unset",
}


def tables(data, task):
    """Training rows, and rows that no search sees."""
    if task == "yelp":
        table = pq.read_table(data / "uci_sentiment_labelled" / "yelp.parquet")
        table = table.select(["sentence", "label"])
        return table.slice(0, ROWS), table.slice(ROWS, TEST_ROWS)
    train = pq.read_table(data / task / "train.parquet").slice(0, ROWS)
    return train, pq.read_table(data / task / "validation.parquet").slice(0, TEST_ROWS)


def write_folds(data, folder, folds):
    """For each fold a data set: its training rows; its held-out rows, then those no search sees.

    Args:
        data: of the Parquet data sets.
        folder: where to write them.
        folds: how many of the parts.
    """
    from smoothtune.tune.split import parts_of

    for task in TASKS:
        train, test = tables(data, task)
        texts = [json.dumps(row, sort_keys=True) for row in train.to_pylist()]
        parts = parts_of(texts, [str(label) for label in train["label"].to_pylist()], PARTS, 0)
        for fold in range(folds):
            target = folder / f"{task}-{fold}"
            target.mkdir(parents=True, exist_ok=True)
            held_out = train.filter(pa.array(parts == fold))
            pq.write_table(train.filter(pa.array(parts != fold)), target / "train.parquet")
            both = pa.concat_tables([held_out, test.cast(held_out.schema)])
            pq.write_table(both, target / "validation.parquet")
            (target / "held_out.txt").write_text(str(held_out.num_rows), encoding="utf-8")


def points():
    """All settings: method, its field's value, learning rate."""
    for method, fields in VALUES.items():
        for name, values in fields.items() or [(None, (None,))]:
            for value, rate in itertools.product(values, RATES):
                yield method, name, value, rate


def cells(folds):
    """All runs, the first fold of everything first."""
    for fold, task, point in itertools.product(range(folds), TASKS, list(points())):
        method, _, value, rate = point
        yield f"{task}-{fold}-{method}-{value}-{rate:g}", task, fold, point


def run_cell(data, task, fold, point):
    """Train one setting on one fold of those in the folder `data`."""
    import torch
    from rich.console import Console

    from smoothtune.config.run import load_config
    from smoothtune.run.train import fit

    method, name, value, rate = point
    source = data / f"{task}-{fold}"
    fields = {name: value} if name else {}
    options = FIXED | TASKS[task] | {"data": str(source), "learning_rate": rate, "seed": 42}
    config = load_config(options=options | {"methods": {method: fields}})
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as work, open(os.devnull, "w") as nothing:
        trained = fit(config, Path(work), console=Console(file=nothing))
    prepared, count = trained.prepared, int((source / "held_out.txt").read_text())
    found = prepared.task.scorer.example_statistics(trained.predictions, prepared.validation)
    main = prepared.task.main_metric
    return {
        "held_out": prepared.task.scorer.scores(found[:count])[main],
        "test": prepared.task.scorer.scores(found[count:])[main],
        "metric": main,
        "seconds": trained.result["cost"]["train_seconds"],
    }


def run_grid(data, folder, folds, job, jobs):
    """Train what is missing; one of several processes takes every `jobs`-th run."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, (name, task, fold, point) in enumerate(cells(folds)):
        path = folder / f"{name}.json"
        if number % jobs == job and not path.exists():
            record = run_cell(data, task, fold, point)
            path.with_suffix(".partial").write_text(json.dumps(record), encoding="utf-8")
            path.with_suffix(".partial").replace(path)
            print(name, record, flush=True)


# --- simulated searches on the recorded scores -------------------------------------------------


def recorded(folder, folds):
    """By task: (fold scores on held-out rows, mean score on other rows) of every setting."""
    found = {}
    for name, task, fold, point in cells(folds):
        path = folder / f"{name}.json"
        if path.exists():
            record = json.loads(path.read_text(encoding="utf-8"))
            found.setdefault(task, {}).setdefault(point, {})[fold] = record
    whole = {}
    for task, by_point in found.items():
        known = {point: folds_ for point, folds_ in by_point.items() if len(folds_) == folds}
        if len(known) == len(list(points())):
            whole[task] = {
                point: (
                    [by_fold[fold]["held_out"] for fold in range(folds)],
                    statistics.mean(by_fold[fold]["test"] for fold in range(folds)),
                )
                for point, by_fold in known.items()
            }
    return whole


def nearest(setting):
    """The setting of the grid that a suggestion stands for: nearest on the scale of each field."""
    fields = VALUES[setting.method]
    name = next(iter(fields), None)
    value = None
    if name:
        value = min(fields[name], key=lambda v: abs(math.log(v / setting.fields[name])))
    rate = min(RATES, key=lambda r: abs(math.log(r / setting.learning_rate)))
    return setting.method, name, value, rate


def simulated(table, folds, budget, seed, sampler):
    """Score on other rows of what one search picks, of plain alone, and of both together."""
    from smoothtune.tune.search import Arm, Outcome, search
    from smoothtune.tune.space import PLAIN, Space

    rates = (RATES[0], RATES[-1])
    others = {name: {} for name in VALUES if name != PLAIN}

    def run(work):
        return [Outcome(table[nearest(trial.setting)][0][fold]) for trial, fold in work]

    def best(methods, trials, near=None):
        arm = Arm("arm", Space(methods, rates, (3.0,)), trials, seed, near, sampler)
        search(arm, folds=folds, round_size=4, run=run)
        return arm.best().setting

    plain = best({PLAIN: {}}, budget - budget // 2)
    return [table[nearest(pick)][1] for pick in (plain, best(others, budget // 2, plain))]


def regrets(table, folds, budgets, seeds):
    """Mean regret in points by sampler and budget; what the whole grid would have picked."""
    plain = max(other for (method, *_), (_, other) in table.items() if method == "plain")
    best = max(other for (method, *_), (_, other) in table.items() if method != "plain")
    by_held_out = max(
        (sum(held_out), other) for (m, *_), (held_out, other) in table.items() if m != "plain"
    )[1]
    rows = []
    for sampler, budget in itertools.product(("tpe", "random"), budgets):
        picks = [simulated(table, folds, budget, seed, sampler) for seed in range(seeds)]
        rows.append(
            {
                "sampler": sampler,
                "budget": budget,
                "plain": 100 * statistics.mean(plain - pick[0] for pick in picks),
                "methods": 100 * statistics.mean(best - pick[1] for pick in picks),
            }
        )
    return {
        "best_rates": best_rates(table),
        "best_plain": plain,
        "best_method": best,
        "whole_grid_regret": 100 * (best - by_held_out),
        "searches": rows,
    }


def best_rates(table):
    """By method the learning rate with the best held-out score, mean over its values and folds."""
    scores = {}
    for (method, _, _, rate), (held_out, _) in table.items():
        scores.setdefault(method, {}).setdefault(rate, []).extend(held_out)
    return {
        method: max(by_rate, key=lambda rate: statistics.mean(by_rate[rate]))
        for method, by_rate in scores.items()
    }


def markdown_grid(found, arguments):
    """The table of the grid."""
    lines = [
        "# Regret of simulated searches on a grid",
        "",
        f"`python benchmarks/tune_regret.py grid --data DIR --folds {arguments.folds}`",
        "",
        f"MiniLM, {ROWS} training rows, {len(list(points()))} settings of {', '.join(VALUES)},",
        f"each trained on {arguments.folds} folds. A search sees {ROWS // PARTS} held-out",
        f"rows of a fold and is judged by {TEST_ROWS} other rows. Regret: points (0.01) below the",
        f"best of the grid, mean over {arguments.seeds} searches. Whole grid: the regret of the",
        "setting that is best on the held-out rows, which is what their noise costs.",
    ]
    for task, numbers in found.items():
        rates = ", ".join(f"{name} {rate:g}" for name, rate in numbers["best_rates"].items())
        lines += [
            "",
            f"## {task}",
            "",
            f"Best plain {numbers['best_plain']:.4f}, best method {numbers['best_method']:.4f}; "
            f"whole grid: {numbers['whole_grid_regret']:.2f} points.",
            f"Best rate on the held-out rows: {rates}.",
            "",
            "| sampler | budget | regret of plain's pick | regret of the methods' pick |",
            "|---|---|---|---|",
        ]
        lines += [
            f"| {row['sampler']} | {row['budget']} | {row['plain']:.2f} | {row['methods']:.2f} |"
            for row in numbers["searches"]
        ]
    return "\n".join(lines) + "\n"


# --- the recorded study --------------------------------------------------------------------------

SEEN = 2
"""Seeds that a search sees, as folds; the other three are its fresh runs."""


class Ways:
    """Ways to train, by name, in the place of the settings of an arm."""

    def __init__(self, names):
        self.methods = names

    def starts(self, near):
        """Each way once, as a search begins with each method."""
        return [{"method": name} for name in self.methods]

    def suggest(self, trial):
        """One of them."""
        from smoothtune.tune.space import Setting

        name = trial.suggest_categorical("method", list(self.methods))
        return Setting(name, {}, 1e-4, 3.0)


def decided(scores, budget, draw):
    """What a search of the ways picks, and what is used after the fresh runs.

    Args:
        scores: (5,) of every way, by seed.
        budget: trials of the methods.
        draw: which seeds the search sees, in which order it tries the ways.
    """
    from smoothtune.tune.confirm import compare
    from smoothtune.tune.search import Arm, Outcome, search

    seeds = draw.permutation(5)
    names = [name for name in scores if name != "plain"]
    ways = Ways(list(draw.permutation(names)))
    arm = Arm("methods", ways, budget, int(draw.integers(2**31)))

    def run(work):
        return [Outcome(scores[trial.setting.method][seeds[fold]]) for trial, fold in work]

    search(arm, folds=SEEN, round_size=4, run=run)
    pick, fresh = arm.best().setting.method, seeds[SEEN:]
    found = compare(*([scores[name][seed] for seed in fresh] for name in ("plain", pick)), 5)
    return pick, (pick if found.better else "plain")


def study_regrets(seeds, budgets):
    """Regret in points of the pick and of the decision, by task and budget."""
    rows = pq.read_table(RUNS, filters=[("study", "=", "few-sample")]).to_pylist()
    found = {}
    for task in dict.fromkeys(row["task"] for row in rows):
        scores = {}
        for row in rows:
            if row["task"] == task and row["method"] != "plain_more_epochs":
                scores.setdefault(row["method"], {})[row["seed"]] = row["score"]
        means = {name: statistics.mean(by_seed.values()) for name, by_seed in scores.items()}
        best = max(means, key=means.get)
        searches = []
        for budget in budgets:
            ends = [decided(scores, budget, np.random.default_rng(seed)) for seed in range(seeds)]
            regret = {
                name: 100 * statistics.mean(means[best] - means[end[place]] for end in ends)
                for place, name in enumerate(("pick", "decision"))
            }
            used = sum(end[1] != "plain" for end in ends)
            searches.append({"budget": budget, **regret, "used": used})
        plain = 100 * (means[best] - means["plain"])
        found[task] = {"best": best, "score": means[best], "plain": plain, "searches": searches}
    return found


def markdown_study(found, seeds):
    """The table of the study."""
    lines = [
        "# Regret of simulated searches on the recorded study",
        "",
        "`python benchmarks/tune_regret.py study`",
        "",
        "Scores of the study few-sample in results/runs.parquet: fourteen ways to fine-tune",
        "MiniLM, five seeds each, at one learning rate. A search among them sees",
        f"{SEEN} of the seeds, drawn anew in each simulated search; the others are its fresh runs.",
        "Regret: points (0.01) below the way with the best mean of all seeds.",
        "Pick: the best in the search. Decision: the pick if",
        f"the fresh runs show it to be better than plain, else plain. Mean over {seeds} searches;",
        "used: searches that did not end with plain.",
    ]
    for task, numbers in found.items():
        lines += [
            "",
            f"## {task}",
            "",
            f"Best: {numbers['best']}, {numbers['score']:.4f}. Always plain: regret "
            f"{numbers['plain']:.2f}.",
            "",
            "| trials | regret of the pick | of the decision | used |",
            "|---|---|---|---|",
        ]
        lines += [
            f"| {row['budget']} | {row['pick']:.2f} | {row['decision']:.2f} | "
            f"{row['used']} of {seeds} |"
            for row in numbers["searches"]
        ]
    return "\n".join(lines) + "\n"


def write(name, found, text):
    """Write the numbers and the table."""
    (RESULTS / f"{name}.json").write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    (RESULTS / f"{name}.md").write_text(text, encoding="utf-8")


def main():
    """Run the grid, if asked for, and simulate."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["study", "grid"])
    parser.add_argument("--data", type=Path)
    parser.add_argument("--folds", type=int, default=3)
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--budgets", type=int, nargs="+", default=[10, 30, 60])
    parser.add_argument(
        "--job", type=int, default=0, help="of several processes, this one's number"
    )
    parser.add_argument("--jobs", type=int, default=1, help="processes that share the grid")
    args = parser.parse_args()
    if args.what == "study":
        found = study_regrets(args.seeds, [budget // 2 for budget in args.budgets])
        write("tune-regret-study", found, markdown_study(found, args.seeds))
        return
    with tempfile.TemporaryDirectory() as work:
        write_folds(args.data, Path(work), args.folds)
        run_grid(Path(work), GRID, args.folds, args.job, args.jobs)
    known = recorded(GRID, args.folds)
    if len(known) == len(TASKS):
        found = {
            t: regrets(table, args.folds, args.budgets, args.seeds) for t, table in known.items()
        }
        write("tune-regret-grid", found, markdown_grid(found, args))


if __name__ == "__main__":
    main()
