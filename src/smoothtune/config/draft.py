"""Values on their way to a `RunConfig`: where each came from, and what is wrong so far."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter, ValidationError

from smoothtune.config.yaml_file import parse_yaml, read_yaml
from smoothtune.errors import ConfigError, Location, Problem, dotted, unknown

if TYPE_CHECKING:
    from smoothtune.core.regularizer import Regularizer


def parse_method(spec: str, draft: Draft | None = None) -> dict[str, Any]:
    """``lnsr:noise=in_manifold,weight=2`` as ``{"name": "lnsr", "noise": ..., "weight": 2}``.

    Raises:
        ConfigError: no ``field=value`` after the colon, if there is no draft to collect it.
    """
    found = draft or Draft()
    name, _, text = spec.partition(":")
    fields: dict[str, Any] = {"name": name.strip()}
    # not the commas inside brackets, as in layer_weights=[1,2]
    for part in re.split(r",(?![^\[\]{}]*[\]}])", text) if text else []:
        key, equals, value = part.partition("=")
        if not equals:
            message = f"{part!r} is not field=value; write --method NAME:field=value,field=value"
            found.problems.append(Problem("--method", f"methods.{name}", message))
            continue
        fields[key.strip()] = found.parse_value(value, f"--method {spec}")
    if draft is None and found.problems:
        raise ConfigError(found.problems)
    return fields


def clipping_methods(names: Iterable[str]) -> list[str]:
    """Those of the named methods that are themselves the gradient clip."""
    from smoothtune.methods import METHODS

    return [name for name in names if name in METHODS and METHODS[name].clips_gradients]


class Draft:
    """Values on their way to a RunConfig, where each came from, and what is wrong so far."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.places: dict[Location, str] = {}
        self.problems: list[Problem] = []
        self.file = ""

    def read(self, file: str | Path) -> None:
        """Take the values of a YAML file."""
        document = read_yaml(file)
        self.file = str(file)
        self.problems += document.problems
        if isinstance(document.value, dict):
            self.values = document.value
            self.places = {key: f"{file}:{line}" for key, line in document.lines.items()}
        elif not document.problems:
            self.problems.append(Problem(self.file, "", "holds no fields; write key: value lines"))

    def put(self, key: str, value: Any, place: str) -> None:
        """Set one field in place of what it was."""
        self.values[key] = value
        self.places = {at: where for at, where in self.places.items() if at[0] != key}
        self.places[key,] = place

    def override(self, text: str) -> None:
        """Apply one ``key=value`` or ``methods.NAME.field=value``."""
        key, equals, value = text.partition("=")
        path = tuple(key.strip().replace("-", "_").split("."))
        if not equals or not all(path):
            message = f"{text!r} is not key=value"
            self.problems.append(Problem("--set", "", message))
            return
        if path[0] == "methods":
            _name_methods(self)
        *parents, last = path
        target = self.values
        for part in parents:
            if target.get(part) is None:
                target[part] = {}
            target = target[part]
            if not isinstance(target, dict):
                message = f"{part} holds no fields that could be set"
                self.problems.append(Problem("--set", key, message))
                return
        target[last] = self.parse_value(value, f"--set {text}")
        self.places[path] = f"--set {text}"

    def parse_value(self, text: str, place: str) -> Any:
        """Read a value as YAML does."""
        document = parse_yaml(text, name=place)
        self.problems += document.problems
        return document.value

    def report(self, location: Location, message: str) -> None:
        """Add a problem with the nearest known place of the location."""
        known = [location[:end] for end in range(len(location), 0, -1)]
        place = next((self.places[at] for at in known if at in self.places), self.file)
        self.problems.append(Problem(place, dotted(location), message))


