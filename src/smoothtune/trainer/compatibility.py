"""Checks that a Trainer's settings and the methods fit together, before training begins."""

from __future__ import annotations

from typing import Any

from accelerate.utils import DistributedType
from transformers import Trainer, TrainingArguments

from smoothtune.core.optimizer_hooks import needs_updates
from smoothtune.core.regularizer import Regularizer
from smoothtune.core.support import FULL_BATCH, Environment, problems, refuse
from smoothtune.trainer.sentence_transformers import (
    is_embedding_trainer,
    sentence_transformers_problems,
)
from smoothtune.trainer.trl import trl_problems


def check_trainer(regularizers: dict[str, Regularizer], trainer: Trainer) -> None:
    """Refuse a trainer whose settings do not fit the methods.

    Raises:
        ValueError: lists all problems, and what to change.
    """
    args, wrong = trainer.args, list[str]()
    if args.n_gpu > 1:
        wrong.append("nn.DataParallel does not split perturbations: use torchrun or accelerate")
    strategy = trainer.accelerator.distributed_type
    if strategy not in (DistributedType.NO, DistributedType.MULTI_GPU, DistributedType.MULTI_CPU):
        wrong.append(f"{strategy} is not verified in the Trainer: use a single process or DDP")
    wrong += trl_problems(trainer)
    wrong += sentence_transformers_problems(trainer)
    refuse(wrong + setting_problems(regularizers, args))


def setting_problems(regularizers: dict[str, Regularizer], args: TrainingArguments) -> list[str]:
    """Why methods do not work with the arguments of a trainer, and what to change."""
    wrong = list[str]()
    if args.auto_find_batch_size:
        wrong.append(
            "auto_find_batch_size restarts training, which the methods do not notice: turn it off"
        )
    where = _planned(args)
    in_backward = args.optim in ("lomo", "adalomo") or args.optim.endswith("layerwise")
    for name, regularizer in regularizers.items():
        if in_backward and needs_updates(regularizer):
            wrong.append(
                f"{name} with optim={args.optim[:]!r}: weights are updated during the "
                "backward pass, which the method does not see: choose another optimizer"
            )
        wrong += problems(name, regularizer, where)
        if regularizer.clips_gradients and args.max_grad_norm:
            wrong.append(f"{name} replaces the clipping of the global norm: set max_grad_norm=0")
        if regularizer.climbs_in_weights and args.gradient_accumulation_steps > 1:
            wrong.append(
                f"{name} with gradient_accumulation_steps={args.gradient_accumulation_steps}: "
                f"{FULL_BATCH}"
            )
    return wrong


def check_unlabeled(regularizers: dict[str, Regularizer], trainer: Trainer) -> None:
    """Refuse unlabeled data that no method would use.

    Raises:
        ValueError: says what to change.
    """
    if is_embedding_trainer(trainer):
        refuse(["unlabeled_dataset is not verified with embedding models: leave it out"])
    refuse(no_method_for_unlabeled(regularizers))


def no_method_for_unlabeled(regularizers: dict[str, Regularizer]) -> list[str]:
    """Why unlabeled data would not be used, and what to change; empty if a method uses it."""
    if any(r.has_loss and r.batches != "labeled" for r in regularizers.values()):
        return []
    names = ", ".join(regularizers) or "plain fine-tuning"
    return [
        f"unlabeled_dataset with {names}: no method has a term on unlabeled batches: leave it out, "
        'or set batches="both" or "unlabeled" of a method that needs no labels'
    ]


def _planned(args: Any) -> set[Environment]:
    """What the Trainer will enable when training begins."""
    reentrant = (args.activation_checkpointing_kwargs or {}).get("use_reentrant", False)
    planned: dict[Environment, bool] = {
        "bf16 autocast": args.bf16,
        "fp16 and scaler": args.fp16,
        "torch.compile": args.torch_compile,
        "activation checkpointing": args.activation_checkpointing and not reentrant,
        "reentrant checkpointing": args.activation_checkpointing and reentrant,
    }
    return {environment for environment, enabled in planned.items() if enabled}
