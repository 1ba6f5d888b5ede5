"""The command `reproduce`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

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
from smoothtune.cli.study import (
    CHECKPOINTS,
    GPUS,
    JOBS,
    MAX_EVAL,
    MAX_STEPS,
    MAX_TRAIN,
    METHODS,
    MODELS,
    SEEDS,
    TASKS,
    chosen,
    numbers,
    planned,
)


def reproduce(
    recipe: Annotated[
        str | None, typer.Argument(help="A recipe, or a study file with a layout.")
    ] = None,
    output_dir: Annotated[
        str | None, typer.Option(help="Folder for runs and pages; unset: reproduced/RECIPE-SCALE.")
    ] = None,
    data: Annotated[
        str | None, typer.Option(help="A folder that holds one data set per task; unset: the hub.")
    ] = None,
    scale: Annotated[
        str | None, typer.Option(help="smoke (minutes), small (hours on two cores) or paper.")
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
        bool, typer.Option("--report", help="Draw the finished runs; run none.")
    ] = False,
    list_: Annotated[bool, typer.Option("--list", help="List what can be reproduced.")] = False,
    as_json: JSON = False,
) -> None:
    """Run what a paper's table or figure needs and draw it beside the printed numbers."""
    console = output_console(as_json=as_json)
    with errors_as_exit_codes():
        if list_:
            from smoothtune.study.files import recipe_layouts, recipe_titles

            layouts = recipe_layouts()
            listed = [[n, s, item] for n, s, _ in recipe_titles() for item in layouts[n]]
            if as_json:
                keys = ("recipe", "scales", "draws")
                print_json({"draws": [dict(zip(keys, row, strict=True)) for row in listed]})
            else:
                show_rows(["recipe", "scales", "draws"], listed)
            return
        if recipe is None:
            fail("usage: smoothtune reproduce RECIPE --scale smoke --data DIR, or --list", USAGE)
        options = {
            "data": data,
            "seeds": numbers(seeds, "--seeds"),
            "max_train_samples": max_train_samples,
            "max_eval_samples": max_eval_samples,
            "max_steps": max_steps,
        }
        only = chosen(methods=methods, tasks=tasks, models=models)
        runs = not (dry_run or report) and ray is None
        study = planned(recipe, scale=scale, options=options, only=only, runs=runs)
        name = Path(recipe).stem + (f"-{scale}" if scale else "")
        folder = Path(output_dir or f"reproduced/{name}")
        if dry_run:
            from smoothtune.study.forecast import show_forecast
            from smoothtune.study.protocol import departures

            show_forecast(study, folder if folder.exists() else None, jobs, console)
            for line in departures(study):
                console.print(f"  departs: {line}", markup=False, highlight=False)
            return
        from smoothtune.reproduce.run import reproduce as run
        from smoothtune.study.run import failed_runs

        results, content = run(
            study,
            folder,
            jobs=jobs,
            ray=ray,
            gpus_per_run=gpus_per_run,
            checkpoint_dir=checkpoint_dir,
            report_only=report,
            console=console,
            command=["smoothtune", *sys.argv[1:]],
        )
        if as_json:
            print_json(content)
        if not report and (failed := failed_runs(results)):
            fail(f"{failed}; the same command tries them again:\n{command_line()}", FAILED)
