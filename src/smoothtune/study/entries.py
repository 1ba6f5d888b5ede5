"""Entries of a study's ``methods``: what is compared, and the settings to choose from.

An entry is a name (``lnsr`` or ``lnsr:noise=in_manifold``), a mapping (``{name: jachess,
every: 8}``), or a list of these, which is a composition. A mapping may also hold ``label``,
``epochs_factor`` and fields of a run, such as ``learning_rate``; with ``methods:`` in the place of
``name:`` it is a composition. A list in the place of a single value is a grid over it.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Annotated, Any, get_origin

from pydantic import Field, StringConstraints

from smoothtune.catalog import is_of_others, known_methods, takes_list
from smoothtune.config.draft import Draft, Model
from smoothtune.config.fields import Fields, without_none
from smoothtune.config.run import RunConfig
from smoothtune.config.run_fields import OUTPUT_FIELDS
from smoothtune.errors import ConfigError, Location

RUN_FIELDS = frozenset(RunConfig.model_fields) - {*OUTPUT_FIELDS, "methods", "seed"}
"""Fields of a run that a study may set."""
STRENGTHS = ("weight", "share")
"""Fields of which a method has one: setting one of them unsets the other."""


@dataclass(frozen=True)
class Setting:
    """One way to train."""

    methods: dict[str, dict[str, Any]]
    """Fields by method, those that are set."""
    changes: dict[str, Any] = field(default_factory=dict)
    """Fields of the run that differ from the study's."""
    epochs_factor: float = 1.0
    """Training is this much longer."""

    def describe(self) -> str:
        """The setting in one line, as ``lnsr weight=0.5 learning_rate=0.0001``."""
        parts = [
            " ".join([name, *(f"{key}={value}" for key, value in fields.items())])
            for name, fields in self.methods.items()
        ]
        changes = [f"{key}={value}" for key, value in self.changes.items()]
        longer = [f"epochs_factor={self.epochs_factor:g}"] * (self.epochs_factor != 1)
        return " ".join(["+".join(parts), *changes, *longer])


class EntryFields(Fields):
    """Keys of an entry that are neither fields of its method nor of a run."""

    label: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)] | None = None
    epochs_factor: Annotated[float, Field(gt=0)] = 1.0
    methods: Annotated[list[Any], Field(min_length=1)] | None = None


@dataclass(frozen=True)
class Entry:
    """One row of the study's tables."""

    label: str
    settings: list[Setting]
    """One, or several to choose from on a part of the training data."""
    location: Location


FieldsByMethod = Mapping[str, Mapping[str, Any]]


