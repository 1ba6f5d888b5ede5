"""What works where: every cell is verified by a test, or refused with what to change.

Rows are kinds of methods, told by what a method does; a method may be of several kinds. Columns
are environments. The tests compare every supported cell with a single float32 process and see
every other one raise.
"""

from __future__ import annotations

from typing import Any, Literal, get_args

import torch
from accelerate.utils import DistributedType
from torch import nn
from torch.distributed.fsdp import FSDPModule
from transformers import Trainer

from smoothtune.core.architecture import is_causal_lm, transformer, unwrap
from smoothtune.core.regularizer import Regularizer
from smoothtune.trainer.trl import sft_problems

Kind = Literal[
    "perturbs",
    "finite differences",
    "differentiates twice",
    "stands in for weights",
    "needs whole weights",
    "edits updates",
    "changes dropout",
    "climbs in weights",
]
Environment = Literal[
    "bf16 autocast",
    "fp16 and scaler",
    "16-bit weights",
    "activation checkpointing",
    "reentrant checkpointing",
    "torch.compile",
    "DDP",
    "FSDP2",
    "LoRA",
]
KINDS: tuple[Kind, ...] = get_args(Kind)
ENVIRONMENTS: tuple[Environment, ...] = get_args(Environment)

_FLOAT32 = "load the model with dtype=torch.float32 and train with bf16=True"
_NO_BF16 = "its derivatives drown in 16-bit rounding: train in float32 (bf16=False, fp16=False)"
_NO_FP16 = "its inner gradients underflow in fp16: use bf16=True or float32"
_NO_COMPILE = "hooks that come and go are lost in a compiled model: set torch_compile=False"
_NO_FSDP = "it needs whole weights where FSDP2 has shards: use DDP"
_ONE_PROCESS = "it climbs the loss of a whole batch and would see a part: train in one process"
_NON_REENTRANT = (
    'reentrant checkpointing has no inner gradients: set activation_checkpointing_kwargs={"use_'
    'reentrant": False}'
)

REFUSED: dict[Kind, dict[Environment, str]] = {
    "perturbs": {
        "16-bit weights": f"16-bit weights round small perturbations away: {_FLOAT32}",
        "reentrant checkpointing": _NON_REENTRANT,
        "torch.compile": _NO_COMPILE,
        "fp16 and scaler": _NO_FP16,
    },
    "finite differences": {
        "bf16 autocast": _NO_BF16,
        "fp16 and scaler": _NO_BF16,
        "16-bit weights": _NO_BF16,
        "reentrant checkpointing": _NON_REENTRANT,
        "torch.compile": _NO_COMPILE,
    },
    "differentiates twice": {
        "bf16 autocast": _NO_BF16,
        "fp16 and scaler": _NO_FP16,
        "16-bit weights": _NO_BF16,
        "reentrant checkpointing": _NON_REENTRANT,
        "torch.compile": "compiled graphs have no second derivative: set torch_compile=False",
        "FSDP2": "sharded modules have no second derivative: use DDP",
    },
    "stands in for weights": {
        "16-bit weights": f"W - W_0 is lost in 16-bit weights: {_FLOAT32}",
        "torch.compile": "it changes modules after they are compiled: set torch_compile=False",
        "FSDP2": _NO_FSDP,
    },
    "needs whole weights": {"FSDP2": _NO_FSDP},
    "edits updates": {"FSDP2": _NO_FSDP},
    "changes dropout": {
        "activation checkpointing": "recomputed blocks would drop out at the model's own rates: "
        "turn checkpointing off",
        "reentrant checkpointing": _NON_REENTRANT,
        "torch.compile": _NO_COMPILE,
        "fp16 and scaler": _NO_FP16,
        "16-bit weights": f"16-bit weights round small perturbations away: {_FLOAT32}",
        "FSDP2": _NO_FSDP,
    },
    "climbs in weights": {
        "fp16 and scaler": _NO_FP16,
        "16-bit weights": f"16-bit weights round small steps away: {_FLOAT32}",
        "reentrant checkpointing": _NON_REENTRANT,
        "DDP": _ONE_PROCESS,
        "FSDP2": _ONE_PROCESS,
    },
}

