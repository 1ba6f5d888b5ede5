"""The command line of studies."""

import json
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from smoothtune.cli import app
from smoothtune.cli.output import DATA, FAILED, USAGE
from smoothtune.cli.study import StudyOptions

LAST = "more_epochs: null\nseeds: [0]\n"
SMALL = f"methods: [plain]\n{LAST}"


def study(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["study", *map(str, arguments)])


FORKS = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


@FORKS
@pytest.mark.usefixtures("forked", "no_plots")
def test_a_study_and_its_status(write, tmp_path: Path) -> None:
    file, folder = write(SMALL), tmp_path / "out"
    before = study(file, "--dry-run", "--output-dir", folder, "--jobs", 1)
    assert before.exit_code == 0
    assert "0 of 1 known runs are done; 1 at once" in before.output
    assert "study: 1 method x 1 condition\n" in before.output
    assert "how long it takes is not known before a run of each condition is done" in before.output
    assert not folder.exists()
    done = study(file, "--output-dir", folder, "--jobs", 1)
    assert done.exit_code == 0, done.output
    assert "1/1 quality plain seed 0: " in done.output
    assert json.loads((folder / "study.json").read_text())["command"][0] == "smoothtune"
    status = study("--status", folder)
    assert "study: 1 of 1 runs done" in status.output
    larger = write(SMALL.replace("[0]", "[0, 1]"))
    after = study(larger, "--dry-run", "--output-dir", folder)
    assert "1 of 2 known runs are done" in after.output
    assert "is not known" not in after.output
    assert "left" in after.output
    report = study(larger, "--report", "--output-dir", folder)
    assert report.exit_code == 0, report.output
    assert "1 of 2 runs are done, 0 failed." in (folder / "report.md").read_text()
    assert len(list((folder / "cells").iterdir())) == 1
    assert study(file, "--output-dir", folder).output.count("1/1") == 0


@FORKS
@pytest.mark.usefixtures("forked", "no_plots")
def test_failed_runs_end_in_the_command_that_tries_them_again(
    write, tmp_path: Path, monkeypatch
) -> None:
    file = write("methods: [{name: lnsr, layer_weights: [1, 1, 1, 1, 1, 1, 1, 1]}]\n" + LAST)
    options = ["study", str(file), "--output-dir", str(tmp_path / "out"), "--jobs", "2"]
    monkeypatch.setattr(sys, "argv", ["smoothtune", *options])
    found = study(*options[1:])
    assert found.exit_code == FAILED
    assert "error: 1 run failed (1 error); the same command tries them again:" in found.output
    assert found.output.endswith(f"smoothtune study {file} {' '.join(options[2:])}\n")


def test_list() -> None:
    found = study("--list")
    assert found.exit_code == 0
    assert "lnsr-table-ii\tpaper small smoke\tLNSR (TNNLS 2023), Table II" in found.output


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ([], USAGE, "usage: smoothtune study FILE --output-dir DIR"),
        (["smoke"], USAGE, "--output-dir DIR"),
        (["nothing.yaml", "--dry-run"], USAGE, "nothing.yaml: no such file"),
        (["nothing", "--dry-run"], USAGE, "unknown study file or recipe"),
        (["lnsr-table-1", "--dry-run"], USAGE, "give --scale: paper, small, smoke"),
        (["--status", "nowhere"], USAGE, "holds no study"),
        (["few-sample", "--report", "--output-dir", "nowhere"], USAGE, "holds no study"),
    ],
)
def test_mistakes(arguments: list[str], code: int, message: str) -> None:
    found = study(*arguments)
    assert found.exit_code == code
    assert message in found.output


def test_missing_data_is_an_error_of_data(write, tmp_path: Path) -> None:
    found = study(write(SMALL), "--data", tmp_path / "no", "--output-dir", tmp_path / "out")
    assert found.exit_code == DATA
    assert "no such file or folder" in found.output
    dry = study(write(SMALL), "--data", tmp_path / "no", "--dry-run")
    assert dry.exit_code == DATA
    assert "methods: plain" in dry.output  # the plan, which needs no data, is shown
    assert "no such file or folder" in dry.output


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("lnsr,smart", ["lnsr", "smart"]),
        ("lnsr, smart ", ["lnsr", "smart"]),
        ('lnsr, "vat, both"', ["lnsr", "vat, both"]),
        ("vat on both", ["vat on both"]),
        ("", [""]),
    ],
)
def test_names_are_separated_by_commas_outside_of_quotes(text: str, names: list[str]) -> None:
    assert StudyOptions(methods=text).only == {"methods": tuple(names)}
