"""Checks that a Trainer's settings and the methods fit together, before training begins."""

from collections.abc import Sized
from typing import Any, cast, get_args

import torch
from accelerate.utils import DistributedType
from torch.distributed.fsdp import CPUOffloadPolicy
from transformers import Trainer, TrainingArguments

from smoothtune.core.optimizer_hooks import needs_updates
from smoothtune.core.regularizer import Penalty, Regularizer
from smoothtune.core.support import (
    FULL_BATCH,
    plain_problems,
    problems,
    recomputation_problems,
    refuse,
)
from smoothtune.nn.architecture import unwrap
from smoothtune.nn.compile import BACKENDS
from smoothtune.nn.environments import Environment, environments
from smoothtune.nn.hf_versions import checkpointing_kwargs, checkpoints_activations
from smoothtune.nn.model_facts import is_encoder_decoder
from smoothtune.trainer.sentence_transformers import (
    class_of,
    is_embedding_trainer,
    sentence_transformers_problems,
)
from smoothtune.trainer.task_loss import TrainerLoss
from smoothtune.trainer.unlabeled import Alternate

LOADER = "get_train_dataloader"
MAIN_INPUTS = ("input_ids", "pixel_values", "input_values", "input_features")

VERIFIED = (DistributedType.NO, DistributedType.MULTI_GPU, DistributedType.MULTI_CPU)
"""One process, and DDP."""


def check_trainer(regularizers: dict[str, Regularizer], trainer: Trainer) -> None:
    """Refuse a trainer whose settings do not fit the methods.

    Raises:
        ValueError: lists all problems, and what to change.
    """
    args, wrong = trainer.args, list[str]()
    if args.n_gpu > 1:
        wrong.append(
            "nn.DataParallel does not split perturbations: use torchrun or accelerate for all "
            "GPUs, or CUDA_VISIBLE_DEVICES=0 for one"
        )
    strategy = trainer.accelerator.distributed_type
    if strategy == DistributedType.FSDP:
        wrong += sharding_problems(trainer)
        for name, regularizer in regularizers.items():
            wrong += problems(name, regularizer, {"FSDP2"})
    elif strategy == DistributedType.DEEPSPEED:
        wrong += zero_problems(regularizers, trainer)
    elif strategy not in VERIFIED:
        wrong.append(f"{strategy} is not verified in the Trainer: use a single process or DDP")
    wrong += trl_problems(trainer)
    wrong += sentence_transformers_problems(regularizers, trainer)
    assert trainer.model is not None
    loss = TrainerLoss(trainer)
    wrong += scaling_problems(loss)
    wrong += plain_loss_problems(regularizers, loss)
    refuse(wrong + setting_problems(regularizers, args, unwrap(trainer.model)))


def plain_loss_problems(regularizers: dict[str, Regularizer], loss: TrainerLoss) -> list[str]:
    """Why methods that compute the task loss themselves do not have the trainer's."""
    methods, model = regularizers.values(), unwrap(loss.trainer.model)
    if not loss.smoothing:
        return plain_problems(methods, model, {}, declared=loss.is_declared)
    return [
        f"{each.name} with label_smoothing_factor={loss.smoothing}: the method computes the task "
        "loss from logits and labels, without it: set label_smoothing_factor=0"
        for each in methods
        if each.traits.plain_loss
    ]


def scaling_problems(loss: TrainerLoss) -> list[str]:
    """Why a loss that is declared as normalized over an update may be the mean of a batch."""
    trainer, batches = loss.trainer, loss.trainer.args.gradient_accumulation_steps
    counts = loss.accepts_loss_kwargs or trainer.compute_loss_func is not None
    normalizes = loss.kind == "declared" and loss.scaled and loss.takes_count
    if counts or batches == 1 or not normalizes:
        return []
    return [
        f"loss_is_scaled_for_ga = True with gradient_accumulation_steps={batches}: the Trainer "
        f"counts no num_items_in_batch for {type(unwrap(trainer.model)).__name__}. Set "
        "trainer.model_accepts_loss_kwargs = True if the loss divides by that number, or "
        "loss_is_scaled_for_ga = False if it is the mean of a batch"
    ]


