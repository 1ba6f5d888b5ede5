"""How a paper trained: ``protocol: NAME`` in a study takes from it what the study leaves open."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from smoothtune.config.draft import Draft
from smoothtune.config.fields import Fields
from smoothtune.errors import unknown
from smoothtune.study.entries import RUN_FIELDS, of_method_and_run, overridden
from smoothtune.study.files import recipes_folder

LIMITS = ("max_train_samples", "max_eval_samples", "max_steps")
"""Fields that no protocol needs to say: unset, all rows are taken, and all epochs run."""
NO_LIMIT = -1
"""Of updates, as transformers says it."""


class Protocol(Fields):
    """A paper's training."""

    title: str
    source: str
    """The paper, and where in it the settings stand."""
    reconstructed: list[str] = []
    """What the paper does not say, and what is taken."""
    departures: list[str] = []
    """What is done otherwise here, whatever the study says."""
    seeds: int | None = None
    """Number of runs of the paper."""
    task: list[Any] = []
    """Tasks by name, some with fields of their own, as in a study."""
    model: list[Any] = []
    """Models, likewise."""
    method_fields: dict[str, dict[str, Any]] = {}
    """Fields by method, or by label of an entry."""
    fields: dict[str, Any] = {}
    """Fields of the run; a list of values was searched."""

    @property
    def methods_of_parts(self) -> list[str]:
        """Methods, and labels, that fields of single tasks or models are for."""
        return [name for part in (*self.task, *self.model) for name in _by_method(part)]


def protocol_names() -> dict[str, Path]:
    """The protocols that come with the package, by name."""
    return {path.stem: path for path in sorted((recipes_folder() / "protocols").glob("*.yaml"))}


def read_protocol(name: str) -> Protocol:
    """A protocol of the package, or of a file.

    Raises:
        ConfigError: there is none, or it is not valid.
    """
    known = protocol_names()
    file = known.get(name) or Path(os.path.expanduser(name))
    draft = Draft(file)
    if not file.is_file():
        draft.report(("protocol",), unknown("protocol", name, known))
    draft.stop_at_problems()
    draft.read()
    protocol = draft.validated(Protocol)
    for key in protocol.fields:
        if key not in RUN_FIELDS:
            draft.report(("fields", key), unknown("field", key, RUN_FIELDS))
    draft.stop_at_problems()
    return protocol


def add_protocol(draft: Draft) -> Protocol | None:
    """Fill in what a study leaves to its protocol; raises as `read_protocol`."""
    name = draft.values.get("protocol")
    if not isinstance(name, str):
        return None
    protocol = read_protocol(name)
    place = draft.origin(("protocol",))
    limits = {key for key in LIMITS if draft.values.get(key) is not None}
    for key, value in protocol.fields.items():
        if key not in draft.values:
            draft.put(key, value, place)
    for key, printed in (("task", protocol.task), ("model", protocol.model)):
        known = [_without(item, limits) for item in printed]
        by_name = {str(name_of(item)): item for item in known}
        of_study = draft.values.get(key)
        if of_study is not None:
            items = of_study if isinstance(of_study, list) else [of_study]
            draft.values[key] = [_with(item, by_name.get(str(name_of(item)))) for item in items]
        elif known:
            draft.put(key, known, place)
    return protocol


def name_of(item: Any) -> Any:
    """The name of an entry of a list, which is a name or a mapping."""
    return item.get("name") if isinstance(item, Mapping) else item


def _without(item: Any, limits: set[str]) -> Any:
    """A protocol's task or model without limits of its own that the study sets for all."""
    if not isinstance(item, Mapping):
        return item
    return {key: value for key, value in item.items() if key not in limits}


def _with(item: Any, known: Any) -> Any:
    """A task or a model with the protocol's fields for it; its own win."""
    if not isinstance(known, Mapping):
        return item
    own = dict(item) if isinstance(item, Mapping) else {"name": item}
    if own.get("method_fields") and not _by_method(own):
        return item  # the problem is reported where it is read
    method_fields = _by_method(known)
    for name, fields in _by_method(own).items():
        method_fields[name] = overridden(method_fields.get(name, {}), fields)
    both = {**known, **own}
    return both | ({"method_fields": method_fields} if method_fields else {})


def _by_method(item: Any) -> dict[str, Any]:
    """A task's or a model's fields by method; empty where they are something else."""
    fields = item.get("method_fields") if isinstance(item, Mapping) else None
    if not isinstance(fields, Mapping) or not all(isinstance(f, Mapping) for f in fields.values()):
        return {}
    return dict(fields)


def fields_here(
    methods: Mapping[str, Mapping[str, Any]],
    label: str,
    method_fields: Mapping[str, Mapping[str, Any]],
) -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
    """Fields by method, and fields of the run, of a setting under a condition."""
    in_force = {name: dict(fields) for name, fields in methods.items()}
    changes: dict[str, Any] = {}
    for key in dict.fromkeys([*methods, label]):
        own, of_run = of_method_and_run(method_fields.get(key, {}))
        changes |= of_run
        if own:
            name = key if key in in_force else next(iter(in_force))
            in_force[name] = overridden(in_force[name], own)
    return in_force, changes
