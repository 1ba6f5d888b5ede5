"""What ``result.json`` and ``evaluation.json``, which may be others', must hold to be read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, ValidationError, model_validator

from smoothtune.config.draft import message_of
from smoothtune.errors import OutputError, dotted
from smoothtune.results import Evaluation, Record, Scores, Training

ENDS = (StopIteration, RuntimeError)
"""A point that is not there; a generator turns the first into the second."""


def check_training(content: dict[str, Any], path: Path) -> None:
    """Check ``result.json``.

    Raises:
        OutputError: a field is not as `smoothtune train` writes it.
    """
    _check(Training, content, path, "smoothtune train")


def check_evaluation(content: dict[str, Any], path: Path) -> None:
    """Check ``evaluation.json``.

    Raises:
        OutputError: a field is not as `smoothtune evaluate` writes it.
    """
    _check(Evaluation, content, path, "smoothtune evaluate")
    metrics = content["parts"].get("metrics")
    if metrics is not None:
        _check(Scores, metrics["numbers"], path, "smoothtune evaluate", ("parts.metrics.numbers",))
        if content["headline"] not in metrics["numbers"]["metrics"]:
            raise OutputError(
                _message(path, "headline", "is no metric of it", "smoothtune evaluate")
            )


class _Examples(Record):
    """``examples.json``; every list has one item for each sentence."""

    shown: Annotated[int, Field(ge=1)]
    example_id: Annotated[list[int], Field(min_length=1)]
    labels: list[float] | list[list[float]]
    """Class ids or scores; of several labels, 0 and 1."""
    texts: dict[str, list[str]]
    predictions: dict[str, list[Annotated[list[float], Field(min_length=1)]]]

    @model_validator(mode="after")
    def _is_complete(self) -> _Examples:
        count, widths = len(self.example_id), {len(p) for v in self.predictions.values() for p in v}
        columns: list[list[Any]] = [self.labels, *self.texts.values(), *self.predictions.values()]
        several = {len(each) for each in self.labels if isinstance(each, list)}
        if any(len(column) != count for column in columns) or len(widths | several) != 1:
            raise ValueError("a sentence lacks a text, a label or a prediction")
        if not {"as it is"} <= self.texts.keys() & self.predictions.keys():
            raise ValueError("the sentences as they are are missing")
        return self


def check_examples(content: dict[str, Any], path: Path) -> None:
    """Check ``examples.json``.

    Raises:
        OutputError: a field is not as `smoothtune evaluate` writes it.
    """
    _check(_Examples, content, path, "smoothtune evaluate")


def _check(
    record: type[Record], content: Any, path: Path, command: str, within: tuple[str, ...] = ()
) -> None:
    try:
        record.parse(content)
    except ValidationError as error:
        detail = error.errors()[0]
        field = dotted((*within, *detail["loc"]))
        raise OutputError(_message(path, field, message_of(detail, []), command)) from error


def _message(path: Path, field: str, problem: str, command: str) -> str:
    return f"{path}: {field}: {problem}; it is not as {command} writes it: make it again"


@contextmanager
def only_damage(records: str) -> Iterator[None]:
    """Turn what comes from numbers that are missing or of another kind into `OutputError`.

    Args:
        records: paths of what is shown.
    """
    try:
        yield
    except OutputError:
        raise
    except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, *ENDS) as error:
        raise OutputError(
            f"{records}: a part lacks a number that is shown, or has another in its place "
            f"({type(error).__name__}: {error}); make it again with smoothtune evaluate"
        ) from error
