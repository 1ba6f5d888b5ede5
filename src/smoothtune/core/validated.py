"""Dataclasses that check their fields, and name what is wrong in the words of run files."""

from functools import wraps
from typing import Any, TypeVar

from pydantic import ConfigDict, ValidationError
from pydantic.dataclasses import dataclass

from smoothtune.errors import ConfigError, Problem, dotted, message_of

STRICT = ConfigDict(extra="forbid", use_attribute_docstrings=True, arbitrary_types_allowed=True)

T = TypeVar("T")


def validated(cls: type[T]) -> type[T]:
    """A dataclass whose fields are given by name; its constructor raises `ConfigError`."""
    made: Any = dataclass(config=STRICT, kw_only=True)(cls)
    construct = made.__init__

    @wraps(construct)
    def checked(self: T, *args: Any, **kwargs: Any) -> None:
        try:
            construct(self, *args, **kwargs)
        except ValidationError as error:
            names = list(made.__pydantic_fields__)
            listing = f"the list of `smoothtune methods {made.name}`"
            problems = [
                Problem(cls.__name__, dotted(each["loc"]), message_of(each, names, listing))
                for each in error.errors()
            ]
            raise ConfigError(problems) from None

    made.__init__ = checked
    return made
