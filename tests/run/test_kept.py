"""Which step's weights a run keeps: recorded, told, and never those that the method has not met."""

from io import StringIO
from pathlib import Path

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file

from smoothtune.config.run import RunConfig
from smoothtune.run import train as train_module
from smoothtune.run.train import train
from smoothtune.run.trainer import RunTrainer


@pytest.fixture
def settings(inputs: Path, tmp_path: Path) -> dict:
    return {
        "task": "quality",
        "data": str(inputs / "data"),
        "text_columns": ["text"],
        "model": str(inputs / "model"),
        "output_dir": str(tmp_path / "out"),
        "max_steps": 12,
        "eval_strategy": "steps",
        "eval_steps": 2,
        "cost_steps": 0,
        "learning_rate": 3e-2,
        "lr_scheduler_type": "constant",
        "seed": 7,
        "methods": {"plain": {}},
    }


def told_train(config: RunConfig, **options) -> tuple[dict, str]:
    output = StringIO()
    return train(config, console=Console(file=output, width=1000), **options), output.getvalue()


def train_quietly(config: RunConfig, **options) -> dict:
    return told_train(config, **options)[0]


def scores_of(result: dict, name: str) -> list[float]:
    """Scores of the evaluations in training, which the log of a run holds."""
    return [entry[name] for entry in result["log_history"] if name in entry]


@pytest.mark.parametrize("save", ["no", "steps"])
def test_a_kill_after_the_best_is_loaded_loses_no_step(
    settings: dict, inputs: Path, monkeypatch, save: str
) -> None:
    best = {"load_best_model_at_end": True, "metric_for_best_model": "nll", "save_strategy": save}
    config = RunConfig(**settings | best)

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(train_module, "keep_training", killed)
        with pytest.raises(KeyboardInterrupt):
            train_quietly(config)

    def trains(*_: object, **__: object) -> None:
        raise AssertionError

    with monkeypatch.context() as patch:
        patch.setattr(RunTrainer, "training_step", trains)
        result = train_quietly(config, resume=True)
    assert result["cost"]["resumed_from_step"] == 12
    again = str(inputs / "whole")  # which the other one has made, or makes now
    whole = train_quietly(config.model_copy(update={"output_dir": again, "save_strategy": "no"}))
    assert result["kept_step"] == whole["kept_step"] < 12
    first, second = (load_file(Path(o) / "model.safetensors") for o in (config.output_dir, again))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_a_model_that_the_method_has_not_touched_is_not_the_best(settings: dict) -> None:
    """The score is best at step 2, or so it seems; the term comes in after 6 updates."""
    waits = {"methods": {"l2_sp": {"weight": 0.01, "ramp_start": 6}}}
    best = {"load_best_model_at_end": True, "metric_for_best_model": "nll"}
    result, told = told_train(RunConfig(**settings | best | waits))
    scores = scores_of(result, "eval_nll")
    assert scores.index(min(scores)) < 3, "the best is after the term came in: nothing is tested"
    assert result["best"]["value"] == min(scores[3:])
    assert result["kept_step"] == 2 * (4 + scores[3:].index(min(scores[3:])))
    assert result["metrics"]["nll"] == pytest.approx(min(scores[3:]), rel=1e-6)
    assert f"kept: the weights of step {result['kept_step']} of 12, the best by nll (" in told


def test_patience_is_counted_from_when_the_term_is_in(settings: dict) -> None:
    early = {"early_stopping_patience": 1, "metric_for_best_model": "nll", "max_steps": 20}
    early |= {"load_best_model_at_end": True}
    plain = train_quietly(RunConfig(**settings | early))
    waits = {"methods": {"l2_sp": {"weight": 0.01, "ramp_start": 0.6}}}  # 12 updates
    out = {"output_dir": settings["output_dir"] + "-waits"}
    result = train_quietly(RunConfig(**settings | early | waits | out))
    assert plain["cost"]["steps"] < 12 < 14 <= result["cost"]["steps"]
    assert result["kept_step"] >= 14


def test_no_evaluation_after_the_term_came_in_keeps_the_last(settings: dict) -> None:
    waits = {"methods": {"l2_sp": {"ramp_start": 11}}, "eval_steps": 4, "max_steps": 11}
    best = {"load_best_model_at_end": True, "metric_for_best_model": "nll"}
    result, told = told_train(RunConfig(**settings | best | waits))
    assert (result["kept_step"], result["best"]["value"]) == (11, None)
    assert "kept: the weights of step 11 of 11; no evaluation came after every method's" in told
