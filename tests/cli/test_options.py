"""Options made from the fields of settings."""

import re
from typing import get_args

import pytest
from pydantic import BaseModel
from typer.testing import CliRunner

from smoothtune.cli import COMMANDS, MAIN_OPTIONS, _with_dashes, app
from smoothtune.cli.evaluate import Options
from smoothtune.config.evaluation import PartName, Prediction
from smoothtune.config.fields import Panel, without_none
from smoothtune.config.run import RunConfig
from smoothtune.config.tuning import TuneSettings, load_tune
from smoothtune.errors import ConfigError

SETTINGS = [("train", RunConfig), ("evaluate", Options), ("predict", Prediction)]
NAMED_OTHERWISE = {"methods": "method", "parts": "all", "model": "model"}


def help_of(command: str) -> str:
    option = "--help-all" if command in MAIN_OPTIONS else "--help"
    found = CliRunner().invoke(app, [command, option], env={"COLUMNS": "200", "TERM": "dumb"})
    assert found.exit_code == 0
    return found.stdout


@pytest.mark.parametrize(("command", "settings"), SETTINGS)
def test_every_field_is_an_option_in_its_panel(command: str, settings: type[BaseModel]) -> None:
    text = help_of(command)
    panels = dict(re.findall(r"^(\S.*):\n((?:  .*\n)+)", text, re.M))
    for name, field in settings.model_fields.items():
        assert field.description, name
        (panel,) = [each.title for each in field.metadata if isinstance(each, Panel)]
        if (command, name) in {
            (command, "model"),
            ("evaluate", "ensemble"),
            ("evaluate", "data_seed"),
        } - {("train", "model")}:
            continue  # arguments, and a field that only the training run knows
        flag = "--" + NAMED_OTHERWISE.get(name, name).replace("_", "-")
        assert re.search(rf"{flag}\b", panels[panel]), name


def test_defaults_and_choices_are_shown() -> None:
    text = " ".join(help_of("train").split())
    # Types are written <int> or INTEGER, by the version of typer.
    assert re.search(r"--max-seq-length \S+ [^-]*\[default: 128\]", text)
    assert re.search(r"--weight-decay \S+ [^-]*\[default: 0.0\]", text)
    assert "One of no, steps, epoch. [default: epoch]" in text
    assert re.search(r"--text-column, ?--text-columns \S+ ", text)
    assert "`" not in text


def test_numbers_are_shown_as_one_types_them() -> None:
    text = " ".join(help_of("tune").split())
    assert re.search(r"--learning-rates NUMBER,\.\.\. [^-]*\[default: 1e-05,0\.0005\]", text)
    assert re.search(r"--epochs NUMBER,\.\.\. [^-]*\[default: 2,4,8\]", text)
    typed = load_tune(options={"task": "sst2", "output_dir": "unset", "epochs": "2,4,8"})
    assert typed.settings.epochs == TuneSettings().epochs


@pytest.mark.parametrize(
    ("file", "options", "value"),
    [
        ("", ["--no-bias-correction"], False),
        ("bias_correction: false\n", [], False),
        ("bias_correction: false\n", ["--bias-correction"], True),
        ("bias_correction: false\n", ["--no-bias_correction", "--bias-correction"], True),
    ],
)
def test_booleans_are_turned_off_and_on(monkeypatch, tmp_path, file, options, value) -> None:
    given = {}
    monkeypatch.setattr("smoothtune.cli.train.load_auto", lambda *_: None)
    monkeypatch.setattr("smoothtune.run.train.train", lambda run, **_: given.update(run=run))
    (tmp_path / "run.yaml").write_text(f"task: rte\noutput_dir: out\n{file}")
    command = ["train", str(tmp_path / "run.yaml"), *map(_with_dashes, options)]
    found = CliRunner().invoke(app, command)
    assert found.exit_code == 0, found.output
    assert given["run"].bias_correction is value


@pytest.mark.parametrize(("command", "settings"), SETTINGS)
def test_every_boolean_has_both_options(command: str, settings: type[BaseModel]) -> None:
    text = help_of(command)
    for name, field in settings.model_fields.items():
        if without_none(field.annotation) is bool:
            flag = name.replace("_", "-")
            assert f"--{flag} / --no-{flag}" in text


def test_the_list_of_commands_shows_whole_sentences() -> None:
    listed = "".join(CliRunner().invoke(app, ["--help"]).stdout.split())
    for name, (_, sentence) in COMMANDS.items():
        assert name + sentence.replace(" ", "") in listed
        assert sentence.replace(" ", "") in "".join(help_of(name).split())


def test_unknown_commands_are_named() -> None:
    found = CliRunner().invoke(app, ["trian"])
    assert found.exit_code == 2
    assert "Did you mean 'train'?" in found.output


def test_what_is_not_named_does_not_replace_the_file(tmp_path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("task: rte\noutput_dir: out\nbf16: 3\nmax_steps: 1.5\nseed: -1\n")
    found = CliRunner().invoke(app, ["train", "--config", str(file), "--seed", "-2"])
    assert found.exit_code == 2
    assert [line.split(": ")[:2] for line in found.stderr.splitlines()] == [
        ["error", "--seed"],
        [f"{file}:3", "bf16"],
        [f"{file}:4", "max_steps"],
    ]


def test_all_parts_but_one(monkeypatch) -> None:
    given = {}

    def load_settings(_, options, *more):
        given.update(options)
        raise ConfigError([])

    monkeypatch.setattr("smoothtune.cli.evaluate.load_settings", load_settings)
    CliRunner().invoke(app, ["evaluate", "model", "--all", "--no-drift"])
    assert set(given["parts"]) == {*get_args(PartName)} - {"drift"}
