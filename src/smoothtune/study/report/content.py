"""What a study found: the content of ``results.json``."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from rich.console import Console

from smoothtune.console import tracked
from smoothtune.report.page import Table
from smoothtune.study.comparison import Comparison
from smoothtune.study.config import Study
from smoothtune.study.fields import ConditionKey
from smoothtune.study.plan import Choice, Plan
from smoothtune.study.records import Records
from smoothtune.study.report.methods import (
    MethodResult,
    Run,
    by_condition,
    compare_methods,
    compare_quantities,
    devices,
    over_tasks,
    run_of,
)
from smoothtune.study.report.training import method_table, strength_table, training_table


class Failure(NamedTuple):
    """A cell that gave no scores."""

    title: str
    status: str
    message: str


@dataclass(frozen=True)
class StudyContent:
    """All that a report says."""

    name: str = ""
    title: str = ""
    notes: str = ""
    seeds: list[int] = field(default_factory=list)
    methods: list[MethodResult] = field(default_factory=list)
    over_tasks: dict[str, list[Comparison]] = field(default_factory=dict)
    """By measure."""
    effect: list[Comparison] = field(default_factory=list)
    """In quantities that methods are about, and in robustness."""
    choices: list[Choice] = field(default_factory=list)
    training: Table = field(default_factory=lambda: Table([], []))
    method_fields: Table = field(default_factory=lambda: Table([], []))
    strength: Table = field(default_factory=lambda: Table([], []))
    failures: list[Failure] = field(default_factory=list)
    versions: dict[str, list[str]] = field(default_factory=dict)
    devices: list[str] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)

    @property
    def conditions(self) -> dict[ConditionKey, list[MethodResult]]:
        """The methods under each condition."""
        return by_condition(self.methods)

    def overall(self, measure: str = "score") -> list[Comparison]:
        """A measure of every method against plain over all conditions, or in the only one."""
        if len(self.conditions) > 1:
            return self.over_tasks.get(measure, [])
        return [own for item in self.methods if (own := item.against_plain.get(measure))]

    @property
    def comparisons(self) -> Iterator[Comparison]:
        """All of them."""
        for method in self.methods:
            yield from method.against_plain.values()
        for items in self.over_tasks.values():
            yield from (item for item in items if len(item.conditions) > 1)
        yield from self.effect

    def content(self) -> dict[str, Any]:
        """As plain data for JSON; a condition is spread over the keys of `ConditionKey`."""
        content = asdict(self)
        for name in ("methods", "choices"):
            content[name] = [item.pop("condition")._asdict() | item for item in content[name]]
        for name in ("training", "method_fields", "strength"):
            content[name] = {key: content[name][key] for key in ("head", "rows")}
        content["failures"] = [failure._asdict() for failure in self.failures]
        content["rows"] = [run.flat() for run in self.runs]
        return {name: value for name, value in content.items() if name != "runs"}


def study_content(study: Study, plan: Plan, records: Records, console: Console) -> StudyContent:
    """What is known from the finished cells."""
    choices = plan.choices(records)
    trials, cells = plan.selection_cells(), plan.final(choices)
    with tracked(cells, "reading records", console) as shown:
        runs = [run_of(cell, records) for cell in shown]
    planned = [*((cell, run_of(cell, records)) for cell in trials), *zip(cells, runs, strict=True)]
    return StudyContent(
        name=study.name,
        title=study.config.title or study.name,
        notes=study.config.notes,
        seeds=study.config.seeds,
        methods=compare_methods(runs),
        over_tasks=over_tasks(runs),
        effect=compare_quantities(runs),
        choices=list(choices.values()),
        training=training_table(cells, records),
        method_fields=method_table(cells, runs),
        strength=strength_table(runs),
        failures=[
            Failure(cell.title, run.status, run.message)
            for cell, run in planned
            if run.status not in ("done", "missing")
        ],
        versions=_versions(runs),
        devices=devices(runs),
        runs=runs,
    )


def _versions(runs: Sequence[Run]) -> dict[str, list[str]]:
    """Versions that the finished runs used."""
    versions: dict[str, set[str]] = {}
    for name, value in (item for run in runs for item in run.versions.items()):
        versions.setdefault(name, set()).add(value)
    return {name: sorted(values) for name, values in versions.items()}
