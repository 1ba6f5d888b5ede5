"""Where the time of a step goes: forward, backward, optimizer, and what is left (Python).

    python benchmarks/profile_step.py [--batch 16] [--length 128] [--steps 5]

A plain step and one with LNSR on MiniLM, one thread. `operators` is the time inside PyTorch's
operators as its profiler sees it; the rest of a step is Python and bookkeeping. Writes
benchmarks/results/profile.json and .md.
"""

import argparse
import json
import statistics
import time
from pathlib import Path

import torch

RESULTS = Path(__file__).parent / "results"


def profile(model, regularizers, batches):
    """Medians of the parts of a step, in seconds."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as profiler

    from smoothtune import Objective

    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, fused=True)
    objective = Objective(*regularizers).bind(model.train(), optimizer)
    parts = {"forward": [], "backward": [], "optimizer": []}
    for batch in [batches[0], *batches]:
        marks = [time.perf_counter()]
        loss = objective(model, batch)
        marks.append(time.perf_counter())
        loss.backward()
        marks.append(time.perf_counter())
        optimizer.step()
        optimizer.zero_grad()
        marks.append(time.perf_counter())
        for name, start, end in zip(parts, marks, marks[1:], strict=False):
            parts[name].append(end - start)
    medians = {name: statistics.median(seconds[1:]) for name, seconds in parts.items()}
    with profiler(activities=[ProfilerActivity.CPU]) as recorded:
        start = time.perf_counter()
        objective(model, batches[0]).backward()
        optimizer.step()
        whole = time.perf_counter() - start
    events = recorded.key_averages()
    inside = sum(e.self_cpu_time_total for e in events if e.key != "PythonDispatchMode") / 1e6
    top = sorted(events, key=lambda event: -event.self_cpu_time_total)[:8]
    objective.detach()
    return {
        **{name: round(seconds, 4) for name, seconds in medians.items()},
        "step": round(sum(medians.values()), 4),
        "operators_share": round(min(inside / whole, 1.0), 4),
        "top_operators": {e.key: round(e.self_cpu_time_total / 1e6 / whole, 3) for e in top},
    }


def inner_pass(model, batches):
    """Medians of a forward and of the backward to the word embeddings alone, in seconds."""
    from smoothtune import ForwardPass

    parts = {"forward": [], "backward": []}
    for batch in [batches[0], *batches]:
        run = ForwardPass(model.train(), batch, differentiable=True, hidden_states=False)
        marks = [time.perf_counter()]
        loss = run.run().loss
        marks.append(time.perf_counter())
        torch.autograd.grad(loss, run.delta())
        marks.append(time.perf_counter())
        for name, start, end in zip(parts, marks, marks[1:], strict=False):
            parts[name].append(end - start)
    return {name: round(statistics.median(seconds[1:]), 4) for name, seconds in parts.items()}


def main():
    """Profile both steps and write the table."""
    from smoothtune import LNSR
    from smoothtune.console import quiet
    from smoothtune.files import versions
    from smoothtune.models.load import load_base, load_classifier
    from smoothtune.tasks.presets import TASKS
    from smoothtune.trainer.cost import random_batches

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--steps", type=int, default=5)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with quiet():
        model, _ = load_classifier(load_base("minilm"), TASKS["sst2"], seed=0)
    batches = random_batches(model, arguments.steps, arguments.batch, arguments.length)
    found = {"plain": profile(model, [], batches), "lnsr": profile(model, [LNSR()], batches)}
    command = (
        f"python benchmarks/profile_step.py --batch {arguments.batch} --length {arguments.length} "
        f"--steps {arguments.steps}"
    )
    inner = inner_pass(model, batches)
    content = {"command": command, "versions": versions(), "steps": found, "inner_pass": inner}
    (RESULTS / "profile.json").write_text(json.dumps(content, indent=1) + "\n")
    lines = [
        f"# Profile of a step, MiniLM\n\n`{command}`\n",
        "| step | seconds | forward | backward | optimizer | inside operators |",
        "|---|---|---|---|---|---|",
    ]
    for name, p in found.items():
        shares = [
            f"{100 * p[part] / p['step']:.1f} %" for part in ("forward", "backward", "optimizer")
        ]
        inside = f"{100 * p['operators_share']:.1f} %"
        lines.append(f"| {name} | {p['step']:.3f} | {' | '.join(shares)} | {inside} |")
    plain = found["plain"]
    share = (inner["forward"] + inner["backward"]) / plain["step"]
    lines.append(
        f"\nA step of an inner search, a forward ({inner['forward']:.3f} s) and the backward to "
        f"the word embeddings alone ({inner['backward']:.3f} s, of {plain['backward']:.3f} s with "
        f"all weights), takes {share:.2f} of a plain step. By passes it would be 0.67: the "
        "gradients of the weights are less than half of a backward."
    )
    for name, p in found.items():
        listed = ", ".join(
            f"{key} {100 * share:.1f} %" for key, share in p["top_operators"].items()
        )
        lines.append(f"\nLargest operators of the {name} step, share of the step: {listed}.")
    (RESULTS / "profile.md").write_text("\n".join(lines) + "\n")
    print((RESULTS / "profile.md").read_text())


if __name__ == "__main__":
    main()
