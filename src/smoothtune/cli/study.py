"""The commands `study` and `effect`."""

from __future__ import annotations

import csv
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from smoothtune.cli.output import (
    FAILED,
    JSON,
    USAGE,
    command_line,
    errors_as_exit_codes,
    fail,
    output_console,
    print_json,
    show_rows,
)

if TYPE_CHECKING:
    from smoothtune.study.config import Study

SEEDS = Annotated[str | None, typer.Option(metavar="LIST", help="Only these seeds: 0,1,2.")]
METHODS = Annotated[
    str | None, typer.Option(metavar="LIST", help="Only these labels, and plain: lnsr,smart.")
]
TASKS = Annotated[str | None, typer.Option(metavar="LIST", help="Only these tasks: rte,cola.")]
MODELS = Annotated[str | None, typer.Option(metavar="LIST", help="Only these of its models.")]
MAX_TRAIN = Annotated[int | None, typer.Option(min=1, help="Training rows, at most.")]
MAX_EVAL = Annotated[int | None, typer.Option(min=1, help="Validation rows, at most.")]
MAX_STEPS = Annotated[int | None, typer.Option(min=1, help="Updates of every run.")]
JOBS = Annotated[
    int | None, typer.Option(min=1, help="Runs at once; default: by cores and memory.")
]

GPUS = Annotated[
    float | None,
    typer.Option(min=0, help="GPUs of the Ray cluster for every run; 0.25: four share one."),
]
CHECKPOINTS = Annotated[
    Path | None,
    typer.Option(
        help="Folder for checkpoints of unfinished runs with a save_strategy; with --ray, one that "
        "all nodes see. Default: in the output folder."
    ),
]


def numbers(text: str | None, option: str) -> list[int] | None:
    """The numbers of a list in an option."""
    if text is None:
        return None
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        fail(f"{option} {text}: write whole numbers with commas between them: 0,1,2", USAGE)


def chosen(**lists: str | None) -> dict[str, list[str]]:
    """The names in each list that is given; one that holds a comma stands in double quotes."""
    return {
        what: [name.strip() for name in next(csv.reader([text or " "], skipinitialspace=True))]
        for what, text in lists.items()
        if text is not None
    }


def planned(
    file: str,
    *,
    scale: str | None,
    options: dict[str, Any],
    only: dict[str, list[str]],
    runs: bool,
) -> Study:
    """Read and check a study; `runs` says that this process will start runs of it."""
    from smoothtune.study.config import load_study, read_study
    from smoothtune.study.files import study_file

    path = study_file(file)
    read_study(path, scale=scale, options=options, only=only)  # what is wrong, before torch
    if runs:
        from smoothtune.study.pool import start_server

        start_server()  # imports while this process reads the study
    return load_study(path, scale=scale, options=options, only=only)


def study(
    file: Annotated[
        str | None, typer.Argument(help="A study file, or the name of a recipe.")
    ] = None,
    output_dir: Annotated[
        str | None, typer.Option(help="Folder for runs, tables and plots.")
    ] = None,
    data: Annotated[
        str | None, typer.Option(help="Hub id, file or folder; a folder may hold one per task.")
    ] = None,
    scale: Annotated[
        str | None, typer.Option(help="Size of a recipe: paper, small or smoke.")
    ] = None,
    seeds: SEEDS = None,
    methods: METHODS = None,
    tasks: TASKS = None,
    models: MODELS = None,
    max_train_samples: MAX_TRAIN = None,
    max_eval_samples: MAX_EVAL = None,
    max_steps: MAX_STEPS = None,
    jobs: JOBS = None,
    ray: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Run on this Ray cluster, or auto.")
    ] = None,
    gpus_per_run: GPUS = None,
    checkpoint_dir: CHECKPOINTS = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the runs; run none.")] = False,
    report: Annotated[
        bool, typer.Option("--report", help="Write the report of the finished runs; run none.")
    ] = False,
    status: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Show the progress of the study in DIR.")
    ] = None,
    list_: Annotated[bool, typer.Option("--list", help="List the recipes.")] = False,
    as_json: JSON = False,
) -> None:
    """Run a study, or show its progress, its plan or its report."""
    console = output_console(as_json=as_json)
    with errors_as_exit_codes():
        if list_:
            from smoothtune.study.files import recipe_titles

            titles = recipe_titles()
            if as_json:
                named = [dict(zip(("recipe", "scales", "title"), t, strict=True)) for t in titles]
                print_json({"recipes": named})
            else:
                show_rows(["recipe", "scales", "title"], titles)
            return
        if status is not None:
            from smoothtune.study.status import show_status

            counts = show_status(status, console)
            if as_json:
                print_json({"output_dir": str(status), **counts})
            return
        if file is None or (output_dir is None and not dry_run):
            fail("usage: smoothtune study FILE --output-dir DIR, or --list, or --status DIR", USAGE)
        options = {
            "data": data,
            "seeds": numbers(seeds, "--seeds"),
            "max_train_samples": max_train_samples,
            "max_eval_samples": max_eval_samples,
            "max_steps": max_steps,
        }
        only = chosen(methods=methods, tasks=tasks, models=models)
        runs = not (dry_run or report) and ray is None
        plan = planned(file, scale=scale, options=options, only=only, runs=runs)
        if dry_run:
            from smoothtune.study.forecast import show_forecast

            folder = Path(output_dir) if output_dir else None
            show_forecast(plan, folder, jobs, console)
            return
        if report:
            from smoothtune.study.report.page import report_so_far

            command = ["smoothtune", *sys.argv[1:]]
            content = report_so_far(plan, Path(output_dir or ""), console, command)
            if as_json:
                print_json(content)
            return
        from smoothtune.study.run import failed_runs, run_study

        content = run_study(
            plan,
            output_dir or "",
            jobs=jobs,
            ray=ray,
            gpus_per_run=gpus_per_run,
            checkpoint_dir=checkpoint_dir,
            console=console,
            command=["smoothtune", *sys.argv[1:]],
        )
        if as_json:
            print_json(content)
        if failed := failed_runs(content):
            fail(f"{failed}; the same command tries them again:\n{command_line()}", FAILED)


def effect(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="STUDY_DIR",
            help="Folder of a study with evaluate: [effect, robustness, ...].",
        ),
    ],
) -> None:
    """Write effect.csv, effect.md and values by layer into the folder, and print the table."""
    with errors_as_exit_codes():
        from smoothtune.study.report.effect_page import write_effects

        write_effects(folder, output_console())
