"""What can be said of methods and tasks without importing torch: ``catalog.json``.

`make docs` writes it from the methods' and tasks' own files; a test fails while it is stale. So the
command line lists methods, and finds misspelled names and fields, at once.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from importlib.resources import files
from typing import Annotated, Any, Literal, Union

from pydantic import BaseModel, ConfigDict, Field, create_model

CATALOG = "catalog.json"
DEFAULT_TASK_TYPE = "text-classification"
GROUP = "smoothtune.methods"
"""Entry points by which an installed package offers methods."""
_TYPES = {"boolean": bool, "integer": int, "number": float, "string": str}
_LIMITS = {"minimum": "ge", "exclusiveMinimum": "gt", "maximum": "le", "exclusiveMaximum": "lt"}


@dataclass
class FieldDescription:
    """One field of a method."""

    name: str
    type: str
    """Values it takes, with their range."""
    default: Any
    description: str


@dataclass
class MethodDescription:
    """One method, as its source file describes it."""

    name: str
    title: str
    summary: str
    reference: str
    equation: str
    """As one writes it on a keyboard."""
    latex: str
    """The same as Markdown with LaTeX: `$...$` in the text, `$$...$$` on lines of its own."""
    departures: str
    lowers: list[str]
    """Quantities it is about, see `smoothtune.core.quantities`."""
    fields: list[FieldDescription]

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return asdict(self)


@cache
def _catalog() -> dict[str, Any]:
    content: dict[str, Any] = json.loads((files("smoothtune") / CATALOG).read_text("utf-8"))
    return content


def known_methods() -> list[str]:
    """Names of the methods of this package."""
    return list(_catalog()["methods"])


def described(name: str) -> MethodDescription:
    """The description of a method of this package; KeyError if there is none."""
    found = dict(_catalog()["methods"][name]["description"])
    fields = [FieldDescription(**field) for field in found.pop("fields")]
    return MethodDescription(fields=fields, **found)


def clips_gradients(method: str) -> bool:
    """Whether a method clips gradients itself; not known of methods of other packages."""
    return bool(_catalog()["methods"].get(method, {}).get("clips_gradients"))


def needs_class(method: str, fields: Mapping[str, Any]) -> bool:
    """Whether fields of the right names and types can still be wrong together, or are another's."""
    if is_of_others(method):
        return True
    both = {"weight", "share"} <= fields.keys()
    neither = any(name in fields and fields[name] is None for name in ("weight", "share"))
    return both or neither or not fields.keys() <= set(_catalog()["methods"][method]["independent"])


@cache
def fields_model(method: str) -> type[BaseModel]:
    """A model that takes the fields of a method, each with its type and range.

    It does not know what the method checks across its fields.
    """
    schema = _catalog()["methods"][method]["schema"]
    definitions = schema.get("$defs", {})
    fields: Any = {
        name: (_annotation(e, definitions), None) for name, e in schema["properties"].items()
    }
    made: Any = create_model(method, __config__=ConfigDict(extra="forbid"), **fields)
    return made


def _annotation(entry: dict[str, Any], definitions: dict[str, Any]) -> Any:
    """The type that a JSON schema stands for."""
    if "$ref" in entry:
        return _annotation(definitions[entry["$ref"].rpartition("/")[2]], definitions)
    if "anyOf" in entry:
        return Union[tuple(_annotation(option, definitions) for option in entry["anyOf"])]  # noqa: UP007
    if "enum" in entry or "const" in entry:
        return Literal[tuple(entry.get("enum", [entry.get("const")]))]
    if entry.get("type") == "array":
        if "prefixItems" in entry:
            return tuple[tuple(_annotation(each, definitions) for each in entry["prefixItems"])]  # type: ignore[misc]
        item = entry["items"]
        lengths: Any = {"min_length": entry.get("minItems"), "max_length": entry.get("maxItems")}
        return Annotated[list[_annotation(item, definitions)], Field(**lengths)]  # type: ignore[misc]
    if entry.get("type") == "null":
        return None
    if entry.get("type") not in _TYPES:
        return Any
    limits: dict[str, Any] = {_LIMITS[key]: entry[key] for key in _LIMITS if key in entry}
    return Annotated[_TYPES[entry["type"]], Field(**limits)]


def offered_methods() -> dict[str, EntryPoint]:
    """Methods that installed packages offer, by name; nothing is imported."""
    return {each.name: each for each in entry_points(group=GROUP)}


def is_of_others(name: str) -> bool:
    """Whether a name is that of a method outside this package: ``module:Class``, or offered."""
    return name not in _catalog()["methods"] and (":" in name or name in offered_methods())


def task_types() -> dict[str, str]:
    """The type of each task that has a name."""
    return dict(_catalog()["tasks"])


@dataclass(frozen=True)
class TaskTypeDescription:
    """What a type of task declares, see the fields of `smoothtune.tasks.base.Task`."""

    fields: list[str]
    """Fields that not every type has."""
    label_types: list[str]
    max_seq_length: int
    one_sequence: bool
    problem_type: str | None
    similar_lengths: bool
    text_columns: list[str]
    """Default of the field."""


@cache
def described_task_types() -> dict[str, TaskTypeDescription]:
    """Every type of task by name."""
    return {name: TaskTypeDescription(**each) for name, each in _catalog()["task_types"].items()}
