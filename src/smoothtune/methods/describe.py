"""What `smoothtune methods` and docs/methods.md show: read from each method's docstring and fields.

`python -m smoothtune.describe` prints docs/methods.md.
"""

from __future__ import annotations

import inspect
import re
import sys
from dataclasses import asdict, dataclass
from typing import Any

from pydantic import TypeAdapter

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
    definitions = schema.get("$defs", {})
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
                _type(entry, definitions),
                entry.get("default"),
                _description(cls, field),
            )
            for field, entry in schema.get("properties", {}).items()
        ],
    )


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
    first, _, rest = body.strip().partition("\n")
    return f"{first}\n{inspect.cleandoc(' ' + chr(10) + rest)}".strip() if rest else first


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


# --- Markdown ------------------------------------------------------------------------------------

METHODS_PAGE = """\
# Methods

Written by `make docs` from the methods' own files: change those, not this page. `smoothtune methods
NAME` shows the same in a terminal. Which of them to try: [Choosing a method](choosing.md).

x is the input, f(x) the prediction, L the task loss, y the label. RECONSTRUCTED marks what paper
and code leave open and we filled in.

{overview}
## Fields of every method

{shared}
A method without a loss term takes 1 and 0 for `weight`, on and off. Where a method has a default of
its own, the field is listed again.

{sections}"""


def methods_page() -> str:
    """docs/methods.md: all methods in one table, then one section each."""
    found = [describe(name) for name in METHODS]
    shared = describe("plain").fields
    return METHODS_PAGE.format(
        overview=_table(
            ["name", "method", "in one sentence"],
            [[f"[`{m.name}`](#{m.name})", _plain(m.title), _plain(m.summary)] for m in found],
        ),
        shared=_fields(shared),
        sections="\n".join(_section(method, shared) for method in found),
    )


def _section(method: MethodDescription, shared: list[FieldDescription]) -> str:
    own = [field for field in method.fields if field not in shared]
    arxiv = r"[arXiv \1](https://arxiv.org/abs/\1)"
    parts = [
        f"## {method.name}",
        f"**{_plain(method.title)}.** {_plain(method.summary)}",
        "Reference: " + re.sub(r"arXiv (\d{4}\.\d{4,5})", arxiv, _plain(method.reference)),
        f"```text\n{method.equation}\n```",
        _fields(own).rstrip() if own else "No fields of its own.",
        re.sub(r"\s+\* ", "\n\n* ", f"Departures: {_plain(method.departures)}", count=1),
    ]
    return "\n\n".join(parts) + "\n"


def _fields(fields: list[FieldDescription]) -> str:
    return _table(
        ["field", "type", "default", "meaning"],
        [[f"`{f.name}`", f"`{f.type}`", f"`{f.default!r}`", _plain(f.description)] for f in fields],
    )


def _table(titles: list[str], rows: list[list[str]]) -> str:
    lines = [titles, ["---"] * len(titles)]
    lines += [[cell.replace("|", r"\|") for cell in row] for row in rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _plain(text: str) -> str:
    """The text with what Markdown would eat escaped; code in backticks and bullets stay."""
    parts = re.split(r"(`[^`]*`)", text)
    parts[::2] = [re.sub(r"(?<!^)(?<!\n)[*]|[~<\[\]]|\b_|_\b", r"\\\g<0>", p) for p in parts[::2]]
    return "".join(parts)


if __name__ == "__main__":
    print(methods_page(), end="")
