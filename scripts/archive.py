"""Put the runs of a study's folder into results/runs.parquet, in the place of earlier ones of it.

smoothtune study STUDY.yaml --output-dir FOLDER --report
python scripts/archive.py FOLDER
"""

import json
import sys
from pathlib import Path
from typing import Any

import pandas as pd

from smoothtune.results import CellRecord
from smoothtune.study.table import NOISE, TOKENS, WORDS

RUNS = Path(__file__).parent.parent / "results" / "runs.parquet"
ROBUSTNESS = (NOISE, TOKENS, WORDS)
"""Columns of results.csv."""
UNREAD = {"output_dir", "overwrite_output_dir", "push_to_hub", "data", "model", "task", "methods"}
"""Fields of a run that are no setting, or are columns of their own."""


def archive(folder: Path) -> pd.DataFrame:
    """The table with the folder's finished runs, in the order of its results.csv."""
    runs = pd.read_parquet(RUNS)
    study = json.loads((folder / "study.json").read_text("utf-8"))["name"]
    lines = pd.read_csv(folder / "results.csv")
    done = lines[lines["status"] == "done"]
    rows = [row_of(study, line, folder) for line in done.to_dict("records")]
    new = pd.DataFrame(rows).reindex(columns=runs.columns).astype(runs.dtypes.to_dict())
    return pd.concat([runs[runs["study"] != study], new], ignore_index=True)


def row_of(study: str, line: dict[str, Any], folder: Path) -> dict[str, Any]:
    """A run, from its line and its record."""
    record = json.loads((folder / "cells" / f"{line['cell']}.json").read_text("utf-8"))
    cell = CellRecord.parse(record)
    run, measured = cell.result, cell.extras
    assert run is not None, line["cell"]
    assert measured is not None, line["cell"]
    train = {f"train_{name}": value for name, value in run.train_metrics.items()}
    settings = {name: value for name, value in run.config.items() if name not in UNREAD}
    sizes = {
        name: settings[name]
        for name in (
            "learning_rate", "num_train_epochs", "per_device_train_batch_size", "max_seq_length",
        )
    }  # fmt: skip
    rows = {name: split["rows"] for name, split in record["result"]["data"]["splits"].items()}
    texts = {
        "methods": run.methods,
        "method_versions": run.method_versions,
        "config": {name: value for name, value in settings.items() if value is not None},
        "versions": run.versions,
        "quantities": measured.effect.quantities,
        "robustness": {name: line[name] for name in ROBUSTNESS if not pd.isna(line.get(name))},
        "noise_curve": measured.noise,
        "parts": numbers_of(measured.model_dump()["parts"]),
    }
    return {
        **line, **run.metrics, **train, **sizes, "study": study, "reported": True,
        "peak_rss_bytes": run.cost.peak_rss_bytes, "peak_cuda_bytes": run.cost.peak_cuda_bytes,
        "train_rows": rows["train"], "validation_rows": rows["validation"],
        **{name: json.dumps(content) if content else None for name, content in texts.items()},
    }  # fmt: skip


def numbers_of(parts: dict[str, Any]) -> dict[str, float]:
    """All numbers of an evaluation but those of the part `effect`, by path."""
    numbers: dict[str, float] = {}

    def read(path: str, content: Any) -> None:
        if isinstance(content, dict):
            for name, inner in content.items():
                read(f"{path}/{name}", inner)
        elif isinstance(content, int | float) and not isinstance(content, bool):
            numbers[path] = content

    for title, part in parts.items():
        if title != "effect":
            read(title, part["numbers"])
            for name, curve in part["curves"].items():
                read(f"{title}/{name}", curve["numbers"])
    return numbers


if __name__ == "__main__":
    table = archive(Path(sys.argv[1]))
    table.to_parquet(RUNS, index=False, compression="zstd")
    sys.stdout.write(f"{RUNS.name} has {len(table):,} runs\n")
