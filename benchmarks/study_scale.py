"""Seconds and memory of plan, status, resuming and report of a study, by its number of cells.

    python benchmarks/study_scale.py [--cells 100 1000 10000] [--code FOLDER --name NAME]

Makes a study of a tiny BERT on generated sentences, 5 tasks x 20 methods x n/100 seeds (of LNSR
with 19 weights, and plain), with the records of all cells but ten, each with 60 lines of log and
scores drawn at random. Then measures in a process of its own each, counted from its start, imports
included:

- plan: `smoothtune study FILE --dry-run`;
- status: `smoothtune study --status DIR`;
- resume: until the first of the ten missing cells would be started;
- report: `smoothtune study FILE --report`, with and without its plots.

Processor seconds are of all threads, which other load on the machine changes less than seconds.
`--code` is the `src` folder of another version, whose figures are kept beside ours under `--name`.
Writes benchmarks/results/study-scale.json and .md.
"""

import argparse
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
TASKS, METHODS, MISSING, LINES = 5, 20, 10, 60
STEPS = ("status", "plan", "resume", "report, no plots", "report")


def make(count, folder):
    """A study of about `count` cells, of which all but ten are done."""
    sys.path.insert(0, str(ROOT / "tests"))
    from helpers.tiny_folder import tiny_bert, tiny_data
    from smoothtune.study.config import load_study
    from smoothtune.study.plan import Plan
    from smoothtune.study.records import Records

    tiny_bert(folder / "model")
    names = [f"task{number}" for number in range(TASKS)]
    for name in names:
        tiny_data(folder / name)
        with (folder / name / "train.csv").open("a", encoding="utf-8") as file:
            file.write(f"good film {name},fine\n")  # other data, or else the cells were the same
    tasks = [f"  - {{name: {name}, data: {folder / name}}}" for name in names]
    weights = range(1, METHODS)
    methods = [f"  - {{name: lnsr, weight: {w / 10}, label: lnsr-{w}}}" for w in weights]
    seeds = list(range(count // (TASKS * METHODS)))
    text = ["task:", *tasks, f"model: {folder / 'model'}", "text_columns: [text]", "max_steps: 3"]
    text += [f"seeds: {seeds}", "more_epochs: null", "methods:", "  - plain", *methods]
    (folder / "study.yaml").write_text("\n".join(text) + "\n", encoding="utf-8")
    cells = Plan(load_study(folder / "study.yaml"), folder / "out").final({})
    assert len({cell.id for cell in cells}) == len(cells)
    records, draw = Records(folder / "out"), random.Random(0)
    for cell in cells[:-MISSING]:
        records.write(cell, result(cell, draw))
    listed = [
        {"id": c.id, "title": c.title, "label": c.label} | getattr(c, "described", {})
        for c in cells
    ]
    (folder / "out" / "study.json").write_text(json.dumps({"name": "study", "cells": listed}))
    return len(cells)


def result(cell, draw):
    """What a finished cell records."""
    score = 0.5 + draw.random() / 3
    log = [{"step": s, "loss": draw.random(), "learning_rate": 1e-4} for s in range(1, LINES + 1)]
    found = {
        "task": cell.task,
        "model": cell.model,
        "methods": cell.config.methods,
        "headline": "accuracy",
        "metrics": {"accuracy": score, "brier": draw.random(), "nll": draw.random()},
        "train_metrics": {"accuracy": 1.0, "brier": 0.1, "nll": 0.1},
        "trivial_baseline": 0.5,
        "generalization_gap": 1 - score,
        "cost": {"steps": LINES, "train_seconds": 60 + draw.random(), "evaluation_seconds": 1.0},
        "versions": {"python": "3.11", "torch": "2"},
        "config": cell.config.identity() | {"task": cell.task, "model": cell.model},
        "log_history": log,
    }
    return {"status": "done", "result": found, "extras": {"ece": draw.random()}}


def used():
    """Seconds since `START`, processor seconds, and peak resident memory in GiB."""
    spent = resource.getrusage(resource.RUSAGE_SELF)
    seconds = time.time() - float(os.environ["START"])
    peak = Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]  # not the parent's
    return [seconds, spent.ru_utime + spent.ru_stime, int(peak) / 2**20]


def child(step, folder):
    """Take one step, and print what was used."""
    out, file = folder / "out", str(folder / "study.yaml")
    if step == "resume":
        stop_before_the_first_cell()
    if step == "report, no plots":
        without_plots()
    arguments = {"status": ["--status", str(out)], "plan": [file, "--dry-run"]}
    arguments |= {"report": [file, "--report"], "resume": [file]}
    kind = step.split(",")[0]
    where = [] if kind == "status" else ["--output-dir", str(out)]
    from smoothtune.cli import main

    sys.argv = ["smoothtune", "study", *arguments[kind], *where]
    try:
        main()
    except SystemExit as ended:
        if ended.code not in (0, None):
            raise
    assert step != "resume", "no cell was started"
    print(json.dumps(used()))


def stop_before_the_first_cell():
    """End the process where a cell would be started."""
    from smoothtune.study import run

    def execute(missing, *_):
        assert len(missing) == MISSING, len(missing)
        print(json.dumps(used()), flush=True)
        os._exit(0)

    run.execute = execute
    run.Pool = lambda *_, **__: None


def without_plots():
    """Let the report draw nothing."""
    from smoothtune.study.report import page

    page.study_plots = lambda *_: page.Plots()


def measure(step, folder, code):
    """What a step uses."""
    places = {"PYTHONPATH": str(code), "HF_HUB_OFFLINE": "1", "START": str(time.time())}
    command = [sys.executable, "-B", __file__, "--child", step, str(folder)]
    run = subprocess.run(command, env=os.environ | places, capture_output=True, text=True)
    if run.returncode or not run.stdout:
        sys.exit(run.stdout + run.stderr)
    return json.loads(run.stdout.splitlines()[-1])


def table(content):
    """Markdown."""
    lines = ["# Studies of many cells", "", *(f"`{c}`" for c in content["commands"]), ""]
    lines += [f"{TASKS} tasks, {METHODS} methods, all but {MISSING} cells done, {LINES} lines of"]
    lines += [f"log each; processes with their imports. {content['machine']}.", ""]
    lines += ["| version | cells | step | s | processor s | GiB |", "|---|---|---|---|---|---|"]
    for row in content["rows"]:
        seconds, processor, peak = row["used"]
        lines += [
            f"| {row['name']} | {row['cells']:,} | {row['step']} | {seconds:.1f} "
            f"| {processor:.1f} | {peak:.2f} |"
        ]
    return "\n".join(lines) + "\n"


def place(row):
    """Where a row stands in the table."""
    return row["cells"], STEPS.index(row["step"]), row["name"]


def main():
    """Measure, and write after each step."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cells", type=int, nargs="+", default=[100, 1000, 10_000])
    parser.add_argument("--code", type=Path, default=ROOT / "src")
    parser.add_argument("--name", default="this version")
    parser.add_argument("--steps", nargs="+", default=STEPS, choices=STEPS)
    arguments = parser.parse_args()
    file = RESULTS / "study-scale.json"
    kept = json.loads(file.read_text()) if file.exists() else {"commands": [], "rows": []}
    shown = " ".join(map(str, arguments.cells))
    other = f" --code FOLDER --name '{arguments.name}'" if arguments.name != "this version" else ""
    if tuple(arguments.steps) != STEPS:
        other += " --steps " + " ".join(f"'{step}'" for step in arguments.steps)
    command = f"python benchmarks/study_scale.py --cells {shown}{other}"
    kept["commands"] = [*dict.fromkeys([*kept["commands"], command])]
    kept["machine"] = (
        f"{os.cpu_count()} cores, other work running, now more, now less: compare processor seconds"
    )
    for count in arguments.cells:
        with tempfile.TemporaryDirectory() as made:
            cells = make(count, Path(made))
            for step in arguments.steps:
                found = {"name": arguments.name, "cells": cells, "step": step}
                rows = [r for r in kept["rows"] if {**r, **found} != r]
                found["used"] = measure(step, made, arguments.code)
                order = STEPS.index
                rows = sorted(
                    [*rows, found], key=lambda r: (r["cells"], order(r["step"]), r["name"])
                )
                kept["rows"] = rows
                file.write_text(json.dumps(kept, indent=1) + "\n")
                (RESULTS / "study-scale.md").write_text(table(kept), encoding="utf-8")
                print(found, flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(sys.argv[2], Path(sys.argv[3]))
    else:
        main()
