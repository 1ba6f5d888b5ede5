"""A run that is stopped: signals in every phase, no memory, full and read-only disks."""

import errno
import os
import resource
import shutil
import signal
import warnings
from io import StringIO
from pathlib import Path

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file

from smoothtune import errors
from smoothtune.config.run import RunConfig
from smoothtune.errors import OutOfMemory, OutputError, Stopped
from smoothtune.files import read_json
from smoothtune.run import output as output_module
from smoothtune.run import train as train_module
from smoothtune.run.callbacks import StopOnSignal
from smoothtune.run.output import newest_checkpoint
from smoothtune.run.train import train
from smoothtune.run.trainer import RunTrainer
from smoothtune.trainer import checkpoints


def config_in(inputs: Path, folder: Path, **changes) -> RunConfig:
    settings = {
        "task": "quality",
        "data": str(inputs / "data"),
        "text_columns": ["text"],
        "model": str(inputs / "model"),
        "methods": {"l2_sp": {}},
        "max_steps": 5,  # in the middle of an epoch
        "cost_steps": 0,
        "learning_rate": 1e-2,
        "seed": 7,
    }
    return RunConfig(**settings | {"output_dir": str(folder)} | changes)


def quiet_train(config: RunConfig, **options) -> dict:
    with open(os.devnull, "w") as nothing:
        return train(config, console=Console(file=nothing), **options)


