import json
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner, Result

import smoothtune
from smoothtune import METHODS
from smoothtune.cli import _with_dashes, app
from smoothtune.cli.output import show_method
from smoothtune.core.regularizer import Penalty
from smoothtune.methods.describe import describe

MAIN = [sys.executable, "-m", "smoothtune"]


def call(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture
def arguments(inputs: Path, tmp_path: Path) -> list[object]:
    return [
        "train",
        *("--task", "quality", "--text-column", "text"),
        *("--data", inputs / "data", "--model", inputs / "model"),
        *("--output-dir", tmp_path / "out", "--set", "cost_steps=0"),
    ]


def result_of(folder: Path) -> dict:
    return json.loads((folder / "result.json").read_text())


def test_underscores_are_dashes() -> None:
    assert _with_dashes("--max_train_samples=a_b") == "--max-train-samples=a_b"
    assert _with_dashes("--learning_rate") == "--learning-rate"
    assert _with_dashes("methods.l2_sp.alpha=1") == "methods.l2_sp.alpha=1"


def test_version() -> None:
    found = call("--version")
    assert (found.exit_code, found.stdout) == (0, "smoothtune 0.1.0\n")


def test_help_shows_whole_option_names() -> None:
    assert "--per-device-train-batch-size" in call("train", "--help").stdout


def test_list_of_methods() -> None:
    lines = call("methods").stdout.splitlines()
    names = [line.split()[0] for line in lines if re.match(r"  \S", line)]
    assert sorted(names) == sorted(METHODS)
    listed = json.loads(call("methods", "--json").stdout)
    assert [method["name"] for method in listed["methods"]] == list(METHODS)


def test_one_method() -> None:
    text = call("methods", "l2_sp").stdout
    assert "Li, Grandvalet, Davoine" in text
    assert "alpha: number >= 0, default 0.01" in text
    assert "Departures:" in text
    method = json.loads(call("methods", "l2_sp", "--json").stdout)
    assert {field["name"] for field in method["fields"]} >= {"weight", "alpha", "beta"}


def test_a_method_without_a_paper_has_no_empty_sections(capsys) -> None:
    texts = dict.fromkeys(("title", "summary", "reference", "equation", "departures"), "")
    show_method(SimpleNamespace(name="mine", **texts, lowers=[], fields=[]))
    shown = capsys.readouterr().out
    assert "Is to lower: nothing that is measured" in shown
    assert not {"Reference:", "Equation:", "Departures:"} & set(shown.splitlines())


def test_unknown_method() -> None:
    found = call("methods", "lsnr")
    assert found.exit_code == 2
    assert "did you mean 'lnsr'?" in found.stderr


@pytest.mark.parametrize("name", METHODS)
def test_every_method_describes_itself(name: str) -> None:
    method = describe(name)
    assert method.title
    assert method.summary
    assert method.reference
    assert method.equation
    assert method.departures
    names = {field.name for field in method.fields}
    left_out = {"weight", "share"} if issubclass(METHODS[name], Penalty) else set()
    assert names == {*METHODS[name]().settings(), *left_out}  # settings hold one of them
    assert [field.name for field in method.fields if not field.description] == []


def test_validate(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.yaml", tmp_path / "bad.yaml"
    good.write_text("task: rte\noutput_dir: out\nmethods: [lnsr, mixout]\n")
    bad.write_text("task: rte\noutput_dir: out\nsede: 1\nseed: -1\n")
    fields = ("validate", "--fields-only")
    assert call(*fields, "--config", good).stdout == f"{good}: ok (rte, lnsr + mixout)\n"
    found = call(*fields, "--config", bad, good)
    assert found.exit_code == 2
    lines = found.stderr.splitlines()
    assert lines[0].startswith(f"{bad}:3: sede: unknown field 'sede'; did you mean 'seed'?")
    assert lines[1].startswith(f"{bad}:4: seed: ")
    assert call("validate").exit_code == 2


def test_train(arguments: list[object], tmp_path: Path) -> None:
    found = call(*arguments, "--method", "lnsr:weight=2", "--method", "l2_sp", "--max-steps", 2)
    assert found.exit_code == 0, found.output
    assert "lnsr+l2_sp step 2/2" in found.stdout
    assert f"{tmp_path / 'out'} is a model folder" in found.stdout
    result = result_of(tmp_path / "out")
    assert result["methods"]["lnsr"]["weight"] == 2
    assert result["cost"]["steps"] == 2


def test_train_from_a_file_with_options_on_top(arguments: list[object], tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("max_steps: 5\nlearning_rate: 1e-3\nmethods: {cwgnc: }\n")
    found = call(*arguments, "--config", file, "--max-steps", 1)
    assert found.exit_code == 0, found.output
    config = result_of(tmp_path / "out")["config"]
    assert (config["max_steps"], config["learning_rate"]) == (1, 1e-3)
    assert list(config["methods"]) == ["cwgnc"]


@pytest.mark.parametrize(
    ("more", "code", "message"),
    [
        (["--method", "lsnr"], 2, "error: --method: methods.lsnr: unknown method 'lsnr'"),
        (["--learning-rate", "0"], 2, "error: --learning-rate: must be greater than 0, not 0.0"),
        (["--model", "./none"], 2, "there is no model folder ./none"),
        (["--label-column", "stars"], 3, "has no column 'stars'"),
        (["--data", "./none.csv"], 3, "none.csv"),
        (["--learning-rate", "1e30"], 1, "is not finite in update 2"),
        (["--resume-from-checkpoint"], 2, "no complete checkpoint to resume from"),
    ],
)
def test_errors_and_exit_codes(
    arguments: list[object], more: list[str], code: int, message: str
) -> None:
    found = call(*arguments, *more)
    assert found.exit_code == code, found.output
    assert message in found.stderr
    assert "Traceback" not in found.output


@pytest.mark.slow
def test_process_stopped_by_a_signal(arguments: list[object], tmp_path: Path) -> None:
    options = ["--max_steps=100000", "--set", "logging_steps=1", "--set", "eval_strategy=no"]
    command = [*MAIN, *map(str, arguments), *options]
    source = Path(__file__).parents[2] / "src"
    environment = os.environ | {"PYTHONPATH": str(source), "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        for line in process.stdout:
            if "step 3/" in line:
                process.send_signal(signal.SIGTERM)
                break
        process.stdout.read()
        errors = process.stderr.read()
        assert process.wait(60) == 75, errors
    again = ["smoothtune", *command[len(MAIN) :], "--resume-from-checkpoint"]
    assert errors.splitlines()[-1] == shlex.join(again)
    assert list((tmp_path / "out" / "checkpoints").glob("checkpoint-*/model.safetensors"))


def test_help_waits_for_nothing_heavy() -> None:
    script = "import smoothtune.cli, sys; print({'torch', 'transformers'} & set(sys.modules))"
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert found.stdout.strip() == "set()", found.stderr


def test_all_that_is_named_can_be_imported() -> None:
    for name in smoothtune.__all__:
        assert getattr(smoothtune, name) is not None
        assert name in dir(smoothtune)
    classes = {type_.__name__ for type_ in smoothtune.METHODS.values()}
    assert classes <= set(smoothtune.__all__)
    with pytest.raises(AttributeError, match="no attribute 'LSNR'"):
        smoothtune.LSNR  # noqa: B018
