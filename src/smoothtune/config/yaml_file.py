"""Strict YAML for run files: plain data with line numbers, and all problems of the file.

PyYAML's safe loader reads ``1e-5`` as text, ``no`` as False, and keeps the last of two equal keys.
Here scalars follow YAML 1.2's core schema. Equal keys are a problem, and so are anchors, aliases
and tags, which can expand without bound or run code.
"""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from smoothtune.errors import Location, Problem, dotted

MAX_BYTES = 1_000_000
MAX_DEPTH = 50
_OF_ROWS = (".csv", ".tsv", ".xlsx", ".jsonl", ".parquet")
_NO_TEXT = re.compile("[\0\ud800-\udfff]")  # what no path and no file of text can hold


@dataclass
class Document:
    """The content of a YAML text, with the line of every value."""

    value: Any = None
    lines: dict[Location, int] = field(default_factory=dict)  # from 1, of keys and list items
    problems: list[Problem] = field(default_factory=list)


class _CoreSchemaLoader(yaml.SafeLoader):
    """SafeLoader whose plain scalars follow YAML 1.2's core schema."""

    yaml_implicit_resolvers: dict[Any, Any] = {}


for _tag, _pattern, _first in (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?[0-9]{1,100}", list("-+0123456789")),
    (
        "float",
        r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        list("-+0123456789."),
    ),
):
    _CoreSchemaLoader.add_implicit_resolver(
        f"tag:yaml.org,2002:{_tag}", re.compile(f"^(?:{_pattern})$"), _first
    )


def read_yaml(path: str | Path) -> Document:
    """Read a YAML file in UTF-8; an unreadable file is one of the document's problems."""
    path = Path(path)
    where = str(path)
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
        if path.suffix.lower() in _OF_ROWS:
            message = f"holds rows and is no run file; one is written by: smoothtune init {path}"
        elif len(raw) > MAX_BYTES:
            message = f"is longer than {MAX_BYTES:,} bytes, too long for a run file"
        else:
            return parse_yaml(raw.decode("utf-8-sig"), name=where)
    except IsADirectoryError:
        message = f"is a folder; name the run file, such as {path / 'run.yaml'}"
    except OSError as error:
        message = f"cannot be read: {error.strerror}"
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        where = f"{path}:{line}"
        message = f"is not UTF-8 (byte {error.start}); save it as UTF-8"
    return Document(problems=[Problem(where, "", message)])


def parse_yaml(text: str, *, name: str) -> Document:
    """Parse YAML text; ``name`` stands for the file in the problems."""
    document = Document(problems=_forbidden_syntax(text, name))
    if document.problems:
        return document
    try:
        node = yaml.compose(text, Loader=_CoreSchemaLoader)
        if node is not None:
            document.value = _value(node, (), name, document)
    except yaml.YAMLError as error:  # more than one document
        document.problems.append(_syntax_problem(error, name))
    return document


def _forbidden_syntax(text: str, name: str) -> list[Problem]:
    """Syntax errors, anchors, aliases and tags, found before anything is built from the text."""
    problems: list[Problem] = []
    depth = 0
    try:
        event: Any  # the stubs know neither anchor nor tag
        for event in yaml.parse(text, Loader=_CoreSchemaLoader):
            where = f"{name}:{event.start_mark.line + 1}"
            depth += isinstance(event, yaml.CollectionStartEvent)
            depth -= isinstance(event, yaml.CollectionEndEvent)
            if depth > MAX_DEPTH:
                return [*problems, Problem(where, "", "is nested too deeply")]
            anchor, tag = getattr(event, "anchor", None), getattr(event, "tag", None)
            if anchor:
                message = f"anchors and aliases (&{anchor}, *{anchor}) are not allowed"
                problems.append(Problem(where, "", f"{message}; write the value out"))
            if isinstance(event, yaml.ScalarEvent) and (odd := _NO_TEXT.search(event.value)):
                problems.append(Problem(where, "", f"holds {odd[0]!r}, which is no text"))
            if tag:
                message = f"the tag {tag} is not allowed; write plain values"
                problems.append(Problem(where, "", message))
    except yaml.YAMLError as error:
        problems.append(_syntax_problem(error, name))
    return problems


def _syntax_problem(error: yaml.YAMLError, name: str) -> Problem:
    mark = getattr(error, "problem_mark", None)
    where = f"{name}:{mark.line + 1}" if mark else name
    return Problem(where, "", f"is not valid YAML: {getattr(error, 'problem', None) or error}")


def _value(node: yaml.Node, location: Location, name: str, document: Document) -> Any:
    """The node as plain data; its lines and problems go into the document."""
    if isinstance(node, yaml.MappingNode):
        mapping: dict[str, Any] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            where, key = f"{name}:{line}", (*location, key_node.value)
            if not isinstance(key_node, yaml.ScalarNode):
                problem = Problem(where, dotted(location), "a key must be a plain word")
                document.problems.append(problem)
            elif key_node.value in mapping:
                message = f"is repeated; it is already set in line {document.lines[key]}"
                document.problems.append(Problem(where, dotted(key), message))
            else:
                document.lines[key] = line
                mapping[key_node.value] = _value(value_node, key, name, document)
        return mapping
    if isinstance(node, yaml.SequenceNode):
        items = []
        for index, item in enumerate(node.value):
            document.lines[*location, index] = item.start_mark.line + 1
            items.append(_value(item, (*location, index), name, document))
        return items
    return _scalar(node)


def _scalar(node: yaml.Node) -> Any:
    kind = node.tag.rpartition(":")[2]
    if kind == "null":
        return None
    if kind == "bool":
        return node.value.lower() == "true"
    if kind == "int":
        return int(node.value)
    if kind == "float":
        return float(node.value.lower().replace(".inf", "inf").replace(".nan", "nan"))
    return node.value
