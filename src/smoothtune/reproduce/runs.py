"""The finished runs of a study, and the numbers that a layout asks of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from smoothtune.config.evaluation import OOD, further_title
from smoothtune.evaluation.calibration import error_of
from smoothtune.reproduce.departures import runs_as_usual
from smoothtune.results import Measured, RunResult
from smoothtune.study.config import Study
from smoothtune.study.layout import About, paper_models
from smoothtune.study.plan import Plan
from smoothtune.study.protocol import NO_LIMIT
from smoothtune.study.records import Cell, Records

Values = dict[tuple[str, int], float]
"""A number by label and seed."""


@dataclass(frozen=True)
class Run:
    """A cell that is done."""

    cell: Cell
    result: RunResult
    measured: Measured

    def numbers(self, part: str) -> dict[str, Any]:
        """Numbers of a part of the evaluation; empty if it was not measured."""
        return self.measured.parts[part].numbers if part in self.measured.parts else {}


@dataclass(frozen=True)
class Runs:
    """All runs of a study that are done, and how the paper's models are called in it."""

    done: Sequence[Run]
    planned: Sequence[Cell]
    stand_ins: Mapping[str, str]
    """The study's model by the paper's."""
    updates: int | None = None
    """After which all runs end, before their epochs do; None: they are not cut short."""

    def matching(self, about: About) -> list[Run]:
        """The runs that something is about."""
        labels = about.best_of or ([about.method] if about.method else None)
        model = about.model and self.stand_ins.get(about.model, about.model)
        return [
            run
            for run in self.done
            if (labels is None or run.cell.label in labels)
            and about.task in (None, run.cell.condition.task)
            and model in (None, run.cell.condition.model)
            and about.size in (None, run.cell.condition.max_train_samples)
        ]

    def values(self, about: About) -> Values:
        """The number of each of these runs that has it.

        None where they are not of one condition, or of several labels unasked.
        """
        runs = self.matching(about)
        labels = {None if about.best_of else run.cell.label for run in runs}
        if len({run.cell.condition for run in runs}) != 1 or len(labels) != 1:
            return {}
        numbers = {(run.cell.label, run.cell.seed): number_of(run, about) for run in runs}
        return {key: value for key, value in numbers.items() if value is not None}

    def values_by_task(self, about: About) -> list[Values]:
        """`values` of every task; without tasks whose runs do not have the number at all."""
        done = [(run.cell.condition.task, number_of(run, about)) for run in self.done]
        without = {task for task, _ in done} - {task for task, value in done if value is not None}
        tasks = dict.fromkeys(cell.condition.task for cell in self.planned)
        each = (about.model_copy(update={"task": task}) for task in tasks if task not in without)
        return [self.values(of_task) for of_task in each]


def finished_runs(study: Study, plan: Plan, records: Records) -> Runs:
    """Read the records of a study."""
    planned = plan.final(plan.choices(records))
    read = [(cell, records.read(cell.id)) for cell in planned]
    done = [
        Run(cell, record.result, record.extras)
        for cell, record in read
        if record and record.result and record.extras
    ]
    used = list(dict.fromkeys(condition.model for condition in study.conditions))
    named = stand_ins(paper_models(study.config.layout), used, study.config.stand_ins)
    return Runs(done, planned, named, _updates(study))


def _updates(study: Study) -> int | None:
    """The least number of updates that runs are cut to; None if the protocol is as short."""
    printed = study.protocol.fields.get("max_steps", NO_LIMIT) if study.protocol else NO_LIMIT
    cut = {run.max_steps for run in runs_as_usual(study, "max_steps")} - {NO_LIMIT, printed}
    return min(cut, default=None)


def stand_ins(
    printed: Sequence[str], used: Sequence[str], chosen: Mapping[str, str] | None = None
) -> dict[str, str]:
    """The study's model for each of the paper's: the same, or one that is in no other's place.

    >>> stand_ins(["bert-large", "roberta-large"], ["minilm"])
    {'bert-large': 'minilm'}
    >>> stand_ins(["bert-large", "roberta-large"], ["roberta-large"])
    {'roberta-large': 'roberta-large'}
    >>> stand_ins(["bert-large", "opt"], ["minilm", "smollm"], {"opt": "smollm"})
    {'bert-large': 'minilm', 'opt': 'smollm'}
    """
    known = {model: model for model in printed if model in used}
    known |= {model: own for model, own in (chosen or {}).items() if own in used}
    others = [model for model in used if model not in {*printed, *known.values()}]
    missing = [model for model in printed if model not in known]
    both = known | dict(zip(missing, others, strict=False))
    return {model: both[model] for model in printed if model in both}


def number_of(run: Run, about: About) -> float | None:
    """One number of a run; None if it was not measured."""
    if about.curve is not None:
        return _on_curve(run, about)
    if about.data is not None and about.value in ("train", "ece"):
        return None  # known of the run's own data alone
    if about.value == "ece":
        numbers = run.numbers("calibration")
        return error_of(numbers) if numbers else run.measured.ece
    train = run.result.train_metrics
    metrics = train if about.value == "train" else run.result.metrics
    if about.data is not None:
        metrics = _elsewhere(run, about.data, about.share)
    if about.value in ("brier", "nll"):
        return metrics.get(about.value)
    names = metric_names(run, about)
    score, fit = _mean_of(names, metrics), _mean_of(names, train)
    if about.value != "gap":
        return score
    return None if score is None or fit is None else fit - score


def metric_names(run: Run, about: About) -> list[str]:
    """The metrics whose mean is the score."""
    names = about.metric or run.result.headline
    return [names] if isinstance(names, str) else names


def _mean_of(names: Sequence[str], metrics: Mapping[str, float]) -> float | None:
    if any(name not in metrics for name in names):
        return None
    return float(np.mean([metrics[name] for name in names]))


def _elsewhere(run: Run, data: str, share: float | None) -> dict[str, float]:
    """Metrics on another data set."""
    part = OOD + data if share is None else further_title(data, share)
    metrics = run.numbers(part).get("metrics", {})
    return {name: metric["value"] for name, metric in metrics.items()}


def _on_curve(run: Run, about: About) -> float | None:
    """A number of a curve, or the height of one of its lines."""
    curve = run.measured.curve(about.curve or "")
    if curve is None:
        return None
    points = curve.series.get(about.series or next(iter(curve.series)))
    if not points:
        return None
    if about.at is None:
        return points[-1].y
    return next((p.y for p in points if abs(p.x - about.at) < 1e-9), None)
