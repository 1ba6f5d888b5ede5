"""Checks of methods by their own classes.

This module imports torch (through methods), so settings import it only when they are complete.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import TypeAdapter, ValidationError

from smoothtune.config.draft import Draft, message_of
from smoothtune.config.names import check_names
from smoothtune.methods.find import find_method


def check_methods(draft: Draft) -> None:
    """Validate the fields of every method and fill in the defaults."""
    check_names(draft)
    draft.stop_at_problems()
    complete = {}
    for name, fields in draft.values["methods"].items():
        try:
            cls = find_method(name)
            complete[name] = plain_data(TypeAdapter(cls).validate_python(fields).settings())
        except ValidationError as error:
            choices = list(cls.__pydantic_fields__)  # type: ignore[attr-defined]
            for detail in error.errors():
                message = message_of(detail, choices, f"the list of `smoothtune methods {name}`")
                draft.report(("methods", name, *detail["loc"]), message)
        except ValueError as error:
            draft.report(("methods", name), str(error))
    draft.values["methods"] = complete or {"plain": {}}


def plain_data(value: Any) -> Any:
    """Tuples as lists, as YAML and JSON have them, so that a configuration round-trips."""
    if isinstance(value, Mapping):
        return {key: plain_data(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain_data(item) for item in value]
    return value
