"""Run a search: price, trials, confirming runs, report; what is done is not done again."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from smoothtune.config.names import TUNE
from smoothtune.config.run import RunConfig
from smoothtune.config.tuning import Metric, Tune
from smoothtune.console import say
from smoothtune.device import SLOW_BFLOAT16, slow_at_bfloat16
from smoothtune.errors import ConfigError, OutputError, Problem, counted
from smoothtune.files import RESULT, refuse_other_files, write_json
from smoothtune.report.page import number
from smoothtune.results import CellRecord
from smoothtune.run import output
from smoothtune.run.signals import Signals
from smoothtune.run.train import train
from smoothtune.study.files import portable
from smoothtune.study.inputs import weight_bytes
from smoothtune.study.parts import TrainingRows, training_rows
from smoothtune.study.pool import Pool, default_jobs, start_server
from smoothtune.study.records import CELLS
from smoothtune.study.run import SEARCH, Progress, claimed
from smoothtune.study.worker import WORK
from smoothtune.tune.cells import (
    CALIBRATION,
    PARTS,
    PLAIN_SCORES,
    Trainings,
    calibrated_score_of,
    score_of,
)
from smoothtune.tune.confirm import Comparison, compare, fresh_runs, search_run
from smoothtune.tune.findings import Outcome, shown
from smoothtune.tune.price import expected_trainings, measure, tell
from smoothtune.tune.report import write_report
from smoothtune.tune.search import Arm, Trial, optuna, search_all
from smoothtune.tune.split import check_parts

Scored = Callable[[CellRecord | str, Metric], float | None]
"""Reads a metric, where more is better, from how a training ended."""


def run_tune(
    tune: Tune,
    *,
    jobs: int | None = None,
    dry_run: bool = False,
    console: Console | None = None,
    command: Sequence[str] = (),
) -> dict[str, Any]:
    """Search, confirm and write ``best.yaml``, ``report.md``, ``report.html`` and ``tune.json``.

    Args:
        tune: the search; its run's `output_dir` is the folder. Trainings that the folder holds
            already are kept, so the same command goes on where it was stopped.
        jobs: trainings at once; None: as cores and memory allow.
        dry_run: say what would be done and about how long it takes; nothing is written.
        console: where to print.
        command: how it was started, for the record.

    Returns:
        The content of ``tune.json``; empty after a dry run.

    Raises:
        ConfigError, DataError, ModelError: the search cannot work.
        OutputError: the folder holds something else or is in use, or all trials of plain
            fine-tuning failed.
        Stopped: SIGINT or SIGTERM came; the same command goes on.
    """
    console, folder = console or Console(), Path(tune.run.output_dir)
    optuna()
    for note in tune.notes:
        say(console, note)
    if tune.run.bf16 and slow_at_bfloat16():
        say(console, SLOW_BFLOAT16)
    if dry_run:
        _priced(tune, _checked_rows(tune), jobs, console)
        return {}
    start_server()  # imports while this process measures
    claim = claimed(folder, (SEARCH,), "search of smoothtune", (WORK, PARTS, CELLS))
    with claim, Signals() as signals:
        training = _checked_rows(tune)
        tune, misfits = _priced(tune, training, jobs, console)
        write_json(folder / SEARCH, {"command": [portable(part) for part in command]})
        with Progress(console, "trainings") as progress:
            progress.start("search", expected_trainings(tune))
            pool = Pool(folder, jobs or default_jobs(weight_bytes(tune.run)))
            try:
                trainings = Trainings(tune, training, pool, progress, signals)
                outcome = _outcome(tune, trainings, misfits, console)
            finally:
                pool.stop()
        return write_report(tune, outcome, folder, console)


def tune_and_train(tune: Tune, *, resume: bool, dry_run: bool, console: Console) -> dict[str, Any]:
    """Search in ``tune/`` of the output folder, unless that is done, and train what it picks.

    Returns:
        The content of ``result.json``; empty after a dry run.

    Raises:
        ConfigError, DataError, ModelError, OutputError, NonFiniteLoss, Stopped: as `run_tune` and
            `train`.
    """
    folder = Path(tune.run.output_dir)
    if folder.is_dir() and not any((folder / name).exists() for name in (output.STARTED, RESULT)):
        refuse_other_files(folder, "run of smoothtune", (TUNE,))
    inside = tune.run.model_copy(update={"output_dir": str(folder / TUNE)})
    content = run_tune(replace(tune, run=inside), dry_run=dry_run, console=console)
    if dry_run:
        return {}
    say(console, "")
    begun = output.newest_checkpoint(folder).folder is not None
    pick = content["pick"]["changes"] | {"output_dir": str(folder)}
    best = RunConfig.model_validate(tune.run.model_dump() | pick)
    return train(best, resume=resume and begun, console=console)


def _checked_rows(tune: Tune) -> TrainingRows:
    """The training rows; every part that will be held out has enough of them."""
    training, settings, seed = training_rows(tune.run), tune.settings, tune.run.seed
    if settings.metric != "score" and not training.has_classes:
        why = f"{settings.metric} is of one class a row, which these rows do not have; leave it out"
        raise ConfigError([Problem("", "metric", why)])
    folds = [search_run(fold, seed) for fold in range(settings.folds)]
    fresh = fresh_runs(settings.confirm_runs, settings.num_parts, seed)
    chosen = [(each.cut, each.part) for each in (*folds, *fresh)]
    check_parts(training, settings.num_parts, chosen)
    return training


def _priced(
    tune: Tune, training: TrainingRows, jobs: int | None, console: Console
) -> tuple[Tune, dict[str, str]]:
    """Say the price; methods of our own list that do not fit the model are left out."""
    say(console, "measuring the time of a step")
    times, misfits = measure(tune)
    if misfits and (tune.chosen_by_user or len(misfits) == len(tune.methods)):
        raise ConfigError([Problem("", f"methods.{name}", why) for name, why in misfits.items()])
    for name, why in misfits.items():
        say(console, f"{name} is left out: {why}")
    fitting = {name: fields for name, fields in tune.methods.items() if name not in misfits}
    tune = replace(tune, methods=fitting)
    at_once = jobs or default_jobs(weight_bytes(tune.run))
    tell(tune, times, len(training.texts), at_once, console)
    return tune, misfits


def _outcome(
    tune: Tune, trainings: Trainings, misfits: dict[str, str], console: Console
) -> Outcome:
    """Search, and confirm what was found."""
    trials, plain, method = _searched(tune, trainings, console)
    settings = tune.settings
    fresh = fresh_runs(settings.confirm_runs, settings.num_parts, tune.run.seed)
    by_probabilities = settings.metric != "score"
    extras = CALIBRATION if by_probabilities else PLAIN_SCORES
    records = {
        trial.arm: trainings.run(
            [
                trainings.cell(trial.setting, each, f"confirming {trial.arm}, run {run}", extras)
                for run, each in enumerate(fresh, 1)
            ]
        )
        for trial in (plain, method)
        if trial is not None
    }

    def compared(metric: Metric, scored: Scored = score_of) -> Comparison:
        by_arm = {arm: [scored(end, metric) for end in ends] for arm, ends in records.items()}
        of_method = by_arm[method.arm] if method else [None] * len(fresh)
        return compare(by_arm[plain.arm], of_method, settings.num_parts)

    return Outcome(
        trials,
        plain,
        method,
        fresh,
        compared(settings.metric),
        records,
        misfits,
        len(trainings.training.texts),
        settings.metric,
        compared("score").gain if by_probabilities else None,
        compared(settings.metric, calibrated_score_of).gain if by_probabilities else None,
    )


def _searched(
    tune: Tune, trainings: Trainings, console: Console
) -> tuple[list[Trial], Trial, Trial | None]:
    """All trials; the best of plain fine-tuning; the best of the methods, which begin there.

    Raises:
        OutputError: no trial of plain fine-tuning ended with a score.
    """

    def ended(arm: Arm, trial: Trial) -> None:
        score = number(shown(trial.score, tune.settings.metric))
        end = f"{score} ({counted(len(trial.scores), 'fold')})"
        if trial.broken:
            end = f"{trial.state}: {trial.message}"
        title = f"{arm.name} {trial.number + 1} of {arm.budget}"
        say(console, f"{title}: {trial.setting.describe()}: {end}")

    plain, *others = search_all(tune, run=trainings.trials, ended=ended)
    best = plain.best()
    if best is None:
        ends = [f"{t.state}: {t.message}" for t in plain.trials if t.message]
        why = ends[0] if ends else "no trial had all its folds"
        message = f"no trial of plain fine-tuning ended with a score ({why})"
        raise OutputError(f"{message}; nothing to compare with")
    (methods,) = others
    return [*plain.trials, *methods.trials], best, methods.best()
