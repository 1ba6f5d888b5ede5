"""What works where: every combination is verified by a test or refused with a reason."""

from __future__ import annotations

from typing import Any

import torch
from accelerate.utils import DistributedType
from transformers import Trainer

from smoothtune.objective import Objective


def check_trainer(objective: Objective, trainer: Trainer) -> None:
    """Refuse what is not verified to be right in this trainer.

    Raises:
        ValueError: says everything that is wrong, and what to change.
    """
    args = trainer.args
    problems = [
        message
        for wrong, message in [
            (
                trainer.model is None or getattr(trainer, "model_init", None) is not None,
                "`model_init` makes a new model that the methods would not see: pass `model`",
            ),
            (
                args.n_gpu > 1,
                "nn.DataParallel does not split perturbations: start with torchrun or accelerate",
            ),
            (
                _distributed(trainer)
                not in (DistributedType.NO, DistributedType.MULTI_GPU, DistributedType.MULTI_CPU),
                f"{_distributed(trainer)} is not verified: use a single process or DDP",
            ),
            (
                getattr(args, "torch_compile", False),
                "torch.compile is not verified: set torch_compile=False",
            ),
            (
                args.fp16,
                "fp16 with a gradient scaler is not verified: use bf16=True or float32",
            ),
            (
                args.auto_find_batch_size,
                "auto_find_batch_size restarts training behind the methods' back: turn it off",
            ),
            (
                _reentrant(args),
                "reentrant gradient checkpointing breaks inner gradients: set "
                'activation_checkpointing_kwargs={"use_reentrant": False}',
            ),
        ]
        if wrong
    ]
    if trainer.model is not None:
        problems += _model_problems(objective, trainer.model)
    for name, regularizer in objective.regularizers.items():
        if regularizer.needs_float32 and (args.bf16 or args.fp16):
            problems.append(
                f"{name} takes finite differences, which 16-bit arithmetic drowns in rounding: set "
                'bf16=False, or estimator="projected"'
            )
        if regularizer.clips_gradients and args.max_grad_norm:
            problems.append(
                f"{name} takes the place of the global gradient clip: set max_grad_norm=0"
            )
    if problems:
        raise ValueError(
            "cannot regularize this trainer:\n" + "\n".join(f"- {p}" for p in problems)
        )


def _distributed(trainer: Trainer) -> Any:
    return trainer.accelerator.distributed_type


def _reentrant(args: Any) -> bool:
    kwargs = args.activation_checkpointing_kwargs or {}
    return bool(args.activation_checkpointing and kwargs.get("use_reentrant", False))


def _model_problems(objective: Objective, model: torch.nn.Module) -> list[str]:
    perturbing = [name for name, r in objective.regularizers.items() if r.points()]
    if not perturbing:
        return []
    problems = []
    if getattr(getattr(model, "config", None), "is_encoder_decoder", False):
        problems.append(
            f"{', '.join(perturbing)}: encoder-decoder models pass the word embeddings twice in "
            "one forward, which is not supported: use a weight-side method such as mixout or l2_sp"
        )
    if any(p.dtype in (torch.float16, torch.bfloat16) for p in model.parameters()):
        problems.append(
            f"{', '.join(perturbing)}: 16-bit weights round small perturbations away: load the "
            "model with dtype=torch.float32 and train with bf16=True"
        )
    return problems
