"""How the runs of a study were trained: fields of the runs, and of their methods."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from smoothtune.report.page import DASH, Table
from smoothtune.results import RunResult
from smoothtune.study.comparison import ConditionKey
from smoothtune.study.config import PLAIN
from smoothtune.study.records import Cell, Records

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


@dataclass(frozen=True)
class ConditionTraining:
    """What a condition was trained with."""

    condition: ConditionKey
    done: bool
    fields: dict[str, Any]
    """Those of `FIELDS`."""
    clip_norms: dict[str, float]
    """The norm that gradients are clipped to by method; 0: not at all."""
    sizes: dict[str, int]
    """Numbers of rows and updates where a run is done."""


@dataclass(frozen=True)
class MethodFields:
    """What an entry of a study trains with."""

    method: str
    fields: dict[str, dict[str, Any]]
    """Of each of its methods."""
    changes: dict[str, Any]
    """In the run."""


def training_of(cells: Sequence[Cell], records: Records) -> list[ConditionTraining]:
    """What each condition was trained with, by plain fine-tuning's first finished run.

    Args:
        cells: all final cells.
        records: theirs.
    """
    clip_norms: dict[ConditionKey, dict[str, float]] = {}
    for cell in cells:
        by_method = clip_norms.setdefault(_condition(cell), {})
        by_method.setdefault(cell.label, cell.config.clip_norm())
    found: dict[ConditionKey, ConditionTraining] = {}
    for cell in sorted(cells, key=lambda cell: cell.label != PLAIN):
        condition = _condition(cell)
        if condition in found and found[condition].done:
            continue
        record = records.read(cell.id)
        result = record and record.result
        if condition in found and result is None:
            continue
        config = (result and result.config) or cell.identity["config"]  # without places
        own = {"model": cell.model, CLIP: clip_norms[condition][cell.label]}
        found[condition] = ConditionTraining(
            condition,
            done=result is not None,
            fields={name: config.get(name) for name in FIELDS} | own,
            clip_norms=clip_norms[condition],
            sizes=_sizes(result) if result else {},
        )
    return list(found.values())


def _condition(cell: Cell) -> ConditionKey:
    return ConditionKey(cell.task, cell.model, cell.max_train_samples)


def _sizes(result: RunResult) -> dict[str, int]:
    rows = {name: split.rows for name, split in result.data.splits.items()}
    titles = {"train": ROWS, "validation": EVALUATED}
    sizes = {title: rows[name] for name, title in titles.items() if name in rows}
    return sizes | {UPDATES: result.cost.steps}


def method_fields(cells: Sequence[Cell], records: Records) -> list[MethodFields]:
    """The fields of each entry's methods, and what it changes in a run; each combination once.

    Args:
        cells: all final cells.
        records: theirs.
    """
    found: list[MethodFields] = []
    for cell in cells:
        row = records.row(cell.id)
        fields = (row and row.methods) or dict(cell.config.methods)
        item = MethodFields(cell.label, fields, cell.changes)
        if item not in found:
            found.append(item)
    return found


def training_table(training: Iterable[ConditionTraining]) -> Table:
    """A row for every field, a column for every condition."""
    items = list(training)
    names = [
        name
        for name in FIELDS
        if any(item.fields[name] not in UNSET.get(name, ()) for item in items)
    ]
    rows = [[name, *(_field(name, item) for item in items)] for name in names]
    sizes = [name for name in (ROWS, EVALUATED, UPDATES) if any(name in i.sizes for i in items)]
    rows += [[name, *(_value(item.sizes.get(name)) for item in items)] for name in sizes]
    return Table(["field", *(item.condition.title for item in items)], rows, wraps=True)


def _field(name: str, item: ConditionTraining) -> str:
    """Value of a field under one condition; of methods that clip otherwise theirs too."""
    value = item.fields[name]
    others: dict[float, list[str]] = {}
    for method, norm in item.clip_norms.items() if name == CLIP else ():
        if norm != value:
            others.setdefault(norm, []).append(method)
    parts = [f"{_value(norm)} with {', '.join(methods)}" for norm, methods in others.items()]
    return "; ".join([_value(value), *parts])


def method_table(entries: Iterable[MethodFields]) -> Table:
    """A row for every entry of the study and method in it."""
    rows = []
    for entry in entries:
        changes = _fields(entry.changes)
        for name, fields in entry.fields.items():
            rows.append([entry.method, name, _fields(fields), changes])
    head = ["way to train", "method", "fields", "fields of the run that it changes"]
    return Table(head, rows, wraps=True)


def _fields(fields: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {_value(value)}" for name, value in fields.items()) or DASH


def _value(value: object) -> str:
    if value is None:
        return DASH
    return f"{value:g}" if isinstance(value, float) else str(value)
