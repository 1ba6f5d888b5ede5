"""How the runs of a study were trained: fields of the runs, and of their methods."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from smoothtune.config.run import RunConfig
from smoothtune.report.page import DASH, Table, as_text
from smoothtune.study.fields import PLAIN
from smoothtune.study.files import portable_fields
from smoothtune.study.records import Cell, Records
from smoothtune.study.report.methods import Run, by_condition

CLIP = "max_grad_norm"
FIELDS = (
    *("model", "data", "learning_rate", "lr_scheduler_type", "warmup_steps", "num_train_epochs"),
    *("per_device_train_batch_size", "weight_decay", CLIP, "max_seq_length"),
    "train_sampling_strategy",
)
"""Fields of a run that are shown; others are in `cells/`."""
CHANGED = (
    *("max_steps", "gradient_accumulation_steps", "bf16", "lora", "bias_correction"),
    *("from_scratch", "torch_compile"),
)
"""Fields that are shown where one differs from its default."""


def training_table(cells: Sequence[Cell], records: Records) -> Table:
    """A row for every field, a column for every condition: those of plain fine-tuning."""
    groups = by_condition(sorted(cells, key=lambda cell: cell.label != PLAIN))
    columns = [_column(group, records) for group in groups.values()]
    names = dict.fromkeys([*FIELDS, *CHANGED, *(name for column in columns for name in column)])
    rows = [
        [name, *(as_text(column.get(name)) for column in columns)]
        for name in names
        if name not in CHANGED
        or any(column[name] != RunConfig.model_fields[name].default for column in columns)
    ]
    return Table(["field", *(condition.title for condition in groups)], rows, wraps=True)


def _column(group: Sequence[Cell], records: Records) -> dict[str, Any]:
    """Fields, and numbers of rows and updates, of the first cell of a condition that is done."""
    done = ((cell, record.result) for cell in group if (record := records.read(cell.id)))
    cell, result = next(((cell, result) for cell, result in done if result), (group[0], None))
    fields = portable_fields(cell.config.model_dump()) | {"model": cell.condition.model}
    column = {name: fields[name] for name in (*FIELDS, *CHANGED)} | {CLIP: _clip_norms(group)}
    if result is not None:
        rows = {name: split.rows for name, split in result.data.splits.items()}
        column["training examples"] = rows.get("train")
        column["evaluation examples"] = rows.get("validation")
        column["updates"] = result.cost.steps
    return column


def _clip_norms(group: Sequence[Cell]) -> str:
    """The norm that gradients are clipped to, 0: not at all; of methods with another theirs too."""
    value = group[0].config.clip_norm()
    others: dict[float, dict[str, None]] = {}
    for cell in group:
        if (norm := cell.config.clip_norm()) != value:
            others.setdefault(norm, {})[cell.label] = None
    parts = [f"{as_text(norm)} with {', '.join(labels)}" for norm, labels in others.items()]
    return "; ".join([as_text(value), *parts])


def method_table(cells: Sequence[Cell], runs: Sequence[Run]) -> Table:
    """A row for every entry of the study and method in it, each combination of fields once."""
    rows = []
    for cell, run in zip(cells, runs, strict=True):
        for name, fields in (run.methods or cell.config.methods).items():
            line = [cell.label, name, _fields(fields), _fields(cell.changes)]
            if line not in rows:
                rows.append(line)
    head = ["way to train", "method", "fields", "fields of the run that it changes"]
    return Table(head, rows, wraps=True)


def strength_table(runs: Sequence[Run]) -> Table:
    """A row for every loss term with a bound: how large its gradient was, over all runs."""
    terms: dict[tuple[str, str], list[Mapping[str, float]]] = {}
    for run in runs:
        for name, applied in run.applied.items():
            terms.setdefault((run.method, name), []).append(applied)
    rows = []
    for (label, name), each in terms.items():
        share, bounded = (np.mean([of[key] for of in each]) for key in ("share", "bounded"))
        largest = max(of["largest"] for of in each)
        rows.append([label, name, f"{share:.2f}", f"{largest:.2f}", f"{100 * bounded:.0f} %"])
    head = ["way to train", "term", "share, mean", "largest share", "held by its bound"]
    return Table(head, rows)


def _fields(fields: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {as_text(value)}" for name, value in fields.items()) or DASH
