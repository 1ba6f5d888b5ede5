"""Runs that scores in training decide on, class weights of a run, and the hub."""

import json
import os
from pathlib import Path

import huggingface_hub
import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file
from transformers import TrainerState

from smoothtune.config.run import RunConfig, load_config
from smoothtune.errors import ConfigError, OutputError
from smoothtune.run import train as train_module
from smoothtune.run.callbacks import EarlyStopping
from smoothtune.run.train import train


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


def quiet_train(config: RunConfig, **options) -> dict:
    with open(os.devnull, "w") as nothing:
        return train(config, console=Console(file=nothing), **options)


def scores_of(result: dict, name: str) -> list[float]:
    """Scores of the evaluations in training, which the log of a run holds."""
    return [entry[name] for entry in result["log_history"] if name in entry]


@pytest.mark.parametrize("method", ["mixout", pytest.param("plain", marks=pytest.mark.slow)])
def test_the_best_checkpoint_is_what_is_left(settings: dict, method: str) -> None:
    best = {"load_best_model_at_end": True, "metric_for_best_model": "nll"}
    result = quiet_train(RunConfig(**settings | best | {"methods": {method: {}}}))
    scores = scores_of(result, "eval_nll")
    assert scores.index(min(scores)) < len(scores) - 1, "the last is the best: nothing is tested"
    assert result["metrics"]["nll"] == pytest.approx(min(scores), rel=1e-6)
    assert result["best"]["value"] == min(scores)
    assert result["kept_step"] == 2 * (1 + scores.index(min(scores)))
    last = quiet_train(
        RunConfig(
            **settings | {"output_dir": settings["output_dir"] + "2", "methods": {method: {}}}
        )
    )
    assert last["metrics"]["nll"] == pytest.approx(scores[-1], rel=1e-6)
    folder = Path(settings["output_dir"])
    assert not (folder / "checkpoints").exists()
    assert json.loads((folder / "result.json").read_text())["best"] == result["best"]
    assert "optimistic" in (folder / "README.md").read_text()


