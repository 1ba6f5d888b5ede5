"""What a run does with several processes, as far as one process can show it."""

import inspect
import json
import os
import signal
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import typer
from rich.console import Console

from smoothtune.cli import processes as cli_processes
from smoothtune.cli import train as cli_train
from smoothtune.config.run import RunConfig
from smoothtune.errors import ConfigError, OutputError, Stopped
from smoothtune.run import output, processes, signals
from smoothtune.run import train as training
from smoothtune.run.processes import prepare_shards
from smoothtune.run.signals import Signals
from smoothtune.testing import tiny_model
from smoothtune.trainer.manifest import ResumePoint


def config(folder, **changes) -> RunConfig:
    return RunConfig(output_dir=str(folder), methods={"l2_sp": {}}, **changes)


@pytest.fixture
def stopped(tmp_path, monkeypatch):
    """The folder of a run of two processes with 4 rows each, stopped at a checkpoint."""
    folder = tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr(output, "world_size", lambda: 2)
        with output.claimed(config(folder, per_device_train_batch_size=4), resume=False):
            pass
    point = ResumePoint(folder / "checkpoint-3", [])
    monkeypatch.setattr(output, "newest_checkpoint", lambda _: point)
    return folder


def test_the_number_of_processes_is_recorded(stopped):
    assert json.loads((stopped / "run.json").read_text())["world_size"] == 2


def test_resumed_on_one_process_with_as_many_examples_per_update(stopped):
    output.refuse_folder(stopped, config(stopped, per_device_train_batch_size=8), resume=True)
    halves = config(stopped, per_device_train_batch_size=4, gradient_accumulation_steps=2)
    output.refuse_folder(stopped, halves, resume=True)
    with pytest.raises(OutputError, match=r"world_size 2, here 1.* its 8 examples per update"):
        output.refuse_folder(stopped, config(stopped, per_device_train_batch_size=4), resume=True)


def test_a_finished_run_of_two_processes_is_another_than_that_of_one(tmp_path):
    one = config(tmp_path)
    record = {"config": one.model_dump(mode="json"), "method_versions": one.method_versions()}
    (tmp_path / "result.json").write_text(json.dumps(record))  # from before there were several
    assert output.finished_result(one) is not None
    (tmp_path / "result.json").write_text(json.dumps(record | {"world_size": 2}))
    assert output.finished_result(one) is None


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ({"WORLD_SIZE": "2"}, "WORLD_SIZE is 2, but RANK and LOCAL_RANK and MASTER_ADDR and"),
        ({"WORLD_SIZE": "two"}, "WORLD_SIZE is 'two', no whole number"),
        ({"LOCAL_RANK": "abc"}, "LOCAL_RANK is 'abc', no whole number"),
        ({"RANK": ""}, "RANK is '', no whole number"),
    ],
)
def test_an_environment_that_speaks_of_other_processes(tmp_path, monkeypatch, said, told):
    for name, value in said.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=f"{told}.*start several processes with torchrun, or un"):
        training.train(config(tmp_path))


@pytest.mark.parametrize("said", [{}, {"WORLD_SIZE": "1", "RANK": "0"}, {"LOCAL_RANK": "-1"}])
def test_an_environment_of_one_process(monkeypatch, said):
    for name, value in said.items():
        monkeypatch.setenv(name, value)
    processes.check_environment()


def test_only_the_main_process_prints(monkeypatch, capsys):
    monkeypatch.setattr(processes, "is_main", lambda: False)
    processes.console_of_main(None).print("x")
    processes.console_of_main(Console()).print("x")
    assert capsys.readouterr().out == ""
    monkeypatch.setattr(processes, "is_main", lambda: True)
    processes.console_of_main(None).print("x")
    assert capsys.readouterr().out == "x\n"


def test_a_signal_that_the_launcher_sends_again_has_no_effect(monkeypatch):
    monkeypatch.setattr(signals, "world_size", lambda: 2)
    monkeypatch.setattr(signals, "in_any", lambda here: here)
    with Signals() as found:
        assert not found.agree()
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)
        assert found.agree()
        assert found.received == signal.SIGINT
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_signal_of_another_process_stops_this_one(monkeypatch):
    monkeypatch.setattr(signals, "in_any", lambda here: True)
    with Signals() as found:
        assert found.agree()
        assert found.received is None
        monkeypatch.setattr(signals, "in_any", lambda here: False)
        assert found.agree()  # once agreed, nobody asks again


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"compare": ["plain"]}, "--compare runs in one process"),
        ({"dry_run": True}, "--dry-run runs in one process"),
        ({"method": ["auto"]}, "--method auto searches in one process"),
    ],
)
def test_what_needs_one_process_says_so(options, message, monkeypatch, tmp_path):
    monkeypatch.setattr(cli_train, "several", lambda: True)
    monkeypatch.setattr(cli_train, "errors_of_all", nullcontext)
    given = dict.fromkeys(inspect.signature(cli_train.train).parameters)
    given |= {"output_dir": str(tmp_path), "task": "rte", "as_json": False} | options
    with pytest.raises(ConfigError, match=message):
        cli_train.train(**given)


def with_plugin(names):
    plugin = SimpleNamespace(transformer_cls_names_to_wrap=names)
    accelerator = SimpleNamespace(state=SimpleNamespace(fsdp_plugin=plugin))
    return SimpleNamespace(accelerator=accelerator)


@pytest.mark.parametrize("named", [["BertEncoder"], None])
def test_blocks_are_the_units_of_shards_unless_others_are_named(named):
    trainer = with_plugin(named)
    prepare_shards(trainer, tiny_model("bert"), SimpleNamespace(merge_adapter=False))
    plugin = trainer.accelerator.state.fsdp_plugin
    assert plugin.transformer_cls_names_to_wrap == (named or ["BertLayer"])


def test_adapters_are_not_merged_into_shards():
    with pytest.raises(ConfigError, match="merge_adapter: no process has the whole weights"):
        prepare_shards(with_plugin(None), tiny_model("bert"), SimpleNamespace(merge_adapter=True))


@pytest.mark.parametrize(
    ("error", "first", "code", "told"),
    [
        (OutputError("full"), True, 2, "error: full\n"),
        (OutputError("full"), False, 1, ""),
        (Stopped("after step 3; --resume-from-checkpoint"), True, 75, "error: after step 3; "),
        (Stopped("after step 3"), False, 75, ""),
        (RuntimeError("[gloo] Connection closed by peer"), True, 1, "error: another process"),
        (RuntimeError("[gloo] Connection closed by peer"), False, 1, ""),
        (typer.Exit(3), True, 3, ""),
        (SystemExit(75), True, 75, ""),
        (KeyError("x"), True, 1, "KeyError: 'x'"),
    ],
)
def test_of_several_processes_the_first_that_fails_tells(
    error, first, code, told, monkeypatch, capsys
):
    ended = []

    def leave(number):
        ended.append(number)
        raise KeyboardInterrupt  # this process goes on

    monkeypatch.setattr(cli_processes, "several", lambda: True)
    monkeypatch.setattr(cli_processes, "_leave", leave)
    monkeypatch.setattr(processes, "join_processes", lambda: None)
    monkeypatch.setattr(processes, "is_first_to_fail", lambda: first)
    monkeypatch.setenv("TORCH_CPP_LOG_LEVEL", "ERROR")
    with pytest.raises(KeyboardInterrupt), cli_processes.errors_of_all():
        raise error
    assert ended[0] == code
    shown = capsys.readouterr().err
    assert told in shown
    assert shown.count("error: ") == told.count("error: ")
