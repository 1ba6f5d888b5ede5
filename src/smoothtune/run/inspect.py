"""What a run would do, found out without loading weights: data, methods on the model, steps."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from smoothtune.config.run import RunConfig
from smoothtune.config.task import configured_task
from smoothtune.console import say
from smoothtune.core.objective import Objective
from smoothtune.core.support import refuse
from smoothtune.device import SLOW_BFLOAT16, slow_at_bfloat16
from smoothtune.errors import ConfigError, DataError, ModelError, OutputError, counted
from smoothtune.models.load import (
    check_weights_exist,
    check_weights_fit,
    empty_classifier,
    load_base,
    refuse_adapter,
)
from smoothtune.models.lora import adapter_summary, add_lora, stored_as
from smoothtune.nn.hf_versions import settings_of_one_run
from smoothtune.run.inputs import Inputs, check_rows, read_inputs
from smoothtune.run.output import refuse_folder
from smoothtune.run.trainer import as_config_error
from smoothtune.run.training_arguments import training_arguments
from smoothtune.tasks.prepare import checked_splits
from smoothtune.trainer.compatibility import setting_problems, unlabeled_problems


@dataclass(frozen=True)
class Inspected:
    """A run that would start."""

    inputs: Inputs
    parameters: int  # of the model, without adapters
    adapters: str  # what is trained with adapters; empty without
    steps: int


def inspect(config: RunConfig, console: Console) -> Inspected:
    """Check a run as far as `train` does before its first step, without loading weights.

    Raises ConfigError, OutputError, ModelError or DataError.
    """
    refuse_folder(Path(config.output_dir), config)
    inputs = read_inputs(config, console)
    model = empty_model(config, inputs)
    parameters = model.num_parameters()
    model = with_adapters(config, inputs, model)
    check_fit(config, inputs, model)
    adapters = adapter_summary(model) if config.lora is not None else ""
    return Inspected(inputs, parameters, adapters, number_of_steps(config, inputs))


def other_problems(config: RunConfig, first: Exception) -> list[Exception]:
    """What is wrong with folder, model and data of a run beside what `inspect` has raised.

    At most one error of each; those that say the same as the first are left out.
    """
    task, errors = configured_task(config), list[Exception]()
    source = config.data or task.hub_id or ""
    for check in (
        lambda: refuse_folder(Path(config.output_dir), config),
        lambda: check_weights_exist(
            load_base(config.model, trust_remote_code=config.trust_remote_code).source
        ),
        lambda: checked_splits(source, task),
    ):
        try:
            check()
        except (ConfigError, DataError, ModelError, OutputError) as error:
            if str(error) != str(first):
                errors.append(error)
    return errors


def empty_model(config: RunConfig, inputs: Inputs) -> Any:
    """The model with the head of the task, without weights and adapters.

    Raises ConfigError, LoraError or ModelError: what `prepare_model` would find out by loading.
    """
    base, task = inputs.base, inputs.task
    check_weights_exist(base.source)
    if not config.from_scratch:
        refuse_adapter(base)
        stored_as(config.frozen_weights, [])
        if not config.allow_new_weights:
            check_weights_fit(base, task)
    model = empty_classifier(base, task)
    check_rows(model, inputs)
    return model


def with_adapters(config: RunConfig, inputs: Inputs, model: Any) -> Any:
    """A model of `empty_model`, with the adapters of a run put into it, or LoraError."""
    if config.lora is None:
        return model
    inside = list[str]()  # new weights inside the base model, a pooler's say, are not known here
    return add_lora(model, config.lora, inputs.task.peft_type, inside, seed=config.seed)


def check_fit(config: RunConfig, inputs: Inputs, model: Any) -> None:
    """Raise ConfigError unless the methods of a run fit its model and settings."""
    methods = dict(zip(config.methods, config.regularizers(), strict=True))
    with settings_of_one_run():
        arguments = training_arguments(config, Path(config.output_dir), inputs.task)
    with as_config_error():
        objective = Objective(*methods.values())
        try:
            objective.attach(model).detach()
        except RuntimeError as error:  # a method that measures the weights, of which there are none
            if "meta" not in str(error):
                raise
        wrong = setting_problems(methods, arguments, model)
        if config.unlabeled is not None:
            wrong += unlabeled_problems(methods, arguments, config.alternate)
        refuse(wrong)


def number_of_steps(config: RunConfig, inputs: Inputs) -> int:
    """Updates of the whole training, as the Trainer counts them."""
    if config.max_steps > 0:
        return config.max_steps
    batches = math.ceil(len(inputs.prepared.train) / config.per_device_train_batch_size)
    labeled = config.gradient_accumulation_steps  # batches of an update
    turns = 1  # updates for one of labeled rows
    if config.unlabeled is not None and config.alternate == "batch":
        labeled //= 2
    elif config.unlabeled is not None:
        turns = 2
    return math.ceil(config.num_train_epochs * max(1, math.ceil(batches / labeled)) * turns)


def plan_of(config: RunConfig, inspected: Inspected) -> dict[str, Any]:
    """What a run would do, as plain data."""
    return {
        "task": inspected.inputs.task.name,
        "model": config.model,
        "parameters": inspected.parameters,
        "adapters": inspected.adapters or None,
        "methods": config.methods,
        "data": inspected.inputs.prepared.report.to_dict(),
        "steps": inspected.steps,
        "output_dir": config.output_dir,
    }


def show_plan(config: RunConfig, inspected: Inspected, console: Console) -> None:
    """Print what a run would do, after the summary of its data."""
    rows = len(inspected.inputs.prepared.train)
    batch = config.per_device_train_batch_size * config.gradient_accumulation_steps
    length = "" if config.max_steps > 0 else f", {counted(f'{config.num_train_epochs:g}', 'epoch')}"
    say(console, f"model {config.model}: {inspected.parameters / 1e6:.1f}M parameters")
    if inspected.adapters:
        say(console, inspected.adapters)
    say(console, f"methods: {' + '.join(config.methods)}")
    updates = f"{counted(inspected.steps, 'update')} of {counted(batch, 'row')}"
    both = config.unlabeled is not None and config.alternate == "batch"
    half = ", half of them unlabeled" if both else ""
    say(console, f"{updates}{half}, {counted(rows, 'training row')}{length}")
    evaluations = {
        "no": "none",
        "epoch": "after every epoch",
        "steps": f"every {counted(config.eval_steps or config.logging_steps, 'update')}",
    }[config.eval_strategy]
    say(console, f"evaluations in training: {evaluations}; at the end: once")
    if config.bf16 and slow_at_bfloat16():
        say(console, SLOW_BFLOAT16)
    say(console, f"{config.output_dir} would become the model folder; nothing was written")
