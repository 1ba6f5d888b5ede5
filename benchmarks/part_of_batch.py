"""Terms on a part of the batch: what a step costs, and how much its gradient varies.

    python benchmarks/part_of_batch.py --data DIR [--method NAME ...] [--rounds 3] [--batches 11]

DIR is a folder of Parquet data sets with `sst2`. MiniLM after 20 plain updates, batches of 16
sentences of SST-2 of at most 32 tokens, dropout on, one thread on a CPU. For every method and part
of the batch:

- processor time of a whole update relative to a plain one, alternating (weight 1; updates in which
  a share is measured take the whole batch), and floating-point operations of forward and backward
  likewise; `--rounds 0` leaves both as they were;
- noise of the term's gradient, sqrt(E ||g - Eg||^2) / ||Eg||, over batches, rows, noise and masks;
- noise of the whole gradient, task plus term at a share of 0.3: sqrt(E ||g - Eg||^2), relative to
  that of the task alone. Of the draws of each setting the one with the largest gradient of the term
  is left out, as LNSR's has outliers; how large it is beside the median stands beside.

`every=4` is reckoned from the draws on whole batches: the term's gradient times 4 in one of four
updates; `--batches 0` leaves the noise as it was. Writes benchmarks/results/part-of-batch.json
and .md.
"""

import argparse
import json
import math
import statistics
import time
from pathlib import Path

import torch

RESULTS = Path(__file__).parent / "results"
SIZE, LENGTH, SHARE, WARM_UP = 16, 32, 0.3, 20
METHODS = {
    "lnsr": [1.0, 0.25],
    "r3f": [1.0, 0.25],
    "jachess": [1.0, 0.25, 0.125],
    "smart": [1.0, 0.25],
}
EVERY = 4


def sst2_batches(base, data, count):
    """Real batches, each padded to its longest sentence."""
    from smoothtune.data.batches import Collator
    from smoothtune.tasks.prepare import prepare
    from smoothtune.tasks.presets import TASKS

    rows = {"max_seq_length": LENGTH, "seed": 0, "max_train_samples": count * SIZE}
    prepared = prepare(data / "sst2", TASKS["sst2"], base.tokenizer, **rows)
    collate = Collator(base.tokenizer)
    batches = [collate([prepared.train[SIZE * i + j] for j in range(SIZE)]) for i in range(count)]
    for batch in batches:
        batch.pop("example_id", None)
    return batches


def warm_up(model, batches):
    """Train plainly, so that predictions differ and gradients are those of training."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4)
    for batch in batches:
        model(**batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def operations(model, method, batch):
    """Floating-point operations of one update's forward and backward."""
    from torch.utils.flop_counter import FlopCounterMode

    from smoothtune import Objective

    objective = Objective(*([method] if method else [])).attach(model)
    torch.manual_seed(0)
    with FlopCounterMode(display=False) as counter:
        objective(model, batch).backward()
    model.zero_grad()
    objective.detach()
    return counter.get_total_flops()


def gradients(model, method, batch, seed):
    """Flat gradients of the task loss and of the term in the encoder, from the same passes."""
    from smoothtune import ForwardPass
    from smoothtune.core.row_subset import subset_pass
    from smoothtune.nn import rng
    from smoothtune.nn.dropout import SharedMasks

    torch.manual_seed(seed)
    clean = ForwardPass(
        model,
        batch,
        points=method.points(),
        differentiable=method.traits.differentiates,
        hidden_states=method.traits.hidden_states,
        start=rng.get_state(torch.device("cpu")),
        shared_masks=SharedMasks(),
    )
    torch.manual_seed(seed + 1_000_000)
    part = subset_pass(clean, method, runs=True) if method.rows < 1 else clean
    term, task = method.loss(part), clean.run().loss
    weights = [p for n, p in model.named_parameters() if "encoder" in n]
    return [
        sketch(torch.autograd.grad(loss, weights, retain_graph=loss is term))
        for loss in (term, task)
    ]


def sketch(tensors):
    """Every 37th entry in float64: norms and products are 1/37 of the whole's, on average."""
    return torch.cat([x.flatten()[::37] for x in tensors]).double()


def mean_and_spread(x):
    """||Ex||^2 and E ||x - Ex||^2, unbiased, of draws x (n, D)."""
    n, squares = len(x), x.square().sum()
    mean = ((x.sum(0).square().sum() - squares) / (n * (n - 1))).item()
    return mean, squares.item() / n - mean


def vary(model, name, batches):
    """(Noise of the term, noise of the whole gradient), by part of the batch and for every=4."""
    from smoothtune.nn.higher_order import HigherDerivatives

    weight, found = None, {}
    for rows in METHODS[name]:
        method = make(model, name, rows)
        method.attach(model)
        higher = HigherDerivatives(model, method.traits.derivative_order)
        pairs = [gradients(model, method, batch, number) for number, batch in enumerate(batches)]
        method.detach(model)
        higher.undo()
        g, t = (torch.stack(each) for each in zip(*pairs, strict=True))
        sizes = g.norm(dim=1)
        outlier = (sizes.max() / sizes.median()).item()
        g, t = (x[sizes < sizes.max()] for x in (g, t))
        if weight is None:
            weight = SHARE * math.sqrt(t.square().sum() / g.square().sum())
        _, task = mean_and_spread(t)
        for setting, every in [(rows, 1), *([("every", EVERY)] if rows == 1 else [])]:
            # k g in one of k updates: E ||.||^2 is k times that of g
            more = (every - 1) * g.square().sum(1).mean().item()
            mean, spread = mean_and_spread(g)
            _, whole = mean_and_spread(t + weight * g)
            term = (spread + more) / mean if mean > 0 else math.inf
            noise = math.sqrt(term), math.sqrt((whole + weight**2 * more) / task)
            found[setting] = *noise, outlier
    return found


