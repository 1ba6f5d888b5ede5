"""Printing and exit codes of the command line."""

import json
import shlex
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from textwrap import indent
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.table import Table

from smoothtune.cli.signals import STOPPED
from smoothtune.console import plain_text
from smoothtune.errors import (
    ConfigError,
    DataError,
    ModelError,
    NonFiniteLoss,
    OutOfMemory,
    OutputError,
    Stopped,
    is_out_of_memory,
    printable,
)

FAILED, USAGE, DATA = 1, 2, 3  # exit codes; 0 is success
JSON = Annotated[
    bool, typer.Option("--json", help="Print one JSON object; all else goes to standard error.")
]


@contextmanager
def errors_as_exit_codes() -> Iterator[None]:
    """Turn the errors of `smoothtune.errors` into a message and an exit code."""
    try:
        yield
    except (ConfigError, ModelError, OutputError) as error:
        fail(str(error), USAGE)
    except DataError as error:
        fail(str(error), DATA)
    except (NonFiniteLoss, OutOfMemory) as error:
        fail(str(error), FAILED)
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        why = (str(error) or type(error).__name__).splitlines()[0]
        fail(f"out of memory ({why}): take fewer rows at once, or a machine with more", FAILED)
    except Stopped as error:
        resume = "--resume-from-checkpoint"
        again = command_line(resume) if resume in str(error) else command_line()
        fail(f"{error}\n{again}", STOPPED)


def typed_command() -> list[str]:
    """The command that runs."""
    return ["smoothtune", *sys.argv[1:]]


def command_line(*more: str) -> str:
    """The command that runs, as for a shell, with `more` options unless it has them."""
    command = typed_command()
    return shlex.join(command + [option for option in more if option not in command])


def fail(message: str, code: int) -> NoReturn:
    """End with a message and an exit code."""
    echo(f"error: {message}", err=True)
    raise typer.Exit(code)


def echo(text: str, *, err: bool = False) -> None:
    """Print lines that hold names or texts of users."""
    typer.echo(printable(text), err=err)


def output_console(*, as_json: bool = False) -> Console:
    """Console for standard output, or standard error beside JSON; numbers are not colored."""
    return Console(highlight=False, stderr=as_json)


def print_json(content: Mapping[str, Any]) -> None:
    """Print one JSON object, the only thing on standard output."""
    typer.echo(json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False))


def show_method(method: Any) -> None:
    """Print a method with its equation, fields and departures from the paper."""
    typer.echo(f"{method.name}: {method.title}\n{method.summary}")
    for title in ("reference", "equation", "departures"):
        if text := getattr(method, title):  # a method of one's own may have none
            typer.echo(f"\n{title.capitalize()}:\n{indent(text, '  ')}")
    typer.echo(f"\nIs to lower: {', '.join(method.lowers) or 'nothing that is measured'}")
    typer.echo("\nFields:")
    for field in method.fields:
        typer.echo(f"  {field.name}: {field.type}, default {field.default!r}")
        if field.description:
            typer.echo(f"      {field.description}")
    typer.echo(f"\nUsage: smoothtune train --method {method.name}:FIELD=VALUE ...")


def show_rows(titles: list[str], rows: list[list[str]]) -> None:
    """Print a table in a terminal, tab-separated lines elsewhere."""
    console = output_console()
    if not console.is_terminal:
        for row in rows:
            echo("\t".join(row))
        return
    table = Table(*titles)
    for row in rows:
        table.add_row(*map(plain_text, row))
    console.print(table)