def of_method_and_run(fields: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Fields of a method, and those of the run among them."""
    of_run = {key: value for key, value in fields.items() if key in RUN_FIELDS}
    return {key: value for key, value in fields.items() if key not in RUN_FIELDS}, of_run


def validated_at(
    location: Location, model: type[Model], values: Mapping[str, Any], draft: Draft
) -> Model | None:
    """Settings that stand at a location of a file; None where a problem is reported."""
    try:
        return Draft().validated(model, values)
    except ConfigError as error:
        for problem in error.problems:
            draft.report((*location, *problem.field.split(".")), problem.message)
        return None


def read_entry(
    item: Any,
    location: Location,
    search: Mapping[str, Any],
    draft: Draft,
    weak: FieldsByMethod = MappingProxyType({}),
    strong: FieldsByMethod = MappingProxyType({}),
) -> Entry:
    """Read one entry; its problems are reported to the draft, and the valid rest is returned.

    `search` holds lists of values for fields of the run, which are tried for every entry. Fields of
    the protocol by method or label, `weak`, give way to the entry's own, and these to those of the
    study, `strong`.
    """
    mapping = dict(item) if isinstance(item, Mapping) else {}
    own = {key: mapping.pop(key) for key in EntryFields.model_fields if key in mapping}
    entry = validated_at(location, EntryFields, own, draft)
    if entry is None:
        return Entry(repr(item), [], location)
    mapping, changes = of_method_and_run(mapping)
    parts = entry.methods
    if parts is not None and mapping:
        message = f"{', '.join(mapping)}: write fields inside methods: [{{name: ...}}]"
        draft.report(location, message)
    alone = parts is None and not isinstance(item, list)
    if parts is None:
        parts = item if isinstance(item, list) else [mapping if mapping else item]
    methods: dict[str, dict[str, Any]] = {}
    for part in parts:
        name, fields = _method(part, location, draft)
        if name in methods:
            draft.report(location, f"{name} is repeated in one composition; keep one of them")
        if name:
            methods[name] = fields
    label = entry.label or _label(methods, changes, entry.epochs_factor)
    own_label = [label] * (label not in known_methods() and not is_of_others(label))
    for name, fields in methods.items():
        if alone:  # fields for the label, and of the run, are its
            both = _filled(fields | changes, [name, *own_label], weak, strong)
            methods[name], changes = of_method_and_run(both)
        else:
            methods[name] = _filled(fields, [name], weak, strong)
    if not alone:  # fields of the run alone can be for the label of several methods
        _, changes = of_method_and_run(_filled(changes, own_label, weak, strong))
    settings = _settings(methods, dict(search) | changes, entry.epochs_factor)
    return Entry(label, settings, location)


def _filled(
    own: Mapping[str, Any], keys: Sequence[str], weak: FieldsByMethod, strong: FieldsByMethod
) -> dict[str, Any]:
    """An entry's own fields over those of the protocol, and below those of the study."""
    filled = dict[str, Any]()
    for fields in (*(weak.get(k, {}) for k in keys), own, *(strong.get(k, {}) for k in keys)):
        filled = overridden(filled, fields)
    return filled


def overridden(fields: Mapping[str, Any], by: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of a method with others in their place; of weight and share only one stays.

    >>> overridden({"weight": 1.0, "k": 10}, {"share": 0.3})
    {'k': 10, 'share': 0.3}
    """
    unset = {name for name in STRENGTHS if set(STRENGTHS) & by.keys() and name not in by}
    return {k: v for k, v in fields.items() if k not in unset} | dict(by)


def _method(part: Any, location: Location, draft: Draft) -> tuple[str, dict[str, Any]]:
    """Name and fields of one method."""
    fields: dict[str, Any] = {}
    if isinstance(part, str):
        fields = draft.parse_method(part, draft.origin(location))
    elif isinstance(part, Mapping):
        fields = dict(part)
    name = fields.pop("name", None)
    if not isinstance(name, str) or not name:
        draft.report(
            location, f"{part!r} is not a method; write a name, or a mapping with name: NAME"
        )
        return "", {}
    return name, fields


def _settings(
    methods: Mapping[str, Mapping[str, Any]], changes: Mapping[str, Any], factor: float
) -> list[Setting]:
    """The product of all grids."""
    axes: dict[tuple[str | None, str], list[Any]] = {}
    for name, fields in methods.items():
        axes |= {(name, key): _candidates(name, key, value) for key, value in fields.items()}
    for key, value in changes.items():
        axes[None, key] = value if is_search(key, value) else [value]
    settings = []
    for values in itertools.product(*axes.values()):
        chosen: dict[str, dict[str, Any]] = {name: {} for name in methods}
        changed: dict[str, Any] = {}
        for (method, key), value in zip(axes, values, strict=True):
            (changed if method is None else chosen[method])[key] = value
        settings.append(Setting(chosen, changed, factor))
    return settings


def _candidates(method: str, key: str, value: Any) -> list[Any]:
    """The values of a method's field to try: a list, unless the field itself takes this list."""
    if not isinstance(value, list) or not value or method not in known_methods():
        return [value]
    lists = any(isinstance(candidate, list) for candidate in value)
    return value if lists or not takes_list(method, key) else [value]


def is_search(key: str, value: Any) -> bool:
    """Whether a field of the run has a list of values to try, and is no list by its nature."""
    takes_list = get_origin(without_none(RunConfig.model_fields[key].annotation)) is list
    return isinstance(value, list) and bool(value) and not takes_list


def _label(
    methods: Mapping[str, Mapping[str, Any]], changes: Mapping[str, Any], factor: float
) -> str:
    """The label of an entry without one: names, and the fields that have one value."""
    single = {
        name: {key: value for key, value in fields.items() if not isinstance(value, list)}
        for name, fields in methods.items()
    }
    fixed = {key: value for key, value in changes.items() if not isinstance(value, list)}
    return Setting(single, fixed, factor).describe()