def trl_problems(trainer: Any) -> list[str]:
    """Reasons why a trainer of TRL is not supported, with what to change; empty if it is."""
    name, args = class_of(trainer, "trl"), trainer.args
    if name in (None, "RewardTrainer"):
        return []
    if name != "SFTTrainer":
        return [
            f"TRL's {name} runs the model several times for one loss, or a second model: "
            "SFTTrainer and RewardTrainer work"
        ]
    wrong = []
    if args.loss_type != "nll":
        wrong.append(f"loss_type={args.loss_type!r} of SFTTrainer is not verified: use 'nll'")
    if trainer.aux_loss_enabled:
        wrong.append("router losses are not verified: set router_aux_loss_coef=0")
    if args.packing and args.packing_strategy == "wrapped":
        wrong.append(
            "packing_strategy='wrapped' lets documents attend to one another, so a perturbation "
            "of one reaches the next: use 'bfd', or packing=False"
        )
    return wrong


def sharding_problems(trainer: Trainer) -> list[str]:
    """What is not verified of the settings of accelerate's plugin for FSDP, and what to change."""
    plugin: Any = trainer.accelerator.state.fsdp_plugin
    if plugin.fsdp_version != 2:
        return ["FSDP1 is not verified: set fsdp_version to 2, or use DDP"]
    if "FULL" not in str(plugin.state_dict_type):
        return [
            "FSDP2 writes whole weights, and checkpoints of data alone, with "
            "fsdp_state_dict_type FULL_STATE_DICT only: set it, or use DDP"
        ]
    own = {
        "activation_checkpointing": plugin.activation_checkpointing
        or checkpoints_activations(trainer.args),
        "cpu_ram_efficient_loading": plugin.cpu_ram_efficient_loading,
        "offload_params": isinstance(plugin.cpu_offload, CPUOffloadPolicy),
        "LoRA": False,  # verified here alone
    }
    return _unverified("FSDP2", trainer, own)


def zero_problems(regularizers: dict[str, Regularizer], trainer: Trainer) -> list[str]:
    """What is not verified under DeepSpeed's ZeRO, of methods and settings, and what to change."""
    plugin: Any = trainer.accelerator.state.deepspeed_plugin
    args, model = trainer.args, cast(torch.nn.Module, trainer.model)
    if plugin.zero_stage not in (1, 2):
        return [f"ZeRO stage {plugin.zero_stage} is not verified: use stage 2, FSDP2 or DDP"]
    zero = plugin.deepspeed_config.get("zero_optimization", {})
    own = {
        "an encoder-decoder": is_encoder_decoder(unwrap(model)),
        "offload_optimizer": zero.get("offload_optimizer", {}).get("device", "none") != "none",
        "gradient_accumulation_steps": args.gradient_accumulation_steps > 1,
    }
    wrong = _unverified("ZeRO", trainer, own)
    if args.save_strategy != "no":
        wrong.append(
            "ZeRO's checkpoints hold code beside data, and are not opened here: set "
            'save_strategy="no" and call save_model at the end, or use DDP'
        )
    for name, regularizer in regularizers.items():
        if regularizer.acts_before:
            wrong.append(f"{name} with ZeRO: it edits gradients, which are in parts: use DDP")
        if regularizer.traits.ascends_weights:
            wrong.append(f"{name} with ZeRO: {FULL_BATCH}")
    return wrong


def _unverified(sharding: str, trainer: Trainer, own: dict[str, bool]) -> list[str]:
    """What is in use and not verified with a kind of sharding; `own` is what it alone knows of."""
    args, model = trainer.args, cast(torch.nn.Module, trainer.model)
    used = {
        "bf16 and fp16": args.bf16 or args.fp16 or trainer.accelerator.mixed_precision != "no",
        "activation_checkpointing": checkpoints_activations(args),
        "torch_compile": args.torch_compile,
        **dict.fromkeys(map(str, sorted(environments(model))), True),
    }
    return [
        f"{sharding} with {setting} is not verified: do without it, or use DDP"
        for setting, is_used in (used | own).items()
        if is_used
    ]


def setting_problems(
    regularizers: dict[str, Regularizer], args: TrainingArguments, model: torch.nn.Module
) -> list[str]:
    """Why methods do not work with the arguments of a trainer, and what to change."""
    where = _planned(args)
    wrong = recomputation_problems(regularizers, model, where)
    if args.auto_find_batch_size:
        wrong.append(
            "auto_find_batch_size restarts training, which the methods do not notice: turn it off"
        )
    verified = {"torch_compile_backend": BACKENDS, "torch_compile_mode": ("default", None)}
    for name, values in verified.items():
        if args.torch_compile and getattr(args, name) not in values:
            wrong.append(
                f"{name}={getattr(args, name)!r} is not verified: set it to "
                f"{' or '.join(map(repr, values))}"
            )
    in_backward = args.optim in ("lomo", "adalomo") or args.optim.endswith("layerwise")
    for name, regularizer in regularizers.items():
        if in_backward and needs_updates(regularizer):
            wrong.append(
                f"{name} with optim={args.optim[:]!r}: weights are updated during the "
                "backward pass, which the method does not see: choose another optimizer"
            )
        wrong += problems(name, regularizer, where)
        if regularizer.traits.clips_gradients and args.max_grad_norm:
            wrong.append(f"{name} replaces the clipping of the global norm: set max_grad_norm=0")
        if regularizer.traits.ascends_weights and args.gradient_accumulation_steps > 1:
            wrong.append(
                f"{name} with gradient_accumulation_steps={args.gradient_accumulation_steps}: "
                f"{FULL_BATCH}"
            )
    return wrong


