"""``cells.parquet``: a row for every cell of a study, to look at and to spare reading its record.

It is never the truth. A row stands for a record only while that has the content with which it was
verified. A table that is missing, damaged, or of another version is made anew.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from smoothtune import __version__
from smoothtune.config.part_names import OOD, other_data_set
from smoothtune.errors import OutputError
from smoothtune.files import write_atomic

TABLE = "cells.parquet"
FORMAT = f"4 {__version__}"
"""Of the columns, and of what a record must hold; a table of another one is not read."""
Row = dict[str, Any]
DESCRIBED = ("task", "model", "max_train_samples", "method", "setting", "seed", "selection")
"""What the study says of a cell."""
COLUMNS = {
    **dict.fromkeys(("task", "model"), "string"),
    "max_train_samples": "int64",
    **dict.fromkeys(("method", "setting"), "string"),
    "seed": "int64",
    **dict.fromkeys(("selection", "asked"), "bool"),
    **dict.fromkeys(("status", "message", "metric"), "string"),
    **dict.fromkeys(("score", "trivial_baseline", "train_score", "generalization_gap"), "double"),
    **dict.fromkeys(("brier", "nll", "ece", "noise", "ood"), "double"),
    "steps": "int64",
    **dict.fromkeys(("train_seconds", "evaluation_seconds"), "double"),
    **dict.fromkeys(("device", "metrics", "fields", "versions", "cell"), "string"),
    "sha256": "string",
}
"""Types by name, as docs/study.md describes them."""


def content_of(path: Path) -> str | None:
    """Sha256, in hex, of a record's file; None if it is not there."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return None


def row_of(record: Mapping[str, Any], content: str) -> Row:
    """The row of a verified record, whose file had this content before it was read."""
    row: Row = dict.fromkeys(COLUMNS) | {"cell": record["id"], "status": record["status"]}
    row["sha256"] = content
    row["message"] = _encodable(record.get("message", ""))
    if record["status"] != "done":
        return row
    result, extras = record["result"], record["extras"]
    row |= _described(result.get("config"))
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
        "metrics": json.dumps(metrics),
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


def _described(config: object) -> Row:
    """What a record says of its cell, where a study that is no more does not."""
    if not isinstance(config, Mapping):
        return {}
    texts = {name: config.get(name) for name in ("task", "model")}
    counts = {name: config.get(name) for name in ("max_train_samples", "seed")}
    kinds = [(texts, str), (counts, int)]
    return {n: v for found, kind in kinds for n, v in found.items() if isinstance(v, kind)}


def open_row(cell_id: str, failure: Mapping[str, Any] | None) -> Row:
    """The row of a cell without a record, which may have failed."""
    row: Row = dict.fromkeys(COLUMNS) | {"cell": cell_id, "status": "missing"}
    if failure is None:
        return row
    return row | {name: _encodable(failure[name]) for name in ("status", "message")}


def _encodable(text: str) -> str:
    """A text of a JSON file, which may hold half a character."""
    return text.encode(errors="replace").decode()


def read_table(folder: Path) -> dict[str, Row]:
    """The rows of a study's table by cell; none where it cannot be used."""
    path = folder / TABLE
    if not path.is_file():
        return {}
    import pyarrow
    import pyarrow.parquet

    try:
        table = pyarrow.parquet.read_table(path, page_checksum_verification=True)
    except (OSError, ValueError, pyarrow.ArrowException):
        return {}
    if not table.schema.equals(_schema(), check_metadata=True):
        return {}
    return {row["cell"]: row for row in table.to_pylist()}


def write_table(folder: Path, rows: Iterable[Row]) -> None:
    """Write the table whole; where that fails it stays as it was, for it can be made anew."""
    import pyarrow
    import pyarrow.parquet

    file = io.BytesIO()
    with suppress(OutputError, ValueError, OverflowError, pyarrow.ArrowException):
        table = pyarrow.Table.from_pylist(list(rows), schema=_schema())
        pyarrow.parquet.write_table(table, file, write_page_checksum=True)
        write_atomic(folder / TABLE, file.getvalue())


def _schema() -> Any:
    import pyarrow

    types = {"string": pyarrow.string(), "int64": pyarrow.int64()}
    types |= {"double": pyarrow.float64(), "bool": pyarrow.bool_()}
    fields = [pyarrow.field(name, types[kind]) for name, kind in COLUMNS.items()]
    return pyarrow.schema(fields, metadata={"smoothtune": FORMAT})
