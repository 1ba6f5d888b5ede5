"""The command line.

The module of a command is imported when the command or its help is requested. Heavy packages
(torch, transformers) are imported when the command runs.
"""

import sys
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from smoothtune import __version__
from smoothtune.cli.signals import end_on_signals

COMMANDS = {
    "demo": (
        "tools",
        "Compare plain fine-tuning with VAT on generated sentences over three seeds, offline.",
    ),
    "init": (
        "init",
        "Look at a file of rows, guess its columns and task, and write a run file for it.",
    ),
    "train": (
        "train",
        "Fine-tune a model; OUTPUT_DIR becomes a plain model folder with result.json.",
    ),
    "evaluate": (
        "evaluate",
        "Evaluate any fine-tuned model; finished parts are kept. Unset options are as in training.",
    ),
    "predict": (
        "evaluate",
        "Predict the rows of a file without labels; they are written with a column prediction.",
    ),
    "report": (
        "evaluate",
        "Write a page that compares evaluations of one task with the first of them.",
    ),
    "study": (
        "study",
        "Compare methods over tasks and seeds; the same command resumes a stopped study.",
    ),
    "reproduce": (
        "study",
        "Run what a table or figure of a paper needs and draw it beside the printed numbers.",
    ),
    "tune": (
        "train",
        "Find out which method to use, how strong, and how to train, from the training rows alone.",
    ),
    "methods": (
        "tools",
        "List the methods, or show one with its equation, fields and departures from the paper.",
    ),
    "cost": (
        "tools",
        "Measure the cost of a training step with each method, or which batch fits into a memory.",
    ),
    "validate": (
        "validate",
        "Check files of runs and studies, and list all problems with file, line and field.",
    ),
}
"""Module and help of every command."""


class Commands(TyperGroup):
    """Imports the module of a command on demand, so that ``smoothtune --help`` is fast."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options | {"commands": dict.fromkeys(COMMANDS)})

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of a name; None if there is none."""
        if cmd_name not in COMMANDS:
            return None
        from smoothtune.cli.output import errors_as_exit_codes

        module, text = COMMANDS[cmd_name]
        function = getattr(import_module(f"smoothtune.cli.{module}"), cmd_name)
        single = typer.Typer(add_completion=False, **PLAIN)
        single.command(cmd_name, cls=PanelCommand, help=text)(errors_as_exit_codes()(function))
        return get_command(single)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """List the commands."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


MAIN_OPTIONS = {
    "train": (
        *("file", "data", "text_columns", "label_column", "model", "method", "compare"),
        *("num_train_epochs", "learning_rate", "per_device_train_batch_size", "seed"),
        *("output_dir", "dry_run", "resume_from_checkpoint"),
    ),
    "evaluate": (
        *("model", "data", "text_columns", "label_column", "ood", "all", "calibration"),
        *("robustness", "max_eval_samples", "output_dir", "overwrite_output_dir", "as_json"),
    ),
    "study": (
        *("file", "output_dir", "data", "scale", "seeds", "methods", "jobs", "dry_run"),
        *("report", "status", "list_"),
    ),
}
"""What the help of a command with many options shows; the rest is in that of --help-all."""
HELP_ALL = "--help-all"
_ALL = "smoothtune.help_all"


class PanelCommand(TyperCommand):
    """A command whose help lists options by panel."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read ``--help-all`` as a longer ``--help``."""
        if HELP_ALL in args and self.name in MAIN_OPTIONS:
            ctx.meta[_ALL] = True
            args = ["--help"]
        return super().parse_args(ctx, args)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the options of every panel as a list; typer's boxes truncate their names."""
        main_options = None if ctx.meta.get(_ALL) else MAIN_OPTIONS.get(self.name or "")
        panels: dict[str, list[tuple[str, str]]] = {"Arguments": []}
        for parameter in self.get_params(ctx):
            if main_options is not None and parameter.name not in (*main_options, "help"):
                continue
            default = "Arguments" if parameter.param_type_name == "argument" else "Options"
            if record := parameter.get_help_record(ctx):
                title = getattr(parameter, "rich_help_panel", None) or default
                panels.setdefault(title, []).append(record)
        panels["Options"] = panels.pop("Options", [])  # the last
        if main_options is not None:
            more = len(self.get_params(ctx)) - len(main_options) - 1
            panels["Options"].append((HELP_ALL, f"Show {more} more options."))
        for title, records in panels.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)


PLAIN: dict[str, Any] = {
    "rich_markup_mode": None,
    "pretty_exceptions_enable": False,
}
app = typer.Typer(
    cls=Commands,
    help="Fine-tune pre-trained language models so that they stay smooth.",
    no_args_is_help=True,
    **PLAIN,
)


def main() -> None:
    """Run the command line; ``--max_train_samples`` is ``--max-train-samples``."""
    end_on_signals()
    for argument in sys.argv[1:]:
        if not argument.isascii() and argument.encode(errors="ignore").decode() != argument:
            typer.echo(f"error: the argument {argument!r} is not UTF-8; rename it", err=True)
            sys.exit(2)
    app([_with_dashes(argument) for argument in sys.argv[1:]], prog_name="smoothtune")


def _with_dashes(argument: str) -> str:
    name, equals, value = argument.partition("=")
    return name.replace("_", "-") + equals + value if argument.startswith("--") else argument


def _show_version(shown: bool) -> None:
    if shown:
        typer.echo(f"smoothtune {__version__}")
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    pass
