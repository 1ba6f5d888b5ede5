"""The commands `study` and `reproduce`."""

import os
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import BeforeValidator, Field

from smoothtune.cli.options import DRY_RUN, Workers, options_from
from smoothtune.cli.output import (
    FAILED,
    JSON,
    USAGE,
    command_line,
    fail,
    output_console,
    print_json,
    show_rows,
    typed_command,
)
from smoothtune.config.draft import from_options
from smoothtune.config.fields import COMMAS, Count

Names = Annotated[tuple[str, ...], COMMAS]
Folder = Annotated[Path, Field(strict=False), BeforeValidator(os.path.expanduser)]


class StudyOptions(Workers):
    """What `study` and `reproduce` take beside a file."""

    output_dir: Folder | None = None
    """Folder for runs, tables, plots and pages; of `reproduce`, unset: reproduced/RECIPE-SCALE."""
    data: str | None = None
    """Hub id, file or folder; a folder may hold one data set per task."""
    scale: str | None = None
    """Size of a recipe: smoke (minutes), small (hours on two cores) or paper."""
    seeds: Annotated[tuple[Annotated[int, Field(strict=False)], ...], COMMAS] | None = None
    """Only these seeds: 0,1,2."""
    methods: Names | None = None
    """Only these labels, and plain: lnsr,smart."""
    tasks: Names | None = None
    """Only these tasks: rte,cola."""
    models: Names | None = None
    """Only these of its models."""
    max_train_samples: Count | None = None
    """Training rows, at most."""
    max_eval_samples: Count | None = None
    """Validation rows, at most."""
    max_steps: Count | None = None
    """Updates of every run."""

    @property
    def only(self) -> dict[str, tuple[str, ...]]:
        """What is taken of the file's methods, tasks and models."""
        return self.model_dump(include={"methods", "tasks", "models"}, exclude_none=True)


FILE = Annotated[str | None, typer.Argument(help="A study file, or the name of a recipe.")]
REPORT = Annotated[
    bool, typer.Option("--report", help="Write the report of the finished runs; run none.")
]
LIST = Annotated[bool, typer.Option("--list", help="List the recipes.")]


@options_from(StudyOptions)
def study(
    options: dict[str, Any],
    *,
    file: FILE = None,
    dry_run: DRY_RUN = False,
    report: REPORT = False,
    status: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Show the progress of the study in DIR.")
    ] = None,
    list_: LIST = False,
    as_json: JSON = False,
) -> None:
    """Run a study, or show its progress, its plan or its report."""
    if list_:
        from smoothtune.study.files import list_recipes

        rows = [[name, " ".join(scales), title] for name, scales, title, _ in list_recipes()]
        _list("recipes", ("recipe", "scales", "title"), rows, as_json=as_json)
        return
    if status is not None:
        from smoothtune.study.status import show_status

        counts = show_status(status, output_console(as_json=as_json))
        if as_json:
            print_json({"output_dir": str(status), **counts})
        return
    chosen = from_options(StudyOptions, options)
    if file is None or (chosen.output_dir is None and not dry_run):
        fail("usage: smoothtune study FILE --output-dir DIR, or --list, or --status DIR", USAGE)
    _run(file, chosen, draw=False, dry_run=dry_run, report=report, as_json=as_json)


@options_from(StudyOptions)
def reproduce(
    options: dict[str, Any],
    *,
    recipe: FILE = None,
    dry_run: DRY_RUN = False,
    report: REPORT = False,
    list_: LIST = False,
    as_json: JSON = False,
) -> None:
    """Run what a paper's table or figure needs and draw it beside the printed numbers."""
    if list_:
        from smoothtune.study.files import list_recipes

        listed = list_recipes()
        rows = [[r.name, " ".join(r.scales), draw] for r in listed for draw in r.draws]
        _list("draws", ("recipe", "scales", "draws"), rows, as_json=as_json)
        return
    if recipe is None:
        fail("usage: smoothtune reproduce RECIPE --scale smoke --data DIR, or --list", USAGE)
    chosen = from_options(StudyOptions, options)
    if chosen.output_dir is None:
        name = Path(recipe).stem + (f"-{chosen.scale}" if chosen.scale else "")
        chosen = chosen.model_copy(update={"output_dir": Path("reproduced", name)})
    _run(recipe, chosen, draw=True, dry_run=dry_run, report=report, as_json=as_json)


def _list(what: str, titles: tuple[str, ...], rows: list[list[str]], *, as_json: bool) -> None:
    if as_json:
        print_json({what: [dict(zip(titles, row, strict=True)) for row in rows]})
    else:
        show_rows(list(titles), rows)


def _run(
    file: str, chosen: StudyOptions, *, draw: bool, dry_run: bool, report: bool, as_json: bool
) -> None:
    """Run a study, or show its plan or its report; with `draw`, its paper's layout."""
    from smoothtune.study.config import load_study
    from smoothtune.study.files import study_file

    console, folder = output_console(as_json=as_json), chosen.output_dir
    sizes = {"data", "max_train_samples", "max_eval_samples", "max_steps"}
    fields = chosen.model_dump(include=sizes) | {"seeds": chosen.seeds and list(chosen.seeds)}
    plan = load_study(study_file(file), scale=chosen.scale, options=fields, only=chosen.only)
    if dry_run:
        from smoothtune.reproduce.departures import departures
        from smoothtune.study.forecast import show_forecast

        try:
            show_forecast(plan, folder, chosen.jobs, console)
        finally:  # they are of the file alone
            for line in departures(plan) if draw else ():
                console.print(f"  departs: {line}", markup=False, highlight=False)
        return
    assert folder is not None
    from smoothtune.study.pool import start_server
    from smoothtune.study.run import failed_runs, run_study

    if not report:
        start_server()  # imports while this process reads data and weights
    options: dict[str, Any] = {"console": console, "command": typed_command(), "jobs": chosen.jobs}
    if draw:
        from smoothtune.reproduce.run import reproduce as run

        results, content = run(plan, folder, report_only=report, **options)
    elif report:
        from smoothtune.study.report.page import report_so_far

        results = content = report_so_far(plan, folder, console, typed_command())
    else:
        results = content = run_study(plan, folder, **options)
    if as_json:
        print_json(content)
    if not report and (failed := failed_runs(results)):
        fail(f"{failed}; the same command tries them again:\n{command_line()}", FAILED)
