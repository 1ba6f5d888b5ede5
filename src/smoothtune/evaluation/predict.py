"""Predictions for new rows without labels, written beside what the rows hold."""

from __future__ import annotations

import codecs
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date, time
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset, Json
from rich.console import Console
from scipy.special import expit, softmax

from smoothtune.config.prediction import Prediction
from smoothtune.config.task import configured_task
from smoothtune.console import Bar, quiet, say
from smoothtune.data.missing import Needed, told_left_out
from smoothtune.data.sources import load_rows
from smoothtune.errors import ConfigError, DataError, OutputError, Problem
from smoothtune.evaluation.predictor import load_predictor
from smoothtune.evaluation.settings import resolve_prediction, training_record
from smoothtune.evaluation.temperature import kept_temperature
from smoothtune.files import replacing, write_atomic
from smoothtune.models.load import Base, load_base, weights_fingerprint
from smoothtune.report.curves import csv_text
from smoothtune.tasks.base import Task
from smoothtune.tasks.unlabeled import unlabeled_rows

SUFFIXES = (".csv", ".jsonl", ".parquet")


def predict(settings: Prediction, *, console: Console | None = None) -> int:
    """Predict the rows of a file, and write them with their predictions.

    Args:
        settings: what to predict, and where to.
        console: where to print.

    Returns:
        Number of rows.

    Raises:
        ConfigError: the settings are incomplete or wrong.
        ModelError: the model cannot be loaded, or does not fit the task.
        DataError: the rows cannot be read, or have a column of the name of one to be written.
        OutputError: the file exists, or cannot hold the rows.
    """
    console = console or Console()
    to = _target(settings)
    settings = resolve_prediction(settings, training_record(settings.model))
    task = configured_task(settings)
    needed = Needed(task.rows.unlabeled_columns) if settings.drop_missing else None
    raw = load_rows(settings.data, needed=needed, sep=settings.sep, encoding=settings.encoding)
    base = load_base(settings.model, trust_remote_code=settings.trust_remote_code)
    task = task.with_model_labels(base.config, raw, settings.data)
    names = column_names(task, every_class=settings.probabilities)
    temperature = _temperature(settings, base, task)
    if taken := [name for name in names if name in raw.column_names]:
        raise DataError(f"{settings.data}: has a column {taken[0]!r} already; rename it")
    length = settings.max_seq_length or task.default_max_seq_length
    with quiet():
        rows, _ = unlabeled_rows(
            raw,
            task,
            base.tokenizer,
            settings.data,
            max_seq_length=length,
            vocab_size=base.config.get_text_config().vocab_size,
        )
    labels = ", ".join(task.known_label_names) or "none"
    say(console, f"task {task.name} ({task.task_type}), labels {labels}; {len(raw)} rows")
    if told := told_left_out(raw):
        say(console, told)
    if longer := len(np.unique(np.asarray(rows["example_id"][:])[rows["cut"][:]])):
        say(console, f"{longer} rows are longer than {length} tokens: {task.rows.when_too_long}")
    with Bar(console) as bar:
        predictor = load_predictor(base, task, batch_size=settings.batch_size, progress=bar)
        bar.part = "predict"
        bar.start("rows", predictor.num_batches(rows))
        with quiet():
            predictions = predictor.predict(rows)
    if temperature is not None:
        say(console, f"probabilities with a temperature of {temperature:.3f}")
        predictions = predictions / temperature
    columns = [task.scorer.answers(predictions, rows), *_probabilities(task, predictions)]
    form = CsvForm.of(settings, to)
    write_rows(to, raw, dict(zip(names, columns, strict=False)), form)
    if told := form.told():
        say(console, f"{to} is {told}, as {settings.data} is")
    return len(raw)


@dataclass(frozen=True)
class CsvForm:
    """How CSV is written: as the data, where these are CSV."""

    sep: str = ","
    encoding: str = "utf-8"

    @classmethod
    def of(cls, settings: Prediction, to: Path) -> CsvForm:
        """The form of the predictions of a file."""
        if to.suffix != ".csv" or Path(settings.data).suffix.lower() != ".csv":
            return cls()
        return cls(settings.sep or ",", settings.encoding or "utf-8")

    def told(self) -> str:
        """What is unusual about it; "" if nothing is."""
        sep = "" if self.sep == "," else f"separated by {self.sep!r}"
        encoding = "" if codecs.lookup(self.encoding).name == "utf-8" else f"in {self.encoding}"
        return " and ".join(filter(None, (sep, encoding)))

    def encoded(self, text: str, to: Path) -> bytes:
        """A text as it is written.

        Raises:
            OutputError: it holds a character that the encoding lacks.
        """
        try:
            return text.encode(self.encoding)
        except UnicodeEncodeError as error:
            raise OutputError(
                f"{to}: {text[error.start]!r} cannot be written in {self.encoding}; "
                "choose a .jsonl or .parquet file"
            ) from error


