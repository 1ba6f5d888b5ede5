"""What `smoothtune methods` and docs/methods.md show, from the docstrings and fields of methods."""

from __future__ import annotations

import inspect
import re
import sys
import textwrap
from dataclasses import asdict, dataclass
from typing import Any

from pydantic import TypeAdapter

from smoothtune.core.regularizer import Regularizer
from smoothtune.methods import METHODS


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
    departures: str
    fields: list[FieldDescription]

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return asdict(self)


def describe(name: str) -> MethodDescription:
    """Describe one method.

    Args:
        name: a key of `METHODS`.

    Raises:
        KeyError: there is no such method.
    """
    cls = METHODS[name]
    text = inspect.cleandoc(sys.modules[cls.__module__].__doc__ or "")
    title, sections = _sections(text)
    schema = TypeAdapter(cls).json_schema()
    entries, definitions = schema.get("properties", {}), schema.get("$defs", {})
    return MethodDescription(
        name=name,
        title=title,
        summary=" ".join(inspect.cleandoc(cls.__doc__ or "").split("\n\n")[0].split()),
        reference=sections.get("Reference", ""),
        equation=sections.get("Equation", ""),
        departures=sections.get("Departures", ""),
        fields=[
            FieldDescription(
                field,
                _type(entries[field], definitions),
                entries[field].get("default"),
                _description(cls, field),
            )
            for field in _in_order(cls)
            if field in entries
        ],
    )


def _in_order(cls: type) -> dict[str, None]:
    """Names of fields: what every method has, then those in the method's file, then its base's."""
    classes = (Regularizer, *cls.__mro__)
    return dict.fromkeys(name for each in classes for name in inspect.get_annotations(each))


def _description(cls: type, field: str) -> str:
    """The docstring under a field, in the class or the base that declares it."""
    for base in cls.__mro__:
        found = getattr(base, "__pydantic_fields__", {}).get(field)
        if found is not None and found.description:
            return " ".join(found.description.split())
    return ""


def _sections(text: str) -> tuple[str, dict[str, str]]:
    """The first line, and the text of each ``Heading:`` or ``Heading (remark):``."""
    title, *parts = re.split(
        r"^(Reference|Equation|Departures)(?=:| \():? *", text, flags=re.MULTILINE
    )
    bodies = (_dedented(body) for body in parts[1::2])
    return title.strip().split("\n")[0].rstrip("."), dict(zip(parts[::2], bodies, strict=True))


def _dedented(body: str) -> str:
    """The body with the indentation of its continuation lines taken off."""
    first, newline, rest = body.strip().partition("\n")
    return first + newline + textwrap.dedent(rest)


def _type(entry: dict[str, Any], definitions: dict[str, Any]) -> str:
    """A JSON schema as a practitioner would say it: ``number >= 0``, ``'token' | 'none'``."""
    if "$ref" in entry:
        return _type(definitions[entry["$ref"].rpartition("/")[2]], definitions)
    if "anyOf" in entry:
        return " | ".join(_type(option, definitions) for option in entry["anyOf"])
    if "enum" in entry or "const" in entry:
        return " | ".join(map(repr, entry.get("enum", [entry.get("const")])))
    if entry.get("type") == "array":
        item = entry.get("items") or entry.get("prefixItems", [{}])[0]
        return f"list of {_type(item, definitions)}"
    signs = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<"}
    limits = [f"{sign} {entry[key]:g}" for key, sign in signs.items() if key in entry]
    return " ".join([entry.get("type", "any"), ", ".join(limits)]).strip()