def check_unlabeled(
    regularizers: dict[str, Regularizer], trainer: Trainer, rows: Any, alternate: Alternate
) -> None:
    """Refuse unlabeled rows that no method would use, or not as they are, or with shards.

    Raises:
        ValueError: says what to change.
    """
    wrong = unlabeled_problems(regularizers, trainer.args, alternate)
    mro = type(trainer).__mro__  # first `Regularized`, then the trainer's own
    _, loader, *_ = (vars(c)[LOADER] for c in mro if LOADER in vars(c))
    strategy, labeled = trainer.accelerator.distributed_type, trainer.train_dataset
    missing: list[str] = []
    if all(isinstance(data, Sized) and len(data) for data in (labeled, rows)):
        row, other = labeled[0], rows[0]  # type: ignore[index]
        missing = [name for name in MAIN_INPUTS if name in row and name not in other]
    if is_embedding_trainer(trainer):
        wrong = ["unlabeled_dataset is not verified with embedding models: leave it out"]
    elif strategy in (DistributedType.FSDP, DistributedType.DEEPSPEED):
        wrong = ["unlabeled_dataset is not verified with FSDP2 and ZeRO: leave it out, or use DDP"]
    elif not loader.__module__.startswith(("transformers.", "trl.", "smoothtune.")):
        wrong = [
            f"unlabeled_dataset with a {LOADER} of your own, whose batches would not be used: "
            "override _get_train_sampler, which decides on the order of the labeled rows"
        ]
    elif missing:
        wrong = [
            f"unlabeled_dataset has no {', '.join(missing)}, which train_dataset has: tokenize "
            "it alike (TRL tokenizes train_dataset alone, and trainer.train_dataset shows how)"
        ]
    refuse(wrong)


def unlabeled_problems(
    regularizers: dict[str, Regularizer], args: TrainingArguments, alternate: Alternate
) -> list[str]:
    """Why unlabeled data would not be used, and what to change; empty if a method uses it."""
    wrong, steps = list[str](), args.gradient_accumulation_steps
    if alternate not in get_args(Alternate):
        wrong.append(f"alternate={alternate!r}: write {', '.join(map(repr, get_args(Alternate)))}")
    climbing = ", ".join(name for name, r in regularizers.items() if r.traits.ascends_weights)
    if alternate == "batch" and climbing:
        wrong.append(
            f'{climbing} with alternate="batch": it needs an update of one batch: set '
            'alternate="step" and gradient_accumulation_steps=1'
        )
    elif alternate == "batch" and steps % 2:
        wrong.append(
            f'alternate="batch" with gradient_accumulation_steps={steps}: half the batches of an '
            "update are unlabeled, so set an even number, 2 for one of each kind, or "
            'alternate="step" for updates of one kind'
        )
    acting = {name: r for name, r in regularizers.items() if r.acts_without_labels}
    if acting and all(isinstance(r, Penalty) and r.every > 1 for r in acting.values()):
        wrong.append(
            f"unlabeled_dataset with every above 1 of {', '.join(acting)}: unlabeled batches of "
            "the updates between have no term: set every=1, and rows below 1 for less time"
        )
    if not acting:
        names = ", ".join(regularizers) or "plain fine-tuning"
        wrong.append(
            f"unlabeled_dataset with {names}: no method has a term on unlabeled batches: leave it "
            'out, or set batches="both" or "unlabeled" of a method that needs no labels'
        )
    return wrong


def _planned(args: Any) -> set[Environment]:
    """What the Trainer will enable when training begins."""
    checkpoints = checkpoints_activations(args)
    reentrant = checkpointing_kwargs(args).get("use_reentrant", False)
    planned: dict[Environment, bool] = {
        "bf16 autocast": args.bf16,
        "fp16 and scaler": args.fp16,
        "compiled blocks": args.torch_compile,
        "activation checkpointing": checkpoints and not reentrant,
        "reentrant checkpointing": checkpoints and reentrant,
    }
    return {environment for environment, enabled in planned.items() if enabled}
