"""Studies whose processes are killed at random, against one that is left alone.

    python benchmarks/study_chaos.py [--minutes 15] [--seeds 4] [--seed 0]

Again and again a process of the running study gets SIGKILL: a cell, the server that cells are
forked from, multiprocessing's resource tracker, or the command itself. A command that has ended
before all cells are done is started again. The pauses between kills are drawn evenly up to what a
cell takes in the study that is left alone, its start included, so that a slow machine gets as far
as a fast one. As many studies as begin in the time; the last ends in peace.

Counted are kills by kind, and what must be 0: cells without a result, cells with more than one row
in the report, files that do not verify or were left behind, cells that were started again after
they were done, processes that outlive their command by a minute, ends with a traceback, and tables
that differ from that of the study that was left alone (all columns but the measured times). Writes
benchmarks/results/study-chaos.json and .md.
"""

import argparse
import csv
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import psutil

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
sys.path.append(str(ROOT / "tests"))
KINDS = {"cell": 12, "fork server": 2, "command": 2, "resource tracker": 1}  # how often each
WHILE_STARTING = 0.25  # share of the starts in which kills come before a cell runs
GONE = 60  # seconds in which all processes are gone: a server ends when it has imported everything
MUST_BE_0 = (
    "cells lost",
    "cells twice in the report",
    "cells started again after done",
    "files torn",
    "files missing",
    "files left behind",
    "lines of the log torn",
    "processes left",
    "tracebacks",
    "tables that differ",
)
STUDY = """
data: {folder}/data
model: {folder}/model
task: quality
text_columns: [text]
learning_rate: 1e-2
max_steps: 3
per_device_train_batch_size: 8
eval_strategy: "no"
logging_steps: 1
methods: [lnsr, {{name: jachess, every: 2}}, [mixout, r3f]]
seeds: {seeds}
"""


def start(file, folder, output):
    """The command, in a process group of its own."""
    main = [sys.executable, "-m", "smoothtune", "study", str(file)]
    arguments = ["--output-dir", str(folder), "--jobs", "2"]
    with output.open("a") as log:
        return subprocess.Popen(
            main + arguments, start_new_session=True, stdout=log, stderr=subprocess.STDOUT
        )


def processes(command):
    """The processes of a study, by kind."""
    found = {kind: [] for kind in KINDS}
    try:
        found["command"] = [parent := psutil.Process(command.pid)]
        for child in parent.children():
            line = " ".join(child.cmdline())
            if "forkserver" in line:
                found["fork server"].append(child)
                found["cell"] += child.children()
            elif "resource_tracker" in line:
                found["resource tracker"].append(child)
    except psutil.NoSuchProcess:
        pass
    return found


def kill_one(command, draw, also_without_cells):
    """Kill a process at random; the kind, or None where there is none to be killed."""
    found = {kind: running for kind, running in processes(command).items() if running}
    if not found or not ("cell" in found or also_without_cells):
        return None
    (kind,) = draw.choices(list(found), [KINDS[kind] for kind in found])
    try:
        draw.choice(found[kind]).kill()
    except psutil.NoSuchProcess:
        return None
    return kind


def processes_left(group):
    """Processes of a study that still run a minute after their command has ended."""
    deadline = time.monotonic() + GONE
    while found := [p for p in psutil.process_iter() if _is_of(p, group)]:
        if time.monotonic() > deadline:
            break
        time.sleep(0.1)
    for process in found:
        process.kill()
    return len(found)


def _is_of(process, group):
    try:
        return os.getpgid(process.pid) == group and process.status() != psutil.STATUS_ZOMBIE
    except (ProcessLookupError, psutil.NoSuchProcess):
        return False


def disturbed(file, folder, draw, longest, until):
    """Run a study to its end through kills, `longest` seconds apart at most; what was counted."""
    counts, output = Counter(), folder.with_suffix(".txt")
    while True:
        command, starting = start(file, folder, output), draw.random() < WHILE_STARTING
        while True:
            try:
                code = command.wait(draw.uniform(0, longest))
                break
            except subprocess.TimeoutExpired:
                if time.monotonic() < until and (kind := kill_one(command, draw, starting)):
                    counts[f"killed: {kind}"] += 1
        counts["processes left"] += processes_left(command.pid)
        counts[f"command ended with {'SIGKILL' if code == -9 else f'exit code {code}'}"] += 1
        if code == 0:
            counts["tracebacks"] += output.read_text().count("Traceback (most recent call last)")
            return counts


