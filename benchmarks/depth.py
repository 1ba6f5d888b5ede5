"""JacHess's cost against the number of layers.

    python benchmarks/depth.py [--layers 6 12 24] [--batch 8] [--length 128] [--rounds 5]

BERT models of MiniLM's width (384) with random weights: what a step with JacHess costs relative to
a plain step of the same model, interleaved, one thread. The paper's estimator needs passes in
proportion to the number of layers; the default one does not. Writes
benchmarks/results/depth.json and .md.
"""

import argparse
import json
from pathlib import Path

import torch

RESULTS = Path(__file__).parent / "results"
METHODS = {"jachess": {}, "jachess:hessian_weight=0": {"hessian_weight": 0}}


def bert(layers):
    """MiniLM's shape with another depth, random weights."""
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(0)
    config = BertConfig(
        hidden_size=384,
        num_attention_heads=12,
        intermediate_size=1536,
        num_hidden_layers=layers,
        attn_implementation="sdpa",
    )
    return BertForSequenceClassification(config)


def table(rows, heading):
    """Markdown."""
    lines = [heading, "", "| method | layers | x plain, median | range | plain step, s |"]
    lines += ["|---|---|---|---|---|"]
    lines += [
        f"| {r['method']} | {r['layers']} | {r['ratio']:.2f} "
        f"| {r['range'][0]:.2f}-{r['range'][1]:.2f} | {r['plain_seconds']:.2f} |"
        for r in rows
    ]
    return "\n".join(lines) + "\n"


def main():
    """Measure every depth and write after each."""
    from smoothtune import JacHess
    from smoothtune.files import versions
    from smoothtune.memory import keep_freed_memory
    from smoothtune.trainer.cost import measure_step_cost, random_batches

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, nargs="+", default=[6, 12, 24])
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()
    command = (
        f"python benchmarks/depth.py --layers {' '.join(map(str, arguments.layers))} "
        f"--batch {arguments.batch} --length {arguments.length} --rounds {arguments.rounds}"
    )
    rows = []
    for layers in arguments.layers:
        model = bert(layers)
        batches = random_batches(model, arguments.rounds, arguments.batch, arguments.length)
        for name, fields in METHODS.items():
            cost = measure_step_cost(model, [JacHess(**fields)], batches)
            rows.append(
                {
                    "method": name,
                    "layers": layers,
                    "ratio": round(cost.ratio, 3),
                    "range": [round(min(cost.ratios), 3), round(max(cost.ratios), 3)],
                    "plain_seconds": round(cost.plain_seconds, 4),
                }
            )
            print(rows[-1], flush=True)
        rows.sort(key=lambda r: (r["method"], r["layers"]))
        content = {"command": command, "versions": versions(), "rows": rows}
        (RESULTS / "depth.json").write_text(json.dumps(content, indent=1) + "\n")
        (RESULTS / "depth.md").write_text(table(rows, f"# Cost against depth\n\n`{command}`"))


if __name__ == "__main__":
    main()
