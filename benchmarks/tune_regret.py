"""How far the pick of `smoothtune tune` is from the best of all settings.

    python benchmarks/tune_regret.py --data DIR --folder OUT [--seeds 100]

DIR is a folder of Parquet data sets with `tweets_hate_speech_detection` and
`uci_sentiment_labelled`. The model is the first two blocks of MiniLM. Every setting of a grid is
trained once for every fold, and scored on the fold's held-out rows and on rows that no search sees.
Searches are then simulated on the recorded scores, which takes no training: they see the held-out
scores and are judged by the others. Runs in OUT that are done are not repeated. Writes
benchmarks/results/tune-regret.json and .md.
"""

import argparse
import itertools
import json
import math
import os
import statistics
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

RESULTS = Path(__file__).parent / "results"
ROWS, TEST_ROWS, PARTS, BLOCKS = 200, 300, 4, 2
RATES = (2e-4, 6e-4, 1.8e-3)
VALUES = {
    "plain": {},
    "lnsr": {"share": (0.05, 0.3, 1.8)},
    "mixout": {"p": (0.1, 0.4, 0.7)},
}
TASKS = {
    "yelp": ("uci_sentiment_labelled/yelp", "sentence"),
    "amazon": ("uci_sentiment_labelled/amazon", "sentence"),
    "hate": ("tweets_hate_speech_detection/train", "tweet"),
}
FIXED = {
    "text_columns": ["text"],
    "num_train_epochs": 2.0,
    "per_device_train_batch_size": 16,
    "per_device_eval_batch_size": 64,
    "max_seq_length": 32,
    "eval_strategy": "no",
    "cost_steps": 0,
    "output_dir": "unset",
}


def tables(data, task):
    """Training rows, and rows that no search sees; as many of each class."""
    place, column = TASKS[task]
    rows = pq.read_table(data / f"{place}.parquet", columns=[column, "label"]).to_pylist()
    classes = [[row for row in rows if row["label"] == label] for label in (0, 1)]
    mixed = [row for pair in zip(*classes, strict=False) for row in pair][: ROWS + TEST_ROWS]
    table = pa.table({"text": [r[column] for r in mixed], "label": [r["label"] for r in mixed]})
    return table.slice(0, ROWS), table.slice(ROWS)


def write_model(folder):
    """The first blocks of MiniLM, a model folder of its own."""
    from transformers import AutoModel, AutoTokenizer

    from smoothtune.models.load import load_base

    if (folder / "model").exists():
        return
    source = load_base("minilm").source
    model = AutoModel.from_pretrained(source)
    model.encoder.layer = model.encoder.layer[:BLOCKS]
    model.config.num_hidden_layers = BLOCKS
    partial = folder / "model.partial"
    model.save_pretrained(partial)
    AutoTokenizer.from_pretrained(source).save_pretrained(partial)
    partial.rename(folder / "model")


def write_folds(data, folder, folds):
    """For each fold a data set: its training rows; its held-out rows, then those no search sees."""
    from smoothtune.tune.split import parts_of

    for task in TASKS:
        train, test = tables(data, task)
        texts = [json.dumps(row, sort_keys=True) for row in train.to_pylist()]
        parts = parts_of(texts, [str(label) for label in train["label"].to_pylist()], PARTS, 0)
        for fold in range(folds):
            target = folder / "data" / f"{task}-{fold}"
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


def run_cell(folder, task, fold, point):
    """Train one setting on one fold."""
    import torch
    from rich.console import Console

    from smoothtune.config.run import load_config
    from smoothtune.run.train import fit

    method, name, value, rate = point
    source = folder / "data" / f"{task}-{fold}"
    fields = {name: value} if name else {}
    options = FIXED | {"task": task, "data": str(source), "model": str(folder / "model")}
    options |= {"learning_rate": rate, "seed": 42}
    config = load_config(options=options | {"methods": {method: fields}})
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as work, open(os.devnull, "w") as nothing:
        trained = fit(config, Path(work), console=Console(file=nothing))
    prepared, count = trained.prepared, int((source / "held_out.txt").read_text())
    found = prepared.task.example_statistics(trained.predictions, prepared.validation)
    main = prepared.task.main_metric
    return {
        "held_out": prepared.task.scores(found[:count])[main],
        "test": prepared.task.scores(found[count:])[main],
        "metric": main,
        "seconds": trained.result["cost"]["train_seconds"],
    }


