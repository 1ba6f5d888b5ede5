"""Fixtures: a tiny model with data, and study files about it."""

from pathlib import Path
from typing import Any

import pytest

from helpers.tiny_folder import tiny_bert, tiny_data
from smoothtune.report.curves import Curve, CurvePoint
from smoothtune.results import CellContent
from smoothtune.study.fields import ConditionKey
from smoothtune.study.report.methods import Run

COMMON = """
task: quality
text_columns: [text]
learning_rate: 1e-2
max_steps: 3
per_device_train_batch_size: 8
eval_strategy: "no"
logging_steps: 1
"""


@pytest.fixture(scope="session")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model and data for it."""
    folder = tmp_path_factory.mktemp("inputs")
    tiny_bert(folder / "model")
    tiny_data(folder / "data")
    return folder


@pytest.fixture
def write(inputs: Path, tmp_path: Path):
    """Writes a study file about the tiny model."""

    def write_file(text: str, name: str = "study.yaml", common: str = COMMON) -> Path:
        file = tmp_path / name
        place = f"data: {inputs / 'data'}\nmodel: {inputs / 'model'}\n"
        file.write_text(place + common + text, encoding="utf-8")
        return file

    return write_file


SPLIT = {"source_rows": 100, "labels": {}, "lengths": {}, "truncated": 0}


def made_result(accuracy: float) -> dict[str, Any]:
    """The content of a ``result.json``."""
    splits = {"train": {"rows": 100, **SPLIT}, "validation": {"rows": 50, **SPLIT}}
    return {
        **{"task": "quality", "task_type": "text-classification", "model": "model", "seed": 0},
        "methods": {"plain": {}},
        "headline": "accuracy",
        "metrics": {"accuracy": accuracy},
        "train_metrics": {"accuracy": 1.0},
        "trivial_baseline": 0.5,
        "generalization_gap": 1 - accuracy,
        "cost": {"steps": 3, "train_seconds": 1.0, "evaluation_seconds": 0.5},
        "data": {"max_seq_length": 16, "splits": splits},
        "versions": {},
        "log_history": [],
        "config": {},
    }


def finished(accuracy: float) -> CellContent:
    """What a finished cell records."""
    return content_of({"status": "done", "result": made_result(accuracy), "extras": {}})


def content_of(plain: dict[str, Any]) -> CellContent:
    """The content of a record from plain data."""
    return CellContent.parse(plain)


def made_curve(series: dict[str, Any], numbers: dict[str, float] | None = None) -> Curve:
    """A curve from the points of its lines."""
    lines = {name: [CurvePoint(*point) for point in points] for name, points in series.items()}
    return Curve("title", "x", "y", lines, numbers=numbers or {})


def made_runs(rows: list[dict[str, Any]]) -> list[Run]:
    """Runs from plain data; what is no field of `Run` is a measure."""
    return [_made_run(dict(row)) for row in rows]


def _made_run(row: dict[str, Any]) -> Run:
    condition = ConditionKey(
        row.pop("task"), row.pop("model", "m"), row.pop("max_train_samples", None)
    )
    fields = {name: row.pop(name) for name in list(row) if name in Run.__dataclass_fields__}
    fields = {"method": "plain", "seed": 0} | fields
    measures = {name: value for name, value in row.items() if value is not None}
    return Run(condition=condition, **fields, measures=measures)