_ONE_PREDICTION = "it is about the one prediction of an example, not one for every token"
NO_NEXT_TOKEN = {  # methods, and released forms of methods, that causal language models cannot have
    "cross_holder": f"{_ONE_PREDICTION}: use jacobian",
    "double_backprop": "the gradient of a mean over tokens is not one example's: use jacobian",
    "jachess factors=logits": f"{_ONE_PREDICTION}: leave factors at its default, or use jacobian",
    "smart compat=mt-dnn": f"{_ONE_PREDICTION}: leave compat out",
    "sift compat=deberta": f"{_ONE_PREDICTION}: leave compat out",
}
NO_EMBEDDING = {  # the same for embedding models
    name: "it compares class scores, and an embedding has none: use r3f, smart or jacobian"
    for name in ("cross_holder", "label_smoothing", "smart compat=mt-dnn", "sift compat=deberta")
}
NO_CHOICES = {  # the same for multiple choice
    name: "its derivatives are those of an example with one sequence: use lnsr, r3f or smart"
    for name in ("cross_holder", "double_backprop", "jachess", "jacobian")
}


def kinds(regularizer: Regularizer) -> set[Kind]:
    """What a method does, as far as it decides where it works."""
    cls = type(regularizer)
    told: dict[Kind, bool] = {
        "perturbs": bool(regularizer.points()),
        "finite differences": regularizer.needs_float32,
        "differentiates twice": regularizer.second_order,
        "stands in for weights": regularizer.substitutes_weights,
        "needs whole weights": regularizer.needs_whole_weights,
        "edits updates": cls.before_step is not Regularizer.before_step,
        "changes dropout": regularizer.changes_dropout,
        "climbs in weights": regularizer.climbs_in_weights,
    }
    return {kind for kind, applies in told.items() if applies}


def is_compiled(model: nn.Module) -> bool:
    """Whether `torch.compile` or `model.compile()` acts on a part of the model."""
    return any(
        getattr(module, "_compiled_call_impl", None) or hasattr(module, "_orig_mod")
        for module in (model, *unwrap(model).modules())
    )


def environments(model: nn.Module, device: torch.device | None = None) -> set[Environment]:
    """Where a model runs, as it is now.

    Args:
        model: as the loop holds it.
        device: look at autocast on this device too.
    """
    found: set[Environment] = set()
    modules = list(unwrap(model).modules())
    if any(p.dtype in (torch.float16, torch.bfloat16) for p in model.parameters()):
        found.add("16-bit weights")
    if any(getattr(module, "gradient_checkpointing", False) for module in modules):
        found.add("reentrant checkpointing" if _reentrant(modules) else "activation checkpointing")
    if is_compiled(model):
        found.add("torch.compile")
    if isinstance(model, nn.parallel.DistributedDataParallel):
        found.add("DDP")
    if any(isinstance(module, FSDPModule) for module in modules):
        found.add("FSDP2")
    if hasattr(unwrap(model), "peft_config"):
        found.add("LoRA")
    if device is not None and torch.is_autocast_enabled(device.type):
        half = torch.get_autocast_dtype(device.type) == torch.float16
        found.add("fp16 and scaler" if half else "bf16 autocast")
    return found


def problems(name: str, regularizer: Regularizer, where: set[Environment]) -> list[str]:
    """Why a method does not work in these environments, and what to change; empty if it does."""
    return [
        f"{name} with {environment}: {REFUSED[kind][environment]}"
        for kind in KINDS
        if kind in kinds(regularizer)
        for environment in ENVIRONMENTS
        if environment in where and environment in REFUSED[kind]
    ]


def refuse(found: list[str]) -> None:
    """Raise for what was found, all of it at once.

    Raises:
        ValueError: there is a problem.
    """
    if found:
        raise ValueError("not supported:\n" + "\n".join(f"- {p}" for p in dict.fromkeys(found)))


