"""What a study found, as plain data: the content of ``results.json``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console

from smoothtune.console import tracked
from smoothtune.study.config import Study
from smoothtune.study.plan import Choice, Plan
from smoothtune.study.records import Cell, Records
from smoothtune.study.report.aggregate import aggregates
from smoothtune.study.report.comparison import (
    SECONDARY,
    compare,
    condition_of,
    devices,
    over_tasks,
    run_of,
    table_of_runs,
)
from smoothtune.study.report.effect import (
    compare_beside,
    compare_effects,
    compare_robustness,
    effect_rows,
    is_compared,
)
from smoothtune.study.report.effect_layers import compare_layers
from smoothtune.study.report.effect_table import (
    findings_of,
)
from smoothtune.study.report.statistics import NAMES
from smoothtune.study.report.training import method_fields, training_of


def study_content(study: Study, plan: Plan, records: Records, console: Console) -> dict[str, Any]:
    """The content of ``results.json``, from the finished cells.

    Args:
        study: the study.
        plan: its cells.
        records: theirs.
        console: gets progress bars.
    """
    choices = plan.choices(records)
    cells = plan.final(choices)
    trials = plan.selection_cells()
    with tracked(cells, "reading records", console) as shown:
        runs = table_of_runs(run_of(cell, records) for cell in shown)
    extended = [cell for cell in cells if is_compared(cell.extras)]
    with tracked(extended, "reading effects", console) as shown:
        read = ((cell.label, records.read(cell.id)) for cell in shown)
        measured = effect_rows((label, record) for label, record in read if record)
    compared = compare_effects(measured)
    beside, robust = compare_beside(measured), compare_robustness(measured)
    said = findings_of(measured, compared, beside, robust)
    return {
        "name": study.name,
        "title": study.config.title or study.name,
        "notes": study.config.notes,
        "test": NAMES[study.config.test],
        "seeds": study.config.seeds,
        "training": training_of(cells, records),
        "method_fields": method_fields(cells, records),
        "methods": _with_fields(compare(runs, study.config.test), cells),
        "over_tasks": over_tasks(runs),
        "over_tasks_secondary": {name: over_tasks(runs, name) for name in SECONDARY},
        "aggregates": aggregates(runs),
        "effect": [*compared, *beside, *robust],
        "effect_layers": compare_layers(measured),
        "effect_findings": [sentence._asdict() for sentence in said],
        "choices": [_choice(choice) for choice in choices.values()],
        "paper": [paper.model_dump() for paper in study.config.paper],
        "failures": _failures([*trials, *cells], records),
        "versions": _versions(cells, records),
        "devices": devices(runs),
        "rows": runs.to_dict("records"),
    }


def _with_fields(methods: list[dict[str, Any]], cells: Sequence[Cell]) -> list[dict[str, Any]]:
    """Add what the runs of each method were configured with."""
    fields = {
        (c.label, c.task, c.model, c.max_train_samples): {
            "configured": c.config.methods,
            "changes": c.changes,
        }
        for c in cells
    }
    return [method | fields[method["method"], *condition_of(method)] for method in methods]


def _choice(choice: Choice) -> dict[str, Any]:
    return {
        "task": choice.condition.task,
        "model": choice.condition.model,
        "max_train_samples": choice.condition.max_train_samples,
        "method": choice.entry.label,
        "tried": choice.tried,
        "chosen": choice.chosen,
        "complete": choice.complete,
        "scores": choice.scores,
    }


def _failures(cells: Sequence[Cell], records: Records) -> list[dict[str, str]]:
    """Every cell that gave no scores, with the reason."""
    failures = []
    for cell in cells:
        if row := records.row(cell.id):
            status, message = row.status, row.message
        elif failure := records.failure(cell.id):
            status, message = failure["status"], failure["message"]
        else:
            continue
        if status != "done":
            failures.append({"title": cell.title, "status": status, "message": message})
    return failures


def _versions(cells: Sequence[Cell], records: Records) -> dict[str, list[str]]:
    """Versions that the finished cells were run with."""
    found: dict[str, set[str]] = {}
    for row in filter(None, (records.row(cell.id) for cell in cells)):
        for name, value in row.versions.items():
            found.setdefault(name, set()).add(value)
    return {name: sorted(values) for name, values in found.items()}
