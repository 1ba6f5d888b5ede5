"""A run's configuration as `TrainingArguments` of transformers."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import torch
from transformers import TrainingArguments

from smoothtune.config.run import RunConfig
from smoothtune.run.output import CHECKPOINTS

_OWN_MEANING = {"output_dir", "overwrite_output_dir", "max_grad_norm", "gradient_checkpointing"}
"""Fields that are passed on in another form."""


def training_arguments(
    config: RunConfig, folder: Path, label_names: tuple[str, ...]
) -> TrainingArguments:
    """The arguments of one run's trainer.

    Args:
        config: the run.
        folder: its output folder; checkpoints go below.
        label_names: names of the model's label inputs.
    """
    shared = {field.name for field in fields(TrainingArguments)} - _OWN_MEANING
    return TrainingArguments(
        output_dir=str(folder / CHECKPOINTS),
        **config.model_dump(include=shared),
        max_grad_norm=config.clip_norm(),
        activation_checkpointing=config.gradient_checkpointing,
        activation_checkpointing_kwargs={"use_reentrant": False},
        save_total_limit=1,
        remove_unused_columns=False,  # the collator selects them; example_id is for errors
        label_names=list(label_names),
        use_cpu=not torch.accelerator.is_available(),  # else bf16 is refused without one
        dataloader_pin_memory=torch.cuda.is_available(),
        logging_nan_inf_filter=False,
        report_to="none",
        disable_tqdm=True,
    )
