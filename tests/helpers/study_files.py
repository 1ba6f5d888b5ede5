"""Fixtures: a tiny model with data, and study files about it."""

from pathlib import Path
from typing import Any

import pytest

from helpers.tiny_folder import tiny_bert, tiny_data

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


def finished(accuracy: float) -> dict[str, Any]:
    """What a finished cell records, as far as reports read it."""
    result = {
        "headline": "accuracy",
        "metrics": {"accuracy": accuracy},
        "train_metrics": {"accuracy": 1.0},
        "trivial_baseline": 0.5,
        "generalization_gap": 1 - accuracy,
        "cost": {"steps": 3, "train_seconds": 1.0, "evaluation_seconds": 0.5},
        "versions": {},
        "log_history": [],
    }
    return {"status": "done", "result": result, "extras": {}}