@pytest.fixture(scope="module")
def whole(inputs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output folder of a run that nothing stops."""
    folder = tmp_path_factory.mktemp("whole") / "out"
    quiet_train(config_in(inputs, folder))
    return folder


@pytest.fixture(scope="module")
def expected(whole: Path) -> bytes:
    return weights(whole)


def weights(folder: Path) -> bytes:
    return (folder / "model.safetensors").read_bytes()


def losses(result: dict) -> list:
    found = [(e["step"], e.get("loss"), e.get("eval_loss")) for e in result["log_history"]]
    return [entry for entry in found if any(entry[1:])]


def signal_before(
    monkeypatch, owner, name: str, call: int = 1, number: int = signal.SIGTERM
) -> None:
    """Send a signal to this process at the n-th call of a function."""
    original, calls = getattr(owner, name), []

    def wrapped(*values, **named):
        calls.append(name)
        if len(calls) == call:
            os.kill(os.getpid(), number)
        return original(*values, **named)

    monkeypatch.setattr(owner, name, wrapped)


@pytest.mark.parametrize("phase", ["read_inputs", "build_trainer"])
def test_a_signal_while_loading_ends_at_once(inputs, tmp_path, monkeypatch, phase: str) -> None:
    with monkeypatch.context() as patch:
        signal_before(patch, train_module, phase)
        with pytest.raises(Stopped, match="before the first step; nothing is lost"):
            quiet_train(config_in(inputs, tmp_path / "out"))
    quiet_train(config_in(inputs, tmp_path / "out", max_steps=1))
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


@pytest.mark.parametrize(
    ("owner", "name", "call", "step", "changes"),
    [
        (StopOnSignal, "on_prediction_step", 1, 3, {}),  # the evaluation after an epoch
        (RunTrainer, "_save_rng_state", 1, 2, {"save_strategy": "steps", "save_steps": 2}),
        # the checkpoint of the epoch's last step, which comes before the evaluation
        (RunTrainer, "_save_rng_state", 1, 3, {"save_strategy": "steps", "save_steps": 3}),
        pytest.param(StopOnSignal, "on_step_end", 3, 3, {}, marks=pytest.mark.slow),
        (StopOnSignal, "on_step_end", 5, 5, {}),
        (train_module, "evaluate", 1, 5, {}),
        pytest.param(train_module, "evaluate", 2, 5, {}, marks=pytest.mark.slow),
    ],
    ids=[
        "evaluation",
        "saving",
        "end of epoch",
        "step before it",
        "last step",
        "final evaluation",
        "second evaluation",
    ],
)
def test_a_signal_leaves_a_checkpoint_and_the_same_run_in_the_end(
    inputs, tmp_path, expected, monkeypatch, owner, name: str, call: int, step: int, changes: dict
) -> None:
    config = config_in(inputs, tmp_path / "out", **changes)
    with monkeypatch.context() as patch:
        signal_before(patch, owner, name, call)
        with pytest.raises(Stopped, match=f"after step {step} of 5; .*--resume-from-checkpoint"):
            quiet_train(config)
    folder = newest_checkpoint(tmp_path / "out").folder
    assert folder is not None
    assert folder.name == f"checkpoint-{step}"
    assert quiet_train(config, resume=True)["cost"]["steps"] == 5
    assert weights(tmp_path / "out") == expected


def test_an_evaluation_that_was_cut_is_made_up_for(inputs, tmp_path, monkeypatch) -> None:
    """It was the best one; what the run keeps and logs is as if no signal had come."""
    best = {"load_best_model_at_end": True, "metric_for_best_model": "nll"}
    best |= {"eval_strategy": "steps", "eval_steps": 1, "learning_rate": 3e-2}
    whole = quiet_train(config_in(inputs, tmp_path / "whole", **best))
    step = whole["kept_step"]
    assert step < 5, "no step after the best: nothing is tested"
    config = config_in(inputs, tmp_path / "out", **best)
    with monkeypatch.context() as patch:
        signal_before(patch, StopOnSignal, "on_prediction_step", step)
        with pytest.raises(Stopped, match=f"after step {step} of 5"):
            quiet_train(config)
    resumed = quiet_train(config, resume=True)
    assert [resumed[key] for key in ("kept_step", "best")] == [step, whole["best"]]
    assert losses(resumed) == losses(whole)
    assert weights(tmp_path / "out") == weights(tmp_path / "whole")


@pytest.mark.parametrize(
    ("owner", "name", "call"),
    [
        (train_module, "evaluate", 1),
        (output_module, "publish", 1),
        pytest.param(train_module, "evaluate", 2, marks=pytest.mark.slow),
    ],
)
def test_a_kill_after_the_last_step_does_not_train_again(
    inputs, tmp_path, whole, monkeypatch, owner, name: str, call: int
) -> None:
    """With `save_strategy: no`, the default."""
    config = config_in(inputs, tmp_path / "out")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # threads, which the child does not use
        child = os.fork()
    if not child:
        signal_before(monkeypatch, owner, name, call, number=signal.SIGKILL)
        try:
            quiet_train(config)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    with pytest.raises(OutputError, match="stopped at checkpoint-5; go on with --resume"):
        quiet_train(config)

    def trains(*_, **__):
        raise AssertionError

    monkeypatch.setattr(RunTrainer, "training_step", trains)
    result, asked = quiet_train(config, resume=True), read_json(whole / "result.json")
    assert weights(tmp_path / "out") == weights(whole)
    for key in ("metrics", "train_metrics", "fingerprints"):
        assert result[key] == asked[key]
    assert losses(result) == losses(asked)
    assert not (tmp_path / "out" / "checkpoints").exists()


def test_a_disk_too_full_for_that_checkpoint_ends_no_run(
    inputs, tmp_path, expected, monkeypatch
) -> None:
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch, StringIO() as output:
        patch.setattr(checkpoints, "write_manifest", full)
        train(config_in(inputs, tmp_path / "out"), console=Console(file=output, width=1000))
        told = output.getvalue()
    assert "checkpoint-5 cannot be written: No space left on device" in told
    assert "the run goes on, but would train again if it were killed now" in told
    assert weights(tmp_path / "out") == expected


def test_a_signal_while_the_model_is_written_waits_for_its_end(
    inputs, tmp_path, expected, monkeypatch
) -> None:
    signal_before(monkeypatch, output_module, "publish")
    quiet_train(config_in(inputs, tmp_path / "out"))
    assert weights(tmp_path / "out") == expected


def test_a_second_signal_in_a_moment_is_the_first(inputs, tmp_path, expected, monkeypatch) -> None:
    config = config_in(inputs, tmp_path / "out")
    with monkeypatch.context() as patch:
        signal_before(patch, StopOnSignal, "on_step_end", 2, number=signal.SIGINT)
        signal_before(patch, RunTrainer, "_save_rng_state", number=signal.SIGINT)
        with pytest.raises(Stopped):
            quiet_train(config)
    quiet_train(config, resume=True)
    assert weights(tmp_path / "out") == expected


@pytest.mark.parametrize(
    "name",
    [
        "SIGHUP",
        "SIGUSR1",
        *(pytest.param(x, marks=pytest.mark.slow) for x in ("SIGUSR2", "SIGXCPU")),
    ],
)
def test_signals_of_terminals_and_batch_systems(
    inputs, tmp_path, expected, monkeypatch, name: str
) -> None:
    """Some of them come again every second."""
    number, config = getattr(signal, name), config_in(inputs, tmp_path / "out")
    monkeypatch.setattr(errors, "ONE_STOP_SECONDS", 0.0)
    previous = signal.signal(number, signal.SIG_DFL)  # of these tests, it may be ignored
    with monkeypatch.context() as patch:
        signal_before(patch, StopOnSignal, "on_step_end", 2, number=number)
        signal_before(patch, RunTrainer, "_save_rng_state", number=number)
        with pytest.raises(Stopped, match="after step 2 of 5"):
            quiet_train(config)
    assert signal.getsignal(number) is signal.SIG_DFL
    signal.signal(number, previous)
    quiet_train(config, resume=True)
    assert weights(tmp_path / "out") == expected


def test_a_signal_that_is_ignored_stays_so(inputs, tmp_path, expected, monkeypatch) -> None:
    """As after nohup."""
    previous = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        signal_before(monkeypatch, StopOnSignal, "on_step_end", 2, number=signal.SIGHUP)
        quiet_train(config_in(inputs, tmp_path / "out"))
    finally:
        signal.signal(signal.SIGHUP, previous)
    assert weights(tmp_path / "out") == expected


def test_a_second_signal_has_its_usual_effect(inputs, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(errors, "ONE_STOP_SECONDS", 0.0)
    signal_before(monkeypatch, StopOnSignal, "on_step_end", 2)
    signal_before(monkeypatch, RunTrainer, "_save_rng_state")
    ended = []
    previous = signal.signal(signal.SIGTERM, lambda *_: ended.append(True))
    try:
        with pytest.raises(Stopped):
            quiet_train(config_in(inputs, tmp_path / "out"))
    finally:
        signal.signal(signal.SIGTERM, previous)
    assert ended == [True]


def test_an_overwriting_run_goes_on_with_the_command_that_is_shown(
    inputs, tmp_path, expected, monkeypatch
) -> None:
    quiet_train(config_in(inputs, tmp_path / "out", seed=1, max_steps=1))
    config = config_in(inputs, tmp_path / "out", overwrite_output_dir=True)
    with monkeypatch.context() as patch:
        signal_before(patch, StopOnSignal, "on_step_end", 2)
        with pytest.raises(Stopped):
            quiet_train(config)
    quiet_train(config, resume=True)
    assert weights(tmp_path / "out") == expected


def test_changed_rows_are_not_resumed_with(inputs, tmp_path, monkeypatch) -> None:
    data = Path(shutil.copytree(inputs / "data", tmp_path / "data"))
    config = config_in(inputs, tmp_path / "out", data=str(data))
    with monkeypatch.context() as patch:
        signal_before(patch, StopOnSignal, "on_step_end", 2)
        with pytest.raises(Stopped):
            quiet_train(config)
    file = data / "train.csv"
    file.write_text(file.read_text().replace("film", "plot"))
    with pytest.raises(OutputError, match=r"written by a different run \(data '"):
        quiet_train(config, resume=True)


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried"),
        MemoryError(),
    ],
)
def test_out_of_memory_names_the_batch_size_and_what_to_try(
    inputs, tmp_path, monkeypatch, error: Exception
) -> None:
    def fails(*_, **__):
        raise error

    monkeypatch.setattr(RunTrainer, "training_step", fails)
    with pytest.raises(OutOfMemory) as told:
        quiet_train(config_in(inputs, tmp_path / "out"))
    assert "out of memory with per_device_train_batch_size 8" in str(told.value)
    assert "per_device_train_batch_size=4 with gradient_accumulation_steps=2" in str(told.value)


def test_a_full_disk_keeps_the_old_model_and_says_what_to_do(inputs, tmp_path, monkeypatch) -> None:
    config = config_in(inputs, tmp_path / "out", max_steps=1)
    quiet_train(config)
    before = weights(tmp_path / "out")
    original, limit = train_module.Trained.save, resource.getrlimit(resource.RLIMIT_FSIZE)

    def save_with_a_limit(*values):
        resource.setrlimit(resource.RLIMIT_FSIZE, (4_000, limit[1]))
        try:
            original(*values)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limit)

    monkeypatch.setattr(train_module.Trained, "save", save_with_a_limit)
    other = config.model_copy(update={"seed": 8, "overwrite_output_dir": True})
    with pytest.raises(OutputError, match=r"the model cannot be written to .*; make room"):
        quiet_train(other)
    assert weights(tmp_path / "out") == before
    assert not (tmp_path / "out" / ".unfinished").exists()
    assert load_file(tmp_path / "out" / "model.safetensors")
    assert quiet_train(config)["seed"] == 7  # the old run is still whole
