"""A run's configuration as `TrainingArguments` of transformers."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import TrainingArguments

from smoothtune.config.run import RunConfig
from smoothtune.run.output import CHECKPOINTS

_SAME_IN_TRANSFORMERS = {
    "seed",
    "num_train_epochs",
    "max_steps",
    "learning_rate",
    "lr_scheduler_type",
    "warmup_steps",
    "weight_decay",
    "per_device_train_batch_size",
    "per_device_eval_batch_size",
    "gradient_accumulation_steps",
    "train_sampling_strategy",
    "bf16",
    "eval_strategy",
    "eval_steps",
    "logging_steps",
    "save_strategy",
    "save_steps",
}


def training_arguments(
    config: RunConfig, folder: Path, label_names: tuple[str, ...]
) -> TrainingArguments:
    """The arguments of one run's trainer.

    Args:
        config: the run.
        folder: its output folder; checkpoints go below.
        label_names: names of the model's label inputs.
    """
    same = config.model_dump(include=_SAME_IN_TRANSFORMERS)
    return TrainingArguments(
        output_dir=str(folder / CHECKPOINTS),
        **same,
        max_grad_norm=config.clip_norm(),
        activation_checkpointing=config.gradient_checkpointing,
        activation_checkpointing_kwargs={"use_reentrant": False},
        save_total_limit=1,
        remove_unused_columns=False,  # the collator selects them; example_id is for errors
        label_names=list(label_names),
        dataloader_pin_memory=torch.cuda.is_available(),
        logging_nan_inf_filter=False,
        report_to="none",
        disable_tqdm=True,
    )
