"""Studies whose processes are killed at random, against one that is left alone.

    python benchmarks/study_chaos.py [--minutes 10] [--seeds 8] [--seed 0]

Every 0.5 to 2 seconds a process of the running study gets SIGKILL: a cell, the server that cells
are forked from, multiprocessing's resource tracker, or the command itself, which is then started
again, until the study is done. As many studies as fit in the time. Counted are kills by kind, cells
without a result, cells with more than one row in the report, files that do not verify or were left
behind, cells that were started again after they were done, processes that outlived their command,
ends with a traceback, and tables that differ from that of the study that was left alone (all
columns but the measured times). Writes benchmarks/results/study-chaos.json and .md.
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
KINDS = {"cell": 6, "fork server": 2, "command": 2, "resource tracker": 1}  # how often each
IN_STARTING = 0.05  # share of these kills that happen while no cell runs, else it never starts
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


def kill_one(command, draw):
    """Kill a process at random; the kind, or None where there is none to be killed."""
    found = processes(command)
    (kind,) = draw.choices(list(KINDS), list(KINDS.values()))
    if not found[kind] or (not found["cell"] and draw.random() > IN_STARTING):
        return None
    try:
        draw.choice(found[kind]).kill()
    except psutil.NoSuchProcess:
        return None
    return kind


def survivors(group):
    """Processes of a study that still run, 10 seconds after their command has ended."""
    deadline = time.monotonic() + 10
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


def disturbed(file, folder, draw):
    """Run a study to its end through kills; what was counted."""
    counts, output = Counter(), folder.with_suffix(".txt")
    while True:
        command = start(file, folder, output)
        counts["starts"] += 1
        while True:
            try:
                code = command.wait(draw.uniform(0.5, 2))
                break
            except subprocess.TimeoutExpired:
                if kind := kill_one(command, draw):
                    counts[f"killed: {kind}"] += 1
        counts["survivors"] += survivors(command.pid)
        counts[f"exit code {code}"] += 1
        if code == 0 and not unfinished(folder):
            counts["tracebacks"] += output.read_text().count("Traceback (most recent call last)")
            return counts


def unfinished(folder):
    """Cells without a result; a command ends with 0 when some have failed twice."""
    from smoothtune.study.records import Records

    cells = json.loads((folder / "study.json").read_text())["cells"]
    return sum(Records(folder).read(cell["id"]) is None for cell in cells)


def table(folder):
    """results.csv without measured times."""
    with (folder / "results.csv").open(newline="") as lines:
        rows = list(csv.DictReader(lines))
    return [{key: text for key, text in row.items() if "seconds" not in key} for row in rows]


def faults(folder, expected):
    """What went wrong in a study that is done."""
    from smoothtune.study.records import Records

    records, found = Records(folder), Counter()
    rows = Counter(row["cell"] for row in table(folder))
    cells = [cell["id"] for cell in json.loads((folder / "study.json").read_text())["cells"]]
    found["cells lost"] = sum(records.read(cell) is None for cell in cells)
    found["cells twice in the report"] = sum(rows[cell] > 1 for cell in cells)
    found["files torn"] = sum(
        records.read(path.stem) is None for path in (folder / "cells").glob("*")
    )
    whole = (folder / "log.jsonl").read_text().count("\n")
    found["lines of the log torn"] = whole - len(records.log())
    known = {"cells", "failures", "log.jsonl"} | {path.name for path in folder.glob("re*")}
    known |= {"study.json", "plots", "selection"}
    found["files left behind"] = sum(path.name not in known for path in folder.iterdir())
    ended = set()
    for line in records.log():
        found["started again after done"] += line["event"] == "start" and line["cell"] in ended
        ended |= {line["cell"]} if line["event"] == "done" else set()
    found["tables that differ"] = int(table(folder) != expected)
    found["cells done"] = len(rows)
    return found


def markdown(content):
    """The counts."""
    lines = ["# Studies killed at random", "", f"`{content['command']}`", ""]
    lines += [f"{content['studies']} studies in {content['minutes']:.0f} minutes.", ""]
    lines += ["| counted | number |", "|---|---|"]
    lines += [f"| {name} | {count} |" for name, count in content["counts"].items()]
    return "\n".join(lines) + "\n"


def main():
    """Disturb studies until the time is up; write after each."""
    from helpers.tiny_folder import tiny_bert, tiny_data
    from smoothtune.files import versions

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seeds", type=int, default=8, help="of a study: a fifth of its cells")
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
        expected = table(place / "whole")
        print(len(expected), "cells", flush=True)
        while time.monotonic() - begin < 60 * args.minutes:
            folder = place / f"killed-{studies}"
            counts += disturbed(file, folder, random.Random(f"{args.seed} {studies}"))
            counts.update(faults(folder, expected))
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