def _target(settings: Prediction) -> Path:
    """The file to write, checked before the work begins.

    Raises:
        OutputError: it exists, is the data, has another ending, or its folder cannot be made.
    """
    to = Path(os.path.expanduser(settings.to))
    if to.suffix not in SUFFIXES:
        raise OutputError(f"{to} must end in {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}")
    if os.path.isdir(to) or os.path.realpath(to) == os.path.realpath(
        os.path.expanduser(settings.data)
    ):
        raise OutputError(f"{to} is a folder or the data itself; choose another name")
    if os.path.lexists(to) and not settings.overwrite:
        raise OutputError(f"{to} exists; choose another name or replace it with --overwrite")
    try:
        to.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"{to.parent} cannot be made: {error.strerror}") from error
    return to


def _temperature(settings: Prediction, base: Base, task: Task) -> float | None:
    """What logits are to be divided by; None: nothing.

    Raises:
        ConfigError: the task has no probabilities.
        ModelError: no temperature is kept for these weights.
    """
    if not settings.calibrated:
        return None
    if task.head.problem_type in (None, "regression"):
        raise ConfigError([Problem("", "--calibrated", "needs a task with probabilities")])
    return kept_temperature(settings.model, weights_fingerprint(base.source)).temperature


def column_names(task: Task, *, every_class: bool) -> list[str]:
    """Names of the columns to be written beside those of the rows.

    Raises:
        ConfigError: the task has no classes to give probabilities of.
    """
    if task.head.problem_type == "single_label_classification":
        classes = task.known_label_names if every_class else ()
        return ["prediction", "probability", *(f"probability_{name}" for name in classes)]
    if task.head.problem_type == "multi_label_classification":
        labels = task.known_label_names if every_class else ()
        return ["prediction", *(f"probability_{name}" for name in labels)]
    if every_class:
        message = f"only for classes or labels of texts and for choices, not for {task.task_type}"
        message += " of scores" if task.head.problem_type == "regression" else ""
        raise ConfigError([Problem("", "--probabilities", message)])
    return ["prediction"]


def _probabilities(task: Task, predictions: np.ndarray) -> list[list[float]]:
    """(1 + C, N) probability of the prediction, and of every class; (L, N) of several labels.

    Empty without classes.
    """
    if task.head.problem_type == "multi_label_classification":
        return expit(predictions).T.tolist()
    if task.head.problem_type != "single_label_classification":
        return []
    shares = softmax(predictions, axis=1)
    return [shares.max(axis=1).tolist(), *shares.T.tolist()]


def write_rows(
    to: Path, raw: Dataset, columns: Mapping[str, list[Any]], form: CsvForm | None = None
) -> None:
    """Write rows with further columns, atomically; the ending of the file is its format.

    In CSV, of the given form, lists are JSON, and texts that a spreadsheet would run begin with an
    apostrophe.

    Raises:
        OutputError: it cannot be written, or a value has no form in this format.
    """
    if to.suffix == ".parquet":
        for name, values in columns.items():
            raw = raw.add_column(name, values)
        with replacing(to) as partial, quiet():
            raw.to_parquet(str(partial))
    elif to.suffix == ".jsonl":
        rows = _rows(raw, columns)
        write_atomic(to, "".join(f"{_json(row, f'{to}: row {i}')}\n" for i, row in rows))
    else:
        cells = (
            [_cell(value, f"{to}: row {i}, column {name!r}") for name, value in row.items()]
            for i, row in _rows(raw, columns)
        )
        form = form or CsvForm()
        text = csv_text([*raw.column_names, *columns], cells, sep=form.sep)
        write_atomic(to, form.encoded(text, to))


def _rows(raw: Dataset, columns: Mapping[str, list[Any]]) -> Iterator[tuple[int, dict[str, Any]]]:
    nested = [name for name, feature in raw.features.items() if isinstance(feature, Json)]
    for index, row in enumerate(raw):
        read = {name: json.loads(row[name]) for name in nested if row[name] is not None}
        yield index, row | read | {name: values[index] for name, values in columns.items()}


def _cell(value: Any, where: str) -> Any:
    if value is None or isinstance(value, str | int | float):
        return value
    return value.isoformat() if isinstance(value, date | time) else _json(value, where)


def _json(value: Any, where: str) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, default=_plain)
    except (TypeError, ValueError) as error:
        message = f"{where} cannot be written: {error}; write a .parquet file"
        raise OutputError(message) from error


def _plain(value: Any) -> str:
    if isinstance(value, date | time):
        return value.isoformat()
    raise TypeError(f"a value is of type {type(value).__name__}")
