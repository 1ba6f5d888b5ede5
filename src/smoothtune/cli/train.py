"""The commands `train` and `tune`."""

import shlex
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console

from smoothtune.cli.options import (
    CONFIG,
    DRY_RUN,
    FILE,
    SET,
    Workers,
    methods_option,
    one_file,
    options_from,
)
from smoothtune.cli.output import (
    FAILED,
    JSON,
    command_line,
    echo,
    fail,
    output_console,
    print_json,
    typed_command,
)
from smoothtune.cli.processes import errors_of_all, prints, several
from smoothtune.config.draft import from_options
from smoothtune.config.fields import METHOD
from smoothtune.config.run import RunConfig, load_config
from smoothtune.config.tuning import (
    DEFAULT_METHODS,
    NOT_OFFERED,
    Tune,
    TuneSettings,
    load_auto,
    load_tune,
)
from smoothtune.errors import ConfigError, Problem


def _of_compare(text: str) -> Any:
    return typer.Option(min=1, help=text, rich_help_panel=METHOD.title)


@options_from(RunConfig, but=["methods"])
def train(
    options: dict[str, Any],
    *,
    file: FILE = None,
    method: Annotated[
        list[str] | None,
        methods_option(
            "Method; repeat to combine. auto: search first, see tune.  [default: plain]"
        ),
    ] = None,
    config: CONFIG = None,
    set_: SET = None,
    compare: Annotated[
        list[str] | None,
        methods_option(
            "Train this as well, and plain, each with --seeds, and show the comparison."
        ),
    ] = None,
    seeds: Annotated[int | None, _of_compare("Number of seeds of --compare.  [default: 3]")] = None,
    jobs: Annotated[
        int | None, _of_compare("Runs of --compare at once; default: by cores and memory.")
    ] = None,
    dry_run: DRY_RUN = False,
    resume_from_checkpoint: Annotated[
        bool, typer.Option("--resume-from-checkpoint", help="Resume a stopped run.")
    ] = False,
    as_json: JSON = False,
) -> None:
    """Train, and print where the model is."""
    with errors_of_all():
        for option, value in (("--seeds", seeds), ("--jobs", jobs)):
            if value is not None and not compare:
                _refuse(f"{option} needs --compare, such as --compare plain")
        if several() and (compare or dry_run):
            option = "--compare" if compare else "--dry-run"
            _refuse(f"{option} runs in one process: start it without torchrun or accelerate launch")
        console = output_console(as_json=as_json)
        arguments = (one_file(file, config), set_ or (), options, method or ())
        search = None if compare else load_auto(*arguments)
        run = search.run if search else load_config(*arguments)
        if compare:
            content = _compare(run, compare, seeds or 3, jobs, console, dry_run=dry_run)
        elif search:
            content = _search(search, console, resume=resume_from_checkpoint, dry_run=dry_run)
        else:
            content = _train(run, console, resume=resume_from_checkpoint, dry_run=dry_run)
    if not prints():
        return
    if not compare and not dry_run:
        text = f"{run.output_dir} is a model folder; result.json and README.md are in it"
        echo(text, err=as_json)
    if as_json and content:
        print_json(content)


def _train(run: RunConfig, console: Console, *, resume: bool, dry_run: bool) -> dict[str, Any]:
    """Train; returns the content of result.json, after a dry run what would be done."""
    if dry_run:
        from smoothtune.run.inspect import inspect, plan_of, show_plan

        inspected = inspect(run, console)
        show_plan(run, inspected, console)
        return plan_of(run, inspected)
    from smoothtune.run.train import train as run_training

    return run_training(run, resume=resume, console=console)


def _search(search: Tune, console: Console, *, resume: bool, dry_run: bool) -> dict[str, Any]:
    """Search, and train the pick; returns the content of result.json, {} after a dry run."""
    if several():
        _refuse(
            "--method auto searches in one process: run smoothtune tune without torchrun "
            "or accelerate launch, and then train with the run file that it writes"
        )
    from smoothtune.tune.run import tune_and_train

    return tune_and_train(search, resume=resume, dry_run=dry_run, console=console)


def _refuse(message: str) -> NoReturn:
    raise ConfigError([Problem("", "", message)])


def _compare(
    run: RunConfig,
    others: list[str],
    seeds: int,
    jobs: int | None,
    console: Console,
    *,
    dry_run: bool,
) -> dict[str, Any]:
    """Train a run's methods and others as a study; returns the content of its results.json."""
    from smoothtune.study.compare import check_comparison, comparison_study, write_comparison
    from smoothtune.study.config import load_study

    if dry_run:
        from smoothtune.study.forecast import inspect_study

        content = comparison_study(run, others, seeds)
        inspect_study(check_comparison(content), Console(quiet=True))
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


class TuneOptions(TuneSettings, RunConfig, Workers):
    """All fields that a search takes, and how many trainings run at once."""


@options_from(TuneOptions, but=NOT_OFFERED | {"overwrite_output_dir"})
def tune(
    options: dict[str, Any],
    *,
    file: FILE = None,
    method: Annotated[
        list[str] | None,
        methods_option(
            "Method to try beside plain; repeat for several. Fields given here are not searched.  "
            f"[default: {', '.join(DEFAULT_METHODS)}]"
        ),
    ] = None,
    config: CONFIG = None,
    set_: SET = None,
    dry_run: DRY_RUN = False,
    as_json: JSON = False,
) -> None:
    """Search, and print what to use."""
    where = {name: options.pop(name) for name in Workers.model_fields if name in options}
    workers = from_options(Workers, where)
    search = load_tune(one_file(file, config), set_ or (), options, method or ())
    from smoothtune.tune.run import run_tune

    content = run_tune(
        search,
        **workers.model_dump(),
        dry_run=dry_run,
        console=output_console(as_json=as_json),
        command=typed_command(),
    )
    if dry_run:
        return
    folder = Path(search.run.output_dir)
    echo(f"{folder / 'report.html'} is written; to train on all training rows:", err=as_json)
    echo(f"smoothtune train {shlex.quote(str(folder / 'best.yaml'))}", err=as_json)
    if as_json:
        print_json(content)
