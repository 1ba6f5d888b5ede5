"""Predictions for new rows without labels, written beside what the rows hold."""

from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset
from rich.console import Console
from scipy.special import expit, softmax

from smoothtune.config.evaluation import Prediction
from smoothtune.config.task import configured_task
from smoothtune.console import Bar, quiet, say
from smoothtune.data.missing import RequiredColumns, left_out_message
from smoothtune.data.sources import load_rows
from smoothtune.errors import ConfigError, DataError, ModelError, Problem
from smoothtune.evaluation.calibration import CLASSES, LABELS, kind_of
from smoothtune.evaluation.calibration_file import CALIBRATION, stored_calibration
from smoothtune.evaluation.conformal import conformal_threshold, prediction_sets
from smoothtune.evaluation.predictor import load_predictor
from smoothtune.evaluation.rows_file import target_file, unusual_form, write_rows
from smoothtune.evaluation.settings import resolve_prediction, training_record
from smoothtune.models.load import Base, load_base, weights_fingerprint
from smoothtune.tasks.base import Task
from smoothtune.tasks.unlabeled import unlabeled_rows

SET = "prediction_set"


def predict(settings: Prediction, *, console: Console | None = None) -> int:
    """Predict the rows of a file, and write them with their predictions.

    Args:
        settings: what to predict, and where to.
        console: where to print.

    Returns:
        Number of rows.

    Raises:
        ConfigError: the settings are incomplete or wrong.
        ModelError: the model cannot be loaded, does not fit the task, or lacks what an evaluation
            is to have fitted.
        DataError: the rows cannot be read, or have a column of the name of one to be written.
        OutputError: the file exists, or cannot hold the rows.
    """
    console = console or Console()
    to = target_file(settings)
    record = training_record(settings.model)
    settings = resolve_prediction(settings, record)
    task = configured_task(settings)
    # the rows, and what is to be written of them
    required = RequiredColumns(task.rows.unlabeled_columns) if settings.drop_missing else None
    raw = load_rows(settings.data, required=required, sep=settings.sep, encoding=settings.encoding)
    base = load_base(settings.model, trust_remote_code=settings.trust_remote_code)
    task = task.with_model_labels(base.config, raw, settings.data)
    names = _column_names(task, settings)
    temperature, threshold = _fitted(settings, base, record)
    if existing := [name for name in names if name in raw.column_names]:
        raise DataError(f"{settings.data}: has a column {existing[0]!r} already; rename it")
    rows = _tokenized(settings, raw, task, base, console)
    # predict and write
    with Bar(console) as bar:
        predictor = load_predictor(base, task, batch_size=settings.batch_size, progress=bar)
        bar.part = "predict"
        bar.start("rows", predictor.num_batches(rows))
        with quiet():
            predictions = predictor.predict(rows)
    if temperature is not None:
        say(console, f"probabilities with a temperature of {temperature:.3f}")
    columns = {
        "prediction": task.scorer.answers(predictions, rows),
        **_probabilities(task, predictions / (temperature or 1)),
        SET: [] if threshold is None else _sets(task, predictions, rows, threshold),
    }
    sep, encoding = ",", "utf-8"
    if to.suffix == ".csv" and Path(settings.data).suffix.lower() == ".csv":
        sep, encoding = settings.sep or sep, settings.encoding or encoding
    write_rows(to, raw, {name: columns[name] for name in names}, sep=sep, encoding=encoding)
    if unusual := unusual_form(sep, encoding):
        say(console, f"{to} is {unusual}, as {settings.data} is")
    return len(raw)


def _tokenized(
    settings: Prediction, raw: Dataset, task: Task, base: Base, console: Console
) -> Dataset:
    """The model's inputs; what is particular about the rows is printed."""
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
    if message := left_out_message(raw):
        say(console, message)
    if longer := len(np.unique(np.asarray(rows["example_id"][:])[rows["cut"][:]])):
        say(console, f"{longer} rows are longer than {length} tokens: {task.rows.when_too_long}")
    return rows


def _column_names(task: Task, settings: Prediction) -> list[str]:
    """Names of the columns to be written beside those of the rows."""
    kind, problems = kind_of(task), []
    type_ = task.task_type + " of scores" * (kind is None)
    if settings.probabilities and kind not in (CLASSES, LABELS):
        message = f"only for classes or labels of texts and for choices, not for {type_}"
        problems.append(Problem("", "--probabilities", message))
    if settings.calibrated and kind not in (CLASSES, LABELS):
        problems.append(Problem("", "--calibrated", "needs a task with probabilities"))
    if settings.coverage is not None and kind is not CLASSES:
        message = f"only where a row has one of several classes or choices, not for {type_}"
        problems.append(Problem("", "--coverage", message))
    if problems:
        raise ConfigError(problems)
    every_class = task.known_label_names if settings.probabilities else ()
    return [
        "prediction",
        *["probability"] * (kind is CLASSES),
        *(f"probability_{name}" for name in every_class),
        *[SET] * (settings.coverage is not None),
    ]


def _fitted(
    settings: Prediction, base: Base, record: dict[str, Any]
) -> tuple[float | None, float | None]:
    """What divides the logits, and the threshold of the sets; None: not asked for."""
    if not settings.calibrated and settings.coverage is None:
        return None, None
    weights, options = weights_fingerprint(base.source), _of_evaluation(settings, record)
    calibration = stored_calibration(settings.model, weights, options)
    path, temperature = f"{settings.model}/{CALIBRATION}", calibration.temperature
    if settings.calibrated and temperature is None:
        rows = calibration.fitted_on
        raise ModelError(f"{path}: no temperature fits its {rows} rows; evaluate on more")
    threshold = None
    if settings.coverage is not None:
        try:
            threshold = conformal_threshold(calibration.conformal_scores, settings.coverage)
        except ValueError as error:
            raise ModelError(f"--coverage: {path}: {error}; evaluate on more rows") from error
    return temperature if settings.calibrated else None, threshold


def _of_evaluation(settings: Prediction, record: dict[str, Any]) -> list[str]:
    """Options that `evaluate` needs for this model: rows with labels, if no training names any."""
    if record.get("config", {}).get("task"):
        return []
    columns = [part for name in settings.text_columns or () for part in ("--text-column", name)]
    return ["--data", "labeled.csv", *(columns or ["--task", str(settings.task)])]


def _probabilities(task: Task, predictions: np.ndarray) -> dict[str, list[float]]:
    """Columns: the probability of the prediction, where there is one, and of every class."""
    kind = kind_of(task)
    if kind not in (CLASSES, LABELS):
        return {}
    shares = softmax(predictions, axis=1) if kind is CLASSES else expit(predictions)
    columns = {"probability": shares.max(axis=1).tolist()}
    each = zip(task.known_label_names, shares.T.tolist(), strict=True)
    return columns | {f"probability_{name}": values for name, values in each}


def _sets(task: Task, predictions: np.ndarray, rows: Dataset, threshold: float) -> list[list[Any]]:
    """The classes of every row's set, as they are written in `prediction`."""
    classes = task.scorer.answers(np.eye(predictions.shape[1]), rows)
    sets = prediction_sets(predictions, threshold)
    return [[classes[index] for index in np.flatnonzero(in_set)] for in_set in sets]
