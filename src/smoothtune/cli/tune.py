"""The command `tune`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Any

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
    JSON,
    echo,
    errors_as_exit_codes,
    output_console,
    print_json,
    typed_command,
)
from smoothtune.config.draft import from_options
from smoothtune.config.run import RunConfig
from smoothtune.config.tuning import DEFAULT_METHODS, NOT_OFFERED, TuneSettings, load_tune


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
    with errors_as_exit_codes():
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
