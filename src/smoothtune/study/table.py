"""A row for every cell of a study: what a report needs of its record."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from smoothtune.config.part_names import OOD, other_data_set

Row = dict[str, Any]
COLUMNS = (
    *("status", "message", "metric", "score", "trivial_baseline", "train_score"),
    *("generalization_gap", "brier", "nll", "ece", "noise", "ood"),
    *("steps", "train_seconds", "evaluation_seconds", "device", "fields", "versions", "cell"),
)


def row_of(record: Mapping[str, Any]) -> Row:
    """The row of a verified record."""
    row: Row = dict.fromkeys(COLUMNS) | {"cell": record["id"], "status": record["status"]}
    row["message"] = record.get("message", "")
    if record["status"] != "done":
        return row
    result, extras = record["result"], record["extras"]
    metric, metrics, methods = result["headline"], result["metrics"], result.get("methods")
    return row | {
        "metric": metric,
        "score": metrics[metric],
        "trivial_baseline": result["trivial_baseline"],
        "train_score": result["train_metrics"][metric],
        "generalization_gap": result["generalization_gap"],
        "brier": metrics.get("brier"),
        "nll": metrics.get("nll"),
        "ece": extras.get("ece"),
        "noise": extras.get("noise", {}).get("area"),
        "ood": _elsewhere(extras.get("parts", {}), metric),
        **{n: result["cost"][n] for n in ("steps", "train_seconds", "evaluation_seconds")},
        "device": result["cost"].get("device"),
        "fields": json.dumps(methods) if isinstance(methods, Mapping) else None,
        "versions": json.dumps(result["versions"]),
    }


def _elsewhere(parts: Mapping[str, Any], metric: str) -> float | None:
    """Mean score over the other data sets, without further training; None without any."""
    titles = [title for title in parts if title == f"{OOD}{other_data_set(title)}"]
    metrics = [(parts[title].get("numbers") or {}).get("metrics", {}) for title in titles]
    if not metrics or not all(metric in each for each in metrics):
        return None
    return sum(each[metric]["value"] for each in metrics) / len(metrics)
