"""Memory after many steps of every method, and what is left when a method is detached.

    python benchmarks/leaks.py [--steps 2000] [--method NAME ...]

Every method trains a tiny random BERT in a plain loop, batches of 4 rows, SGD, one thread. Counted
after step 200 and after the last one, garbage collected: bytes of Python objects (tracemalloc),
tensors alive and their bytes, resident memory of the process. Then an exception is thrown into a
step at up to 12 points, forward and backward: hooks, replaced modules, settings, global hooks,
threads and open files are compared with those before, also after `detach`. Last, 50 trainers are
made, trained for one step and dropped. Methods that were measured with as many steps are kept.
Writes benchmarks/results/leaks.json and .md.
"""

import argparse
import json
import sys
import tracemalloc
from pathlib import Path

import torch

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
sys.path.append(str(ROOT / "tests"))
FIRST = 200


def of_method(name, steps):
    """Growth, and what is left."""
    from helpers.leaks import Loop, held, is_collectable, left_by_faults
    from smoothtune import METHODS

    make = METHODS[name]
    loop = Loop(make())
    tracemalloc.start()
    loop.steps(FIRST)
    first = held()
    loop.steps(steps - FIRST)
    last = held()
    tracemalloc.stop()
    loop.objective.detach()
    del loop
    return {
        "method": name,
        "steps": steps,
        "growth": {key: getattr(last, key) - getattr(first, key) for key in first._fields},
        "left": left_by_faults(make),
        "collectable": all(is_collectable(make, detach=detach) for detach in (True, False)),
    }


def table(content):
    """Markdown."""
    lines = ["# Leaks", "", f"`{content['command']}`", ""]
    lines += [f"Growth from step {FIRST} to the last one; RSS is the allocator's memory too.", ""]
    lines += ["| method | steps | Python, bytes | tensors | their bytes | RSS, KiB | left |"]
    lines += ["|---|---|---|---|---|---|---|"]
    for row in content["rows"]:
        grown = row["growth"]
        left = ", ".join(row["left"]) or "nothing"
        lines += [
            f"| {row['method']} | {row['steps']} | {grown['python']} | {grown['tensors']} "
            f"| {grown['tensor_bytes']} | {grown['resident'] // 1024} "
            f"| {left if row['collectable'] else left + ', the model'} |"
        ]
    if trainers := content["trainers"]:
        lines += ["", "From trainer 10 to 50, each trained one step and dropped: "]
        lines[-1] += (
            f"{trainers['python']} bytes of Python objects, {trainers['tensors']} tensors, "
            f"{trainers['resident'] // 1024} KiB resident; models not freed: {trainers['models']}."
        )
    return "\n".join(lines) + "\n"


def main():
    """Measure and write after each method."""
    from helpers.leaks import growth_of_trainers
    from smoothtune import METHODS
    from smoothtune.files import versions

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--method", choices=METHODS, nargs="+", default=list(METHODS))
    args = parser.parse_args()
    torch.set_num_threads(1)
    file = RESULTS / "leaks.json"
    content = json.loads(file.read_text()) if file.exists() else {"rows": [], "trainers": None}
    content["command"] = f"python benchmarks/leaks.py --steps {args.steps}"
    content["versions"] = versions()

    def write():
        content["rows"].sort(key=lambda row: list(METHODS).index(row["method"]))
        file.write_text(json.dumps(content, indent=1) + "\n")
        (RESULTS / "leaks.md").write_text(table(content), encoding="utf-8")

    content["trainers"] = content["trainers"] or growth_of_trainers(10, 50)
    write()
    for name in args.method:
        kept = [row for row in content["rows"] if row["method"] == name]
        if not kept or kept[0]["steps"] < args.steps:
            content["rows"] = [row for row in content["rows"] if row["method"] != name]
            content["rows"].append(of_method(name, args.steps))
            write()
            print(content["rows"][-1] if not kept else name, flush=True)


if __name__ == "__main__":
    main()
