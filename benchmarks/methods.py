"""Every method with its defaults on real tasks: same data, steps and seeds, one table.

    python benchmarks/methods.py --data DIR [--jobs 2] [--method NAME[:field=value,...] ...]

DIR is a folder of Parquet data sets with `sst2` and `stsb`. Runs that are done are not repeated, so
the command resumes. It writes benchmarks/results/methods.json and methods.md.
"""

import argparse
import json
import multiprocessing
import shutil
import statistics
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

RESULTS = Path(__file__).parent / "results"
TASKS = {
    "sst2": {"max_train_samples": 1000, "num_train_epochs": 2},
    "stsb": {"max_train_samples": 500, "num_train_epochs": 3},
}
REFUSED = {("stsb", "label_smoothing"): "label_smoothing is refused: scores have no classes."}
SETTINGS = {
    "model": "minilm",
    "learning_rate": 1e-4,
    "per_device_train_batch_size": 16,
    "per_device_eval_batch_size": 64,
    "max_seq_length": 64,
    "eval_strategy": "no",
    "logging_steps": 10,
    "cost_steps": 0,
}


def run(task, method, seed, data, folder):
    """One run in this process; what the table needs of its result."""
    import torch
    from rich.console import Console

    from smoothtune.config.run import load_config
    from smoothtune.run.train import train

    torch.set_num_threads(1)
    output = folder / f"{task}-{method.replace(':', '-').replace('=', '').replace(',', '-')}-{seed}"
    settings = SETTINGS | TASKS[task]
    options = {**settings, "task": task, "data": str(data / task), "seed": seed}
    config = load_config(options={**options, "output_dir": str(output)}, methods=[method])
    result = train(config, console=Console(quiet=True))
    (output / "model.safetensors").unlink(missing_ok=True)
    logs = [entry for entry in result["log_history"] if "loss" in entry]
    last = {k: v for k, v in logs[-1].items() if "/" in k}
    return {
        "task": task,
        "method": method,
        "seed": seed,
        "score": result["metrics"][result["headline"]],
        "metric": result["headline"],
        "trivial": result["trivial_baseline"],
        "train_score": result["train_metrics"][result["headline"]],
        "brier": result["metrics"].get("brier"),
        "last_log": last,
        "versions": result["versions"],
    }


def table(rows):
    """Markdown: mean and standard deviation of every method, beside plain fine-tuning's."""
    lines = []
    for task in TASKS:
        mine = [row for row in rows if row["task"] == task]
        if not mine:
            continue
        metric, trivial = mine[0]["metric"], max(row["trivial"] for row in mine)
        lines += [
            f"## {task}: {TASKS[task]['max_train_samples']} examples, "
            f"{TASKS[task]['num_train_epochs']} epochs; {metric} of a constant: {trivial:.3f}",
            "",
            f"| method | seeds | {metric}, mean | sd | minus plain, points | brier | "
            "cos(delta, gradient) |",
            "|---|---|---|---|---|---|---|",
        ]
        plain = statistics.mean(r["score"] for r in mine if r["method"] == "plain")
        for method in dict.fromkeys(row["method"] for row in mine):
            group = [row for row in mine if row["method"] == method]
            scores = [row["score"] for row in group]
            sd = f"{statistics.stdev(scores):.3f}" if len(scores) > 1 else "-"
            briers = [row["brier"] for row in group if row["brier"] is not None]
            cosines = [v for r in group for k, v in r["last_log"].items() if "cos_gradient" in k]
            lines.append(
                f"| {method} | {len(scores)} | {statistics.mean(scores):.3f} | {sd} "
                f"| {100 * (statistics.mean(scores) - plain):+.1f} "
                f"| {_mean(briers)} | {_mean(cosines)} |"
            )
        lines += ["", *(why for (of, _), why in REFUSED.items() if of == task), ""]
    return "\n".join(lines)


def _mean(values):
    return f"{statistics.mean(values):.3f}" if values else ""


def main():
    """Run what is missing, in parallel, and write the table."""
    from smoothtune import METHODS

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--task", action="append", choices=TASKS)
    parser.add_argument("--method", action="append")
    parser.add_argument("--name", default="methods", help="name of the result files")
    parser.add_argument("--folder", type=Path, default=Path("out/methods"))
    arguments = parser.parse_args()
    file = RESULTS / f"{arguments.name}.json"
    rows = json.loads(file.read_text())["runs"] if file.exists() else []
    done = {(row["task"], row["method"], row["seed"]) for row in rows}
    wanted = [
        (task, method, seed)
        for seed in range(arguments.seeds)
        for task in arguments.task or TASKS
        for method in arguments.method or METHODS
        if (task, method, seed) not in done and (task, method) not in REFUSED
    ]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(arguments.jobs, mp_context=context) as pool:
        futures = {
            pool.submit(run, *case, arguments.data, arguments.folder): case for case in wanted
        }
        for future in as_completed(futures):
            case = futures[future]
            try:
                rows.append(future.result())
            except Exception as error:
                print(*case, "FAILED", repr(error)[:300], flush=True)
                continue
            print(*case, rows[-1]["score"], flush=True)
            order = list(METHODS)
            rows.sort(
                key=lambda r: (
                    r["task"],
                    order.index(r["method"].partition(":")[0]),
                    r["method"],
                    r["seed"],
                )
            )
            command = f"python benchmarks/methods.py --data DIR --name {arguments.name}"
            content = {"command": command, "settings": SETTINGS, "tasks": TASKS, "runs": rows}
            partial = file.with_suffix(".partial")
            partial.write_text(json.dumps(content, indent=1) + "\n")
            partial.replace(file)
            heading = f"# Methods compared\n\n`{command}`\n\n"
            file.with_suffix(".md").write_text(heading + table(rows))
    shutil.rmtree(arguments.folder, ignore_errors=True)
    print(table(rows))


if __name__ == "__main__":
    main()
