"""How much JacHess's estimators vary, against what they cost.

    python benchmarks/variance.py --data DIR [--draws 20]

DIR is a folder of Parquet data sets with `rte`. On MiniLM and real RTE batches, in evaluation mode,
every estimator is drawn many times on the same batch (the paper's, with its many passes, a third as
often). Reported are the relative standard deviation
of the penalty, that of its parameter gradient, sqrt(E ||g - Eg||^2) / ||Eg||, both means over the
batches, and the processor time of a penalty with its gradient relative to a plain forward and
backward, one thread.
Writes benchmarks/results/variance.json, .md and .svg.
"""

import argparse
import json
import math
import statistics
import time
from pathlib import Path

import torch

RESULTS = Path(__file__).parent / "results"
TERMS = {"jacobian": {"hessian_weight": 0}, "jacobian + hessian": {}}
ESTIMATORS = [
    {"estimator": "per_layer", "hessian_dims": 2},
    {"estimator": "projected"},
    {"estimator": "projected", "probe": "gaussian"},
    {"estimator": "projected", "num_probes": 3},
    {"estimator": "directional"},
    {"estimator": "finite_difference", "difference": "forward"},
    {"estimator": "finite_difference", "difference": "symmetric"},
    {"estimator": "finite_difference", "difference": "forward", "probe": "gaussian"},
    {"estimator": "finite_difference", "difference": "forward", "num_probes": 3},
]


def rte_batches(base, data, count, size, length):
    """Real batches, cut to one length."""
    from smoothtune.data.batches import Collator
    from smoothtune.tasks.prepare import prepare
    from smoothtune.tasks.presets import TASKS

    prepared = prepare(data / "rte", TASKS["rte"], base.tokenizer, max_seq_length=length, seed=0)
    collate = Collator(base.tokenizer)
    return [collate([prepared.train[size * i + j] for j in range(size)]) for i in range(count)]


def draw(model, batch, fields, draws):
    """(relative sd of the penalty, of its gradient, seconds of one draw)."""
    from smoothtune import ForwardPass, JacHess
    from smoothtune.nn.higher_order import HigherDerivatives

    layers = model.config.num_hidden_layers
    method = JacHess(c=1.0, smoothness=[1.0] * layers, **fields)
    method.attach(model)
    higher = HigherDerivatives(model, method.traits.derivative_order)
    weights = [p for n, p in model.named_parameters() if "encoder" in n]
    values, seconds, total, squares = [], [], None, 0.0
    for seed in range(draws):
        torch.manual_seed(seed)
        start = time.process_time()
        penalty = method.loss(ForwardPass(model, batch, differentiable=True))
        gradients = torch.autograd.grad(penalty, weights, allow_unused=True)
        seconds.append(time.process_time() - start)
        g = torch.cat([x.flatten() for x in gradients if x is not None])
        values.append(penalty.item())
        squares += g.square().sum().item()
        total = g if total is None else total + g
    higher.undo()
    of_mean = (total.square().sum().item() - squares) / (draws * (draws - 1))  # ||E g||^2
    spread = max(squares / draws - of_mean, 0.0)
    return (
        statistics.stdev(values) / statistics.mean(values),
        math.sqrt(spread / max(of_mean, 1e-30)),
        statistics.median(seconds),
    )


def plain_seconds(model, batch):
    """Median of a plain forward and backward."""
    seconds = []
    for _ in range(5):
        start = time.process_time()
        model(**{k: v for k, v in batch.items() if k != "example_id"}).loss.backward()
        model.zero_grad()
        seconds.append(time.process_time() - start)
    return statistics.median(seconds)


def table(rows, heading):
    """Markdown."""
    lines = [
        heading,
        "",
        "| terms | estimator | sd of the penalty | sd of the gradient | x plain |",
        "|---|---|---|---|---|",
    ]
    lines += [
        f"| {r['terms']} | {r['name']} | {r['penalty_sd']:.2f} | {r['gradient_sd']:.2f} "
        f"| {r['cost']:.1f} |"
        for r in rows
    ]
    return "\n".join(lines) + "\n"


def plot(rows, file):
    """Gradient deviation against cost."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    top = 1.1 * max(row["gradient_sd"] for row in rows)
    names = list(dict.fromkeys(row["name"] for row in rows))
    figure, axes = plt.subplots(1, len(TERMS), figsize=(10, 3.8), sharey=True, layout="constrained")
    for axis, terms in zip(axes, TERMS, strict=True):
        for row in (r for r in rows if r["terms"] == terms):
            at = names.index(row["name"])
            style = {"marker": "os^Dv<>PX"[at], "color": f"C{at}", "alpha": 0.7}
            axis.scatter(row["cost"], row["gradient_sd"], s=45, label=row["name"], **style)
        axis.set(
            title=terms, xscale="log", xlabel="cost, x plain forward + backward", ylim=(0, top)
        )
        axis.xaxis.set_major_locator(matplotlib.ticker.LogLocator(subs=(1, 2, 5)))
        axis.xaxis.set_major_formatter(matplotlib.ticker.StrMethodFormatter("{x:g}"))
        axis.xaxis.set_minor_locator(matplotlib.ticker.NullLocator())
    axes[0].set_ylabel("relative sd of the gradient")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside right upper", fontsize=8)
    figure.savefig(file, metadata={"Date": None})


def main():
    """Measure every estimator and write after each."""
    from smoothtune.console import quiet
    from smoothtune.files import versions
    from smoothtune.models.load import load_base, load_classifier
    from smoothtune.tasks.presets import TASKS

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--draws", type=int, default=20)
    parser.add_argument("--batches", type=int, default=2)
    parser.add_argument("--size", type=int, default=8)
    parser.add_argument("--length", type=int, default=64)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with quiet():
        base = load_base("minilm")
        model, _ = load_classifier(base, TASKS["rte"], seed=0)
    model.eval()
    batches = rte_batches(base, arguments.data, arguments.batches, arguments.size, arguments.length)
    for batch in batches:
        batch.pop("example_id")
    plain = statistics.mean(plain_seconds(model, batch) for batch in batches)
    command = (
        f"python benchmarks/variance.py --data DIR --draws {arguments.draws} "
        f"--batches {arguments.batches} --size {arguments.size} --length {arguments.length}"
    )
    rows = []
    for terms, fields in TERMS.items():
        for estimator in ESTIMATORS:
            paper = estimator["estimator"] == "per_layer"
            draws = max(arguments.draws // 3, 3) if paper else arguments.draws
            found = [draw(model, b, fields | estimator, draws) for b in batches]
            penalty, gradient, seconds = (statistics.mean(x) for x in zip(*found, strict=True))
            name = " ".join(str(v) for v in estimator.values())
            rows.append(
                {
                    "terms": terms,
                    "name": name.replace("finite_difference", "finite differences"),
                    "fields": estimator,
                    "draws": draws * len(batches),
                    "penalty_sd": round(penalty, 4),
                    "gradient_sd": round(gradient, 4),
                    "cost": round(seconds / plain, 3),
                }
            )
            print(rows[-1], flush=True)
            content = {"command": command, "versions": versions(), "rows": rows}
            (RESULTS / "variance.json").write_text(json.dumps(content, indent=1) + "\n")
            heading = f"# Variance and cost of JacHess's estimators\n\n`{command}`"
            (RESULTS / "variance.md").write_text(table(rows, heading))
    plot(rows, RESULTS / "variance.svg")


if __name__ == "__main__":
    main()
