"""The command `train`."""

from __future__ import annotations

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
from smoothtune.config.fields import METHOD
from smoothtune.config.run import RunConfig, load_config
from smoothtune.config.tuning import load_auto


@options_from(RunConfig, but=["methods"])
def train(
    options: dict[str, Any],
    *,
    file: Annotated[
        Path | None, typer.Argument(help="YAML run file, as --config.", show_default=False)
    ] = None,
    method: Annotated[
        list[str] | None,
        repeatable(
            "NAME[:FIELD=VALUE,...]",
            "Method; repeat to combine. auto: search first, see tune.  [default: plain]",
            METHOD,
        ),
    ] = None,
    config: Annotated[Path | None, typer.Option(help="YAML run file; options win over it.")] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Any field; wins over the file."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check all but the weights, show the steps; run none.")
    ] = False,
    resume_from_checkpoint: Annotated[
        bool, typer.Option("--resume-from-checkpoint", help="Resume a stopped run.")
    ] = False,
    as_json: JSON = False,
) -> None:
    """Train, and print where the model is."""
    with errors_as_exit_codes():
        if file and config:
            fail("name the run file once, as an argument or with --config", USAGE)
        given = (file or config, set_ or (), options, method or ())
        console = output_console(as_json=as_json)
        if search := load_auto(*given):
            from smoothtune.tune.auto import tune_and_train

            run = search.run
            result = tune_and_train(
                search, resume=resume_from_checkpoint, dry_run=dry_run, console=console
            )
            if dry_run:
                return
        else:
            run = load_config(*given)
            if dry_run:
                from smoothtune.run.inspect import inspect, plan_of, show_plan

                found = inspect(run, console)
                show_plan(run, found, console)
                if as_json:
                    print_json(plan_of(run, found))
                return
            from smoothtune.run.train import train as run_training

            result = run_training(run, resume=resume_from_checkpoint, console=console)
    echo(f"{run.output_dir} is a model folder; result.json and README.md are in it", err=as_json)
    if as_json:
        print_json(result)
