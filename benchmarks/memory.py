"""Peak memory of a step with every method, with and without activation checkpointing.

    python benchmarks/memory.py [--model minilm] [--batch 16] [--length 128] [--method SPEC ...]

Whole updates with fused AdamW and random tokens, one thread on a CPU or on a GPU if there is one.
Every row is a process of its own. Peak memory is what a step takes beyond what the model, its
gradients to come and the optimizer's state hold before it; the median of three steps after a first
one, in which bounds hold the terms. Checkpointing computes the activations of every block again in
the backward pass (`gradient_checkpointing`, not reentrant). Its price is the processor time of a
step.

Writes benchmarks/results/memory-MODEL-BATCHxLENGTH.json and .md; other rows are kept.
"""

import argparse
import json
import multiprocessing
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from statistics import median

import torch

RESULTS = Path(__file__).parent / "results"
DEFAULT = [
    "plain",
    "mixout",
    "l2_sp",
    "noise",
    "r3f",
    "r3f:rows=0.25",
    "r_drop",
    "lnsr",
    "freelb",
    "smart",
    "vat",
    "alum",
    "sift",
    "uegr",
    "jacobian",
    "double_backprop",
    "cross_holder",
    "jachess:hessian_weight=0",
    "jachess",
    "jachess:rows=0.25",
    "sam",
]


def measure(spec, source, size, length, checkpointing):
    """Bytes and processor seconds of a step, or why there is none."""
    from smoothtune.config.run import load_config
    from smoothtune.console import quiet
    from smoothtune.models.load import load_base, load_classifier
    from smoothtune.nn.hf_versions import enable_checkpointing
    from smoothtune.tasks.presets import TASKS
    from smoothtune.trainer.cost import Stepper, random_batches

    torch.set_num_threads(1)
    with quiet():
        model, _ = load_classifier(load_base(source), TASKS["sst2"], seed=0)
    model.to("cuda" if torch.cuda.is_available() else "cpu")
    if checkpointing:
        enable_checkpointing(model)
    batch = random_batches(model, 1, size, length)[0]
    batch = {name: value.to(model.device) for name, value in batch.items()}
    run = load_config(options={"task": "sst2", "output_dir": "unused"}, methods=[spec])
    try:
        stepper = Stepper(model, run.regularizers())
        stepper.step(batch)
    except ValueError as refusal:
        return {"refused": str(refusal).splitlines()[-1].removeprefix("- ")}
    peak = stepper.peak(batch)
    return {"bytes": peak, "seconds": median(seconds(stepper, batch) for _ in range(3))}


def seconds(stepper, batch):
    """Processor seconds of a step; on a GPU, seconds."""
    clock = time.perf_counter if torch.cuda.is_available() else time.process_time
    start = clock()
    stepper.step(batch)
    return clock() - start


def cell(found, key, scale, digits):
    """A number of the table."""
    return f"{found[key] / scale:,.{digits}f}" if key in found else "refused"


def table(content):
    """Markdown."""
    rows = content["rows"]
    plain = rows["plain"]["kept"]
    lines = ["# Peak memory of a step", "", f"`{content['command']}`", ""]
    lines += [
        f"{content['model']}, {content['shape']} tokens, torch {content['torch']}, "
        f"{content['device']}. Memory beyond what is held before the step; times as processor "
        "time, relative to a plain step without checkpointing.",
        "",
        "| method | MiB | x plain | with checkpointing | x without | time | with checkpointing |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, row in rows.items():
        kept, again = row["kept"], row["again"]
        part = f"{again['bytes'] / kept['bytes']:.2f}" if "bytes" in again else "-"
        lines.append(
            f"| {name} | {cell(kept, 'bytes', 2**20, 0)} "
            f"| {kept['bytes'] / plain['bytes']:.2f} | {cell(again, 'bytes', 2**20, 0)} | {part} "
            f"| {cell(kept, 'seconds', plain['seconds'], 2)} "
            f"| {cell(again, 'seconds', plain['seconds'], 2)} |"
        )
    reasons = dict.fromkeys(r["again"]["refused"] for r in rows.values() if "refused" in r["again"])
    lines += ["", *(f"Refused: {reason}." for reason in reasons)]
    return "\n".join(lines).rstrip() + "\n"


def main():
    """Measure one row after another; write after each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--method", action="append")
    arguments = parser.parse_args()
    name, shape = Path(arguments.model).name, f"{arguments.batch}x{arguments.length}"
    file = RESULTS / f"memory-{name}-{shape}.json"
    rows = json.loads(file.read_text())["rows"] if file.exists() else {}
    command = (
        f"python benchmarks/memory.py --model {'DIR/' * (name != arguments.model)}{name} "
        f"--batch {arguments.batch} --length {arguments.length}"
    )
    for spec in arguments.method or DEFAULT:
        row = {}
        for kind, checkpointing in (("kept", False), ("again", True)):
            # a process of its own: the heap that others leave would hide memory
            with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
                given = (spec, arguments.model, arguments.batch, arguments.length, checkpointing)
                row[kind] = pool.submit(measure, *given).result()
        rows[spec] = row
        print(spec, row, flush=True)
        order = [s for s in DEFAULT if s in rows] + [s for s in rows if s not in DEFAULT]
        device = torch.cuda.get_device_name() if torch.cuda.is_available() else "one CPU thread"
        content = {"command": command, "model": name, "shape": shape.replace("x", " x ")}
        content |= {"torch": torch.__version__, "device": device}
        content["rows"] = {spec: rows[spec] for spec in order}
        file.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        if "plain" in rows:
            file.with_suffix(".md").write_text(table(content), encoding="utf-8")


if __name__ == "__main__":
    main()