def check(
    regularizers: dict[str, Regularizer], model: nn.Module, device: torch.device | None = None
) -> None:
    """Refuse methods that are not right on this model, as it is.

    Raises:
        ValueError: says everything that is wrong, and what to change.
    """
    where = environments(model, device)
    found = [p for name, r in regularizers.items() for p in problems(name, r, where)]
    perturbing = [name for name, r in regularizers.items() if r.points()]
    bare = unwrap(model)
    for title, refused, applies in (
        ("a causal language model", NO_NEXT_TOKEN, is_causal_lm(bare)),
        ("an embedding model", NO_EMBEDDING, transformer(bare) is not bare),
        ("a multiple-choice model", NO_CHOICES, type(bare).__name__.endswith("ForMultipleChoice")),
    ):
        found += [
            f"{form} with {title}: {refused[form]}"
            for r in regularizers.values()
            for form in _forms(r)
            if applies and form in refused
        ]
    if is_quantized(bare):
        found += [f"{n} with quantized weights: {_why_not(r)}" for n, r in _acting(regularizers)]
    config = getattr(transformer(bare), "config", None)
    if perturbing and getattr(config, "model_type", "") == "xlnet":
        found.append(
            f"{', '.join(perturbing)} with XLNet: its embeddings are (T, B, D), not (B, T, D): use "
            "a weight-side method such as mixout or l2_sp"
        )
    if perturbing and getattr(config, "is_encoder_decoder", False):
        found.append(
            f"{', '.join(perturbing)} with an encoder-decoder model: the word embeddings are "
            "passed twice in one forward: use a weight-side method such as mixout or l2_sp"
        )
    refuse(found)


def is_quantized(model: nn.Module) -> bool:
    """Whether a layer holds its weights in the 4 or 8 bits of bitsandbytes."""
    return any(
        cls.__module__.startswith("bitsandbytes")
        for kind in {type(module) for module in model.modules()}
        for cls in kind.__mro__
    )


def _acting(regularizers: dict[str, Regularizer]) -> list[tuple[str, Regularizer]]:
    return [(name, r) for name, r in regularizers.items() if r.name != "plain"]


def _why_not(regularizer: Regularizer) -> str:
    second = regularizer.second_order
    reason = "their kernels have no second derivative" if second else "that is not verified"
    return f"{reason}: load the base model with dtype=torch.float32, and train LoRA with bf16=True"


def _forms(regularizer: Regularizer) -> list[str]:
    """A method's name, alone and with what its fields make of it."""
    options = {key: getattr(regularizer, key, None) for key in ("compat", "factors")}
    name = regularizer.name
    return [name, *(f"{name} {key}={value}" for key, value in options.items() if value)]


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
                f"{name} climbs the loss of a whole batch and would see a part: set "
                "gradient_accumulation_steps=1"
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


def _reentrant(modules: list[nn.Module]) -> bool:
    functions = (getattr(module, "_gradient_checkpointing_func", None) for module in modules)
    return any((getattr(f, "keywords", None) or {}).get("use_reentrant") for f in functions)


def support_table() -> str:
    """The table as Markdown: "yes", or the number of the reason below it."""
    reasons = list(dict.fromkeys(r for row in REFUSED.values() for r in row.values()))
    lines = ["| | " + " | ".join(ENVIRONMENTS) + " |", "|---" * (len(ENVIRONMENTS) + 1) + "|"]
    for kind in KINDS:
        cells = [
            f"no ({reasons.index(REFUSED[kind][e]) + 1})" if e in REFUSED[kind] else "yes"
            for e in ENVIRONMENTS
        ]
        lines.append(f"| {kind} | " + " | ".join(cells) + " |")
    notes = [f"{i}. {reason}." for i, reason in enumerate(reasons, start=1)]
    return "\n".join([*lines, "", *notes]) + "\n"
