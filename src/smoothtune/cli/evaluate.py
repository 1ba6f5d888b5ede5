"""The commands `evaluate`, `report` and `predict`."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, get_args

import typer

from smoothtune.cli.options import SET, as_arguments, options_from, repeatable
from smoothtune.cli.output import JSON, USAGE, echo, fail, output_console, print_json, show_rows
from smoothtune.config.draft import from_options
from smoothtune.config.evaluation import PartName, Prediction, Settings, load_settings
from smoothtune.config.fields import DATA, PARTS
from smoothtune.console import Bar
from smoothtune.errors import counted


class Options(Settings):
    """The settings, with a flag for every part."""

    all: Annotated[bool, PARTS] = False
    """All of these parts, but those with --no-, such as --no-drift."""
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


@options_from(Options, but=["model", "ensemble", "parts", "ood", "data_seed"])
def evaluate(
    options: dict[str, Any],
    *,
    models: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL...",
            help=f"{Settings.model_fields['model'].description} Several are evaluated as one "
            "ensemble: the mean of their probabilities.",
        ),
    ],
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
    set_: SET = None,
    as_json: JSON = False,
) -> None:
    """Evaluate, print the scores, and write a page."""
    typed = ["evaluate", *models, *as_arguments(options)]
    repeated = {"--ood": ood, "--ood-set": ood_set, "--set": set_}
    typed += [part for flag, values in repeated.items() for x in values or () for part in (flag, x)]
    every = options.pop("all", False)
    flags = {name: options.pop(name, every) for name in get_args(PartName)}
    parts = tuple(name for name, is_on in flags.items() if is_on)
    options |= {"model": models[0], "ensemble": tuple(models[1:]), "parts": parts}
    settings = load_settings(set_ or (), options, ood or (), ood_set or ())
    _refuse_foreign(settings, typed)
    from smoothtune.evaluation.run import evaluate as run_evaluation

    content = run_evaluation(settings, console=output_console(as_json=as_json))
    from smoothtune.evaluation.output import EXAMPLES, MARKDOWN, PAGE
    from smoothtune.evaluation.report import headline_rows

    folder = settings.folder
    rows, verdict = headline_rows(folder)
    if as_json:
        print_json(content)
    else:
        show_rows(["", "95 % interval in brackets"], rows)
        echo(f"{verdict.verdict}: {verdict.text}")
    plots, examples = any(folder.glob("*.svg")), (folder / EXAMPLES).exists()
    more = _other_files(content, plots=plots, examples=examples)
    files = ", ".join(["evaluation.json", PAGE, MARKDOWN, *more])
    echo(f"{folder} holds {files}", err=as_json)


def _other_files(content: dict[str, Any], *, plots: bool, examples: bool) -> list[str]:
    curves = sum(len(part["curves"]) for part in content["parts"].values())
    files = ["predictions.csv", *["examples.json"] * examples]
    if not curves:
        return files
    tables = counted(curves, "table")
    return [*files, f"{tables} and {counted(curves, 'plot')}" if plots else tables]


def report(
    folders: Annotated[
        list[str],
        typer.Argument(metavar="[NAME=]DIR...", help="Output folders of evaluate, with names."),
    ],
    to: Annotated[Path, typer.Option(help="A .html or .md file.")],
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the file.")] = False,
) -> None:
    """Write the page."""
    from smoothtune.evaluation.report import write_report

    runs = [_name_and_folder(text) for text in folders]
    names = {folder: name for name, folder in runs if name}
    paths = [folder for _, folder in runs]
    with Bar(output_console(), "parts") as bar:
        no_plots = write_report(paths, to, names=names, overwrite=overwrite, bar=bar)
    echo(f"{to} is written" + f", without figures: {no_plots}" * bool(no_plots))


def _name_and_folder(text: str) -> tuple[str, Path]:
    name, _, folder = text.partition("=")
    if not folder or Path(text).is_dir():  # a folder's name may hold the sign
        return "", Path(text)
    return name, Path(folder)


@options_from(Prediction, but=["model"])
def predict(
    options: dict[str, Any],
    *,
    model: Annotated[str, typer.Argument(help=Prediction.model_fields["model"].description)],
    as_json: JSON = False,
) -> None:
    """Predict, and print where the predictions are."""
    settings = from_options(Prediction, options | {"model": model})
    _refuse_foreign(settings, ["predict", model, *as_arguments(options)])
    from smoothtune.evaluation.predict import predict as run_prediction

    count = run_prediction(settings, console=output_console(as_json=as_json))
    echo(f"{settings.to} holds {counted(count, 'row')} with the column prediction", err=as_json)
    if as_json:
        print_json({"to": settings.to, "rows": count})


def _refuse_foreign(settings: Settings | Prediction, command: Sequence[str]) -> None:
    """End with the command that works, if a model records no task and is not described."""
    from smoothtune.evaluation.foreign import missing_options

    if not (missing := missing_options(settings)):
        return
    put = "; put your file and its columns in their places" if "data" in missing else ""
    fail(
        f"{settings.model} holds no record of its task, so say what it is{put}:\n"
        f"{shlex.join(['smoothtune', *command, *as_arguments(missing)])}",
        USAGE,
    )
