"""What a search will take, from measured steps, before it starts."""

import logging
import math
import time
from dataclasses import dataclass
from datetime import timedelta

import numpy as np
import torch
from rich.console import Console

from smoothtune.config.run import RunConfig
from smoothtune.config.tuning import Tune
from smoothtune.console import quiet, say
from smoothtune.core import strength
from smoothtune.errors import ConfigError
from smoothtune.run.cost import COST_MAX_PARAMETERS, time_steps
from smoothtune.run.inputs import prepare_model, read_inputs
from smoothtune.tune.search import stages

STEPS = 3
FORWARD = 1 / 3
"""Time of a forward pass relative to that of a step."""


@dataclass(frozen=True)
class StepTimes:
    """Measured on this machine, with one thread."""

    plain: float
    """Seconds of a plain step."""
    ratios: dict[str, float]
    """Of steps with each method to the plain step, by method."""
    start: float
    """Seconds to load data and model."""


def measure(tune: Tune) -> tuple[StepTimes | None, dict[str, str]]:
    """Time a step of every method, which shows those that do not fit the model too.

    Returns:
        The times, None for a model that is too large to be copied; and why methods do not fit, by
        method.
    """
    threads, began = torch.get_num_threads(), time.perf_counter()
    logger = logging.getLogger(strength.__name__)
    was_disabled = logger.disabled
    torch.set_num_threads(1)
    logger.disabled = True  # how strong the default weights are means nothing: others are tried
    try:
        silent = Console(quiet=True)
        inputs = read_inputs(tune.run, silent)
        with quiet():
            model = prepare_model(tune.run, inputs, silent)
        start = time.perf_counter() - began
        if model.num_parameters() > COST_MAX_PARAMETERS:
            return None, {}
        size = tune.run.per_device_train_batch_size
        autocast = torch.bfloat16 if tune.run.bf16 else None
        plain, ratios, misfits = [], {}, {}
        for name, fields in tune.methods.items():
            run = RunConfig.model_validate(tune.run.model_dump() | {"methods": {name: fields}})
            try:
                cost = time_steps(model, run.regularizers(), inputs, size, STEPS, autocast)
            except ConfigError as error:
                misfits[name] = error.problems[0].message
                continue
            plain.append(cost.plain_seconds)
            ratios[name] = cost.ratio
    finally:
        torch.set_num_threads(threads)
        logger.disabled = was_disabled
    times = StepTimes(float(np.median(plain)), ratios, start) if plain else None
    return times, misfits


def expected_trainings(tune: Tune) -> int:
    """Trainings of a whole search in which none breaks down."""
    return sum(_trainings_by_arm(tune))


def _trainings_by_arm(tune: Tune) -> list[int]:
    settings, by_arm = tune.settings, []
    for half in ((settings.budget + 1) // 2, settings.budget // 2):
        trainings, last = half + settings.confirm_runs, 1
        for stop, count in stages(settings.folds):
            trainings += min(half, count) * (stop - last)
            last = stop
        by_arm.append(trainings)
    return by_arm


def estimate(tune: Tune, times: StepTimes, rows: int, jobs: int) -> float:
    """Seconds that a whole search takes."""
    settings, size = tune.settings, tune.run.per_device_train_batch_size
    steps = math.ceil(rows * (1 - 1 / settings.num_parts) / size)
    scored = FORWARD * rows / size
    epochs = float(np.mean(settings.epochs))

    def seconds(ratio: float) -> float:
        return times.start + times.plain * (epochs * steps * ratio + scored)

    plain, methods = _trainings_by_arm(tune)
    ratio = float(np.mean(list(times.ratios.values())))
    return (plain * seconds(1.0) + methods * seconds(ratio)) / jobs


def tell(tune: Tune, times: StepTimes | None, rows: int, jobs: int, console: Console) -> None:
    """Print what will be done, and about how long it takes."""
    settings, names = tune.settings, list(tune.methods)
    half, other = (settings.budget + 1) // 2, settings.budget // 2
    trained = rows - rows // settings.num_parts
    *first, last = names
    listed = f"{', '.join(first)} and {last}" if first else last
    lines = [
        f"{settings.budget} trials: {half} of plain fine-tuning, {other} of {listed}; then "
        f"{settings.confirm_runs} fresh runs of the best of both",
        f"about {expected_trainings(tune)} trainings on {trained} of {rows} training rows, scored "
        f"on the others; the evaluation rows are not used",
    ]
    if left := names[other:]:
        lines += [f"too few trials for {', '.join(left)}, not tried: give a larger budget"]
    if times is None:
        lines += ["the time is not known: the model is too large to measure steps on copies"]
    else:
        ratios = ", ".join(f"{name} {ratio:.1f}" for name, ratio in times.ratios.items())
        about = timedelta(seconds=round(estimate(tune, times, rows, jobs)))
        lines += [
            f"a plain step takes {times.plain:.2g} s; times that: {ratios}",
            f"about {about} with {jobs} at once, judged by these steps",
        ]
    for line in lines:
        say(console, line)
