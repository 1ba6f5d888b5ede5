"""Step time and memory of every method against plain fine-tuning, interleaved in one run.

    python benchmarks/cost.py [--model minilm] [--batch 16] [--length 128] [--rounds 7]
        [--method NAME[:field=value,...] ...]

Whole updates with fused AdamW, one thread on a CPU. Every method has a process of its own, in which
its steps alternate with plain steps. `stock trainer` compares one plain step of transformers'
Trainer with one of SmoothTrainer with `Plain()`. On a GPU if there is one. Writes
benchmarks/results/NAME.json, .md and .svg.
"""

import argparse
import json
import multiprocessing
import platform
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import torch

RESULTS = Path(__file__).parent / "results"
STOCK = "stock trainer"
DEFAULT = [
    "plain",
    "mixout",
    "l2_sp",
    "cwgnc",
    "neftune",
    "noise",
    "r3f",
    "r_drop",
    "lnsr",
    "lnsr:noise=in_manifold",
    "freelb:num_steps=2",
    "freelb:num_steps=3",
    "smart:mu=0",
    "smart",
    "vat",
    "alum",
    "sift",
    "uegr",
    "fgm",
    "pgd",
    "jacobian",
    "jachess:hessian_weight=0",
    "jachess",
    "jachess:every=8",
    "cross_holder",
    "double_backprop",
    "child_tuning",
    "hype",
    "label_smoothing",
]