def table(folder):
    """results.csv without measured times."""
    with (folder / "results.csv").open(newline="") as lines:
        rows = list(csv.DictReader(lines))
    return [{key: text for key, text in row.items() if "seconds" not in key} for row in rows]


def files(folder):
    """Names of all files in a folder."""
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir()}


def faults(folder, whole):
    """What went wrong in a study that is done, by the one that was left alone."""
    from smoothtune.study.records import Records

    records, rows, found = Records(folder), table(folder), Counter()
    cells = [cell["id"] for cell in json.loads((folder / "study.json").read_text())["cells"]]
    times = Counter(row["cell"] for row in rows if row["status"] == "done")
    found["cells"] = len(cells)
    found["cells lost"] = sum(not times[cell] for cell in cells)
    found["cells twice in the report"] = sum(times[cell] > 1 for cell in cells)
    found["files torn"] = sum(records.read(p.stem) is None for p in folder.glob("cells/[!.]*"))
    found["files missing"] = len(files(whole) - files(folder))
    found["files left behind"] = len(left := files(folder) - files(whole))
    if left:
        print("left behind:", *left, flush=True)
    lines = (folder / "log.jsonl").read_text().splitlines()
    found["lines of the log torn"] = len(lines) - len(records.log())
    ended = set()
    for line in records.log():
        again = line["event"] == "start" and line["cell"] in ended
        found["cells started again after done"] += again
        found["cells started"] += line["event"] == "start"
        ended |= {line["cell"]} if line["event"] == "done" else set()
    found["tables that differ"] = int(rows != table(whole))
    return found


def markdown(content):
    """The counts."""
    lines = ["# Studies killed at random", "", f"`{content['command']}`", ""]
    counts = content["counts"]
    wrong = sum(counts[name] for name in MUST_BE_0)
    lines += [
        f"{content['studies']} studies in {content['minutes']:.0f} minutes, each ended by the "
        f"command that began it: {wrong} faults.",
        "",
    ]
    for title, names in (("fault", MUST_BE_0), ("counted", sorted(set(counts) - set(MUST_BE_0)))):
        lines += [f"| {title} | number |", "|---|---|"]
        lines += [*(f"| {name} | {counts[name]} |" for name in names), ""]
    return "\n".join(lines)


def main():
    """Disturb studies until the time is up; write after each."""
    from helpers.tiny_folder import tiny_bert, tiny_data
    from smoothtune.files import versions

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=15)
    parser.add_argument("--seeds", type=int, default=4, help="of a study: a fifth of its cells")
    parser.add_argument("--seed", type=int, default=0, help="of the kills")
    args = parser.parse_args()
    command = (
        f"python benchmarks/study_chaos.py --minutes {args.minutes:g} --seeds {args.seeds} "
        f"--seed {args.seed}"
    )
    begin, counts, studies = time.monotonic(), Counter(), 0
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        tiny_bert(place / "model")
        tiny_data(place / "data")
        file = place / "study.yaml"
        file.write_text(STUDY.format(folder=place, seeds=list(range(args.seeds))))
        assert start(file, place / "whole", place / "whole.txt").wait() == 0
        seconds = (time.monotonic() - begin) / len(table(place / "whole"))
        print(f"{len(table(place / 'whole'))} cells, {seconds:.1f} s each", flush=True)
        until = begin + 60 * args.minutes
        while time.monotonic() < until:
            folder, draw = place / f"killed-{studies}", random.Random(f"{args.seed} {studies}")
            counts.update(disturbed(file, folder, draw, seconds, until))
            counts.update(faults(folder, place / "whole"))
            studies += 1
            minutes = round((time.monotonic() - begin) / 60, 1)
            content = {"command": command, "studies": studies, "minutes": minutes}
            content |= {"counts": dict(sorted(counts.items())), "versions": versions()}
            (RESULTS / "study-chaos.json").write_text(json.dumps(content, indent=1) + "\n")
            (RESULTS / "study-chaos.md").write_text(markdown(content), encoding="utf-8")
            print(json.dumps(content["counts"]), flush=True)
            if counts["tracebacks"]:
                print(folder.with_suffix(".txt").read_text()[-4000:], flush=True)


if __name__ == "__main__":
    main()
