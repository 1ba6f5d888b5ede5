"""How a term's strength should be set: norms of term and task over a training, under four rules.

    python benchmarks/strength.py --data DIR [--methods NAME ...]

DIR is a folder of Parquet data sets with `uci_sentiment_labelled`. MiniLM is trained on 400 rows of
Amazon reviews in it (none of the reported studies uses that task or these seeds), 3 epochs of 50
updates. The norms of both gradients are measured in every update. The weight of the term follows
from those updates that a rule looks at:

* weight: the method's default weight;
* follow: share * ||task|| / ||term||, moving averages of the squares over updates 1 to 8 and
  every 64th after;
* keep: the same, of updates 1 to 8 only;
* mean: means of the squares over all that were looked at, which are updates 1, 2, 4, 8 and so on.

Written are the realized share in each quarter of the training (median) and the largest one. Runs
that are done are kept. Result: benchmarks/results/strength.json and .md
"""

import argparse
import json
import math
import statistics
from pathlib import Path

import torch

RESULTS = Path(__file__).parent / "results"
METHODS = {  # with the weight that was the default
    "lnsr": 1.0,
    "jachess": 1.0,
    "jacobian": 0.01,
    "cross_holder": 0.1,
    "double_backprop": 0.003,
    "r3f": 1.0,
    "smart": 1.0,
    "sift": 1.0,
    "vat": 1.0,
    "alum": 1.0,
}
RULES = ("weight", "follow", "keep", "mean")
SETTINGS = {
    "task": "reviews",
    "text_columns": ["sentence"],
    "model": "minilm",
    "max_train_samples": 400,
    "max_eval_samples": 300,
    "num_train_epochs": 3,
    "learning_rate": 1e-4,
    "per_device_train_batch_size": 8,
    "per_device_eval_batch_size": 64,
    "max_seq_length": 32,
    "eval_strategy": "no",
    "cost_steps": 0,
}
SHARE = 0.3
FIRST, PERIOD, DECAY = 8, 64, 0.9


def looks(rule, count):
    """Whether a rule looks at an update."""
    if rule == "follow":
        return count < FIRST or count % PERIOD == 0
    if rule == "keep":
        return count < FIRST
    return (count + 1) & count == 0  # 1, 2, 4, 8 ...


def average(rule, squares):
    """The rule's average of the squared norms, a list of all updates until now."""
    seen = [square for count, square in enumerate(squares) if looks(rule, count)]
    found = 0.0
    for count, square in enumerate(seen, 1):
        rate = 1 / count if rule == "mean" else max(1 - DECAY, 1 / count)
        found += rate * (square - found)
    return found


def traced(name, seed, data, folder):
    """One training; norms of all updates, and scores."""
    from rich.console import Console

    from smoothtune.config.run import load_config
    from smoothtune.core import objective, strength
    from smoothtune.run.train import train

    norms = {strength.TASK: [], name: []}

    class Traced(strength.Strengths):
        def due(self, of, step):
            fresh = self._update.get(of) != step
            self._update[of] = step
            return fresh

        def measure(self, of, value, parameters):
            norms[of].append(strength.squared_norm(value, list(parameters)))
            self.squares[of] = average("keep", norms[of])

    objective.Strengths = Traced
    options = SETTINGS | {
        "data": str(data / "uci_sentiment_labelled" / "amazon.parquet"),
        "seed": seed,
        "output_dir": str(folder),
    }
    config = load_config(options=options, methods=[f"{name}:share={SHARE}"])
    result = train(config, console=Console(quiet=True))
    return {
        "method": name,
        "seed": seed,
        "score": result["metrics"][result["headline"]],
        "nll": result["metrics"].get("nll"),
        "train_score": result["train_metrics"][result["headline"]],
        "term": [float(f"{math.sqrt(x):.4g}") for x in norms[name]],
        "task": [float(f"{math.sqrt(x):.4g}") for x in norms[strength.TASK]],
    }


def realized(row, rule):
    """The share in every update, had the weight followed a rule."""
    squares = {key: [norm**2 for norm in row[key]] for key in ("term", "task")}
    shares = []
    for at, (term, task) in enumerate(zip(row["term"], row["task"], strict=True), 1):
        if rule == "weight":
            weight = METHODS[row["method"]]
        else:
            ratio = average(rule, squares["task"][:at]) / average(rule, squares["term"][:at])
            weight = SHARE * math.sqrt(ratio)
        shares.append(weight * term / task)
    return shares


def table(content):
    """Markdown."""
    lines = ["# Strength of terms over a training", "", f"`{content['command']}`", ""]
    lines += [
        "Share of the task's gradient: median of each quarter of the updates, and the largest "
        f"after update {FIRST}; asked for: {SHARE}. The training was that of `keep`; the other rules are "
        "reckoned on its norms.",
        "",
        "| method | rule | seeds | looks | quarter 1 | 2 | 3 | 4 | largest |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name in dict.fromkeys(row["method"] for row in content["rows"]):
        for rule in RULES:
            rows = [row for row in content["rows"] if row["method"] == name]
            found = [realized(row, rule) for row in rows]
            quarter = len(found[0]) // 4
            medians = [
                statistics.mean(
                    statistics.median(x[q * quarter : (q + 1) * quarter]) for x in found
                )
                for q in range(4)
            ]
            count = 0 if rule == "weight" else sum(looks(rule, at) for at in range(len(found[0])))
            largest = max(max(shares[FIRST:]) for shares in found)
            cells = [f"{share:.2g}" for share in [*medians, largest]]
            lines.append(f"| {name} | {rule} | {len(rows)} | {count} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main():
    """Run what is missing and write."""
    import tempfile

    from smoothtune.files import versions

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[101])
    args = parser.parse_args()
    torch.set_num_threads(1)
    file = RESULTS / "strength.json"
    content = json.loads(file.read_text()) if file.exists() else {"rows": []}
    content["command"] = "python benchmarks/strength.py --data DIR"
    content["versions"] = versions()
    for seed in args.seeds:
        for name in args.methods:
            if any((row["method"], row["seed"]) == (name, seed) for row in content["rows"]):
                continue
            with tempfile.TemporaryDirectory() as folder:
                content["rows"].append(traced(name, seed, args.data, Path(folder) / "run"))
            content["rows"].sort(key=lambda row: list(METHODS).index(row["method"]))
            file.write_text(json.dumps(content) + "\n")
            (RESULTS / "strength.md").write_text(table(content), encoding="utf-8")
            print(name, seed, flush=True)


if __name__ == "__main__":
    main()
