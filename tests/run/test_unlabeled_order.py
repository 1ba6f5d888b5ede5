"""Runs with unlabeled rows, beside those without."""

import os
from pathlib import Path

import pytest
from rich.console import Console

from smoothtune.config.run import RunConfig
from smoothtune.run.train import train


@pytest.mark.parametrize("sampling", ["random", "group_by_length"])
def test_until_its_term_comes_in_a_run_with_unlabeled_rows_is_plain(
    inputs: Path, tmp_path: Path, sampling: str
) -> None:
    def losses(name: str, **changes) -> list[float]:
        options = {
            **{"task": "quality", "data": str(inputs / "data"), "text_columns": ["text"]},
            **{"model": str(inputs / "model"), "output_dir": str(tmp_path / name)},
            **{"max_steps": 6, "logging_steps": 1, "cost_steps": 0, "learning_rate": 3e-2},
            **{"per_device_train_batch_size": 4, "train_sampling_strategy": sampling},
        }
        with open(os.devnull, "w") as nothing:
            result = train(RunConfig(**options | changes), console=Console(file=nothing))
        return [e["loss/task"] for e in result["log_history"] if "loss/task" in e]

    alone = losses("plain", methods={"plain": {}})
    waiting = {"lnsr": {"weight": 1.0, "ramp_start": 6}}
    both = losses("both", methods=waiting, unlabeled=str(inputs / "data"))
    assert len(set(alone)) == len(alone) == 6
    assert both == pytest.approx(alone, rel=1e-6)
