"""Settings tried on held-out training rows: how strong LNSR must be, and re-initialization.

    python benchmarks/held_out.py --data DIR --folder OUT [--seeds 10]

DIR is a folder of Parquet data sets with `sst2`, `stsb` and `qqp`. A part of each training split is
held out and takes the place of the validation split, so nothing is chosen by the rows that studies
report on, nor with their seeds. All else is as in the study `few-sample`. Runs in OUT that are done
are not repeated. Writes benchmarks/results/held-out.json and .md.
"""

import argparse
import json
import statistics
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

RESULTS = Path(__file__).parent / "results"
HELD_OUT = {"sst2": 2000, "stsb": 1500, "qqp": 2000}
ENTRIES = {
    "plain": "plain",
    "lnsr, weight 1": {"name": "lnsr", "weight": 1.0},
    "lnsr, weight 10": {"name": "lnsr", "weight": 10.0},
    "lnsr, weight 38.4": {"name": "lnsr", "reduction": "token_sum", "weight": 0.1},  # 384 features
    "lnsr, weight 384": {"name": "lnsr", "reduction": "token_sum"},
    "reinit, pooler only": {"name": "reinit", "layers": 0},
    "reinit, 1 block": {"name": "reinit"},
    "reinit, 2 blocks": {"name": "reinit", "layers": 2},
    "reinit+cwgnc": ["reinit", "cwgnc"],
}
COLUMNS = ("score", "brier", "score, noise 1.0", "loss/task at the end", "loss/lnsr at the end")


def hold_out(data, folder):
    """Split every training split; nothing is written twice."""
    for task, count in HELD_OUT.items():
        table = pq.read_table(data / task / "train.parquet")
        order = np.random.default_rng(77).permutation(table.num_rows)
        target = folder / "data" / task
        target.mkdir(parents=True, exist_ok=True)
        for name, rows in (("validation", order[:count]), ("train", order[count:])):
            if not (target / f"{name}.parquet").exists():
                partial = target / f".{name}.partial"
                pq.write_table(table.take(np.sort(rows)), partial)
                partial.replace(target / f"{name}.parquet")


def study_file(folder, seeds):
    """The study `few-sample` on the held-out rows, with our entries."""
    import yaml

    recipe = Path(__file__).parent.parent / "recipes" / "few-sample.yaml"
    study = yaml.safe_load(recipe.read_text(encoding="utf-8"))
    study |= {"title": "Tried on held-out training rows", "notes": ""}
    study |= {"data": str(folder / "data"), "seeds": seeds, "more_epochs": None}
    study["methods"] = [
        entry | {"label": label} if isinstance(entry, dict) else entry
        for label, entry in ENTRIES.items()
    ]
    file = folder / "study.yaml"
    file.write_text(yaml.safe_dump(study, sort_keys=False), encoding="utf-8")
    return file


def summary(folder):
    """Means over seeds, by task and label."""
    listed = json.loads((folder / "study" / "study.json").read_text(encoding="utf-8"))["cells"]
    found = {}
    for cell in listed:
        path = folder / "study" / "cells" / f"{cell['id']}.json"
        record = json.loads(path.read_text(encoding="utf-8"))
        result = record["result"]
        logs = [log for log in result["log_history"] if "loss/task" in log]
        values = {
            "score": result["metrics"][result["headline"]],
            "brier": result["brier"],
            "score, noise 1.0": record["extras"]["noise"]["1"],
            "loss/task at the end": logs[-1]["loss/task"],
            "loss/lnsr at the end": logs[-1].get("loss/lnsr"),
        }
        found.setdefault(result["task"], {}).setdefault(cell["label"], []).append(values)
    return {
        task: {label: means(rows) | {"seeds": len(rows)} for label, rows in by_label.items()}
        for task, by_label in found.items()
    }


def means(rows):
    """Mean of every column; None where there is no value."""
    known = {name: [row[name] for row in rows if row[name] is not None] for name in COLUMNS}
    return {name: statistics.mean(v) if v else None for name, v in known.items()}


def markdown(found, seeds):
    """The table."""
    numbers = " ".join(map(str, seeds))
    lines = [
        "# Tried on held-out training rows",
        "",
        f"`python benchmarks/held_out.py --data DIR --folder OUT --seeds {numbers}`",
        "",
        "MiniLM, settings of the study `few-sample`. Weight: factor of LNSR's mean over features;",
        "384 is the sum over features times 1. Noise 1.0: Gaussian, as long as the embeddings, on",
        "256 of the held-out rows.",
    ]
    for task, by_label in found.items():
        lines += ["", f"## {task}", "", f"| way | seeds | {' | '.join(COLUMNS)} |"]
        lines += ["|---" * (len(COLUMNS) + 2) + "|"]
        for label, values in by_label.items():
            cells = ["–" if values[name] is None else f"{values[name]:.4f}" for name in COLUMNS]
            lines.append(f"| {label} | {values['seeds']} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main():
    """Run and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[10])
    args = parser.parse_args()

    from smoothtune.study.config import load_study
    from smoothtune.study.run import run_study

    hold_out(args.data, args.folder)
    run_study(load_study(study_file(args.folder, args.seeds)), args.folder / "study")
    found = summary(args.folder)
    (RESULTS / "held-out.json").write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    (RESULTS / "held-out.md").write_text(markdown(found, args.seeds), encoding="utf-8")


if __name__ == "__main__":
    main()
