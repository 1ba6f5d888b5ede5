"""The command line: demo, train, evaluate, report, study, methods, cost, validate.

What is heavy to import (torch, transformers) is imported inside the commands that need it.
"""

from __future__ import annotations

import json
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer

from smoothtune.cli.evaluate import evaluate, report
from smoothtune.cli.output import (
    USAGE,
    errors_as_exit_codes,
    fail,
    output_console,
    show_method,
    show_rows,
)

app = typer.Typer(
    help="Fine-tune pre-trained language models so that they stay smooth.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,  # the boxes cut long option names off
    pretty_exceptions_enable=False,
)


def main() -> None:
    """Run the command line; ``--max_train_samples`` is ``--max-train-samples``."""
    app([_with_dashes(argument) for argument in sys.argv[1:]], prog_name="smoothtune")


def _with_dashes(argument: str) -> str:
    name, equals, value = argument.partition("=")
    return name.replace("_", "-") + equals + value if argument.startswith("--") else argument


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(f"smoothtune {version('smoothtune')}")
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show it.")
    ] = False,
) -> None:
    pass


@app.command()
def demo(
    model: Annotated[str, typer.Option(help="minilm, a model folder, or a hub id.")] = "minilm",
    seed: Annotated[int, typer.Option(help="Seed of head, data order and dropout.")] = 42,
) -> None:
    """Compare plain fine-tuning with LNSR on generated sentences, offline, in a minute or two."""
    with errors_as_exit_codes():
        from smoothtune.cli.demo import demo as run_demo

        run_demo(output_console(), model=model, seed=seed)


app.command()(evaluate)
app.command()(report)


@app.command()
def methods(
    name: Annotated[str | None, typer.Argument(help="One method.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the methods, or show one with its equation, fields and departures from the paper."""
    from smoothtune.errors import unknown
    from smoothtune.methods import METHODS
    from smoothtune.methods.describe import describe

    if name is not None and name not in METHODS:
        fail(unknown("method", name, METHODS), USAGE)
    found = [describe(each) for each in ([name] if name else METHODS)]
    if as_json:
        plain = [method.as_dict() for method in found]
        typer.echo(json.dumps(plain[0] if name else plain, indent=2, ensure_ascii=False))
    elif name:
        show_method(found[0])
    else:
        show_rows(
            ["name", "title", "what it does"],
            [[method.name, method.title, method.summary] for method in found],
        )


@app.command()
def cost(
    method: Annotated[
        list[str], typer.Option(metavar="NAME[:FIELD=VALUE,...]", help="Method; repeatable.")
    ],
    model: Annotated[str, typer.Option(help="minilm, a model folder, or a hub id.")] = "minilm",
    batch: Annotated[int, typer.Option(min=1, help="Examples per step.")] = 16,
    length: Annotated[int, typer.Option(min=4, help="Tokens per example.")] = 128,
    rounds: Annotated[int, typer.Option(min=1, help="Steps measured of each kind.")] = 5,
) -> None:
    """Say what a step costs with each method, relative to plain fine-tuning; nothing is kept."""
    with errors_as_exit_codes():
        from smoothtune.cli.cost import price_list

        show_rows(
            ["method", "x plain", "range", "seconds", "extra memory"],
            price_list(method, model, batch, length, rounds),
        )


@app.command()
def validate(
    files: Annotated[list[Path] | None, typer.Argument(help="YAML run files.")] = None,
    config: Annotated[list[Path] | None, typer.Option(help="A YAML run file.")] = None,
) -> None:
    """Say everything that is wrong in run files, with file, line and field; run nothing."""
    from smoothtune.config.run import load_config
    from smoothtune.errors import ConfigError

    every = [*(config or ()), *(files or ())]
    if not every:
        fail("name a run file: smoothtune validate --config FILE", USAGE)
    wrong = False
    for file in every:
        try:
            run = load_config(file)
            typer.echo(f"{file}: ok ({run.task}, {' + '.join(run.methods)})")
        except ConfigError as error:
            wrong = True
            typer.echo(str(error), err=True)
    raise typer.Exit(USAGE if wrong else 0)
