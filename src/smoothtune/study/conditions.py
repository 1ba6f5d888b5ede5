"""What all methods of a comparison share: task, model, training-set size, other data sets."""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from smoothtune.catalog import task_types
from smoothtune.config.draft import Draft
from smoothtune.config.evaluation import OtherData
from smoothtune.errors import ConfigError, Location, unknown
from smoothtune.models.paths import resolve_model_path
from smoothtune.study.entries import RUN_FIELDS
from smoothtune.study.fields import DEMO, ConditionKey, StudyConfig
from smoothtune.study.files import portable


@dataclass(frozen=True)
class Condition:
    """Task, model and training-set size that all methods of one comparison share."""

    task: str
    model: str
    """Its name in tables; `fields` has the path."""
    max_train_samples: int | None
    fields: dict[str, Any]
    """Fields of the run."""
    method_fields: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Fields by method or label, that hold here."""
    ood: dict[str, OtherData] = field(default_factory=dict)
    """Other data sets that the runs are scored on."""
    methods: list[str] | None = None
    """Labels of the entries that are run here beside plain; None: all."""

    @property
    def key(self) -> ConditionKey:
        """As tables and records name it."""
        return ConditionKey(self.task, self.model, self.max_train_samples)


def read_conditions(
    draft: Draft, common: Mapping[str, Any], config: StudyConfig, forced: Mapping[str, Any]
) -> list[Condition]:
    """Tasks x models x training-set sizes; problems are reported to the draft.

    Fields of the command line, `forced`, win over those of a task or a model.
    """
    values, conditions = draft.values, []
    grid = itertools.product(
        _numbered(values.get("task"), "task"),
        _numbered(values.get("model", "minilm"), "model"),
        _numbered(values.get("max_train_samples"), "max_train_samples"),
    )
    for (task, at_task), (model, at_model), (size, _) in grid:
        task_part = _part(task, "task", at_task, draft)
        model_part = _part(model, "model", at_model, draft)
        if task_part is None or model_part is None:
            continue
        name, place = task_part.name, resolve_model_path(model_part.name)
        run = {**common, "max_train_samples": size, **model_part.fields, "model": place}
        run |= task_part.fields
        run |= forced
        run |= _data_of(name, run, common.get("data"))
        run |= {"task": name}
        size = run["max_train_samples"]
        of_model, of_task = model_part.method_fields, task_part.method_fields  # the second wins
        method_fields = {
            key: of_model.get(key, {}) | of_task.get(key, {}) for key in (*of_model, *of_task)
        }
        others = config.ood if task_part.ood is None else task_part.ood
        ood = {key: _other(other, common.get("data"), run) for key, other in others.items()}
        shown = _model_name(model_part.name, values.get("model"))
        labels = model_part.methods
        condition = Condition(name, shown, size, run, method_fields, ood, labels)
        # a task with a size of its own comes once, whatever the others
        if condition not in conditions:
            conditions.append(condition)
    _refuse_same_keys(draft, [condition.key for condition in conditions])
    return conditions


def _refuse_same_keys(draft: Draft, keys: Sequence[ConditionKey]) -> None:
    """Runs of two conditions with one key would be taken for each other."""
    for number, key in enumerate(keys):
        if key in keys[:number]:
            place = ("model",) if isinstance(draft.values.get("model"), list) else ("task",)
            message = (
                f"{key.title} stands here twice with other fields, and the runs could not be told "
                "apart: give a task of your own another name, or make two studies"
            )
            draft.report(place, message)


@dataclass(frozen=True)
class _Part:
    """A task or a model, with what holds where it is used."""

    name: str
    fields: dict[str, Any]
    method_fields: dict[str, dict[str, Any]]
    ood: dict[str, OtherData] | None
    methods: list[str] | None


def _part(item: Any, key: str, location: Location, draft: Draft) -> _Part | None:
    """Read a name, or a mapping with a name and fields of the run."""
    fields = dict(item) if isinstance(item, Mapping) else {"name": item}
    name = fields.pop("name", None)
    own = {k: fields.pop(k) for k in ("method_fields", "ood") if k in fields}
    labels = fields.pop("methods", None)
    if labels is not None and (key == "task" or not _are_names(labels)):
        draft.report((*location, "methods"), "is a list of labels, and belongs to a model")
        labels = None
    if key == "model" and "ood" in own:
        draft.report((*location, "ood"), "belongs to a task, not to a model")
    excluded = {"task", "model"}
    known = RUN_FIELDS - excluded
    wrong = [field for field in fields if field not in known]
    if wrong:
        draft.report((*location, wrong[0]), unknown("field", wrong[0], known | set(own)))
        return None
    if not isinstance(name, str) or not name:
        message = "write task: NAME" if key == "task" else f"must be a name, not {name!r}"
        draft.report(location, message)
        return None
    try:
        config = Draft().validated(StudyConfig, own)
    except ConfigError as error:
        for problem in error.problems:
            draft.report((*location, *problem.field.split(".")), problem.message)
        return None
    ood = config.ood if "ood" in own else None
    return _Part(name, fields, config.method_fields, ood, labels)


def _are_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _model_name(model: str, listed: Any) -> str:
    """A model folder's name, unless another one has it too."""
    names = [
        item.get("name") if isinstance(item, Mapping) else item
        for item in (listed if isinstance(listed, list) else [])
    ]
    others = [portable(name) for name in names if isinstance(name, str)]
    return model if others.count(portable(model)) > 1 else portable(model)


def _other(other: OtherData, data: Any, run: Mapping[str, Any]) -> OtherData:
    """Another data set, found beside those of the tasks where it is there.

    The name of a task stands for its columns and its data on the hub. What limits the rows that a
    run is evaluated on limits these as well.
    """
    if other.max_rows is None and isinstance(run.get("max_eval_samples"), int):
        other = replace(other, max_rows=run["max_eval_samples"])
    if other.preset is None and other.source in task_types():
        other = replace(other, preset=other.source)
    beside = Path(os.path.expanduser(str(data))) / other.source
    if isinstance(data, str) and not Path(other.source).is_absolute() and beside.exists():
        return replace(other, source=str(beside))
    return other


def _numbered(value: Any, key: str) -> Sequence[tuple[Any, Location]]:
    """A value or a list of values, each with its location."""
    if isinstance(value, list) and value:
        return [(item, (key, index)) for index, item in enumerate(value)]
    return [(value, (key,))]


def _data_of(task: str, run: Mapping[str, Any], folder: Any) -> dict[str, Any]:
    """Where a task's data and its unlabeled texts are.

    A folder of data sets has a sub-folder for each task, or one that a task's own `data` names; a
    relative path below it, as ``sets/one.parquet``, is found there too.
    """
    if task == DEMO and run.get("text_columns") is None:
        return {"data": DEMO, "text_columns": ["sentence"]}
    if not isinstance(data := run.get("data"), str):
        return {}
    place = Path(os.path.expanduser(data))
    if data != folder and isinstance(folder, str):
        within = Path(os.path.expanduser(folder)) / data
        place = within if within.exists() else place
    if (place / task).is_dir():
        place /= task
    return {"data": str(place)} if place.exists() else {}
