"""Settings before validation: values, the origin of each, and the problems found."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import takewhile
from pathlib import Path
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError

from smoothtune.config.yaml_file import parse_yaml, read_yaml
from smoothtune.errors import ConfigError, Location, Problem, dotted, message_of

# ``module:Class`` and fields; names of fields begin with a small letter
_OF_OTHERS = re.compile(r"\s*([\w.]+:[A-Z]\w*)\s*(?::(.*))?$")
# what pydantic calls a member of a union in a location, such as ``list[constrained-float]``
_MEMBER = re.compile(r"[\w-]+\[.*\]|constrained-\w+")
Model = TypeVar("Model", bound=BaseModel)


class Draft:
    """Values by field, the origin of each (``run.yaml:3``, ``--seed``), and all problems found."""

    def __init__(self, file: str | Path = "") -> None:
        self.values: dict[str, Any] = {}
        self.origins: dict[Location, str] = {}
        self.problems: list[Problem] = []
        self.file = str(file)

    def read(self) -> None:
        """Read values and their origins from the file."""
        document = read_yaml(self.file)
        self.problems += document.problems
        if isinstance(document.value, dict):
            self.values = document.value
            self.origins = {key: f"{self.file}:{line}" for key, line in document.lines.items()}
        elif not document.problems:
            self.problems.append(Problem(self.file, "", "holds no fields; write key: value lines"))

    def put(self, key: str, value: Any, origin: str) -> None:
        """Set one field; its former value and origins are dropped."""
        self.values[key] = value
        self._set_origin((key,), origin)

    def _set_origin(self, location: Location, origin: str) -> None:
        """A value was set as a whole: what lies in it has no origin of its own any more."""
        end = len(location)
        others = {at: where for at, where in self.origins.items() if at[:end] != location}
        self.origins = others | {location: origin}

    def put_options(self, options: Mapping[str, Any]) -> None:
        """Set fields that were given on the command line; None: not given."""
        for key, value in options.items():
            if value is not None:
                self.put(key, value, _option(key))

    def update(self, other: Draft) -> None:
        """Overwrite fields with those of another draft, and add its problems."""
        for key, value in other.values.items():
            self.put(key, value, other.origin((key,)))
        self.origins |= other.origins
        self.problems += other.problems

    def override(self, text: str) -> None:
        """Apply one ``key=value`` or ``methods.NAME.field=value`` of ``--set``."""
        key, equals, value = text.partition("=")
        path = tuple(key.strip().replace("-", "_").split("."))
        if not equals or not all(path):
            self.problems.append(Problem("--set", "", f"{text!r} is not key=value"))
            return
        *parents, last = path
        target = self.values
        for part in parents:
            if target.get(part) is None:
                target[part] = {}
            target = target[part]
            if not isinstance(target, dict):
                message = f"{part} is not a mapping, so {key} cannot be set"
                self.problems.append(Problem("--set", key, message))
                return
        target[last] = self.parse_value(value, f"--set {text}")
        self._set_origin(path, f"--set {text}")

    def parse_value(self, text: str, origin: str) -> Any:
        """Read a value as YAML does."""
        document = parse_yaml(text, name=origin)
        self.problems += document.problems
        return document.value

    def parse_fields(self, text: str, location: str, origin: str) -> dict[str, Any]:
        """Read ``field=value,field=value``; a list stands in brackets."""
        fields: dict[str, Any] = {}
        groups: list[list[str]] = []  # of a field, and what follows it without a name
        # not the commas inside brackets, as in layer_weights=[1,2]
        for part in re.split(r",(?![^\[\]{}]*[\]}])", text) if text else []:
            if "=" in part or not groups:
                groups.append([part])
            else:
                groups[-1].append(part)
        for first, *others in groups:
            key, equals, value = first.partition("=")
            if equals and key.strip() in fields:
                message = f"{key.strip()} is repeated; keep one of them"
                self.problems.append(Problem(origin, location, message))
            if equals:
                fields[key.strip()] = self.parse_value(value, origin)
            if others or not equals:
                strange = ",".join(others or [first])
                message = f"{strange!r} is not field=value; write field=value,field=value"
                if equals:
                    message += f", and a list in brackets: '{key}=[{','.join([value, *others])}]'"
                self.problems.append(Problem(origin, location, message))
        return fields

    def parse_method(self, spec: str, origin: str) -> dict[str, Any]:
        """Read ``lnsr:weight=2``, or ``module:Class:...``, as ``{"name": "lnsr", "weight": 2}``."""
        match = _OF_OTHERS.match(spec)
        name, _, text = (match[1], "", match[2] or "") if match else spec.partition(":")
        fields = self.parse_fields(text, f"methods.{name}", origin)
        return {"name": name.strip()} | fields

    def origin(self, location: Location) -> str:
        """Where a location, or else the nearest one that encloses it, was set."""
        enclosing = [location[:end] for end in range(len(location), 0, -1)]
        return next((self.origins[at] for at in enclosing if at in self.origins), self.file)

    def report(self, location: Location, message: str) -> None:
        """Add a problem with a location, at the origin of its value."""
        self.problems.append(Problem(self.origin(location), dotted(location), message))

    def refuse(self, message: str, *names: str, unless: bool = False) -> None:
        """Report the named fields that are set, as they may not be; None, 0, false set nothing."""
        for name in names:
            if not unless and self.values.get(name):
                self.report((name,), message)

    def validated(self, model: type[Model], values: Mapping[str, Any] | None = None) -> Model:
        """Validate the values, or `values`, as settings; ConfigError with all problems so far."""
        try:
            return model.model_validate(self.values if values is None else values)
        except ValidationError as error:
            for location, detail in _located(error):
                self.report(location, message_of(detail, _fields_at(model, location)))
            self.stop_at_problems()
            raise

    def stop_at_problems(self) -> None:
        """Raise ConfigError with all problems, in the order of the lines, if there are any."""
        if self.problems:
            raise ConfigError(sorted(dict.fromkeys(self.problems), key=_line))


def from_options(model: type[Model], options: Mapping[str, Any]) -> Model:
    """Settings that a command line alone describes; ConfigError with all that is wrong."""
    draft = Draft()
    draft.put_options(options)
    try:
        return draft.validated(model)
    except ConfigError as error:  # what is missing has no origin
        named = [each._replace(where=each.where or _option(each.field)) for each in error.problems]
        raise ConfigError(named) from None


def _located(error: ValidationError) -> list[tuple[Location, Any]]:
    """Errors with the location of each value; of those of a union's members, the innermost."""

    def is_value(part: str | int) -> bool:
        return _MEMBER.fullmatch(str(part)) is None

    located, innermost = list[tuple[Location, Any, Location]](), dict[Location, int]()
    for detail in error.errors():
        location = tuple(filter(is_value, detail["loc"]))
        union = tuple(takewhile(is_value, detail["loc"]))
        located.append((location, detail, union))
        innermost[union] = max(len(location), innermost.get(union, 0))
    return [(at, detail) for at, detail, union in located if len(at) == innermost[union]]


def _fields_at(model: Any, location: Location) -> list[str]:
    """Names of the fields beside the one at a location."""
    for part in location[:-1]:
        if part in model.__pydantic_fields__:
            model = _settings_in(model.__pydantic_fields__[part].annotation) or model
    return list(model.__pydantic_fields__)


def _settings_in(annotation: Any) -> Any:
    """The class with fields in ``dict[str, Class] | None`` and the like."""
    if hasattr(annotation, "__pydantic_fields__"):
        return annotation
    return next(filter(None, map(_settings_in, get_args(annotation))), None)


def _option(field: str) -> str:
    return "--" + field.replace("_", "-")


def _line(problem: Problem) -> int:
    """Line of a problem in the file; 0 for one that comes from elsewhere."""
    line = problem.where.rpartition(":")[2]
    return int(line) if line.isdecimal() else 0
