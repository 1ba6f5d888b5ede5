"""The command `validate`."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from smoothtune import catalog
from smoothtune.cli.output import DATA, JSON, USAGE, echo, fail, print_json
from smoothtune.config.run import RunConfig, load_config, read_config
from smoothtune.config.run_fields import RunFields
from smoothtune.config.tuning import load_auto
from smoothtune.config.yaml_file import read_yaml
from smoothtune.errors import ConfigError, DataError, ModelError, OutputError, counted
from smoothtune.study.config import Outline, Study, StudyConfig, load_study, read_study
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
    found, code = [], 0
    for file in paths:
        content: dict[str, Any] = {"file": str(file), "ok": True, "problems": []}
        try:
            content["runs"] = _checked_study(file, fields_only=fields_only)
            if content["runs"] is not None and drop_missing:
                fail(f"--drop-missing is for runs; write drop_missing: true into {file}", USAGE)
            if content["runs"] is None:
                options = {"drop_missing": True} if drop_missing else {}
                content["runs"] = _checked_run(file, options, fields_only=fields_only)
        except _Wrong as wrong:
            for error in wrong.errors:
                code = max(code, DATA if isinstance(error, DataError) else USAGE)
                content["problems"] += _told_problems(file, error)
        except ERRORS as error:
            code = max(code, DATA if isinstance(error, DataError) else USAGE)
            content["problems"] += _told_problems(file, error)
        content["ok"] = not content["problems"]
        if content["ok"] and not as_json:
            echo(f"{file}: ok ({', '.join(content['runs'])})")
        found.append(content)
    if as_json:
        print_json({"files": found})
    raise typer.Exit(code)


def _told_problems(file: Path, error: Exception) -> list[dict[str, str]]:
    """Print an error; returns its problems as plain data."""
    if isinstance(error, ConfigError):
        echo(str(error), err=True)
        return [each._asdict() for each in error.problems]
    echo(f"{file}: {error}", err=True)
    return [{"where": str(file), "field": "", "message": str(error)}]


class _Wrong(Exception):
    """A run with problems of several kinds."""

    def __init__(self, errors: list[Exception]) -> None:
        super().__init__()
        self.errors = errors


def _checked_run(file: Path, options: Mapping[str, Any], *, fields_only: bool) -> list[str]:
    """What the file holds, if it is a run that would start."""
    search = load_auto(file, options=options)
    if fields_only and not search:
        draft = read_config(file, options=options)
        methods = draft.values["methods"]
        if not _need_classes(methods):
            return [f"{draft.validated(RunFields).task}, {' + '.join(methods or ['plain'])}"]
    run = search.run if search else load_config(file, options=options)
    if not fields_only:
        _inspect(file, run)
    told = f"auto: {', '.join(search.methods)}" if search else " + ".join(run.methods)
    return [f"{run.task}, {told}"]


def _inspect(file: Path, run: RunConfig) -> None:
    """Check folder, model, data and methods of a run.

    Raises:
        _Wrong: with what is wrong with each of them.
    """
    from smoothtune.run.inputs import without_header
    from smoothtune.run.inspect import inspect, other_problems

    console = _silent()
    try:
        found = inspect(run, console)
    except ERRORS as error:
        raise _Wrong([error, *other_problems(run, error)]) from error
    if told := without_header(run, found.inputs.task):
        echo(f"{file}: {told}", err=True)
    for split in found.inputs.prepared.report.splits.values():
        if split.left_out:
            echo(f"{file}: {split.left_out}", err=True)


def _checked_study(file: Path, *, fields_only: bool) -> list[str] | None:
    """What the file holds, by scale, if it is a study that would start; None for a run."""
    value = read_yaml(file).value
    keys = {*StudyConfig.model_fields, "scales", "include"}
    if not isinstance(value, dict) or not keys & value.keys():
        return None
    found = []
    scales: list[Any] = [*scales_of(file)]
    for scale in scales or [None]:
        if fields_only:
            outline = read_study(file, scale=scale)
            if not any(_need_classes(run["methods"]) for run in outline.runs.values()):
                found.append(_told(outline, scale))
                continue
        study = load_study(file, scale=scale)
        if not fields_only:
            from smoothtune.study.inspect import inspect_study

            inspect_study(study, _silent())
        found.append(_told(study, scale))
    return found


def _told(study: Study | Outline, scale: str | None) -> str:
    count = counted(len(study.runs) * len(study.config.seeds), "run")
    return f"{scale}: a study of {count}" if scale else f"a study of {count}"


def _need_classes(methods: Mapping[str, Mapping[str, Any]]) -> bool:
    """Whether only the methods' own classes can say that their fields fit together."""
    return any(catalog.needs_class(name, fields) for name, fields in methods.items())


def _silent() -> Any:
    """A console for summaries that nobody asked for."""
    from rich.console import Console

    return Console(file=io.StringIO())
