"""How a term's strength should be set: norms of term and task over a training, under several rules.

    python benchmarks/strength.py --data DIR [--methods NAME ...] [--seeds N ...]

DIR is a folder of Parquet data sets with `uci_sentiment_labelled`. MiniLM is trained on 400 rows of
Amazon reviews in it (no reported study uses that task or these seeds), 3 epochs of 50 updates. The
norms of both gradients are measured in every update. A rule looks at some updates and sets the
weight of those after them to share * ||task|| / ||term||, by averages over the last looks, ten or
so:

* weight: none, the weight that was the default;
* first 8: root mean squares over updates 1 to 8;
* 8 + 64: the same, and every 64th after;
* 2^n + 32: root mean squares over updates 1, 2, 4, 8, 16 and every 32nd;
* 2^n + 16: root mean squares over updates 1, 2, 4, 8 and every 16th;
* geometric: the same updates as the last, geometric means;
* all: root mean squares over all updates.

Written are the realized share in each quarter of the training (median), its root mean square
weighed by the task's gradient, and the largest one; and what a look costs: median processor time of
eleven updates with one, against eleven without, alternating, batches of 16 x 32 tokens. Runs that
are done are kept. Result: benchmarks/results/strength.json and .md
"""

import argparse
import json
import math
import statistics
import time
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
RULES = ("weight", "first 8", "8 + 64", "2^n + 32", "2^n + 16", "geometric", "all")
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
DECAY = 0.9


def looks(rule, update):
    """Whether a rule looks at an update, from 1."""
    if rule in ("first 8", "8 + 64"):
        return update <= 8 or (rule == "8 + 64" and update % 64 == 1)
    period = 32 if rule == "2^n + 32" else 16
    due = update & (update - 1) == 0 if update < period else update % period == 0
    return rule == "all" or due


def average(rule, norms):
    """The rule's average of the norms of the updates until now."""
    geometric = rule == "geometric"
    seen = [norm for update, norm in enumerate(norms, 1) if looks(rule, update)]
    found = 0.0
    for count, norm in enumerate(seen, 1):
        value = math.log(norm) if geometric else norm**2
        found += max(1 - DECAY, 1 / count) * (value - found)
    return math.exp(found) if geometric else math.sqrt(found)


def traced(name, seed, data, folder):
    """One training; norms of all updates, and scores."""
    from rich.console import Console

    from smoothtune.config.run import load_config
    from smoothtune.core import objective, strength
    from smoothtune.run.train import train

    norms = {strength.TASK: [], name: []}

    class Traced(strength.Strengths):
        def _count(self, of):
            return True  # look at every update

        def finish(self, model):
            trained = [weight for weight in model.parameters() if weight.requires_grad]
            for of in self._sums:
                norms[of].append(strength.squared_norm(self._sums[of], trained) ** 0.5)
                self.squares[of] = average("first 8", norms[of]) ** 2
            self._sums.clear()
            self._due.clear()

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
        "term": [float(f"{norm:.4g}") for norm in norms[name]],
        "task": [float(f"{norm:.4g}") for norm in norms[strength.TASK]],
    }


def cost_of_a_look(name):
    """Seconds of processor time of an update without and with a look at all losses."""
    from transformers import AutoModelForSequenceClassification

    from smoothtune import METHODS as CLASSES
    from smoothtune import Objective
    from smoothtune.memory import keep_freed_memory
    from smoothtune.models.load import minilm_folder
    from smoothtune.trainer.step_cost import random_batches

    keep_freed_memory()
    torch.manual_seed(0)
    model = AutoModelForSequenceClassification.from_pretrained(minilm_folder(), num_labels=2)
    optimizer = torch.optim.AdamW(model.train().parameters(), lr=1e-6, fused=True)
    objective = Objective(CLASSES[name](share=SHARE)).bind(model, optimizer, 26)
    batches, seconds = random_batches(model, 4, 16, 32), {False: [], True: []}
    for update in range(26):
        look = update % 2 == 1
        objective.strengths._count = lambda of, look=look: look
        start = time.process_time()
        objective(model, batches[update % 4]).backward()
        optimizer.step()
        optimizer.zero_grad()
        if update >= 4:
            seconds[look].append(time.process_time() - start)
    objective.detach()
    return {"method": name, "without": statistics.median(seconds[False])} | {
        "with": statistics.median(seconds[True])
    }


def realized(row, rule):
    """The share in every update but the first, had the weight followed a rule."""
    shares = []
    for at in range(1, len(row["term"])):
        weight = METHODS[row["method"]]
        if rule != "weight":
            weight = SHARE * average(rule, row["task"][:at]) / average(rule, row["term"][:at])
        shares.append(weight * row["term"][at] / row["task"][at])
    return shares


def overall(row, rule):
    """||weight * term|| / ||task||, both over the whole training."""
    tasks = row["task"][1:]
    terms = [share * task for share, task in zip(realized(row, rule), tasks, strict=True)]
    return math.hypot(*terms) / math.hypot(*tasks)


def table(content):
    """Markdown."""
    lines = ["# Strength of terms over a training", "", f"`{content['command']}`", ""]
    lines += [
        f"Realized share of the task's gradient; asked for: {SHARE}. The training was that of "
        "`first 8`; the other rules are reckoned on its norms.",
        "",
        "| method | rule | seeds | looks | quarter 1 | 2 | 3 | 4 | overall | largest |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name in dict.fromkeys(row["method"] for row in content["rows"]):
        for rule in RULES:
            rows = [row for row in content["rows"] if row["method"] == name]
            found = [realized(row, rule) for row in rows]
            quarter = len(found[0]) // 4
            parts = [slice(q * quarter, (q + 1) * quarter) for q in range(4)]
            shares = [statistics.mean(statistics.median(x[p]) for x in found) for p in parts]
            shares.append(statistics.mean(overall(row, rule) for row in rows))
            shares.append(max(max(shares) for shares in found))
            updates = range(1, len(rows[0]["term"]) + 1)
            count = 0 if rule == "weight" else sum(looks(rule, update) for update in updates)
            cells = " | ".join(f"{share:.2g}" for share in shares)
            lines.append(f"| {name} | {rule} | {len(rows)} | {count} | {cells} |")
    lines += ["", "| method | update without a look, s | with one | more |", "|---|---|---|---|"]
    for row in content["looks"]:
        more = row["with"] / row["without"] - 1
        lines.append(f"| {row['method']} | {row['without']:.3f} | {row['with']:.3f} | {more:.0%} |")
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
    content = json.loads(file.read_text()) if file.exists() else {"rows": [], "looks": []}
    content["command"] = "python benchmarks/strength.py --data DIR"
    content["versions"] = versions()
    for name in args.methods:
        if not any(row["method"] == name for row in content["looks"]):
            content["looks"].append(cost_of_a_look(name))
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
