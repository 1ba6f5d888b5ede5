"""A run's configuration as `TrainingArguments` of transformers."""

from pathlib import Path
from typing import Any

import torch
from transformers import TrainingArguments
from transformers.integrations import get_available_reporting_integrations

from smoothtune.config.run import RunConfig
from smoothtune.config.run_fields import OUTPUT_FIELDS
from smoothtune.errors import ConfigError, Problem
from smoothtune.nn.hf_versions import argument_names, installed_names
from smoothtune.run.output import CHECKPOINTS
from smoothtune.run.processes import check_environment
from smoothtune.tasks.base import Task

_OWN_MEANING = {
    *OUTPUT_FIELDS,
    "max_grad_norm",
    "gradient_checkpointing",
    "metric_for_best_model",
    "greater_is_better",
}  # passed on in another form
_SHARED = argument_names() - _OWN_MEANING


def training_arguments(config: RunConfig, folder: Path, task: Task) -> TrainingArguments:
    """The arguments of a run's trainer; ConfigError for scores, reports or processes."""
    check_environment()
    values: dict[str, Any] = config.model_dump(include=_SHARED)
    if config.load_best_model_at_end:
        values["save_strategy"] = config.eval_strategy
        values["save_steps"] = config.eval_steps or config.logging_steps
    if watches_scores(config):
        metric, greater = best_score(config, task)
        values |= {"metric_for_best_model": metric, "greater_is_better": greater}
    values |= dict(
        output_dir=str(folder / CHECKPOINTS),
        max_grad_norm=config.clip_norm(),
        activation_checkpointing=config.gradient_checkpointing,
        activation_checkpointing_kwargs={"use_reentrant": False},
        save_total_limit=1,
        remove_unused_columns=False,  # the collator selects them; example_id is for errors
        label_names=list(task.head.label_inputs),
        use_cpu=not torch.accelerator.is_available(),  # else bf16 is refused without one
        dataloader_pin_memory=torch.cuda.is_available(),
        logging_nan_inf_filter=False,
        report_to=_integrations(config),
        disable_tqdm=True,
    )
    return TrainingArguments(**installed_names(values))


def watches_scores(config: RunConfig) -> bool:
    """Whether scores in training decide on the result."""
    return config.load_best_model_at_end or config.early_stopping_patience is not None


def best_score(config: RunConfig, task: Task) -> tuple[str, bool]:
    """The score in the log that says which evaluation is best, and if more is better."""
    losses = (*task.scorer.losses, "loss")
    names = list(dict.fromkeys([*task.metrics, *losses]))
    if config.class_weights is not None:
        names.remove("loss")  # the mean over batches of weighted means
    name = (config.metric_for_best_model or task.main_metric).removeprefix("eval_")
    if name not in names:
        message = f"{name!r} is no score of this run; they are {', '.join(names)}"
        raise ConfigError([Problem("", "metric_for_best_model", message)])
    greater = config.greater_is_better
    return f"eval_{name}", name not in losses if greater is None else greater


def _integrations(config: RunConfig) -> list[str]:
    names = [name for name in config.report_to or () if name != "none"]
    installed = sorted(get_available_reporting_integrations())
    missing = [name for name in names if name not in installed]
    if missing:
        message = f"{missing[0]!r} is not installed; installed: {', '.join(installed) or 'none'}"
        raise ConfigError([Problem("", "report_to", message)])
    return names
