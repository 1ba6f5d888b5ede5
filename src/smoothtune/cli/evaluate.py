"""The commands `evaluate` and `report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, get_args

import typer

from smoothtune.cli.options import options_from, repeatable
from smoothtune.cli.output import (
    JSON,
    echo,
    errors_as_exit_codes,
    output_console,
    print_json,
    show_rows,
)
from smoothtune.config.evaluation import PartName, Settings, load_settings
from smoothtune.config.fields import DATA, PARTS

PAGE = "evaluation.html"
"""The page that `evaluate` writes about its folder."""


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
    effect: Annotated[bool, PARTS] = False
    """What methods are about: worst perturbation, noise, dropout, derivatives, sharpness."""
    substitution: Annotated[bool, PARTS] = False
    """Scores under adversarial word substitutions; about 50 forward passes for a row."""


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
    as_json: JSON = False,
) -> None:
    """Evaluate, print the scores, and write a page."""
    flags = {name: options.pop(name, False) for name in ("all", *get_args(PartName))}
    parts = tuple(name for name in get_args(PartName) if flags[name] or flags["all"])
    with errors_as_exit_codes():
        options |= {"model": model, "parts": parts}
        settings = load_settings(set_ or (), options, ood or (), ood_set or ())
        from smoothtune.evaluation.run import evaluate as run_evaluation

        content = run_evaluation(settings, console=output_console(as_json=as_json))
        from smoothtune.evaluation.report import score_rows, write_report

        folder = Path(settings.output_dir)
        no_plots = write_report([folder], folder / PAGE, overwrite=True)
        if as_json:
            print_json(content)
        else:
            show_rows(["", "95 % interval in brackets"], score_rows(folder))
    held = ", ".join(["evaluation.json", PAGE, *_written(content, plots=not no_plots)])
    echo(f"{settings.output_dir} holds {held}", err=as_json)
    if no_plots and any(part["curves"] for part in content["parts"].values()):
        echo(f"no plots: {no_plots}", err=True)


def _written(content: dict[str, Any], *, plots: bool) -> list[str]:
    """The other files of an evaluation."""
    curves = sum(len(part["curves"]) for part in content["parts"].values())
    if not curves:
        return ["predictions.csv"]
    return ["predictions.csv", f"{curves} tables and plots" if plots else f"{curves} tables"]


def report(
    folders: Annotated[
        list[Path], typer.Argument(metavar="DIR...", help="Output folders of evaluate.")
    ],
    to: Annotated[Path, typer.Option(help="A .html or .md file.")],
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the file.")] = False,
) -> None:
    """Write the page."""
    with errors_as_exit_codes():
        from smoothtune.evaluation.report import write_report

        no_plots = write_report(folders, to, overwrite=overwrite)
    echo(f"{to} is written" + f", without plots: {no_plots}" * bool(no_plots))
