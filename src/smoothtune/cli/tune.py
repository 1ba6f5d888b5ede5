"""The command `tune`."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from smoothtune.cli.options import options_from, repeatable
from smoothtune.cli.output import (
    JSON,
    USAGE,
    echo,
    errors_as_exit_codes,
    fail,
    output_console,
    print_json,
)
from smoothtune.cli.study import GPUS
from smoothtune.config.fields import METHOD
from smoothtune.config.run import RunConfig
from smoothtune.config.tuning import DEFAULT_METHODS, NOT_OFFERED, TuneSettings, load_tune

JOBS = typer.Option(min=1, help="Trainings at once; default: by cores and memory.")
RAY = typer.Option(metavar="ADDRESS", help="Train on this Ray cluster, or auto.")


class TuneFields(TuneSettings, RunConfig):
    """All fields that a search takes."""


@options_from(TuneFields, but=NOT_OFFERED | {"overwrite_output_dir"})
def tune(
    options: dict[str, Any],
    *,
    file: Annotated[
        Path | None, typer.Argument(help="YAML file, as --config.", show_default=False)
    ] = None,
    method: Annotated[
        list[str] | None,
        repeatable(
            "NAME[:FIELD=VALUE,...]",
            "Method to try beside plain; repeat for several. Fields given here are not searched.  "
            f"[default: {', '.join(DEFAULT_METHODS)}]",
            METHOD,
        ),
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="YAML file with these fields; options win over it.")
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Any field; wins over the file."),
    ] = None,
    jobs: Annotated[int | None, JOBS] = None,
    ray: Annotated[str | None, RAY] = None,
    gpus_per_run: GPUS = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Show what would be done, and its time; train nothing."),
    ] = False,
    as_json: JSON = False,
) -> None:
    """Search, and print what to use."""
    with errors_as_exit_codes():
        if file and config:
            fail("name the file once, as an argument or with --config", USAGE)
        search = load_tune(file or config, set_ or (), options, method or ())
        from smoothtune.tune.run import run_tune

        content = run_tune(
            search,
            jobs=jobs,
            ray=ray,
            gpus_per_run=gpus_per_run,
            dry_run=dry_run,
            console=output_console(as_json=as_json),
            command=["smoothtune", *sys.argv[1:]],
        )
    if dry_run:
        return
    folder = Path(search.run.output_dir)
    echo(f"{folder / 'report.html'} is written; to train on all training rows:", err=as_json)
    echo(f"smoothtune train {shlex.quote(str(folder / 'best.yaml'))}", err=as_json)
    if as_json:
        print_json(content)
