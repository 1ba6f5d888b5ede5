"""Seconds before the first step, and memory, of `smoothtune train` on many rows.

    python benchmarks/data_scale.py [--rows 10000 100000 1000000] [--code FOLDER --name NAME]

Makes n sentences of two classes with lengths like those of SST-2 (9 words on average, at most 52,
words of MiniLM's vocabulary with their frequencies as 1/rank, one in twenty made of two), as CSV
and as Parquet, with 1,000 rows to validate on, and trains MiniLM for 4 steps of 16 rows in a
process of its own, in an empty cache folder. Counted from the start of that process: seconds to the
first step, processor seconds of all its threads, which other load on the machine changes less, and
the peak of its resident memory; and the same to the end. `--code` is the `src` folder of another
version, whose figures are kept beside ours under `--name`. Writes
benchmarks/results/data-scale.json and .md.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from itertools import islice
from pathlib import Path

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
STEPS, VALIDATION = 4, 1000


def sentences(count, seed):
    """A table of texts and labels."""
    import numpy as np
    import pandas as pd

    from smoothtune.models.load import load_base

    vocabulary = load_base("minilm").tokenizer.get_vocab()
    words = np.array(sorted((w for w in vocabulary if w.isalpha() and w.isascii()), key=len))
    words = np.append(words, np.char.add(words, words[::-1])[:1000])
    generator = np.random.default_rng(seed)
    lengths = np.clip(generator.lognormal(np.log(7), 0.75, count).round(), 1, 52).astype(int)
    rank = np.exp(generator.random(lengths.sum()) * np.log(len(words) - 1000)).astype(int) - 1
    rare = generator.random(len(rank)) < 0.05
    rank[rare] = generator.integers(len(words) - 1000, len(words), rare.sum())
    chosen = iter(words[rank].tolist())
    texts = [" ".join(islice(chosen, length)) for length in lengths.tolist()]
    return pd.DataFrame({"sentence": texts, "label": generator.integers(0, 2, count)})


def used():
    """Seconds since `START`, processor seconds, and peak resident memory in GiB."""
    spent = resource.getrusage(resource.RUSAGE_SELF)
    seconds = time.time() - float(os.environ["START"])
    peak = Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]  # not the parent's
    return [seconds, spent.ru_utime + spent.ru_stime, int(peak) / 2**20]


def child(options):
    """Train, and print what was used until the first step and until the end."""
    from transformers.trainer_callback import DefaultFlowCallback

    from smoothtune.cli import main

    first = []

    def on_step_begin(self, args, state, control, **kwargs):
        if not first:
            first.append(used())

    DefaultFlowCallback.on_step_begin = on_step_begin
    sys.argv = ["smoothtune", *options]
    try:
        main()
    finally:
        print(json.dumps({"first": first[0], "end": used()}))


def measure(folder, code):
    """What a run on the files of a folder uses."""
    with tempfile.TemporaryDirectory() as made:
        options = [
            "train",
            "--model",
            "minilm",
            "--data",
            str(folder),
            "--text-columns",
            "sentence",
        ]
        options += ["--output-dir", f"{made}/run", "--max-steps", str(STEPS), "--cost-steps", "0"]
        places = {"PYTHONPATH": str(code), "HF_DATASETS_CACHE": f"{made}/cache"}
        environment = os.environ | places | {"START": str(time.time()), "HF_HUB_OFFLINE": "1"}
        command = [sys.executable, "-B", __file__, "--child", *options]
        run = subprocess.run(command, env=environment, capture_output=True, text=True)
    if run.returncode or not run.stdout:
        sys.exit(run.stdout + run.stderr)
    return json.loads(run.stdout.splitlines()[-1])


def peak(measured):
    """GiB; a dash where memory was not measured."""
    return "–" if measured[2] is None else f"{measured[2]:.2f}"


def table(content):
    """Markdown."""
    lines = ["# Many rows", "", *(f"`{command}`" for command in content["commands"]), ""]
    lines += [f"MiniLM, {STEPS} steps of 16 rows, {content['machine']}.", ""]
    lines += ["| version | file | rows | s to step 1 | processor s | GiB | s in all | GiB |"]
    lines += ["|---|---|---|---|---|---|---|---|"]
    for row in content["rows"]:
        first, end = row["first"], row["end"]
        lines += [
            f"| {row['name']} | {row['file']} | {row['rows']:,} | {first[0]:.1f} | {first[1]:.1f} "
            f"| {peak(first)} | {end[0]:.1f} | {peak(end)} |"
        ]
    return "\n".join(lines) + "\n"


def main():
    """Measure and write after each run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--code", type=Path, default=ROOT / "src")
    parser.add_argument("--name", default="this version")
    arguments = parser.parse_args()
    file = RESULTS / "data-scale.json"
    kept = json.loads(file.read_text()) if file.exists() else {"commands": [], "rows": []}
    shown = " ".join(map(str, arguments.rows))
    other = f" --code FOLDER --name '{arguments.name}'" if arguments.name != "this version" else ""
    command = f"python benchmarks/data_scale.py --rows {shown}{other}"
    kept["commands"] = [*dict.fromkeys([*kept["commands"], command])]
    kept["machine"] = (
        f"{os.cpu_count()} cores, other work running, now more, now less: compare processor seconds"
    )
    for count in arguments.rows:
        for suffix in ("csv", "parquet"):
            with tempfile.TemporaryDirectory() as made:
                for split, rows in (("train", count), ("validation", VALIDATION)):
                    frame, path = sentences(rows, len(split)), f"{made}/{split}.{suffix}"
                    frame.to_csv(path, index=False) if suffix == "csv" else frame.to_parquet(path)
                found = measure(made, arguments.code)
            found = {"name": arguments.name, "file": suffix, "rows": count} | found
            key = [found[name] for name in ("name", "file", "rows")]
            kept["rows"] = [r for r in kept["rows"] if [r["name"], r["file"], r["rows"]] != key]
            kept["rows"].append(found)
            kept["rows"].sort(key=lambda r: (r["rows"], r["file"], r["name"]))
            file.write_text(json.dumps(kept, indent=1) + "\n")
            (RESULTS / "data-scale.md").write_text(table(kept), encoding="utf-8")
            print(found, flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(sys.argv[2:])
    else:
        main()
