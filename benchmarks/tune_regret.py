"""How far the pick of `smoothtune tune` is from the best of all settings.

    python benchmarks/tune_regret.py --data DIR --folder OUT [--seeds 100]

DIR is a folder of Parquet data sets with `cola`, `mrpc` and `uci_sentiment_labelled`. Every setting
of a grid is trained once for every fold, and scored on the fold's held-out rows and on rows that no
search sees. Searches are then simulated on the recorded scores, which takes no training: they see
the held-out scores and are judged by the others. Runs in OUT that are done are not repeated. Writes
benchmarks/results/tune-regret.json and .md.
"""

import argparse
import itertools
import json
import os
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

RESULTS = Path(__file__).parent / "results"
ROWS, TEST_ROWS, PARTS = 300, 400, 5
RATES = (5e-5, 1.5e-4, 4.5e-4)
VALUES = {
    "plain": {},
    "lnsr": {"share": (0.05, 0.3, 1.8)},
    "r3f": {"share": (0.05, 0.3, 1.8)},
    "mixout": {"p": (0.1, 0.4, 0.7)},
}
TASKS = {
    "yelp": {"task": "yelp", "text_columns": ["sentence"]},
    "cola": {"task": "cola"},
    "mrpc": {"task": "mrpc"},
}
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
    options = FIXED | TASKS[task] | {"data": str(source), "learning_rate": rate, "seed": 42}
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


def main():
    """Run the grid, then simulate."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--folds", type=int, default=3)
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--job", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1)
    args = parser.parse_args()
    if args.job == 0:
        write_folds(args.data, args.folder, args.folds)
    run_grid(args.folder, args.folds, args.job, args.jobs)


if __name__ == "__main__":
    main()
