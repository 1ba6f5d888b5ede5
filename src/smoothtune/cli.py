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

from smoothtune.cli_evaluate import evaluate, report
from smoothtune.cli_options import (
    ChoiceColumn,
    LabelColumn,
    MaxEvalSamples,
    TaskTypeOption,
    TextColumn,
    TrustRemoteCode,
)
from smoothtune.cli_output import (
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
        from smoothtune.demo import demo as run_demo

        run_demo(output_console(), model=model, seed=seed)


@app.command()
def train(
    task: Annotated[
        str | None, typer.Option(help="GLUE task, squad, or a name for your own data set.")
    ] = None,
    data: Annotated[
        str | None, typer.Option(help="Hub id, folder, or Parquet, CSV, TSV or JSONL file.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="minilm (default), a model folder, or a hub id.")
    ] = None,
    method: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME[:FIELD=VALUE,...]", help="Method; repeat to combine."),
    ] = None,
    output_dir: Annotated[str | None, typer.Option(help="Becomes the model folder.")] = None,
    lora: Annotated[
        str | None,
        typer.Option(metavar="r=8,alpha=32,...", help="Train low-rank adapters and the head."),
    ] = None,
    merge_adapter: Annotated[
        bool, typer.Option("--merge-adapter", help="Write a plain model, adapters merged.")
    ] = False,
    seed: Annotated[int | None, typer.Option(help="Seed of everything random.")] = None,
    max_train_samples: Annotated[int | None, typer.Option(help="Train on at most N rows.")] = None,
    max_eval_samples: MaxEvalSamples = None,
    num_train_epochs: Annotated[float | None, typer.Option(help="Passes over the data.")] = None,
    max_steps: Annotated[int | None, typer.Option(help="Updates; wins over epochs.")] = None,
    learning_rate: Annotated[float | None, typer.Option(help="Peak learning rate.")] = None,
    per_device_train_batch_size: Annotated[
        int | None, typer.Option(help="Examples per step and device.")
    ] = None,
    text_column: TextColumn = None,
    label_column: LabelColumn = None,
    task_type: TaskTypeOption = None,
    choice_column: ChoiceColumn = None,
    unlabeled: Annotated[
        str | None, typer.Option(help="Texts without labels: hub id, folder or file.")
    ] = None,
    config: Annotated[Path | None, typer.Option(help="YAML run file; options win over it.")] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Any field; wins over the file."),
    ] = None,
    overwrite_output_dir: Annotated[
        bool, typer.Option("--overwrite-output-dir", help="Replace the run in --output-dir.")
    ] = False,
    trust_remote_code: TrustRemoteCode = False,
    resume_from_checkpoint: Annotated[
        bool, typer.Option("--resume-from-checkpoint", help="Go on with a stopped run.")
    ] = False,
) -> None:
    """Fine-tune a model; OUTPUT_DIR becomes a plain model folder with result.json."""
    options = {
        "task": task,
        "data": data,
        "model": model,
        "output_dir": output_dir,
        "lora": lora,
        "merge_adapter": merge_adapter or None,
        "seed": seed,
        "max_train_samples": max_train_samples,
        "max_eval_samples": max_eval_samples,
        "num_train_epochs": num_train_epochs,
        "max_steps": max_steps,
        "learning_rate": learning_rate,
        "per_device_train_batch_size": per_device_train_batch_size,
        "text_columns": text_column or None,
        "label_column": label_column,
        "task_type": task_type,
        "choice_columns": choice_column or None,
        "unlabeled": unlabeled,
        "overwrite_output_dir": overwrite_output_dir or None,
        "trust_remote_code": trust_remote_code or None,
    }
    with errors_as_exit_codes():
        from smoothtune.config import load_config

        run = load_config(config, set_ or (), options, method or ())
        from smoothtune.run import train as run_training

        run_training(run, resume=resume_from_checkpoint, console=output_console())
    typer.echo(f"{run.output_dir} is a model folder; result.json and README.md are in it")


app.command()(evaluate)
app.command()(report)


@app.command()
def study(
    file: Annotated[
        str | None, typer.Argument(help="A study file, or the name of a recipe.")
    ] = None,
    output_dir: Annotated[str | None, typer.Option(help="Keeps runs, tables and plots.")] = None,
    data: Annotated[
        str | None, typer.Option(help="Hub id, file or folder; a folder may hold one per task.")
    ] = None,
    scale: Annotated[
        str | None, typer.Option(help="Size of a recipe: paper, small or smoke.")
    ] = None,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Runs at once; default: by cores and memory.")
    ] = None,
    ray: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Run on this Ray cluster, or auto.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the runs; run none.")] = False,
    report: Annotated[
        bool, typer.Option("--report", help="Write the report of the runs that are done; run none.")
    ] = False,
    status: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Say how far the study in DIR is.")
    ] = None,
    list_: Annotated[bool, typer.Option("--list", help="List the recipes.")] = False,
) -> None:
    """Compare methods over tasks and seeds; the same command goes on with a stopped study."""
    with errors_as_exit_codes():
        if list_:
            from smoothtune.study.files import recipe_titles

            show_rows(["recipe", "scales", "title"], recipe_titles())
            return
        if status is not None:
            from smoothtune.study.live import show_status

            show_status(status, output_console())
            return
        if file is None or (output_dir is None and not dry_run):
            fail("write smoothtune study FILE --output-dir DIR, or --list, or --status DIR", USAGE)
        from smoothtune.study.pool import start_server

        if not (dry_run or report) and ray is None:
            start_server()  # imports while this process reads the study
        from smoothtune.study.config import load_study
        from smoothtune.study.files import study_file

        found = load_study(study_file(file), scale=scale, options={"data": data})
        if dry_run:
            from smoothtune.study.forecast import show_forecast

            folder = Path(output_dir) if output_dir else None
            show_forecast(found, folder, jobs, output_console())
            return
        if report:
            from smoothtune.study.report import report_so_far

            report_so_far(found, Path(output_dir or ""), output_console())
            return
        from smoothtune.study.run import run_study

        run_study(
            found,
            output_dir or "",
            jobs=jobs,
            ray=ray,
            console=output_console(),
            command=["smoothtune", *sys.argv[1:]],
        )


@app.command()
def methods(
    name: Annotated[str | None, typer.Argument(help="One method.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the methods, or show one with its equation, fields and departures from the paper."""
    from smoothtune.describe import describe
    from smoothtune.errors import unknown
    from smoothtune.methods import METHODS

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
        from smoothtune.cost import price_list

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
    from smoothtune.config import load_config
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
