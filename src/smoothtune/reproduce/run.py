"""From a recipe to the page of a paper's table or figure, in one go."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from smoothtune.errors import ConfigError, Problem
from smoothtune.reproduce.page import write_reproduction
from smoothtune.study.config import Study
from smoothtune.study.files import list_recipes
from smoothtune.study.run import run_study


def reproduce(
    study: Study,
    output_dir: str | Path,
    *,
    jobs: int | None = None,
    report_only: bool = False,
    console: Console | None = None,
    command: Sequence[str] = (),
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Run what is missing of a study, and draw its layout.

    Args:
        study: with a layout.
        output_dir: its folder; finished cells in it are kept.
        jobs: cells that run at once; None: as cores and memory allow.
        report_only: run nothing; draw what is done.
        console: where to print.
        command: how it was started, for the record.

    Returns:
        The contents of ``results.json`` and of ``reproduction.json``.

    Raises:
        ConfigError: the study has no layout; and as `smoothtune.study.run.run_study`.
    """
    if not study.config.layout:
        known = ", ".join(recipe.name for recipe in list_recipes() if recipe.draws)
        message = f"says no layout, so there is nothing to draw; recipes that have one: {known}"
        raise ConfigError([Problem(study.name, "layout", message)])
    console, folder = console or Console(), Path(output_dir)
    if report_only:
        from smoothtune.study.report.page import report_so_far

        results = report_so_far(study, folder, console, command)
    else:
        results = run_study(study, folder, jobs=jobs, console=console, command=command)
    return results, write_reproduction(study, folder, console)
