"""Runs of `smoothtune train` that several processes share: those of one process, cut otherwise."""

import json
import os
import signal
from pathlib import Path
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from rich.console import Console
from safetensors.torch import load_file

from helpers.tiny_folder import tiny_bert, tiny_data
from smoothtune.config.run import RunConfig
from smoothtune.errors import Stopped
from smoothtune.run.callbacks import StopOnSignal
from smoothtune.run.train import train
from smoothtune.testing import fixed_draws

ROWS, EXAMPLES = 27, 8  # of an epoch, of an update: the last one has three
STOP_AT = 6  # within the second epoch
RESUMED = ("plain", "lnsr with a share")
SHARDED_RESUMED = ("lnsr", "adapters")
RUNS = {  # name -> what differs
    "plain": {"methods": {"plain": {}}},
    "random order": {"train_sampling_strategy": "random"},
    "class weights": {"class_weights": [1.0, 3.0]},
    "lnsr with a share": {"methods": {"lnsr": {"share": 0.5}}},
    "r3f with noise": {"methods": {"r3f": {"noise": "normal", "sigma": 0.1, "weight": 1.0}}},
    "cwgnc": {"methods": {"cwgnc": {"max_norm": 0.02}}},
    "mixout": {"methods": {"mixout": {}}},
    "l2_sp": {"methods": {"l2_sp": {"alpha": 1.0, "beta": 1.0, "weight": 1.0}}},
    "jacobian": {"methods": {"jacobian": {"estimator": "projected", "weight": 0.01}}},
    "unlabeled rows": {
        "methods": {"lnsr": {"weight": 1.0}},
        "unlabeled": True,
        # AdamW makes steps of this length of the rounding of gradients near 0
        "learning_rate": 3e-4,
    },
    "unlabeled updates": {
        "methods": {"lnsr": {"weight": 1.0}},
        "unlabeled": True,
        "alternate": "step",
        "learning_rate": 3e-4,
    },
    "best of all evaluations": {
        "load_best_model_at_end": True,
        "metric_for_best_model": "loss",
        "early_stopping_patience": 1,
        "num_train_epochs": 4.0,
    },
}

MEANS = {"loss", "grad_norm", "learning_rate", "eval_brier", "eval_nll", "eval_accuracy"}
SHARDED_RUNS = {  # those of FSDP2
    "plain": {"methods": {"plain": {}}},
    "lnsr": {"methods": {"lnsr": {"weight": 1.0}}, "learning_rate": 3e-4},  # as above
    "lnsr, its share": {"methods": {"lnsr": {"share": 0.5}}, "learning_rate": 3e-4},
    "pgd": {"methods": {"pgd": {"epsilon": 0.1}}},
    "class weights": {"class_weights": [1.0, 3.0]},
    "adapters": {
        "methods": {"r3f": {"noise": "normal", "sigma": 0.1, "weight": 1.0}},
        "lora": {"r": 2},
        "learning_rate": 2e-3,
    },
    "best of all evaluations": RUNS["best of all evaluations"],
}


def make_inputs(folder: Path) -> None:
    """A model folder and data whose last update is not full."""
    tiny_bert(folder / "model")
    tiny_data(folder / "data", ROWS)


def config_of(name: str, inputs: Path, folder: Path, *, processes: int, parts: int = 1):
    """A run with as many examples per update, whatever the number of processes and of parts."""
    changes = dict((RUNS | SHARDED_RUNS)[name])
    kinds = 1
    if changes.get("unlabeled"):
        changes["unlabeled"] = str(inputs / "data" / "validation.csv")
        kinds = 1 if "alternate" in changes else 2  # of batches in an update
    settings = {
        "task": "quality",
        "data": str(inputs / "data"),
        "text_columns": ["text"],
        "model": str(inputs / "model"),
        "output_dir": str(folder),
        "num_train_epochs": 2.0,
        "learning_rate": 1e-3,
        "cost_steps": 0,
        "logging_steps": 1,
        "per_device_train_batch_size": EXAMPLES // processes // parts,
        "gradient_accumulation_steps": parts * kinds,
        "per_device_eval_batch_size": 8,
        "max_train_eval_samples": 10,
    }
    return RunConfig(**settings | changes)


def train_fixed(config: RunConfig, **options) -> dict:
    """Train with draws that depend on the position alone, whatever the process."""
    with fixed_draws(), open(os.devnull, "w") as nothing:
        return train(config, console=Console(file=nothing), **options)


def train_until(step: int, config: RunConfig) -> None:
    """Train until a signal comes to the last process, in the middle of a step."""
    ended, last = StopOnSignal.on_step_end, not dist.is_initialized() or dist.get_rank()

    def signaled(self, args, state, *others, **named):
        if state.global_step == step and last:
            os.kill(os.getpid(), signal.SIGTERM)
        return ended(self, args, state, *others, **named)

    with (
        mock.patch.object(StopOnSignal, "on_step_end", signaled),
        pytest.raises(Stopped, match=f"after step {step} of"),
    ):
        train_fixed(config)


def result_of(folder: Path) -> dict:
    return json.loads((folder / "result.json").read_text())


def assert_same(expected: Path, found: Path) -> None:
    """Weights to 1e-6, and what was logged.

    The bias of keys does not change attention, so its gradient is 0 but for rounding, of which
    AdamW makes steps of full length.
    """
    pattern = "*model.safetensors"  # of a model or of adapters
    weights, others = (load_file(next(f.glob(pattern))) for f in (expected, found))
    assert weights.keys() == others.keys()
    for name, weight in weights.items():
        if not name.endswith("key.bias"):
            torch.testing.assert_close(others[name], weight, rtol=0, atol=1e-6, msg=name)
    first, second = result_of(expected), result_of(found)
    assert len(first["log_history"]) == len(second["log_history"])
    for entry, other in zip(first["log_history"], second["log_history"], strict=True):
        for name in MEANS & entry.keys():
            assert other[name] == pytest.approx(entry[name], abs=1e-6), (name, entry["step"])
    for scores in ("metrics", "train_metrics"):
        assert second[scores] == pytest.approx(first[scores], abs=1e-6)
