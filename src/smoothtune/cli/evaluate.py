"""The commands `evaluate` and `report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, get_args

import typer

from smoothtune.cli.options import options_from, repeatable
from smoothtune.cli.output import USAGE, echo, errors_as_exit_codes, fail, output_console
from smoothtune.config.evaluation import PartName, Settings, load_settings
from smoothtune.config.fields import DATA, PARTS


class Options(Settings):
    """The settings, with a flag for every part."""

    all: Annotated[bool, PARTS] = False
    """All of these parts."""
    calibration: Annotated[bool, PARTS] = False
    """Brier score, ECE, reliability diagram, temperature."""
    robustness: Annotated[bool, PARTS] = False
    """Scores under noise and adversarial attacks on the embeddings."""
    corruption: Annotated[bool, PARTS] = False
    """Scores under random tokens, typos, dropped and swapped words."""
    smoothness: Annotated[bool, PARTS] = False
    """Norms of Jacobians and Hessians, and propagation of noise through the layers."""
    drift: Annotated[bool, PARTS] = False
    """Distance of weights and representations to the pre-trained model."""


@options_from(Options, but=["model", "parts", "ood", "data_seed"])
def evaluate(
    options: dict[str, Any],
    *,
    model: Annotated[str, typer.Argument(help=Settings.model_fields["model"].description)],
    ood: Annotated[
        list[str] | None,
        repeatable("NAME=DATA", "Another data set of the task; repeatable.", DATA),
    ] = None,
    ood_set: Annotated[
        list[str] | None,
        repeatable(
            "NAME.KEY=VALUE",
            "text_columns, label_column or labels={0: 1, 1: 0} of that data set; repeatable.",
            DATA,
        ),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Any field, as doc_stride=64."),
    ] = None,
) -> None:
    """Evaluate, and print where the results are."""
    flags = {name: options.pop(name, False) for name in ("all", *get_args(PartName))}
    parts = tuple(name for name in get_args(PartName) if flags[name] or flags["all"])
    with errors_as_exit_codes():
        options |= {"model": model, "parts": parts}
        settings = load_settings(set_ or (), options, ood or (), ood_set or ())
        from smoothtune.evaluation.run import evaluate as run_evaluation

        run_evaluation(settings, console=output_console())
    echo(f"{settings.output_dir} holds evaluation.json, tables and plots")


def report(
    folders: Annotated[
        list[Path], typer.Argument(metavar="DIR...", help="Output folders of evaluate.")
    ],
    to: Annotated[Path, typer.Option(help="A .html or .md file.")],
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the file.")] = False,
) -> None:
    """Write the page."""
    with errors_as_exit_codes():
        from smoothtune.errors import PlotsMissing
        from smoothtune.evaluation.report import write_report

        try:
            write_report(folders, to, overwrite=overwrite)
        except PlotsMissing as error:
            fail(str(error), USAGE)
    echo(f"{to} is written")