def test_early_stopping(settings: dict) -> None:
    early = {"early_stopping_patience": 2, "metric_for_best_model": "nll"}
    result = quiet_train(RunConfig(**settings | {"max_steps": 40}, **early))
    scores = scores_of(result, "eval_nll")[: result["cost"]["steps"] // 2]
    assert result["cost"]["steps"] < 40
    assert result["best"]["stopped_early"]
    assert result["kept_step"] == result["cost"]["steps"]
    assert min(scores[-2:]) >= min(scores[:-2])  # two evaluations without a better one, and
    for end in range(2, len(scores)):  # no two before them
        assert min(scores[max(0, end - 2) : end]) < min([*scores[: max(0, end - 2)], 1e9])


def test_a_stopped_run_is_resumed_where_it_would_stop(settings: dict, monkeypatch) -> None:
    early = {"early_stopping_patience": 2, "metric_for_best_model": "nll"}
    early |= {"load_best_model_at_end": True}
    config = RunConfig(**settings | {"max_steps": 40}, **early)
    expected = quiet_train(config)

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    again = config.model_copy(update={"output_dir": settings["output_dir"] + "-again"})
    with monkeypatch.context() as patch:
        patch.setattr(train_module, "final_evaluation", killed)
        with pytest.raises(KeyboardInterrupt):
            quiet_train(again)
    resumed = quiet_train(again, resume=True)
    assert resumed["cost"]["steps"] == expected["cost"]["steps"]
    assert resumed["metrics"] == expected["metrics"]
    assert resumed["best"] == expected["best"]
    first, second = (load_file(Path(c.output_dir) / "model.safetensors") for c in (config, again))
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize(
    ("scores", "threshold", "stops"),
    [
        ([0.5, 0.6, 0.6, 0.6], 0.0, True),
        ([0.5, 0.6, 0.6, 0.7], 0.0, False),
        ([0.5, 0.6, 0.65, 0.68], 0.1, True),
        ([0.5], 0.0, False),
    ],
)
def test_patience_of_two(scores: list[float], threshold: float, stops: bool) -> None:
    stopping = EarlyStopping("eval_f1", greater_is_better=True, patience=2, threshold=threshold)
    log = [{"loss": 1.0}, *({"eval_f1": score} for score in scores)]
    assert stopping.stopped(log) is stops
    lower = EarlyStopping("eval_f1", greater_is_better=False, patience=2, threshold=threshold)
    assert lower.stopped([{"eval_f1": -score} for score in scores]) is stops
    assert TrainerState().log_history == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"load_best_model_at_end": True, "eval_strategy": "no"}, "needs evaluations in training"),
        (
            {"load_best_model_at_end": True, "save_strategy": "epoch"},
            "must be steps with load_",
        ),
        ({"load_best_model_at_end": True, "lora": {"r": 2}}, "is not verified with lora"),
        ({"metric_for_best_model": "f1"}, "needs load_best_model_at_end or early_stopping"),
        ({"hub_model_id": "me/it"}, "needs push_to_hub"),
    ],
)
def test_fields_that_do_not_fit(settings: dict, changes: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config(options=settings | changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"early_stopping_patience": 1, "metric_for_best_model": "f2"},
            "'f2' is no score of this run; they are accuracy, f1, brier, nll, loss",
        ),
        ({"report_to": ["wandb", "nowhere"]}, "report_to: 'wandb' is not installed"),
        ({"class_weights": [1.0]}, "are 1, but the classes are 2: fine, poor"),
        ({"class_weights": "balanced", "methods": {"label_smoothing": {}}}, "label_smoothing"),
    ],
)
def test_what_the_data_and_the_machine_do_not_have(
    settings: dict, changes: dict, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        quiet_train(RunConfig(**settings | changes))


def test_balanced_class_weights(settings: dict, inputs: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    lines = (inputs / "data" / "train.csv").read_text().splitlines()
    kept = [lines[0], *[line for line in lines if line.endswith("fine")][:9]]
    kept += [line for line in lines if line.endswith("poor")][:3]
    (data / "train.csv").write_text("\n".join([*kept, ""]))
    (data / "validation.csv").write_text("\n".join([*lines, ""]))
    changes = {"data": str(data), "class_weights": "balanced", "max_steps": 2}
    result = quiet_train(RunConfig(**settings | changes))
    assert result["class_weights"] == {"fine": 12 / (2 * 9), "poor": 12 / (2 * 3)}
    assert result["config"]["class_weights"] == "balanced"
    named = settings | changes | {"class_weights": [2 / 3, 2.0]}
    listed = quiet_train(RunConfig(**named | {"output_dir": str(tmp_path / "listed")}))
    assert listed["metrics"] == result["metrics"]
    unweighted = {k: v for k, v in named.items() if k != "class_weights"}
    other = quiet_train(RunConfig(**unweighted | {"output_dir": str(tmp_path / "unweighted")}))
    assert other["metrics"]["nll"] != result["metrics"]["nll"]
    assert (
        load_config(options=settings | {"class_weights": ["balanced"]}).class_weights == "balanced"
    )
    assert load_config(options=settings | {"class_weights": ["1", "2"]}).class_weights == [1.0, 2.0]


def test_the_finished_folder_is_uploaded(settings: dict, monkeypatch) -> None:
    calls = []
    monkeypatch.setattr(
        huggingface_hub,
        "create_repo",
        lambda name, **options: calls.append(options) or huggingface_hub.RepoUrl(f"me/{name}"),
    )

    def upload(**options: object) -> None:
        raise OSError("no network")

    monkeypatch.setattr(huggingface_hub, "upload_folder", upload)
    config = RunConfig(**settings | {"max_steps": 1}, push_to_hub=True, hub_private_repo=True)
    with pytest.raises(OutputError, match="is complete, but could not be uploaded to out: no netw"):
        quiet_train(config)
    monkeypatch.setattr(huggingface_hub, "upload_folder", lambda **options: calls.append(options))
    result = quiet_train(config)
    assert calls[0] == {"private": True, "exist_ok": True}
    assert calls[-1]["repo_id"] == "me/out"
    uploaded = calls[-1]["allow_patterns"]
    assert {"model.safetensors", "README.md", "result.json"} <= set(uploaded)
    assert set(uploaded) == {*result["files"], "result.json"}
