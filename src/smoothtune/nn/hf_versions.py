"""What differs between the versions of transformers that are supported; it stands here alone.

The rest of the package names things as the newest version does. What is missing before a version is
marked by it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import transformers
from torch import nn

from smoothtune.nn.architecture import unwrap
from smoothtune.nn.model_facts import declaring, is_encoder_decoder

if TYPE_CHECKING:  # the Trainer takes seconds, which commands that read fields do not need
    from transformers import TrainingArguments

_VERSION = tuple(int(number) for number in transformers.__version__.split(".")[:2])
_CHECKPOINTING = "activation_checkpointing" if _VERSION >= (5, 23) else "gradient_checkpointing"
_SAMPLING_STRATEGY = _VERSION >= (5, 2)
DIVIDES = _VERSION >= (5, 20)
"""Whether the Trainer divides every loss by the accumulation steps that it is told to divide."""
_BEFORE_5 = _VERSION < (5, 0)
"""Where a `warmup_steps` below 1 is no share of all updates, and checkpointing is reentrant."""

_PASSED_ON = ("ACCELERATE_MIXED_PRECISION", "ACCELERATE_DYNAMO_BACKEND", "ACCELERATE_DYNAMO_MODE")


# --- arguments -----------------------------------------------------------------------------------


def argument_names() -> set[str]:
    """The names of the newest version that `installed_names` knows."""
    from transformers import TrainingArguments

    return {field.name for field in fields(TrainingArguments)} | {"train_sampling_strategy"}


def installed_names(values: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments for `TrainingArguments` as the installed version takes them.

    Args:
        values: under the names, and with the meanings, of the newest version.

    Raises:
        ValueError: an order of rows needs a newer version.
    """
    named = dict(values)
    for ending in ("", "_kwargs"):
        name = f"activation_checkpointing{ending}"
        if name in named:
            named[f"{_CHECKPOINTING}{ending}"] = named.pop(name)
    if "train_sampling_strategy" in named and not _SAMPLING_STRATEGY:
        strategy = named.pop("train_sampling_strategy")
        if strategy not in ("random", "group_by_length"):
            raise ValueError(f"train_sampling_strategy={strategy!r} needs transformers 5.2")
        named["group_by_length"] = strategy == "group_by_length"
    if "warmup_steps" in named and _BEFORE_5:
        steps = named.pop("warmup_steps")
        named |= {"warmup_ratio": steps} if steps < 1 else {"warmup_steps": int(steps)}
    return named


@contextmanager
def settings_of_one_run() -> Iterator[None]:
    """Around making a trainer: its settings do not become those of later ones.

    In 4.x `TrainingArguments` writes precision and compilation into the environment, where every
    later trainer of the process reads them.
    """
    before = {name: os.environ.get(name) for name in _PASSED_ON}
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def checkpoints_activations(args: TrainingArguments) -> bool:
    """Whether the Trainer will compute activations again in the backward pass."""
    return bool(getattr(args, _CHECKPOINTING))


def checkpointing_kwargs(args: TrainingArguments) -> dict[str, Any]:
    """How it does."""
    own = getattr(args, f"{_CHECKPOINTING}_kwargs")
    return {"use_reentrant": _BEFORE_5} if own is None else own


def sampling_strategy(args: Any) -> str:
    """Order of the training rows: random, group_by_length or another one that transformers has."""
    if _SAMPLING_STRATEGY:
        return str(args.train_sampling_strategy)
    return "group_by_length" if args.group_by_length else "random"


def warmup_steps(args: Any) -> float:
    """Updates of the warm-up; below 1: share of all updates."""
    if _BEFORE_5 and not args.warmup_steps:
        return float(args.warmup_ratio)
    return float(args.warmup_steps)


# --- models and the loss -------------------------------------------------------------------------


def enable_checkpointing(model: nn.Module, *, use_reentrant: bool = False) -> None:
    """Have a model of transformers compute activations again in the backward pass."""
    getattr(model, f"{_CHECKPOINTING}_enable")({"use_reentrant": use_reentrant})


def recomputes_hooks(block: nn.Module) -> bool:
    """Whether hooks of a block run again when it is recomputed in the backward pass.

    Those of a method are gone by then. From 5.23 on `forward` alone is recomputed; 5.17 recomputes
    the whole call.
    """
    from transformers.modeling_layers import GradientCheckpointingLayer

    whole = "__call__" in vars(GradientCheckpointingLayer)
    return whole or not isinstance(block, GradientCheckpointingLayer)


def mismatched_sizes(loading_info: Mapping[str, Any]) -> dict[str, list[Any]]:
    """By name the sizes of weights that differ in files and model; in 4.x neither is known.

    Args:
        loading_info: what `from_pretrained` gives with `output_loading_info`.
    """
    keys = loading_info["mismatched_keys"]
    return {key: [] for key in keys} if _BEFORE_5 else {name: sizes for name, *sizes in keys}


def can_change_attention(model: nn.Module) -> bool:
    """Whether a model takes another implementation of attention after it is made.

    In 4.x BERT and others have a class of layers for each.
    """
    can = getattr(model, "_can_set_attn_implementation", None)
    return can is None or bool(can())


def declared_scaling(trainer: Any) -> bool | None:
    """What a trainer's `loss_is_scaled_for_ga` says of its loss; None: nothing."""
    return getattr(trainer, "loss_is_scaled_for_ga", None)


def undivided(trainer: Any, num_items_in_batch: Any) -> int:
    """What the loss of a batch is to be divided by, for the update to be a mean over batches.

    For versions before `DIVIDES`. There the Trainer divides by the accumulation steps only where
    nothing is normalized by `num_items_in_batch`, and cannot be told to do so otherwise; 1 where it
    does.

    Args:
        trainer: in an update, and with `loss_is_scaled_for_ga = False`.
        num_items_in_batch: as the Trainer gives it to `compute_loss`.
    """
    normalized = trainer.model_accepts_loss_kwargs and num_items_in_batch is not None
    if not (normalized or trainer.compute_loss_func is not None):
        return 1
    return int(trainer.current_gradient_accumulation_steps)


def loss_shifts_labels(trainer: Any) -> bool:
    """Whether the labels predict the next token, so that the first position has none."""
    from transformers.loss.loss_utils import LOSS_MAPPING, ForCausalLMLoss

    if hasattr(trainer, "_loss_shifts_labels"):  # 5.10
        return bool(trainer._loss_shifts_labels)
    model = declaring(unwrap(trainer.model))
    causal = LOSS_MAPPING.get(getattr(model, "loss_type", "")) is ForCausalLMLoss
    return causal and not is_encoder_decoder(model)
