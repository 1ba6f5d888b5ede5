"""What `smoothtune methods` and docs/methods/ show, from the docstrings and fields of methods."""

import inspect
import re
import sys
from dataclasses import asdict
from typing import Any

from pydantic import TypeAdapter

from smoothtune.catalog import FieldDescription, MethodDescription
from smoothtune.core.regularizer import LossTerm, Penalty, Regularizer
from smoothtune.methods import METHODS
from smoothtune.methods.equation import latex, plain


def catalog_of_methods() -> dict[str, Any]:
    """What ``catalog.json`` holds of every method."""
    return {
        name: {
            "description": asdict(describe(cls)),
            "clips_gradients": cls.declared.clips_gradients,
        }
        for name, cls in METHODS.items()
    }


def describe(cls: type[Regularizer] | str) -> MethodDescription:
    """Describe one method: by its class, or a key of `METHODS`."""
    cls = METHODS[cls] if isinstance(cls, str) else cls
    text = inspect.cleandoc(sys.modules[cls.__module__].__doc__ or "")
    title, sections = _sections(text)
    summary = " ".join(inspect.cleandoc(cls.__doc__ or "").split("\n\n")[0].split())
    if sum(each.__module__ == cls.__module__ for each in METHODS.values()) > 1:
        title = summary.rstrip(".")  # the file's is that of all methods in it
    return MethodDescription(
        name=cls.name,
        title=title,
        summary=summary,
        group=cls.declared.group,
        step=cls.declared.step,
        reference=sections.get("Reference", ""),
        equation=plain(sections.get("Equation", "")),
        latex=latex(sections.get("Equation", "")),
        departures=sections.get("Departures", ""),
        lowers=list(cls.declared.lowers),
        fields=fields_of(cls),
    )


def fields_of(cls: type[Regularizer]) -> list[FieldDescription]:
    """Describe the fields of a class, those of every penalty first."""
    schema = TypeAdapter(cls).json_schema()
    entries, definitions = schema.get("properties", {}), schema.get("$defs", {})
    return [
        FieldDescription(
            field,
            values_of(entries[field], definitions),
            entries[field].get("default"),
            _description(cls, field),
        )
        for field in _in_order(cls)
        if field in entries
    ]


def _in_order(cls: type) -> dict[str, None]:
    """Names of fields: what every method has, then those in the method's file, then its base's."""
    common = [base for base in (Penalty, LossTerm) if issubclass(cls, base)]
    classes = (*common, *cls.__mro__)
    return dict.fromkeys(name for each in classes for name in inspect.get_annotations(each))


def _description(cls: type, field: str) -> str:
    """The docstring under a field, in the class or the base that declares it."""
    for base in cls.__mro__:
        info = getattr(base, "__pydantic_fields__", {}).get(field)
        if info is not None and info.description:
            return " ".join(info.description.split())
    return ""


def _sections(text: str) -> tuple[str, dict[str, str]]:
    """The first line, and the text of each ``Heading:`` or ``Heading (remark):``."""
    title, *parts = re.split(
        r"^(Reference|Equation|Departures)(?=:| \():? *", text, flags=re.MULTILINE
    )
    bodies = (inspect.cleandoc(body.strip()) for body in parts[1::2])
    return title.strip().split("\n")[0].rstrip("."), dict(zip(parts[::2], bodies, strict=True))


def values_of(entry: dict[str, Any], definitions: dict[str, Any]) -> str:
    """A JSON schema as a practitioner would say it: ``number >= 0``, ``'token' | 'none'``."""
    if "$ref" in entry:
        return values_of(definitions[entry["$ref"].rpartition("/")[2]], definitions)
    if "anyOf" in entry:
        return " | ".join(values_of(option, definitions) for option in entry["anyOf"])
    if "enum" in entry or "const" in entry:
        return " | ".join(map(repr, entry.get("enum", [entry.get("const")])))
    if entry.get("type") == "array":
        item = entry.get("items") or entry.get("prefixItems", [{}])[0]
        return f"list of {values_of(item, definitions)}"
    signs = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<"}
    limits = [f"{sign} {entry[key]:.10g}" for key, sign in signs.items() if key in entry]
    return " ".join([entry.get("type", "any"), ", ".join(limits)]).strip()
