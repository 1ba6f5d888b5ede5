"""Kill commands that train or evaluate, again and again, and compare with those left alone.

The commands and the ways to die are in tests/helpers/deaths.py. After every death nothing that was
finished may be lost; in the end weights, records, tables and files are those of a command that
nobody disturbed, bit for bit. Goes on where it was interrupted; the figures are in
results/chaos.json and chaos.md::

    python benchmarks/chaos.py [--deaths 1000] [--minutes 60]
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
SHARES = {
    "train": 13,
    "train, best model": 13,
    "train, accumulated": 13,
    "train, best model, accumulated": 13,
    "train, two processes": 6,
    "train, two processes, best model": 6,
    "evaluate": 8,
    "study": 8,
    "study with checkpoints": 6,
    "two studies in one folder": 6,
    "reproduce": 4,
    "tune": 4,
}
"""Deaths of each command among 100."""
COUNTED = {
    "deaths": "deaths",
    "runs": "runs ended",
    "lost": "finished work lost",
    "failed": "failed to go on",
    "wrong": "other result",
}


def table(counts: dict[str, dict[str, int]]) -> str:
    """The figures as Markdown."""
    total = {key: sum(each[key] for each in counts.values()) for key in COUNTED}
    lines = [
        "# Commands that die\n",
        f"`python benchmarks/chaos.py --deaths {total['deaths']}`: a tiny BERT; each command is "
        "killed up to 8 times, at a random moment or a random operation on files, and then ends.\n",
        f"| command | {' | '.join(COUNTED.values())} |",
        "|---" * (len(COUNTED) + 1) + "|",
    ]
    for name, each in [*counts.items(), ("all", total)]:
        lines.append(f"| {name} | " + " | ".join(str(each[key]) for key in COUNTED) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Kill until there are so many deaths or the time is over; write after each run."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--deaths", type=int, default=1000, help="in all")
    parser.add_argument("--minutes", type=float, default=60)
    options = parser.parse_args()
    deadline = time.monotonic() + 60 * options.minutes
    shared = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # it waits for no disk
    with tempfile.TemporaryDirectory(dir=shared) as name:
        kill_all(Path(name), options.deaths, deadline)


def kill_all(work: Path, deaths: int, deadline: float) -> None:
    """Kill the commands in turn, as `SHARES` says."""
    os.environ |= {
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "SMOOTHTUNE_CACHE": str(work / "cache"),
        "HF_DATASETS_CACHE": str(work / "datasets"),
    }
    sys.path.append(str(ROOT / "tests"))
    import torch

    from helpers.deaths import Alone, clean, dies_and_goes_on, jobs, undisturbed
    from helpers.tiny_folder import tiny_bert, tiny_data
    from smoothtune.files import versions

    torch.set_num_threads(1)
    tiny_bert(work / "model")
    tiny_data(work / "data")
    commands = jobs(work, work / "whole-train")
    alone: dict[str, Alone] = {"train": undisturbed(commands["train"], work / "whole-train")}
    file = RESULTS / "chaos.json"
    found: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    nothing = {command: dict.fromkeys(COUNTED, 0) for command in commands}
    counts: dict[str, dict[str, int]] = nothing | found.get("commands", {})
    while sum(each["deaths"] for each in counts.values()) < deaths and time.monotonic() < deadline:
        command = min(commands, key=lambda name: counts[name]["deaths"] / SHARES[name])
        if command not in alone:
            alone[command] = undisturbed(commands[command], work / f"whole-{command}")
        draw = random.Random(f"{command} {counts[command]['runs']}")
        more = dies_and_goes_on(commands[command], work / "run", alone[command], draw)
        clean(work / "run")
        counts[command] = {key: counts[command][key] + more[key] for key in COUNTED}
        file.write_text(json.dumps({"commands": counts, "versions": versions()}, indent=2) + "\n")
        (RESULTS / "chaos.md").write_text(table(counts))


if __name__ == "__main__":
    main()
