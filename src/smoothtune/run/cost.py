"""What a step of a run costs beside one of plain fine-tuning, measured before it trains."""

from collections.abc import Sequence

import numpy as np
import torch
from rich.console import Console
from transformers import PreTrainedModel

from smoothtune.config.run import RunConfig
from smoothtune.console import say
from smoothtune.core.regularizer import Regularizer
from smoothtune.run.inputs import Inputs
from smoothtune.run.trainer import as_config_error
from smoothtune.trainer.cost import StepCost, measure_step_cost

PART = 0.03  # of a run's time, that may go into what only tells of it
COST_MAX_PARAMETERS = 400_000_000  # larger models are not copied to measure the cost of a step
FEWEST_SCORED = 100  # training rows; a score of fewer says little


def step_cost(
    config: RunConfig, inputs: Inputs, model: PreTrainedModel, console: Console
) -> StepCost | None:
    """Measure and print the cost of a step relative to plain fine-tuning; None: not measured.

    Raises ConfigError if the methods do not fit the model.
    """
    if not config.cost_steps or list(config.methods) == ["plain"]:
        return None
    why = ""
    if config.frozen_weights != "float32":  # its plain updates need autocast
        why = f"with frozen_weights: {config.frozen_weights}"
    elif config.torch_compile:
        why = "with torch_compile: copies would be compiled too"
    elif is_short(config, len(inputs.prepared.train)):
        why = "in a short run: cost_steps=3 measures it all the same"
    elif model.num_parameters() > COST_MAX_PARAMETERS:
        why = "here: that needs two copies of this large model"
    if why:
        say(console, f"cost of a step not measured {why}")
        return None
    size, count = config.per_device_train_batch_size, config.cost_steps
    cost = time_steps(model, config.regularizers(), inputs, size, count)
    on_top = "" if config.unlabeled is None else "; unlabeled batches, as many again, come on top"
    say(
        console,
        f"a step with {' + '.join(config.methods)} takes {cost.ratio:.2f} times as long as a plain "
        f"one, which takes {cost.plain_seconds:.3g} s (medians of {count} pairs){on_top}",
    )
    return cost


def batches(config: RunConfig, rows: int) -> float:
    """Number of training batches of a run, of so many training rows."""
    if config.max_steps > 0:
        return config.max_steps * config.gradient_accumulation_steps
    return config.num_train_epochs * rows / config.per_device_train_batch_size


def is_short(config: RunConfig, rows: int) -> bool:
    """Whether steps that nobody asked to have timed would take more than their part of a run.

    Each is taken with methods and without, after two of each to warm up. A step with methods is
    never cheaper than one without.
    """
    timed = 2 * (config.cost_steps + 2)
    return "cost_steps" not in config.model_fields_set and timed > PART * batches(config, rows)


def scored_rows(config: RunConfig, rows: int) -> int | None:
    """How many training rows are scored after training; None: all, as the run asks.

    To score a row takes a third of what it takes to train on it.
    """
    if config.max_train_eval_samples is None:
        return None
    trained = batches(config, rows) * config.per_device_train_batch_size
    return min(config.max_train_eval_samples, max(FEWEST_SCORED, int(3 * PART * trained)))


def time_steps(
    model: PreTrainedModel,
    regularizers: Sequence[Regularizer],
    inputs: Inputs,
    size: int,
    count: int,
    autocast: torch.dtype | None = None,
) -> StepCost:
    """Time `count` steps on random batches of `size` training rows; errors as `step_cost`."""
    rows, tokenizer = inputs.prepared.train, inputs.base.tokenizer
    collate = inputs.task.head.collator(tokenizer)
    indices = np.random.default_rng(0).integers(len(rows), size=(count, size))
    batches = [collate([rows[int(i)] for i in batch]) for batch in indices]
    with as_config_error():
        for regularizer in regularizers:
            regularizer.read_training_rows(rows, tokenizer)
        return measure_step_cost(model, regularizers, batches, autocast=autocast)
