"""The command `train`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console

from smoothtune.cli.options import options_from, repeatable
from smoothtune.cli.output import (
    FAILED,
    JSON,
    command_line,
    echo,
    fail,
    output_console,
    print_json,
)
from smoothtune.cli.processes import errors_of_all, prints, several
from smoothtune.config.fields import METHOD
from smoothtune.config.run import RunConfig, load_config
from smoothtune.config.tuning import load_auto
from smoothtune.errors import ConfigError, Problem


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
    compare: Annotated[
        list[str] | None,
        repeatable(
            "NAME[:FIELD=VALUE,...]",
            "Train this as well, and plain, each with --seeds, and show the comparison.",
            METHOD,
        ),
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option(
            min=1, help="Number of seeds of --compare.  [default: 3]", rich_help_panel=METHOD.title
        ),
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Runs of --compare at once; default: by cores and memory.",
            rich_help_panel=METHOD.title,
        ),
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
    with errors_of_all():
        if file and config:
            _refuse("name the run file once, as an argument or with --config")
        if seeds is not None and not compare:
            _refuse("--seeds needs --compare, such as --compare plain")
        if jobs is not None and not compare:
            _refuse("--jobs needs --compare, such as --compare plain")
        if several() and (compare or dry_run):
            option = "--compare" if compare else "--dry-run"
            _refuse(f"{option} runs in one process: start it without torchrun or accelerate launch")
        given = (file or config, set_ or (), options, method or ())
        console = output_console(as_json=as_json)
        if compare:
            own = load_config(*given)
            content = _compared(own, compare, seeds or 3, jobs, console, dry_run=dry_run)
            if as_json:
                print_json(content)
            return
        if search := load_auto(*given):
            if several():
                _refuse(
                    "--method auto searches in one process: run smoothtune tune without torchrun "
                    "or accelerate launch, and then train with the run file that it writes"
                )
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
        if not prints():
            return
    echo(f"{run.output_dir} is a model folder; result.json and README.md are in it", err=as_json)
    if as_json:
        print_json(result)


def _refuse(message: str) -> NoReturn:
    raise ConfigError([Problem("", "", message)])


def _compared(
    run: RunConfig,
    others: list[str],
    seeds: int,
    jobs: int | None,
    console: Console,
    *,
    dry_run: bool,
) -> dict[str, Any]:
    """Train a run's methods and others as a study; returns the content of its results.json."""
    from smoothtune.study.compare import comparison_study, write_comparison
    from smoothtune.study.config import load_study

    if dry_run:
        content = comparison_study(run, others, seeds)
        console.print_json(data=content)
        return content
    file = write_comparison(run, others, seeds)
    from smoothtune.study.run import failed_runs, run_study

    again = ["smoothtune", "study", str(file), "--output-dir", run.output_dir]
    again += ["--jobs", str(jobs)] if jobs else []
    study = load_study(file)
    content = run_study(study, run.output_dir, jobs=jobs, console=console, command=again)
    if failed := failed_runs(content):
        fail(f"{failed}; the same command tries them again:\n{command_line()}", FAILED)
    return content
