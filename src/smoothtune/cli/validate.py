"""The command `validate`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from smoothtune.cli.output import DATA, JSON, USAGE, echo, fail, print_json
from smoothtune.config.run import RunConfig, load_config
from smoothtune.config.tuning import load_auto
from smoothtune.config.yaml_file import read_yaml
from smoothtune.errors import ConfigError, DataError, ModelError, OutputError, counted
from smoothtune.study.config import StudyConfig, load_study
from smoothtune.study.files import scales_of

ERRORS = (ConfigError, DataError, ModelError, OutputError)


def validate(
    files: Annotated[
        list[Path] | None, typer.Argument(help="YAML files of runs and studies.")
    ] = None,
    config: Annotated[list[Path] | None, typer.Option(help="A YAML file.")] = None,
    fields_only: Annotated[
        bool, typer.Option("--fields-only", help="Read neither data nor model.")
    ] = False,
    drop_missing: Annotated[
        bool, typer.Option("--drop-missing", help="Check runs as with drop_missing: true.")
    ] = False,
    as_json: JSON = False,
) -> None:
    """Check files and print their problems."""
    paths = [*(config or ()), *(files or ())]
    if not paths:
        fail("no file given: smoothtune validate FILE", USAGE)
    checked, code = [], 0
    for file in paths:
        runs, errors = list[str](), list[Exception]()
        try:
            if not _is_study(file):
                options = {"drop_missing": True} if drop_missing else {}
                runs, errors = _check_run(file, options, fields_only=fields_only)
            elif drop_missing:
                fail(f"--drop-missing is for runs; write drop_missing: true into {file}", USAGE)
            else:
                runs = _check_study(file, fields_only=fields_only)
        except ERRORS as error:
            errors = [error]
        problems = [problem for error in errors for problem in _report(file, error)]
        code = max([code, *(DATA if isinstance(each, DataError) else USAGE for each in errors)])
        if not errors and not as_json:
            echo(f"{file}: ok ({', '.join(runs)})")
        checked.append({"file": str(file), "ok": not errors, "problems": problems, "runs": runs})
    if as_json:
        print_json({"files": checked})
    raise typer.Exit(code)


def _report(file: Path, error: Exception) -> list[dict[str, str]]:
    """Print an error; returns its problems as plain data."""
    if isinstance(error, ConfigError):
        echo(str(error), err=True)
        return [each._asdict() for each in error.problems]
    echo(f"{file}: {error}", err=True)
    return [{"where": str(file), "field": "", "message": str(error)}]


def _is_study(file: Path) -> bool:
    value = read_yaml(file).value
    keys = {*StudyConfig.model_fields, "scales", "include"}
    return isinstance(value, dict) and bool(keys & value.keys())


def _check_run(
    file: Path, options: Mapping[str, Any], *, fields_only: bool
) -> tuple[list[str], list[Exception]]:
    """What the file of a run holds, and what is wrong with its folder, model and data."""
    search = load_auto(file, options=options)
    run = search.run if search else load_config(file, options=options)
    methods = f"auto: {', '.join(search.methods)}" if search else " + ".join(run.methods)
    return [f"{run.task}, {methods}"], [] if fields_only else _inspect(file, run)


def _inspect(file: Path, run: RunConfig) -> list[Exception]:
    """What is wrong with folder, model, data and methods of a run; remarks are printed."""
    from smoothtune.run.inputs import without_header
    from smoothtune.run.inspect import inspect, other_problems

    try:
        inspected = inspect(run, Console(quiet=True))
    except ERRORS as error:
        return [error, *other_problems(run, error)]
    splits = inspected.inputs.prepared.report.splits.values()
    remarks = [without_header(run, inspected.inputs.task), *(split.left_out for split in splits)]
    for remark in filter(None, remarks):
        echo(f"{file}: {remark}", err=True)
    return []


def _check_study(file: Path, *, fields_only: bool) -> list[str]:
    scales: list[str | None] = [*scales_of(file)]
    studies = []
    for scale in scales or [None]:
        study = load_study(file, scale=scale)
        if not fields_only:
            from smoothtune.study.forecast import inspect_study

            inspect_study(study, Console(quiet=True))
        count = counted(len(study.runs) * len(study.config.seeds), "run")
        studies.append(f"{scale}: a study of {count}" if scale else f"a study of {count}")
    return studies