def measure(spec, source, rounds, size, length):
    """One row of the table."""
    from smoothtune.config.run import load_config
    from smoothtune.console import quiet
    from smoothtune.core.regularizer import Penalty
    from smoothtune.memory import keep_freed_memory
    from smoothtune.models.load import load_base, load_classifier
    from smoothtune.tasks.presets import TASKS
    from smoothtune.trainer.cost import measure_step_cost, random_batches

    torch.set_num_threads(1)
    keep_freed_memory()  # as `smoothtune train` and `smoothtune cost` do
    with quiet():
        model, _ = load_classifier(load_base(source), TASKS["sst2"], seed=0)
    model.to("cuda" if torch.cuda.is_available() else "cpu")
    batches = random_batches(model, rounds, size, length)
    if spec == STOCK:
        return stock_trainer(model, batches)
    run = load_config(options={"task": "sst2", "output_dir": "unused"}, methods=[spec])
    (regularizer,) = run.regularizers()
    every = regularizer.every if isinstance(regularizer, Penalty) else 1
    if every > 1:
        batches *= -(-2 * every // len(batches))
    return row(spec, measure_step_cost(model, [regularizer], batches, memory=every == 1))


def row(spec, cost):
    """Numbers of one comparison."""
    extra = None if cost.methods_memory is None else cost.methods_memory - cost.plain_memory
    return {
        "method": spec,
        "ratio": round(cost.ratio, 3),
        "ratio_range": [round(min(cost.ratios), 3), round(max(cost.ratios), 3)],
        "mean_ratio": round(sum(cost.methods) / sum(cost.plain), 3),
        "seconds": round(cost.seconds, 4),
        "plain_seconds": round(cost.plain_seconds, 4),
        "extra_memory_mib": None if extra is None else round(extra / 2**20),
        "plain_memory_mib": None if extra is None else round(cost.plain_memory / 2**20),
    }


def stock_trainer(model, batches):
    """SmoothTrainer with `Plain()` against transformers' Trainer."""
    import copy
    import time

    from transformers import Trainer, TrainingArguments

    from smoothtune import Plain, SmoothTrainer
    from smoothtune.trainer.cost import StepCost

    on_cpu = not torch.cuda.is_available()
    arguments = TrainingArguments(output_dir="unused", report_to="none", use_cpu=on_cpu)
    seconds = {Trainer: [], SmoothTrainer: []}
    trainers = {}
    for cls in seconds:
        own = {"regularizers": Plain()} if cls is SmoothTrainer else {}
        trainers[cls] = cls(model=copy.deepcopy(model), args=arguments, **own)
        trainers[cls].create_optimizer()
        trainers[cls].current_gradient_accumulation_steps = 1
    for count, batch in enumerate([*batches[:1], *batches]):
        for cls, trainer in trainers.items():
            start = time.perf_counter()
            trainer.training_step(trainer.model, dict(batch))
            trainer.optimizer.step()
            trainer.model.zero_grad()
            if count:
                seconds[cls].append(time.perf_counter() - start)
    return row(STOCK, StepCost(seconds[Trainer], seconds[SmoothTrainer], 0, 0))


def table(rows, heading):
    """Markdown."""
    lines = [
        heading,
        "",
        "| method | x plain, median | range | mean | extra peak memory, MiB |",
        "|---|---|---|---|---|",
    ]
    lines += [
        f"| {r['method']} | {r['ratio']:.2f} | {r['ratio_range'][0]:.2f}-{r['ratio_range'][1]:.2f} "
        f"| {r['mean_ratio']:.2f} "
        f"| {'that of every=1' if r['extra_memory_mib'] is None else r['extra_memory_mib']} |"
        for r in rows
    ]
    return "\n".join(lines) + "\n"


def plot(rows, file, title):
    """Time and memory of every method, the cheapest first."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    rows = sorted(rows, key=lambda r: -r["ratio"])
    names = [r["method"] for r in rows]
    figure, (time, memory) = plt.subplots(
        1, 2, figsize=(9, 0.6 + 0.24 * len(rows)), sharey=True, layout="constrained"
    )
    low = [r["ratio"] - r["ratio_range"][0] for r in rows]
    high = [r["ratio_range"][1] - r["ratio"] for r in rows]
    time.barh(names, [r["ratio"] for r in rows], xerr=[low, high], color="#0072b2", height=0.7)
    time.axvline(1, color="black", linewidth=0.8)
    time.set_xlabel("time of a step, x plain (median, range)")
    memory.barh(names, [r["extra_memory_mib"] or 0 for r in rows], color="#e69f00", height=0.7)
    memory.set_xlabel("extra peak memory, MiB")
    for axis in (time, memory):
        axis.tick_params(labelsize=8)
    figure.suptitle(title, fontsize=10)
    figure.savefig(file, metadata={"Date": None})
    plt.close(figure)


def main():
    """Measure one method after another; write after each."""
    from smoothtune.files import versions

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--method", action="append")
    parser.add_argument("--name")
    arguments = parser.parse_args()
    shape = f"{arguments.batch}x{arguments.length}"
    command = (
        f"python benchmarks/cost.py --model {arguments.model} --batch {arguments.batch} "
        f"--length {arguments.length} --rounds {arguments.rounds}"
    )
    command += "".join(f" --method {spec}" for spec in arguments.method or [])
    command += f" --name {arguments.name}" if arguments.name else ""
    name = arguments.name or f"cost-{arguments.model}-{shape}"
    file = RESULTS / f"{name}.json"
    previous = json.loads(file.read_text())["rows"] if file.exists() else []
    specs = [STOCK, *(arguments.method or DEFAULT)]
    rows = [r for r in previous if r["method"] not in specs]
    batches = (arguments.rounds, arguments.batch, arguments.length)
    for spec in specs:
        # a process of its own: what others left of the heap makes steps slower
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
            rows.append(pool.submit(measure, spec, arguments.model, *batches).result())
        print(json.dumps(rows[-1]), flush=True)
        rows.sort(
            key=lambda r: (
                [STOCK, *DEFAULT].index(r["method"]) if r["method"] in [STOCK, *DEFAULT] else 99
            )
        )
        content = {
            "command": command,
            "versions": versions(),
            "machine": platform.processor(),
            "rows": rows,
        }
        file.write_text(json.dumps(content, indent=1) + "\n")
        heading = f"# Cost of a step, {arguments.model}, batch {shape}, one thread\n\n`{command}`"
        file.with_suffix(".md").write_text(table(rows, heading))
    measured = [r for r in rows if r["method"] != STOCK]
    plot(measured, file.with_suffix(".svg"), f"{arguments.model}, batch {shape}, one thread")


if __name__ == "__main__":
    main()
