"""The folder of an evaluation: its files, and what may be added to them."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from smoothtune.config.evaluation import Settings, other_data_set
from smoothtune.errors import OutputError, changed_fields
from smoothtune.evaluation.subject import Subject
from smoothtune.files import read_json, refuse_other_files, write_atomic
from smoothtune.report.curves import csv_text
from smoothtune.results import AGAIN, Evaluation, Part, Scores

EVALUATION = "evaluation.json"
PREDICTIONS = "predictions.csv"
EXAMPLES = "examples.json"
PAGE, MARKDOWN = "evaluation.html", "evaluation.md"


def read_evaluation(folder: Path) -> dict[str, Any] | None:
    """The content of a folder's ``evaluation.json``; None without the file."""
    path = folder / EVALUATION
    content = read_json(path)
    if content is None:
        return None
    Evaluation.check(content, path, "evaluate")
    if metrics := content["parts"].get("metrics"):
        Scores.check(metrics["numbers"], path, "evaluate", "parts.metrics.numbers")
        if content["headline"] not in metrics["numbers"]["metrics"]:
            raise OutputError(f"{path}: headline: is no metric of it; {AGAIN}")
    return content


def stored_evaluation(folder: Path, settings: Settings) -> dict[str, Any] | None:
    """The evaluation that an owned folder holds already, if it can be continued."""
    content = read_evaluation(folder)
    if content is None:
        refuse_other_files(folder, "evaluation")
        return None
    if settings.overwrite_output_dir:
        _remove(folder, content)
        return None
    if not content["parts"]:
        return None  # it ended in its first part
    if changed := changed_fields(content["settings"], settings.identity()):
        raise OutputError(
            f"{folder} holds another evaluation ({changed}); choose another "
            "output_dir or replace it with --overwrite-output-dir"
        )
    return content


def _remove(folder: Path, content: dict[str, Any]) -> None:
    """Delete an evaluation that is to be replaced, and nothing else."""
    curves = [
        f"{part}_{name}" for part, result in content["parts"].items() for name in result["curves"]
    ]
    names = [f"{curve}{suffix}" for curve in curves for suffix in (".csv", ".svg")]
    for name in (EVALUATION, PREDICTIONS, EXAMPLES, PAGE, MARKDOWN, *names):
        (folder / Path(name).name).unlink(missing_ok=True)


def check_read_as(name: str, part: dict[str, Any], settings: Settings) -> None:
    """Refuse to keep numbers of another data set, or of one that was read otherwise."""
    data_set = other_data_set(name)
    if data_set is None or "read_as" not in part["numbers"]:
        return
    then = part["numbers"]["read_as"]
    if not isinstance(then, dict):
        raise OutputError(f"{name}: read_as in {EVALUATION} is damaged; evaluate the model again")
    if then != json.loads(json.dumps(then | asdict(settings.ood[data_set]))):
        raise OutputError(
            f"{name} was evaluated before with {then}: give this data set another name, or replace "
            "the evaluation with --overwrite-output-dir"
        )


def write_tables(folder: Path, part: str, result: Part) -> None:
    """Write a table for each curve of a part."""
    for name, curve in result.curves.items():
        write_atomic(folder / f"{part}_{name}.csv", curve.to_csv())


def write_predictions(folder: Path, subject: Subject) -> None:
    """Write a row for every validation example: its row in the source, and its statistics."""
    rows, task = subject.prepared.validation, subject.prepared.task
    statistics = task.scorer.example_statistics(subject.predictions, rows).tolist()
    ids = subject.prepared.source_rows[task.scorer.example_ids(rows)].tolist()
    lines = (
        [row, *(int(value) if value.is_integer() else value for value in values)]
        for row, values in zip(ids, statistics, strict=True)
    )
    text = csv_text(["example_id", *task.scorer.statistic_names()], lines)
    write_atomic(folder / PREDICTIONS, text)


def read_predictions(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """What ``predictions.csv`` holds: ids (E,), and the example statistics (E, K) of `Task`.

    For texts these are the label and the logits.
    """
    try:
        lines = (folder / PREDICTIONS).read_text(encoding="utf-8").splitlines()[1:]
        values = np.array([line.split(",") for line in lines], dtype=np.float64)
        if values.ndim != 2 or values.shape[1] < 2 or not np.isfinite(values).all():
            raise ValueError("a row or a column is missing, or a number is not finite")
    except (OSError, ValueError) as error:
        message = f"{folder / PREDICTIONS} cannot be read: {error}; evaluate the model again"
        raise OutputError(message) from error
    return values[:, 0].astype(int), values[:, 1:]
