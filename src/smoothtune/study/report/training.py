"""How the runs of a study were trained: fields of the runs, and of their methods."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from smoothtune.report.page import DASH, Table
from smoothtune.results import RunResult
from smoothtune.study.config import PLAIN
from smoothtune.study.records import Cell, Records
from smoothtune.study.report.comparison import Condition, condition_of, condition_title

FIELDS = (
    *("model", "data", "learning_rate", "lr_scheduler_type", "warmup_steps", "num_train_epochs"),
    *("max_steps", "per_device_train_batch_size", "gradient_accumulation_steps", "weight_decay"),
    *("max_grad_norm", "max_seq_length", "train_sampling_strategy", "bf16", "lora"),
    *("bias_correction", "from_scratch", "torch_compile"),
)
"""Fields of a run that are shown; others are in `cells/`."""
UNSET: dict[str, tuple[object, ...]] = {
    "max_steps": (-1,),
    "gradient_accumulation_steps": (1,),
    "bf16": (False,),
    "lora": (None,),
    "bias_correction": (None, True),
    "from_scratch": (None, False),
    "torch_compile": (None, False),
}
"""Values with which a field has no row."""
CLIP = "max_grad_norm"
ROWS, EVALUATED, UPDATES = "training examples", "evaluation examples", "updates"


def training_of(cells: Sequence[Cell], records: Records) -> list[dict[str, Any]]:
    """What each condition was trained with, by plain fine-tuning's first finished run.

    Args:
        cells: all final cells.
        records: theirs.

    Returns:
        For each condition its `CONDITION`, `fields` by name, `clip_norms`, the norms that gradients
        are clipped to by method, 0: not at all, and the numbers of rows and updates where a run is
        done.
    """
    clip_norms: dict[Any, dict[str, float]] = {}
    for cell in cells:
        by_method = clip_norms.setdefault(_condition(cell), {})
        by_method.setdefault(cell.label, cell.config.clip_norm())
    found: dict[Any, dict[str, Any]] = {}
    for cell in sorted(cells, key=lambda cell: cell.label != PLAIN):
        condition = _condition(cell)
        if condition in found and found[condition]["done"]:
            continue
        record = records.read(cell.id)
        result = record and record.result
        if condition in found and result is None:
            continue
        config = (result and result.config) or cell.identity["config"]  # without places
        found[condition] = {
            "task": cell.task,
            "model": cell.model,
            "max_train_samples": cell.max_train_samples,
            "done": result is not None,
            "fields": {name: config.get(name) for name in FIELDS}
            | {"model": cell.model, CLIP: clip_norms[condition][cell.label]},
            "clip_norms": clip_norms[condition],
            "sizes": _sizes(result) if result else {},
        }
    return list(found.values())


def _condition(cell: Cell) -> Condition:
    return cell.task, cell.model, cell.max_train_samples


def _sizes(result: RunResult) -> dict[str, int]:
    rows = {name: split.rows for name, split in result.data.splits.items()}
    titles = {"train": ROWS, "validation": EVALUATED}
    sizes = {title: rows[name] for name, title in titles.items() if name in rows}
    return sizes | {UPDATES: result.cost.steps}


def method_fields(cells: Sequence[Cell], records: Records) -> list[dict[str, Any]]:
    """The fields of each entry's methods, and what it changes in a run; each combination once.

    Args:
        cells: all final cells.
        records: theirs.
    """
    found: list[dict[str, Any]] = []
    for cell in cells:
        row = records.row(cell.id)
        fields = (row and row.methods) or dict(cell.config.methods)
        item = {"method": cell.label, "fields": fields, "changes": cell.changes}
        if item not in found:
            found.append(item)
    return found


def training_table(training: Iterable[Mapping[str, Any]]) -> Table:
    """A row for every field, a column for every condition."""
    items = list(training)
    names = [
        name
        for name in FIELDS
        if any(item["fields"][name] not in UNSET.get(name, ()) for item in items)
    ]
    rows = [[name, *(_field(name, item) for item in items)] for name in names]
    sizes = [name for name in (ROWS, EVALUATED, UPDATES) if any(name in i["sizes"] for i in items)]
    rows += [[name, *(_value(item["sizes"].get(name)) for item in items)] for name in sizes]
    return Table(["field", *(condition_title(condition_of(item)) for item in items)], rows)


def _field(name: str, item: Mapping[str, Any]) -> str:
    """Value of a field under one condition; of methods that clip otherwise theirs too."""
    value = item["fields"][name]
    others: dict[float, list[str]] = {}
    for method, norm in item["clip_norms"].items() if name == CLIP else ():
        if norm != value:
            others.setdefault(norm, []).append(method)
    parts = [f"{_value(norm)} with {', '.join(methods)}" for norm, methods in others.items()]
    return "; ".join([_value(value), *parts])


def method_table(entries: Iterable[Mapping[str, Any]]) -> Table:
    """A row for every entry of the study and method in it."""
    rows = []
    for entry in entries:
        changes = _fields(entry["changes"])
        for name, fields in entry["fields"].items():
            rows.append([entry["method"], name, _fields(fields), changes])
    head = ["way to train", "method", "fields", "fields of the run that it changes"]
    return Table(head, rows)


def _fields(fields: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {_value(value)}" for name, value in fields.items()) or DASH


def _value(value: object) -> str:
    if value is None:
        return DASH
    return f"{value:g}" if isinstance(value, float) else str(value)
