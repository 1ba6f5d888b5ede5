"""A run that reads few of many rows tokenizes those alone, and has the same batches and results."""

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from safetensors.torch import load_file
from torch import equal

from helpers.tiny_folder import tiny_data
from smoothtune.config.run import RunConfig
from smoothtune.data import lazy_tokenizing
from smoothtune.run.inputs import rows_read
from smoothtune.run.train import train


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_data(tmp_path_factory.mktemp("many") / "data", rows=600)


def results(given: dict[str, Any], folder: Path) -> tuple[dict[str, Any], str]:
    """What does not depend on time, and what is printed."""
    config = RunConfig(**given, output_dir=str(folder))
    with io.StringIO() as printed:
        result = train(config, console=Console(file=printed, width=200))
        text = printed.getvalue()
    splits = {k: {**v, "note": ""} for k, v in result["data"]["splits"].items()}
    log = [{k: v for k, v in row.items() if k == "loss"} for row in result["log_history"]]
    kept = ("metrics", "train_metrics", "fingerprints")
    return {"splits": splits, "log": log} | {key: result[key] for key in kept}, text


@pytest.mark.parametrize(
    "strategy", ["group_by_length", pytest.param("random", marks=pytest.mark.slow)]
)
def test_results_are_the_same(
    inputs: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, strategy: str
) -> None:
    given = {
        "model": str(inputs / "model"),
        "data": str(data),
        "text_columns": ["text"],
        "methods": {"r_drop": {}},
        "max_steps": 4,
        "logging_steps": 1,
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 2,
        "max_train_eval_samples": 20,
        "cost_steps": 1,
        "train_sampling_strategy": strategy,
    }
    expected, printed = results(given, tmp_path / "at_once")
    assert "tokenized when read" not in printed
    monkeypatch.setattr(lazy_tokenizing, "MIN_CACHED_ROWS", 100)
    found, printed = results(given, tmp_path / "when_read")
    assert "train: rows 600, tokenized when read; labels" in printed
    assert found == expected
    assert len(found["log"]) >= 4
    weights = (tmp_path / way / "model.safetensors" for way in ("at_once", "when_read"))
    first, second = map(load_file, weights)
    assert all(equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"max_steps": 3}, 3 * 8 * 4 + 10 * 8 + 50),
        ({}, None),
        ({"max_steps": 3, "max_train_eval_samples": None}, None),
        ({"max_steps": 3, "label_noise": 0.1}, None),
        ({"max_steps": 3, "methods": {"lnsr": {}}}, 3 * 8 * 4 + 10 * 8 + 50),
        ({"max_steps": 3, "methods": {"lnsr": {"noise": "in_manifold"}}}, None),
    ],
)
def test_rows_that_a_run_reads(options: dict[str, Any], expected: int | None) -> None:
    given = {
        "model": "model",
        "data": "data",
        "text_columns": ["text"],
        "output_dir": "out",
        "per_device_train_batch_size": 8,
        "gradient_accumulation_steps": 4,
        "max_train_eval_samples": 50,
        "cost_steps": 10,
    }
    assert rows_read(RunConfig(**given | options)) == expected
