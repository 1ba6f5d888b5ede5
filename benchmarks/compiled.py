"""Processor time of a step with compiled blocks and without, plain and with methods.

    python benchmarks/compiled.py [--model minilm] [--batch 16] [--length 128] [--rounds 7]
        [--method NAME[:field=value,...] ...]

Whole updates with fused AdamW, one thread on a CPU, the model's dropout on. Every method has a
process of its own, in which it has two copies of the model, one with `compile_blocks`; their steps
take turns with plain ones on the same batches, and every ratio is one of steps of the same round.
Processor time, so that other programs matter less. Compilation is what the first step takes more
than the median of the rest, with the C++ compiler that it starts. All batches have one length.
JacHess by finite differences, its default. Writes benchmarks/results/compiled.json and .md after
every method; with `--method`, other rows are kept.
"""

import argparse
import copy
import json
import multiprocessing
import os
import platform
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from statistics import median

RESULTS = Path(__file__).parent / "results"
DEFAULT = ["plain", "lnsr", "r3f", "smart", "freelb", "jachess"]


def processor_seconds():
    """Of this process and of those that it has waited for, such as compilers."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def timed(stepper, batch):
    """Take an update and return its processor time."""
    start = processor_seconds()
    stepper.step(batch)
    return processor_seconds() - start


def measure(spec, source, size, length, rounds):
    """One row of the table."""
    # before torch's compiler is imported: its processes would count when they end only
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    os.environ["TORCHINDUCTOR_FORCE_DISABLE_CACHES"] = "1"
    import torch

    from smoothtune import compile_blocks
    from smoothtune.config.run import load_config
    from smoothtune.console import quiet
    from smoothtune.memory import keep_freed_memory
    from smoothtune.models.load import load_base, load_classifier
    from smoothtune.tasks.presets import TASKS
    from smoothtune.trainer.cost import Stepper, random_batches

    torch.set_num_threads(1)
    keep_freed_memory()
    with quiet():
        model, _ = load_classifier(load_base(source), TASKS["sst2"], seed=0)
    batches = random_batches(model, rounds, size, length)
    run = load_config(options={"task": "sst2", "output_dir": "unused"}, methods=[spec])
    steppers = {
        "plain": Stepper(copy.deepcopy(model), []),
        "eager": Stepper(copy.deepcopy(model), run.regularizers()),
        "compiled": Stepper(compile_blocks(copy.deepcopy(model)), run.regularizers()),
    }
    first = {name: timed(stepper, batches[0]) for name, stepper in steppers.items()}
    for stepper in steppers.values():  # a share is known after the first update
        stepper.step(batches[0])
    taken = {name: [] for name in steppers}
    for batch in batches:
        for name, stepper in steppers.items():
            taken[name].append(timed(stepper, batch))
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
        "versions": {"torch": torch.__version__},
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
    command = (
        f"python benchmarks/compiled.py --model {arguments.model} --batch {arguments.batch} "
        f"--length {arguments.length} --rounds {arguments.rounds}"
    )
    shape = f"{arguments.batch}x{arguments.length}"
    heading = (
        f"# Steps with compiled blocks, {arguments.model}, batch {shape}, one thread\n\n"
        f"`{command}`; processor seconds, medians"
    )
    file = RESULTS / "compiled.json"
    rows = {}
    if arguments.method:
        rows = {row["method"]: row for row in json.loads(file.read_text())["rows"]}
    given = (arguments.model, arguments.batch, arguments.length, arguments.rounds)
    for spec in arguments.method or DEFAULT:
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
            rows[spec] = pool.submit(measure, spec, *given).result()
        print(json.dumps(rows[spec]), flush=True)
        found = [rows[s] for s in DEFAULT if s in rows]
        found += [row for s, row in rows.items() if s not in DEFAULT]
        content = {"command": command, "machine": platform.processor(), "rows": found}
        file.write_text(json.dumps(content, indent=1) + "\n")
        file.with_suffix(".md").write_text(table(found, heading))


if __name__ == "__main__":
    main()
