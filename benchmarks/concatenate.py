"""Two batches one after the other against the same rows in one batch.

    python benchmarks/concatenate.py [--rounds 15]

A clean and a perturbed pass could be one pass over twice the rows. This measures what that would
save: forward and backward on MiniLM, without dropout, one thread, in turn. Writes
benchmarks/results/concatenate.json and .md.
"""

import argparse
import json
import statistics
import time
from pathlib import Path

import torch

RESULTS = Path(__file__).parent / "results"
SHAPES = [(16, 128), (16, 64), (16, 32), (16, 16), (8, 16), (4, 16)]


def seconds(model, batches):
    """Time of the forward passes over the batches and one backward."""
    start = time.perf_counter()
    sum(model(**batch).loss for batch in batches).backward()
    model.zero_grad()
    return time.perf_counter() - start


def main():
    """Measure every shape."""
    from smoothtune.console import quiet
    from smoothtune.files import versions
    from smoothtune.models.load import load_base, load_classifier
    from smoothtune.tasks.presets import TASKS
    from smoothtune.trainer.cost import random_batches

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with quiet():
        model, _ = load_classifier(load_base("minilm"), TASKS["sst2"], seed=0)
    model.eval()
    rows = []
    for size, length in SHAPES:
        pair = random_batches(model, 2, size, length)
        joined = {key: torch.cat([batch[key] for batch in pair]) for key in pair[0]}
        ratios = [
            seconds(model, pair) / seconds(model, [joined]) for _ in range(arguments.rounds + 1)
        ][1:]
        low, _, high = statistics.quantiles(ratios, n=4)
        rows.append(
            {
                "batch": f"{size}x{length}",
                "ratio": round(statistics.median(ratios), 3),
                "quartiles": [round(low, 3), round(high, 3)],
            }
        )
        print(rows[-1], flush=True)
    command = f"python benchmarks/concatenate.py --rounds {arguments.rounds}"
    content = {"command": command, "versions": versions(), "rows": rows}
    (RESULTS / "concatenate.json").write_text(json.dumps(content, indent=1) + "\n")
    lines = [f"# One pass over twice the rows\n\n`{command}`\n"]
    lines += ["| rows x tokens | two passes / one pass, median | quartiles |", "|---|---|---|"]
    lines += [
        f"| {r['batch']} | {r['ratio']:.2f} | {r['quartiles'][0]:.2f}-{r['quartiles'][1]:.2f} |"
        for r in rows
    ]
    (RESULTS / "concatenate.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