def _name_methods(draft: Draft) -> None:
    """Bring a name, a list, or a mapping of methods into one form: name -> fields."""
    value = draft.values.get("methods", {"plain": None})
    places = {at: where for at, where in draft.places.items() if at[0] == "methods"}
    named: dict[str, dict[str, Any]] = {}
    items: list[tuple[Location, Any, Any]]
    if isinstance(value, Mapping):
        items = [(("methods", name), name, fields) for name, fields in value.items()]
    else:
        items = []
        for index, item in enumerate(value if isinstance(value, list) else [value]):
            fields = dict(item) if isinstance(item, Mapping) else {}
            name = fields.pop("name", None) if isinstance(item, Mapping) else item
            items.append((("methods", index), name, fields))
    for location, name, fields in items:
        if not isinstance(name, str):
            draft.report(location, "is no method; write a name, or a mapping with name: NAME")
        elif not isinstance(fields, Mapping | None):
            draft.report(location, f"the fields of {name} must be a mapping, not {fields!r}")
        elif name in named:
            draft.report(location, f"{name} stands twice; keep one of them")
        else:
            named[name] = dict(fields or {})
            for at, where in places.items():
                if at[:2] == location:
                    draft.places["methods", name, *at[2:]] = where
    draft.values["methods"] = named


def _take_recommended(draft: Draft) -> None:
    """Put the recommended methods in the place of ``auto``."""
    named = draft.values["methods"]
    if AUTO not in named:
        return
    if len(named) > 1 or named[AUTO]:
        draft.report(("methods", AUTO), "stands alone and has no fields")
    methods = recommended()["methods"]
    if methods is None:
        draft.report(("methods", AUTO), NONE_YET)
    draft.values["methods"] = methods or {"plain": {}}


def check_methods(draft: Draft) -> None:
    """Validate every method's fields and fill in the defaults."""
    from smoothtune.core.regularizer import former_name
    from smoothtune.methods import METHODS

    _name_methods(draft)
    _take_recommended(draft)
    complete = {}
    for name, fields in draft.values["methods"].items():
        if name not in METHODS:
            draft.report(("methods", name), unknown("method", name, METHODS))
            continue
        former = METHODS[name].former_names()
        for field in former.keys() & fields.keys():
            draft.report(("methods", name, field), former_name(field, former[field]))
        fields = {former.get(field, field): value for field, value in fields.items()}
        adapter: TypeAdapter[Regularizer] = TypeAdapter(METHODS[name])
        try:
            complete[name] = _plain_data(adapter.validate_python(fields).settings())
        except ValidationError as error:
            known = list(METHODS[name].__pydantic_fields__)  # type: ignore[attr-defined]
            for detail in error.errors():
                draft.report(("methods", name, *detail["loc"]), message_of(detail, known))
    if not draft.values["methods"] and not draft.problems:
        draft.report(("methods",), "is empty; for plain fine-tuning leave it out or write plain")
    draft.values["methods"] = complete


def with_present_names(methods: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """The fields of recorded methods under the names that they have now."""
    from smoothtune.methods import METHODS

    former = {name: METHODS[name].former_names() if name in METHODS else {} for name in methods}
    return {
        name: {former[name].get(field, field): value for field, value in fields.items()}
        for name, fields in methods.items()
    }


def message_of(detail: Any, known: list[str]) -> str:
    """One of pydantic's errors in our words."""
    if detail["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        return unknown("field", str(detail["loc"][-1]), known)
    if detail["type"] in ("missing", "missing_argument", "missing_keyword_only_argument"):
        return "is missing"
    message = detail["msg"].removeprefix("Value error, ")
    if detail["type"] == "value_error" or len(repr(detail["input"])) > 80:
        return message
    return f"{message}, not {detail['input']!r}"


def _plain_data(value: Any) -> Any:
    """Tuples as lists, as YAML and JSON have them, so that a configuration round-trips."""
    if isinstance(value, Mapping):
        return {key: _plain_data(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain_data(item) for item in value]
    return value


AUTO = "auto"
NONE_YET = (
    "none yet: no study of this project has shown a method that beats plain fine-tuning on all of "
    "its tasks; name one, see `smoothtune methods`"
)


def recommended() -> dict[str, Any]:
    """What ``recommended.json`` holds.

    Returns:
        ``methods``: fields by method, or None; ``evidence``: the numbers behind it, or None.
    """
    text = (files("smoothtune") / "recommended.json").read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text)
    return found
