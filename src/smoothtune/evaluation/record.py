"""What ``result.json`` and ``evaluation.json``, which may be others', must hold to be read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from smoothtune.config.draft import message_of
from smoothtune.config.fields import TaskType
from smoothtune.errors import OutputError, dotted

ENDS = (StopIteration, RuntimeError)
"""A point that is not there; a generator turns the first into the second."""
Numbers = dict[str, float]
Point = Annotated[list[float | None], Field(min_length=2, max_length=4)]


class _Record(BaseModel):
    """Only the types that are read later are checked; other fields are let through."""

    model_config = ConfigDict(extra="ignore", strict=True, allow_inf_nan=False)


class _Cost(_Record):
    train_seconds: float
    ratio_to_plain: float | None = None


class Training(_Record):
    """``result.json`` of a training run, as far as an evaluation reads it."""

    config: dict[str, Any] = {}
    methods: dict[str, Any] | list[str] | None = None
    cost: _Cost | None = None
    seed: int | None = None
    fingerprints: dict[str, str | None] = {}


class _Metric(_Record):
    value: float
    low: float | None
    high: float | None


class _Scores(_Record):
    metrics: Annotated[dict[str, _Metric], Field(min_length=1)]
    train_metrics: Numbers | None
    generalization_gap: float | None
    trivial_baseline: float
    rows: int


class _Curve(_Record):
    title: str
    x_label: str
    y_label: str
    series: Annotated[dict[str, Annotated[list[Point], Field(min_length=1)]], Field(min_length=1)]
    band: str
    log_y: bool
    numbers: Numbers


class _Part(_Record):
    numbers: dict[str, Any]
    curves: dict[str, _Curve]
    skipped: str
    seconds: float


class _Settings(_Record):
    seed: int
    num_resamples: Annotated[int, Field(ge=1)]


class _Data(_Record):
    splits: dict[str, dict[str, Any]]


class Evaluation(_Record):
    """``evaluation.json``, as far as reports read it."""

    model: str
    task: str
    task_type: TaskType
    headline: str
    metrics: Annotated[list[str], Field(min_length=1)]
    label_names: list[str]
    training: Training | None
    data: _Data
    settings: _Settings
    fingerprints: dict[str, str]
    versions: dict[str, str]
    parts: dict[str, _Part]


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
    found = content["parts"].get("metrics")
    if found is not None:
        _check(_Scores, found["numbers"], path, "smoothtune evaluate", ("parts.metrics.numbers",))
        if content["headline"] not in found["numbers"]["metrics"]:
            raise OutputError(
                _message(path, "headline", "is no metric of it", "smoothtune evaluate")
            )


class _Examples(_Record):
    """``examples.json``; every list has one item for each sentence."""

    shown: Annotated[int, Field(ge=1)]
    example_id: Annotated[list[int], Field(min_length=1)]
    labels: list[float] | list[list[float]]
    """Class ids or scores; of several labels, 0 and 1."""
    texts: dict[str, list[str]]
    predictions: dict[str, list[Annotated[list[float], Field(min_length=1)]]]

    @model_validator(mode="after")
    def _is_whole(self) -> _Examples:
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
    record: type[BaseModel], content: Any, path: Path, command: str, within: tuple[str, ...] = ()
) -> None:
    try:
        record.model_validate(content)
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