def run_grid(folder, folds, job, jobs):
    """Train what is missing; one of several processes takes every `jobs`-th run."""
    (folder / "cells").mkdir(parents=True, exist_ok=True)
    for number, (name, task, fold, point) in enumerate(cells(folds)):
        path = folder / "cells" / f"{name}.json"
        if number % jobs == job and not path.exists():
            record = run_cell(folder, task, fold, point)
            path.with_suffix(".partial").write_text(json.dumps(record), encoding="utf-8")
            path.with_suffix(".partial").replace(path)
            print(name, record, flush=True)


# --- simulated searches on the recorded scores -------------------------------------------------


def recorded(folder, folds):
    """By task: (fold scores on held-out rows, mean score on other rows) of every setting."""
    found = {}
    for name, task, fold, point in cells(folds):
        path = folder / "cells" / f"{name}.json"
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
    scale = (lambda x: x) if name == "p" else math.log
    value = None
    if name:
        value = min(fields[name], key=lambda v: abs(scale(v) - scale(setting.fields[name])))
    rate = min(RATES, key=lambda r: abs(math.log(r / setting.learning_rate)))
    return setting.method, name, value, rate


def simulated(table, folds, budget, seed, sampler):
    """Score on other rows of what one search picks, of plain alone, and of both together."""
    from smoothtune.tune.search import Arm, Outcome, search
    from smoothtune.tune.space import PLAIN, Space

    rates = (RATES[0], RATES[-1])
    others = {name: {} for name in VALUES if name != PLAIN}
    arms = [
        Arm(PLAIN, Space({PLAIN: {}}, rates, (2.0,)), budget - budget // 2, seed, sampler),
        Arm("methods", Space(others, rates, (2.0,)), budget // 2, seed, sampler),
    ]

    def run(work):
        return [Outcome(table[nearest(trial.setting)][0][fold]) for trial, fold in work]

    search(arms, folds=folds, round_size=4, run=run)
    best = [arm.best() for arm in arms]
    return [table[nearest(trial.setting)][1] for trial in best]


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
        "best_plain": plain,
        "best_method": best,
        "whole_grid_regret": 100 * (best - by_held_out),
        "searches": rows,
    }


def markdown(found, arguments):
    """The table."""
    lines = [
        "# Regret of simulated searches",
        "",
        f"`python benchmarks/tune_regret.py --data DIR --folder OUT --folds {arguments.folds}"
        f" --seeds {arguments.seeds}`",
        "",
        f"The first {BLOCKS} blocks of MiniLM, {ROWS} training rows, {len(list(points()))}",
        f"settings of {', '.join(VALUES)}, each trained on {arguments.folds} of {PARTS} folds. A",
        f"search sees scores on {ROWS // PARTS} held-out rows of a fold, and is judged by accuracy",
        f"on {TEST_ROWS} other rows. Regret: how many points (0.01) the pick is below the best of",
        f"the grid, mean over {arguments.seeds} searches. Whole grid: the regret of the pick among",
        "all settings of the grid, which is what the noise of the held-out rows costs.",
    ]
    for task, numbers in found.items():
        lines += [
            "",
            f"## {task}",
            "",
            f"Best plain {numbers['best_plain']:.4f}, best method {numbers['best_method']:.4f}; "
            f"whole grid: {numbers['whole_grid_regret']:.2f} points.",
            "",
            "| sampler | budget | regret of plain's pick | regret of the methods' pick |",
            "|---|---|---|---|",
        ]
        lines += [
            f"| {row['sampler']} | {row['budget']} | {row['plain']:.2f} | {row['methods']:.2f} |"
            for row in numbers["searches"]
        ]
    return "\n".join(lines) + "\n"


def main():
    """Run the grid, then simulate."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--folds", type=int, default=1)
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--budgets", type=int, nargs="+", default=[10, 30, 60])
    parser.add_argument(
        "--job", type=int, default=0, help="of several processes, this one's number"
    )
    parser.add_argument("--jobs", type=int, default=1, help="processes that share the grid")
    args = parser.parse_args()
    if args.job == 0:
        write_folds(args.data, args.folder, args.folds)
        write_model(args.folder)
    run_grid(args.folder, args.folds, args.job, args.jobs)
    tables = recorded(args.folder, args.folds)
    found = {t: regrets(table, args.folds, args.budgets, args.seeds) for t, table in tables.items()}
    if len(found) == len(TASKS):
        (RESULTS / "tune-regret.json").write_text(json.dumps(found, indent=2) + "\n", "utf-8")
        (RESULTS / "tune-regret.md").write_text(markdown(found, args), "utf-8")


if __name__ == "__main__":
    main()
