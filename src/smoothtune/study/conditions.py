"""What all methods of a comparison share: task, model, training-set size, other data sets."""

import itertools
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from smoothtune.catalog import task_types
from smoothtune.config.draft import Draft
from smoothtune.config.evaluation import OtherData
from smoothtune.errors import Location, unknown
from smoothtune.models.paths import resolve_model_path
from smoothtune.study.entries import RUN_FIELDS, validated_at
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
    data, conditions = common.get("data"), list[Condition]()
    tasks, models = _parts("task", draft), _parts("model", draft)
    names = [portable(model.name) for model in models]
    sizes = _listed(draft.values.get("max_train_samples"))
    for task, model, size in itertools.product(tasks, models, sizes):
        run = {**common, "max_train_samples": size, **model.fields}
        run |= {"model": resolve_model_path(model.name), **task.fields, **forced}
        run |= _data_of(task.name, run, data) | {"task": task.name}
        of_model, of_task = model.method_fields, task.method_fields  # the second wins
        others = config.ood if task.ood is None else task.ood
        shown = portable(model.name)
        condition = Condition(
            task=task.name,
            model=model.name if names.count(shown) > 1 else shown,
            max_train_samples=run["max_train_samples"],
            fields=run,
            method_fields={
                key: of_model.get(key, {}) | of_task.get(key, {}) for key in (*of_model, *of_task)
            },
            ood={key: _other(other, data, run) for key, other in others.items()},
            methods=model.methods,
        )
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


def _parts(key: str, draft: Draft) -> list[_Part]:
    """The tasks or the models of a study, those that are valid."""
    value = draft.values.get(key, "minilm" if key == "model" else None)
    several = isinstance(value, list) and value
    parts = (
        _part(item, key, (key, index) if several else (key,), draft)
        for index, item in enumerate(_listed(value))
    )
    return [part for part in parts if part is not None]


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
    known = RUN_FIELDS - {"task", "model"}
    wrong = [field for field in fields if field not in known]
    if wrong:
        draft.report((*location, wrong[0]), unknown("field", wrong[0], known | set(own)))
        return None
    if not isinstance(name, str) or not name:
        message = "write task: NAME" if key == "task" else f"must be a name, not {name!r}"
        draft.report(location, message)
        return None
    config = validated_at(location, StudyConfig, own, draft)
    if config is None:
        return None
    ood = config.ood if "ood" in own else None
    return _Part(name, fields, config.method_fields, ood, labels)


def _are_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _other(other: OtherData, data: Any, run: Mapping[str, Any]) -> OtherData:
    """Another data set, found beside those of the tasks where it is there.

    The name of a task stands for its columns and its data; `max_eval_samples` limits these as well.
    """
    if other.max_rows is None and isinstance(run.get("max_eval_samples"), int):
        other = replace(other, max_rows=run["max_eval_samples"])
    if other.preset is None and other.source in task_types():
        other = replace(other, preset=other.source)
    beside = Path(os.path.expanduser(str(data))) / other.source
    if isinstance(data, str) and not Path(other.source).is_absolute() and beside.exists():
        return replace(other, source=str(beside))
    return other


def _listed(value: Any) -> list[Any]:
    """A value or a list of values, as a list."""
    return value if isinstance(value, list) and value else [value]


def _data_of(task: str, run: Mapping[str, Any], folder: Any) -> dict[str, Any]:
    """Where a task's data are.

    A folder of data sets has a sub-folder for each task, or what a task's own `data` names in it.
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
