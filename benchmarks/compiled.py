"""Processor time of a step with compiled blocks and without, plain and with methods.

    python benchmarks/compiled.py [--model minilm] [--batch 16] [--length 128] [--rounds 7]
        [--method NAME[:field=value,...] ...]

Whole updates with fused AdamW, one thread on a CPU, the model's dropout on. In one process, every
method has two copies of the model, one with `compile_blocks`; their steps take turns with plain
ones on the same batches, and every ratio is one of steps of the same round. Processor time, so that
other programs matter less. Compilation is what the first step takes more than the median of the
rest, with the C++ compiler that it starts; methods after the first find most of their code in
torch's cache. All batches have one length. JacHess by finite differences, its default. Writes
benchmarks/results/compiled.json and .md.
"""

import argparse
import copy
import json
import os
import platform
from pathlib import Path
from statistics import median

import torch

RESULTS = Path(__file__).parent / "results"
DEFAULT = [
    "plain",
    "lnsr",
    "r3f",
    "smart",
    "freelb",
    "jachess",
]


def processor_seconds():
    """Of this process and of those that it has waited for, such as compilers."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def stepper(model, methods, compiled):
    """A function that takes an update of a copy of the model and returns its processor time."""
    from smoothtune import Objective, compile_blocks
    from smoothtune.trainer.step_cost import STEPS

    model = copy.deepcopy(model).train()
    if compiled:
        compile_blocks(model)
    for method in methods:
        method.ramp_start = method.ramp_steps = 0
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, fused=True)
    objective = Objective(*methods).bind(model, optimizer, STEPS)

    def step(batch):
        start = processor_seconds()
        objective(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad()
        return processor_seconds() - start

    return step


def measure(spec, model, batches):
    """One row of the table."""
    from smoothtune.config.run import load_config

    def methods():
        return load_config(options={"task": "sst2", "output_dir": "unused"}, methods=[spec])

    torch.compiler.reset()
    steps = {
        "plain": stepper(model, [], compiled=False),
        "eager": stepper(model, methods().regularizers(), compiled=False),
        "compiled": stepper(model, methods().regularizers(), compiled=True),
    }
    first = {name: step(batches[0]) for name, step in steps.items()}
    for step in steps.values():  # a share is known after the first update
        step(batches[0])
    taken = {name: [] for name in steps}
    for batch in batches:
        for name, step in steps.items():
            taken[name].append(step(batch))
    ratios = {
        f"{one}/{other}": [a / b for a, b in zip(taken[one], taken[other], strict=True)]
        for one, other in [("eager", "plain"), ("compiled", "plain"), ("compiled", "eager")]
    }
    return {
        "method": spec,
        "seconds": {name: round(median(seconds), 4) for name, seconds in taken.items()},
        "ratios": {name: round(median(values), 3) for name, values in ratios.items()},
        "ranges": {
            name: [round(min(values), 3), round(max(values), 3)] for name, values in ratios.items()
        },
        "compilation_seconds": round(first["compiled"] - median(taken["compiled"]), 1),
    }


def table(rows, heading):
    """Markdown."""
    lines = [
        heading,
        "",
        "| method | s, not compiled | s, compiled | compiled / not | range | x plain, not compiled "
        "| x plain not compiled, compiled | compilation, s |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for r in rows:
        low, high = r["ranges"]["compiled/eager"]
        lines.append(
            f"| {r['method']} | {r['seconds']['eager']:.3f} | {r['seconds']['compiled']:.3f} "
            f"| {r['ratios']['compiled/eager']:.2f} | {low:.2f}-{high:.2f} "
            f"| {r['ratios']['eager/plain']:.2f} | {r['ratios']['compiled/plain']:.2f} "
            f"| {r['compilation_seconds']:.0f} |"
        )
    return "\n".join(lines) + "\n"


def main():
    """Measure one method after another; write after each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--method", action="append")
    arguments = parser.parse_args()
    # before torch's compiler is imported: its processes would count when they end only
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    os.environ["TORCHINDUCTOR_FORCE_DISABLE_CACHES"] = "1"

    from smoothtune.console import quiet
    from smoothtune.files import versions
    from smoothtune.memory import keep_freed_memory
    from smoothtune.models.load import load_base, load_classifier
    from smoothtune.tasks.presets import TASKS
    from smoothtune.trainer.step_cost import random_batches

    torch.set_num_threads(1)
    keep_freed_memory()
    with quiet():
        model, _ = load_classifier(load_base(arguments.model), TASKS["sst2"], seed=0)
    batches = random_batches(model, arguments.rounds, arguments.batch, arguments.length)
    command = (
        f"python benchmarks/compiled.py --model {arguments.model} --batch {arguments.batch} "
        f"--length {arguments.length} --rounds {arguments.rounds}"
    )
    command += "".join(f" --method {spec}" for spec in arguments.method or [])
    shape = f"{arguments.batch}x{arguments.length}"
    heading = (
        f"# Steps with compiled blocks, {arguments.model}, batch {shape}, one thread\n\n"
        f"`{command}`; processor seconds, medians"
    )
    rows, file = [], RESULTS / "compiled.json"
    for spec in arguments.method or DEFAULT:
        rows.append(measure(spec, model, batches))
        print(json.dumps(rows[-1]), flush=True)
        content = {
            "command": command,
            "versions": versions(),
            "machine": platform.processor(),
            "rows": rows,
        }
        file.write_text(json.dumps(content, indent=1) + "\n")
        file.with_suffix(".md").write_text(table(rows, heading))


if __name__ == "__main__":
    main()
