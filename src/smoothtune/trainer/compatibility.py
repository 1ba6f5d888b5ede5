"""What a Trainer and the methods must agree on before training begins."""

from __future__ import annotations

from typing import Any

from accelerate.utils import DistributedType
from transformers import Trainer

from smoothtune.core.regularizer import Regularizer
from smoothtune.core.support import FULL_BATCH, Environment, problems, refuse
from smoothtune.trainer.trl import sft_problems


def check_trainer(regularizers: dict[str, Regularizer], trainer: Trainer) -> None:
    """Refuse what is not right in this trainer.

    Raises:
        ValueError: says everything that is wrong, and what to change.
    """
    args, found = trainer.args, []
    if trainer.model is None or getattr(trainer, "model_init", None) is not None:
        found.append("`model_init` makes a new model that the methods would not see: pass `model`")
    if args.n_gpu > 1:
        found.append("nn.DataParallel does not split perturbations: use torchrun or accelerate")
    kind = trainer.accelerator.distributed_type
    if kind not in (DistributedType.NO, DistributedType.MULTI_GPU, DistributedType.MULTI_CPU):
        found.append(f"{kind} is not verified in the Trainer: use a single process or DDP")
    found += sft_problems(trainer)
    if args.auto_find_batch_size:
        found.append("auto_find_batch_size restarts training behind the methods: turn it off")
    where = _planned(args)
    for name, regularizer in regularizers.items():
        found += problems(name, regularizer, where)
        if regularizer.clips_gradients and args.max_grad_norm:
            found.append(f"{name} takes the place of the global gradient clip: set max_grad_norm=0")
        if regularizer.climbs_in_weights and args.gradient_accumulation_steps > 1:
            found.append(
                f"{name} with gradient_accumulation_steps={args.gradient_accumulation_steps}: "
                f"{FULL_BATCH}"
            )
    refuse(found)


def _planned(args: Any) -> set[Environment]:
    """What the Trainer will do to the model when training begins."""
    reentrant = (args.activation_checkpointing_kwargs or {}).get("use_reentrant", False)
    planned: dict[Environment, bool] = {
        "bf16 autocast": args.bf16,
        "fp16 and scaler": args.fp16,
        "torch.compile": args.torch_compile,
        "activation checkpointing": args.activation_checkpointing and not reentrant,
        "reentrant checkpointing": args.activation_checkpointing and reentrant,
    }
    return {environment for environment, planned_so in planned.items() if planned_so}
