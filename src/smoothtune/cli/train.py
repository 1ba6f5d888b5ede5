"""The command `train`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from smoothtune.cli.options import options_from, repeatable
from smoothtune.cli.output import echo, errors_as_exit_codes, output_console
from smoothtune.config.fields import METHOD
from smoothtune.config.run import RunConfig, load_config


@options_from(RunConfig, but=["methods"])
def train(
    options: dict[str, Any],
    *,
    method: Annotated[
        list[str] | None,
        repeatable(
            "NAME[:FIELD=VALUE,...]", "Method; repeat to combine.  [default: plain]", METHOD
        ),
    ] = None,
    config: Annotated[Path | None, typer.Option(help="YAML run file; options win over it.")] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Any field; wins over the file."),
    ] = None,
    resume_from_checkpoint: Annotated[
        bool, typer.Option("--resume-from-checkpoint", help="Resume a stopped run.")
    ] = False,
) -> None:
    """Train, and print where the model is."""
    with errors_as_exit_codes():
        run = load_config(config, set_ or (), options, method or ())
        from smoothtune.run.train import train as run_training

        run_training(run, resume=resume_from_checkpoint, console=output_console())
    echo(f"{run.output_dir} is a model folder; result.json and README.md are in it")