def make(model, name, rows):
    """A method on a part of the batch; JacHess without its measurement on the first batch."""
    from smoothtune import METHODS as CLASSES

    layers = [1.0] * model.config.num_hidden_layers
    fields = {"smoothness": layers, "c": 1.0} if name == "jachess" else {}
    return CLASSES[name](weight=1.0, rows=rows, **fields)


def cost(model, name, batches, rounds):
    """(Processor times, operations) relative to plain ones, by part of the batch."""
    plain = sum(operations(model, None, batch) for batch in batches[:2])
    found = {}
    for rows in METHODS[name]:
        steppers = [stepper(model, []), stepper(model, [make(model, name, rows)])]
        # the first is no round; in the third of a fixed weight the term is measured, on all rows
        taken = [[step(batch) for step in steppers] for batch in batches[: rounds + 2]]
        ratios = [method / plain for plain, method in (taken[1], *taken[3:])][:rounds]
        counted = sum(operations(model, make(model, name, rows), batch) for batch in batches[:2])
        found[rows] = ratios, counted / plain
    return found


def stepper(model, methods):
    """A function that takes an update of a copy of the model and returns its processor time."""
    import copy

    from smoothtune import Objective

    model = copy.deepcopy(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, fused=True)
    objective = Objective(*methods).bind(model, optimizer, 1000)

    def step(batch):
        start = time.process_time()
        objective(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad()
        return time.process_time() - start

    return step


def measure(model, name, batches, rounds, noisy, previous):
    """Rows of the table by setting: parts of the batch, and every=4."""
    settings = {f"rows={part:g}": part for part in METHODS[name]} | {f"every={EVERY}": "every"}
    rows = {label: dict(previous.get((name, label), {})) for label in settings}
    if rounds:
        found = cost(model, name, batches, rounds)
        ratios, counted = found[1.0]
        whole = statistics.median(ratios)
        found["every"] = [1 + (whole - 1) / EVERY], 1 + (counted - 1) / EVERY
        for label, setting in settings.items():
            ratios, counted = found[setting]
            rows[label] |= {
                "ratio": round(statistics.median(ratios), 3),
                "ratio_range": [round(min(ratios), 3), round(max(ratios), 3)],
                "operations": round(counted, 3),
            }
    if noisy:
        noise = vary(model, name, batches)
        for label, setting in settings.items():
            of_term, of_all, largest = noise[setting]
            rows[label] |= {
                "term_noise": round(of_term, 3) if of_term < math.inf else None,
                "gradient_noise": round(of_all, 3),
                "largest": round(largest, 1),
            }
    return [{"method": name, "setting": label} | row for label, row in rows.items()]


def number(row, key):
    """Two decimals, or a dash for what was not measured, or is lost in the draws."""
    return "-" if row.get(key) is None else f"{row[key]:.2f}"


def table(rows, heading):
    """Markdown."""
    lines = [
        heading,
        "",
        "| method | setting | processor time, x plain | range | operations, x plain "
        "| noise of the term | noise of task + term, x task | largest gradient, x median |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for r in rows:
        low, high = r.get("ratio_range", (math.nan, math.nan))
        span = "reckoned" if r["setting"].startswith("every") else f"{low:.2f}-{high:.2f}"
        cells = [r["method"], r["setting"], number(r, "ratio"), span, number(r, "operations")]
        cells += [number(r, key) for key in ("term_noise", "gradient_noise", "largest")]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main():
    """Measure one method after another; write after each."""
    from smoothtune.console import quiet
    from smoothtune.files import versions
    from smoothtune.memory import keep_freed_memory
    from smoothtune.models.load import load_base, load_classifier
    from smoothtune.tasks.presets import TASKS

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--method", action="append", choices=METHODS)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batches", type=int, default=11)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()
    with quiet():
        base = load_base("minilm")
        model, _ = load_classifier(base, TASKS["sst2"], seed=0)
    count = arguments.batches or 2 + arguments.rounds
    batches = sst2_batches(base, arguments.data, WARM_UP + count)
    torch.manual_seed(0)
    warm_up(model.train(), batches[:WARM_UP])
    chosen = arguments.method or list(METHODS)
    command = "python benchmarks/part_of_batch.py --data DIR"
    command += "".join(f" --method {name}" for name in arguments.method or [])
    command += f" --rounds {arguments.rounds} --batches {arguments.batches}"
    file = RESULTS / "part-of-batch.json"
    before = json.loads(file.read_text()) if file.exists() else {"commands": [], "rows": []}
    previous = {
        (r["method"], r["setting"]): {k: v for k, v in r.items() if k not in ("method", "setting")}
        for r in before["rows"]
    }
    commands = list(dict.fromkeys([*before["commands"], command]))
    for name in chosen:
        found = measure(
            model, name, batches[WARM_UP:], arguments.rounds, arguments.batches > 0, previous
        )
        print(*found, sep="\n", flush=True)
        kept = [r for r in before["rows"] if r["method"] != name]
        rows = sorted([*kept, *found], key=lambda r: list(METHODS).index(r["method"]))
        before = {"commands": commands, "versions": versions(), "rows": rows}
        file.write_text(json.dumps(before, indent=1) + "\n")
        ran = "\n".join(f"`{each}`  " for each in commands)
        heading = f"# Terms on a part of the batch\n\n{ran}"
        file.with_suffix(".md").write_text(table(rows, heading))


if __name__ == "__main__":
    main()
