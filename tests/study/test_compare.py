"""`train --compare`: a study of one run's methods beside others."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from smoothtune.cli import app
from smoothtune.config.run import load_config
from smoothtune.errors import ConfigError, OutputError
from smoothtune.study.compare import comparison_study, write_comparison
from smoothtune.study.config import load_study


@pytest.fixture
def options(inputs: Path, tmp_path: Path) -> dict:
    return {
        "task": "quality",
        "text_columns": ["text"],
        "data": str(inputs / "data"),
        "model": str(inputs / "model"),
        "output_dir": str(tmp_path / "out"),
        "max_steps": 2,
        "learning_rate": 1e-2,
        "seed": 5,
    }


def test_the_file_describes_the_same_runs(options: dict, tmp_path: Path) -> None:
    run = load_config(options=options, methods=["lnsr:layer_weights=[1,2]", "l2_sp"])
    file = write_comparison(run, ["plain", "mixout:p=0.7"], 2)
    assert file == tmp_path / "out.study.yaml"
    assert "alternate" not in file.read_text()  # there are no unlabeled rows
    study = load_study(file)
    assert [entry.label for entry in study.entries] == ["plain", "mixout p=0.7", "lnsr+l2_sp"]
    assert study.config.seeds == [5, 6]
    found = {entry.label: study.runs[0, e, 0] for e, entry in enumerate(study.entries)}
    assert found["lnsr+l2_sp"].methods == run.methods
    assert found["mixout p=0.7"].methods["mixout"]["p"] == 0.7
    for each in found.values():
        assert (each.max_steps, each.learning_rate, each.seed) == (2, 1e-2, 5)
        assert (each.data, each.model, each.text_columns) == (run.data, run.model, ["text"])
    assert write_comparison(run, ["plain", "mixout:p=0.7"], 2) == file
    with pytest.raises(OutputError, match="holds another comparison"):
        write_comparison(run, ["plain"], 2)


def test_a_field_that_has_the_default_of_other_tasks_is_told(tmp_path: Path) -> None:
    options = {"task": "squad", "max_seq_length": 128, "output_dir": str(tmp_path / "out")}
    run = load_config(options=options, methods=["l2_sp"])
    assert comparison_study(run, [], 2)["max_seq_length"] == 128


def test_two_settings_of_one_method_are_told_apart(options: dict) -> None:
    run = load_config(options=options, methods=["lnsr:weight=2"])
    study = load_study(write_comparison(run, ["lnsr"], 1))
    labels = [entry.label for entry in study.entries]
    assert labels == ["plain", "lnsr", "lnsr of the run"]
    assert study.runs[0, 2, 0].methods["lnsr"]["weight"] == 2


def test_a_folder_that_cannot_be_made(options: dict, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    run = load_config(options=options | {"output_dir": str(tmp_path / "file" / "out")})
    with pytest.raises(OutputError, match="cannot be written"):
        write_comparison(run, ["lnsr"], 1)


def test_plain_alone_is_no_comparison(options: dict) -> None:
    with pytest.raises(ConfigError, match="compares plain with plain"):
        comparison_study(load_config(options=options), ["plain"], 3)


def typed(options: dict, *more: str) -> list[str]:
    arguments = ["train", "--text-column", "text", "--method", "l2_sp", *more]
    for name in ("task", "data", "model", "output_dir"):
        arguments += ["--" + name.replace("_", "-"), options[name]]
    return arguments


def test_a_mistyped_method_leaves_no_file(options: dict, tmp_path: Path) -> None:
    for more in ([], ["--dry-run"]):
        found = CliRunner().invoke(app, typed(options, "--compare", "lnsrr", *more))
        assert (found.exit_code, list(tmp_path.iterdir())) == (2, [])
        told = "--compare: methods.lnsrr: unknown method 'lnsrr'; did you mean 'lnsr'?"
        assert told in found.stderr


def test_a_dry_run_looks_at_data_and_model(options: dict, tmp_path: Path) -> None:
    compare = ["--compare", "lnsr", "--dry-run"]
    found = CliRunner().invoke(app, typed(options, *compare))
    assert found.exit_code == 0, found.output
    assert "methods" in json.loads(found.stdout)
    found = CliRunner().invoke(app, typed(options | {"data": "nowhere.csv"}, *compare))
    assert (found.exit_code, "no such file" in found.stderr) == (3, True)
    assert list(tmp_path.iterdir()) == []


def test_runs_at_once(options: dict, monkeypatch) -> None:
    given = {}

    def run_study(study, output_dir, **options):
        given.update(options)
        return {"failures": [], "rows": []}

    monkeypatch.setattr("smoothtune.study.run.run_study", run_study)
    arguments = typed(options, "--jobs", "1")
    found = CliRunner().invoke(app, [*arguments, "--compare", "plain"])
    assert found.exit_code == 0, found.output
    assert given["jobs"] == 1
    assert given["command"][-2:] == ["--jobs", "1"]
    assert "--jobs needs --compare" in CliRunner().invoke(app, arguments).stderr


@pytest.mark.slow
def test_train_compare(options: dict, tmp_path: Path) -> None:
    arguments = ["train", "--method", "l2_sp", "--compare", "plain", "--seeds", "2", "--json"]
    for name, value in options.items():
        flag = "--" + name.replace("_", "-").removesuffix("s" if name == "text_columns" else "")
        arguments += [flag, value[0] if isinstance(value, list) else str(value)]
    found = CliRunner().invoke(app, arguments)
    assert found.exit_code == 0, found.output
    content = json.loads(found.stdout)
    runs = [(row["method"], row["seed"]) for row in content["rows"]]
    assert sorted(runs) == [("l2_sp", 5), ("l2_sp", 6), ("plain", 5), ("plain", 6)]
    assert "l2_sp" in found.stderr
    assert (tmp_path / "out" / "report.html").exists()
    alone = CliRunner().invoke(
        app, ["train", "--seeds", "2", *arguments[arguments.index("--task") :]]
    )
    assert "--seeds needs --compare" in alone.stderr
