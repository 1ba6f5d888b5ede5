"""What a study found: the content of ``results.json``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from rich.console import Console

from smoothtune.console import tracked
from smoothtune.report.page import Sentence
from smoothtune.study.comparison import Comparison, ConditionKey
from smoothtune.study.config import Paper, Study
from smoothtune.study.plan import Plan
from smoothtune.study.records import Cell, Records
from smoothtune.study.report.aggregate import Aggregate, aggregates
from smoothtune.study.report.effect import QuantityComparison, compare_quantities
from smoothtune.study.report.effect_rows import is_compared, measured_runs
from smoothtune.study.report.effect_table import findings_of
from smoothtune.study.report.methods import (
    SECONDARY,
    MethodResult,
    compare_methods,
    devices,
    over_tasks,
    run_of,
    table_of_runs,
    with_fields,
)
from smoothtune.study.report.statistics import NAMES
from smoothtune.study.report.training import (
    ConditionTraining,
    MethodFields,
    method_fields,
    training_of,
)


class Failure(NamedTuple):
    """A cell that gave no scores."""

    title: str
    status: str
    message: str


@dataclass(frozen=True)
class Chosen:
    """How a setting was chosen."""

    condition: ConditionKey
    method: str
    tried: int
    chosen: str | None
    complete: bool
    """Whether all settings were tried."""
    scores: dict[str, float | None]
    """By setting, on held-out training rows."""


@dataclass(frozen=True)
class StudyContent:
    """All that a report says."""

    name: str = ""
    title: str = ""
    notes: str = ""
    test: str = ""
    """Title of the test that decides."""
    seeds: list[int] = field(default_factory=list)
    training: list[ConditionTraining] = field(default_factory=list)
    method_fields: list[MethodFields] = field(default_factory=list)
    methods: list[MethodResult] = field(default_factory=list)
    over_tasks: list[Comparison] = field(default_factory=list)
    over_tasks_secondary: dict[str, list[Comparison]] = field(default_factory=dict)
    """By measure."""
    aggregates: list[Aggregate] = field(default_factory=list)
    effect: list[QuantityComparison] = field(default_factory=list)
    effect_layers: list[QuantityComparison] = field(default_factory=list)
    effect_findings: list[Sentence] = field(default_factory=list)
    choices: list[Chosen] = field(default_factory=list)
    paper: list[Paper] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    versions: dict[str, list[str]] = field(default_factory=dict)
    devices: list[str] = field(default_factory=list)
    rows: list[dict[str, Any]] = field(default_factory=list)
    """One for each run."""

    def content(self) -> dict[str, Any]:
        """As plain data for JSON; a condition is spread over the keys of `ConditionKey`."""
        content = asdict(self)
        for name in ("training", "methods", "choices"):
            content[name] = [item.pop("condition")._asdict() | item for item in content[name]]
        for name in ("failures", "effect_findings"):
            content[name] = [item._asdict() for item in content[name]]
        content["paper"] = [paper.model_dump() for paper in self.paper]
        return content


def study_content(study: Study, plan: Plan, records: Records, console: Console) -> StudyContent:
    """What is known from the finished cells.

    Args:
        study: the study.
        plan: its cells.
        records: theirs.
        console: gets progress bars.
    """
    choices = plan.choices(records)
    cells = plan.final(choices)
    with tracked(cells, "reading records", console) as shown:
        runs = table_of_runs(run_of(cell, records) for cell in shown)
    extended = [cell for cell in cells if is_compared(cell.extras)]
    with tracked(extended, "reading effects", console) as shown:
        read = ((cell.label, records.read(cell.id)) for cell in shown)
        measured = measured_runs((label, record) for label, record in read if record)
    compared = compare_quantities(measured)
    return StudyContent(
        name=study.name,
        title=study.config.title or study.name,
        notes=study.config.notes,
        test=NAMES[study.config.test],
        seeds=study.config.seeds,
        training=training_of(cells, records),
        method_fields=method_fields(cells, records),
        methods=with_fields(compare_methods(runs, study.config.test), cells),
        over_tasks=over_tasks(runs),
        over_tasks_secondary={name: over_tasks(runs, name) for name in SECONDARY},
        aggregates=aggregates(runs),
        effect=compared.rows,
        effect_layers=compared.layers,
        effect_findings=findings_of(measured, compared),
        choices=[
            Chosen(
                ConditionKey(*(getattr(choice.condition, n) for n in ConditionKey._fields)),
                choice.entry.label,
                choice.tried,
                choice.chosen,
                choice.complete,
                choice.scores,
            )
            for choice in choices.values()
        ],
        paper=study.config.paper,
        failures=_failures([*plan.selection_cells(), *cells], records),
        versions=_versions(cells, records),
        devices=devices(runs),
        rows=runs.to_dict("records"),
    )


def _failures(cells: Sequence[Cell], records: Records) -> list[Failure]:
    failures = []
    for cell in cells:
        if row := records.row(cell.id):
            failure = Failure(cell.title, row.status, row.message)
        elif ended := records.failure(cell.id):
            failure = Failure(cell.title, ended["status"], ended["message"])
        else:
            continue
        if failure.status != "done":
            failures.append(failure)
    return failures


def _versions(cells: Sequence[Cell], records: Records) -> dict[str, list[str]]:
    """Versions that the finished cells were run with."""
    found: dict[str, set[str]] = {}
    for row in filter(None, (records.row(cell.id) for cell in cells)):
        for name, value in row.versions.items():
            found.setdefault(name, set()).add(value)
    return {name: sorted(values) for name, values in found.items()}
