"""Tiny models and data to evaluate."""

from pathlib import Path

import pytest
import torch
from datasets import Dataset
from rich.console import Console
from typer.testing import CliRunner

from helpers.linear_network import LinearNetwork
from helpers.study_files import inputs as inputs
from helpers.tiny_folder import tiny_bert, tiny_data
from smoothtune.cli import app
from smoothtune.config.run import load_config
from smoothtune.evaluation import Predictor
from smoothtune.models.load import load_base
from smoothtune.run.train import train
from smoothtune.tasks.presets import describe_task


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory) -> Path:
    """`model` (pre-trained), `data`, and `tuned`: trained until it is nearly right."""
    folder = tmp_path_factory.mktemp("evaluation")
    tiny_bert(folder / "model")
    tiny_data(folder / "data")
    options = {
        "task": "quality",
        "text_columns": ["text"],
        "data": str(folder / "data"),
        "model": str(folder / "model"),
        "output_dir": str(folder / "tuned"),
        "max_steps": 60,
        "learning_rate": 5e-3,
        "cost_steps": 0,
    }
    train(load_config(None, ["eval_strategy=no"], options), console=Console(quiet=True))
    return folder


@pytest.fixture(scope="session")
def everything(tiny_folder, tmp_path_factory) -> tuple[Path, str]:
    """The folder of an evaluation of all parts, and what it printed."""
    out = tmp_path_factory.mktemp("out") / "all"
    other = f"train rows={tiny_folder / 'data' / 'train.csv'}"
    options = ["--all", "--ood", other, "--num-resamples", "20", "--output-dir", str(out)]
    found = CliRunner().invoke(app, ["evaluate", str(tiny_folder / "tuned"), *options])
    assert found.exit_code == 0, found.output
    return out, found.stdout


@pytest.fixture(scope="session")
def tokenizer(tiny_folder):
    return load_base(str(tiny_folder / "model")).tokenizer


@pytest.fixture
def rows() -> Dataset:
    """Five examples of different lengths for two classes."""
    generator = torch.Generator().manual_seed(1)
    ids = [torch.randint(4, 14, (n,), generator=generator).tolist() for n in (3, 7, 5, 4, 6)]
    return Dataset.from_dict(
        {
            "input_ids": ids,
            "attention_mask": [[1] * len(row) for row in ids],
            "labels": [0, 1, 1, 0, 1],
            "length": [len(row) for row in ids],
            "example_id": list(range(5)),
        }
    )


@pytest.fixture
def linear_predictor(tokenizer):
    def make(weights, **options):
        task = describe_task(text_columns="text", label_names=("poor", "fine"))
        return Predictor(LinearNetwork(weights), tokenizer, task, **options)

    return make
