"""``smoothtune train --method auto``: search, then train the pick on all training rows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from smoothtune.config.names import TUNE
from smoothtune.config.tuning import Tune
from smoothtune.console import say
from smoothtune.files import RESULT, refuse_other_files
from smoothtune.run.output import STARTED, newest_checkpoint
from smoothtune.run.train import train
from smoothtune.tune.report import best_run
from smoothtune.tune.run import run_tune


def tune_and_train(tune: Tune, *, resume: bool, dry_run: bool, console: Console) -> dict[str, Any]:
    """Search in ``tune/`` of the output folder, unless that is done, and train what it picks.

    Args:
        tune: the search; its run's `output_dir` becomes the model folder.
        resume: continue from the newest checkpoint, if training had begun.
        dry_run: say what the search would do, and do nothing.
        console: where to print.

    Returns:
        The content of ``result.json``; empty after a dry run.

    Raises:
        ConfigError, DataError, ModelError, OutputError, NonFiniteLoss, Stopped: as `run_tune` and
            `train`.
    """
    folder = Path(tune.run.output_dir)
    if folder.is_dir() and not any((folder / name).exists() for name in (STARTED, RESULT)):
        refuse_other_files(folder, "run of smoothtune", (TUNE,))
    inside = tune.run.model_copy(update={"output_dir": str(folder / TUNE)})
    content = run_tune(replace(tune, run=inside), dry_run=dry_run, console=console)
    if dry_run:
        return {}
    say(console, "")
    begun = newest_checkpoint(folder).folder is not None
    return train(best_run(tune, content, str(folder)), resume=resume and begun, console=console)
