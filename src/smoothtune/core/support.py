"""Which methods work in which environments, and what to change where they do not.

Methods are grouped by what they do; a method may be of several kinds. Tests compare every supported
pair of kind and environment with a single float32 process; every other pair is in `REFUSED`.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Literal, get_args

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FullyShardedDataParallel

from smoothtune.core.plain_loss import plain_problems
from smoothtune.core.regularizer import Regularizer
from smoothtune.nn.architecture import is_embedding_model, transformer, unwrap
from smoothtune.nn.autocast import autocast_dtype
from smoothtune.nn.compile import is_compiled_block
from smoothtune.nn.fsdp import casts, shards
from smoothtune.nn.low_bit import (
    HALF,
    INSTEAD_OF_QUANTIZED,
    is_quantized,
    why_unreadable,
)
from smoothtune.nn.model_facts import (
    ENCODER_DECODERS,
    adds_tokens,
    declaring,
    is_encoder_decoder,
    is_seq2seq_lm,
    predicts_tokens,
    reads_text,
)

Kind = Literal[
    "perturbs",
    "finite differences",
    "differentiates twice",
    "substitutes weights",
    "needs whole weights",
    "edits updates",
    "changes dropout",
    "climbs in weights",
    "has a bound",
]
Environment = Literal[
    "bf16 autocast",
    "fp16 and scaler",
    "16-bit weights",
    "16-bit base weights",
    "quantized base weights",
    "activation checkpointing",
    "reentrant checkpointing",
    "torch.compile",
    "compiled blocks",
    "DDP",
    "FSDP2",
    "LoRA",
]
KINDS: tuple[Kind, ...] = get_args(Kind)
ENVIRONMENTS: tuple[Environment, ...] = get_args(Environment)

_FLOAT32 = (
    "load the model with dtype=torch.float32 and train with bf16=True, or freeze what has 16 bits "
    "and train LoRA adapters in float32"
)
_NO_BF16 = f"its derivatives are lost in 16-bit rounding: {_FLOAT32}"
_LOST = "hooks that are added later are lost in a compiled model"
_NO_COMPILE = f"{_LOST}: compile its blocks alone, with smoothtune.compile_blocks(model)"
_COMPILE_NOTHING = "do not compile, or set torch_compile=False"
_NO_SECOND = f"compiled graphs have no second derivative: {_COMPILE_NOTHING}"
_NO_FSDP = "it needs whole weights where FSDP2 has shards: use DDP"
FULL_BATCH = "it needs the gradient of the full batch: use one process and no accumulation"
_NON_REENTRANT = (
    'reentrant checkpointing has no inner gradients: set activation_checkpointing_kwargs={"use_'
    'reentrant": False}'
)

_CASTS = (
    "16 bits of FSDP2's mixed-precision policy: passes, or gradients, would be rounded: shard the "
    "model without, and with accelerate leave mixed_precision out, which sets it"
)
_DEEPSPEED = (
    "DeepSpeed in a loop of your own, whose gradients and updates cannot be seen: train with "
    "SmoothTrainer or regularize, which do so under ZeRO 1 and 2, or use DDP"
)

_TOKENS = (
    "with prompt tuning, which puts tokens of its own before those of a batch: use LoRA, or in a "
    "classifier a method that perturbs word embeddings, such as r3f, or a weight-side one"
)

REFUSED: dict[Kind, dict[Environment, str]] = {
    "perturbs": {
        "16-bit weights": f"16-bit weights round small perturbations away: {_FLOAT32}",
        "reentrant checkpointing": _NON_REENTRANT,
        "torch.compile": _NO_COMPILE,
    },
    "finite differences": {
        "16-bit weights": _NO_BF16,
        "reentrant checkpointing": _NON_REENTRANT,
        "torch.compile": _NO_COMPILE,
    },
    "differentiates twice": {
        "16-bit weights": _NO_BF16,
        "reentrant checkpointing": _NON_REENTRANT,
        "torch.compile": _NO_SECOND,
        "compiled blocks": _NO_SECOND,
        "FSDP2": "sharded modules have no second derivative: use DDP",
    },
    "substitutes weights": {
        "16-bit weights": f"W - W_0 is lost in 16-bit weights: {_FLOAT32}",
        "torch.compile": f"it changes modules after they are compiled: {_COMPILE_NOTHING}",
        "compiled blocks": f"every block would have graphs of its own: {_COMPILE_NOTHING}",
        "FSDP2": _NO_FSDP,
    },
    "needs whole weights": {"FSDP2": _NO_FSDP},
    "edits updates": {"FSDP2": _NO_FSDP},
    "changes dropout": {
        "activation checkpointing": "recomputed blocks would drop out at the model's own rates: "
        "turn checkpointing off",
        "reentrant checkpointing": _NON_REENTRANT,
        "torch.compile": f"{_LOST}: {_COMPILE_NOTHING}",
        "compiled blocks": f"every dropout rate would be compiled anew: {_COMPILE_NOTHING}",
        "16-bit weights": f"16-bit weights round small perturbations away: {_FLOAT32}",
        "FSDP2": _NO_FSDP,
    },
    "climbs in weights": {
        "16-bit weights": f"16-bit weights round small steps away: {_FLOAT32}",
        "reentrant checkpointing": _NON_REENTRANT,
        "DDP": FULL_BATCH,
        "FSDP2": FULL_BATCH,
    },
    "has a bound": {
        "reentrant checkpointing": "the gradients of term and task cannot be told apart there: set "
        'activation_checkpointing_kwargs={"use_reentrant": False}, or give a weight, such as '
        "weight=1, without a bound",
    },
}

NO_NORMS: set[Environment] = set(REFUSED["has a bound"])
"""Where the gradients of losses cannot be told apart."""

_WIDE = "load the base model with dtype=torch.float32"
NARROW: tuple[Environment, ...] = ("16-bit base weights", "quantized base weights")
"""Frozen weights in fewer than 32 bits, which are read as float32 where a method needs it."""
NOT_NARROW: tuple[Environment, ...] = (
    "reentrant checkpointing",
    "torch.compile",
    "compiled blocks",
    "FSDP2",
)
"""Where weights are not read as float32."""

ONE_PREDICTION = "needs exactly one prediction per example, and a language model has many"
CLASS_SCORES = "compares class scores, and an embedding model has none"
ONE_SEQUENCE = (
    "takes derivatives at the one sequence of an example, and multiple choice has several: use "
    "lnsr, r3f or smart"
)


def no_class_scores(model: nn.Module) -> str | None:
    """Why an example has not exactly one prediction with class scores; None if it has."""
    if predicts_tokens(model):
        return ONE_PREDICTION
    return CLASS_SCORES if is_embedding_model(model) else None


def no_compat(model: nn.Module, compat: str | None) -> str | None:
    """Why released code that compares class scores does not support a model; None if it does."""
    reason = no_class_scores(model) if compat else None
    return reason and f"{reason}: leave compat out"


def kinds(regularizer: Regularizer) -> set[Kind]:
    """What a method does, as far as it decides where it works."""
    cls = type(regularizer)
    told: dict[Kind, bool] = {
        "perturbs": bool(regularizer.points()),
        "finite differences": regularizer.finite_differences,
        "differentiates twice": regularizer.second_order,
        "substitutes weights": regularizer.substitutes_weights,
        "needs whole weights": regularizer.needs_whole_weights,
        "edits updates": cls.before_step is not Regularizer.before_step,
        "changes dropout": regularizer.changes_dropout,
        "climbs in weights": regularizer.climbs_in_weights,
        "has a bound": regularizer.max_share is not None,
    }
    return {kind for kind, applies in told.items() if applies}


def computes_wide(where: set[Environment]) -> bool:
    """Whether frozen weights in few bits can be read as float32; not beside trained ones."""
    return bool(where & set(NARROW)) and "16-bit weights" not in where


def is_compiled(model: nn.Module) -> bool:
    """Whether a part of the model is compiled, or all of it."""
    return bool(environments(model) & {"torch.compile", "compiled blocks"})


def _is_wrapped(model: nn.Module) -> bool:
    """Whether `torch.compile` or `model.compile()` acts on a part of the model."""
    return any(
        getattr(module, "_compiled_call_impl", None) or hasattr(module, "_orig_mod")
        for module in (model, *unwrap(model).modules())
    )


def environments(model: nn.Module, device: torch.device | None = None) -> set[Environment]:
    """The environments of a model as it is now.

    Args:
        model: as the loop holds it.
        device: look at autocast on this device too.
    """
    found: set[Environment] = set()
    modules = list(unwrap(model).modules())
    half = {p.requires_grad for p in model.parameters() if p.dtype in HALF and not is_quantized(p)}
    if True in half:
        found.add("16-bit weights")
    if False in half:
        found.add("16-bit base weights")
    if has_quantized(unwrap(model)):
        found.add("quantized base weights")
    if any(getattr(module, "gradient_checkpointing", False) for module in modules):
        found.add("reentrant checkpointing" if _reentrant(modules) else "activation checkpointing")
    if _is_wrapped(model):
        found.add("torch.compile")
    if any(map(is_compiled_block, modules)):
        found.add("compiled blocks")
    if isinstance(model, nn.parallel.DistributedDataParallel):
        found.add("DDP")
    if shards(model):
        found.add("FSDP2")
    if hasattr(unwrap(model), "peft_config"):
        found.add("LoRA")
    dtype = None if device is None else autocast_dtype(model, device)
    if dtype is not None:
        found.add("fp16 and scaler" if dtype == torch.float16 else "bf16 autocast")
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
    """Refuse methods that do not support this model as it is.

    Raises:
        ValueError: names every problem, and what to change.
    """
    refuse(_wrapper_problems(model))
    where = environments(model, device)
    found = [p for name, r in regularizers.items() for p in problems(name, r, where)]
    if any(map(casts, shards(model))):
        found += [f"{name} with {_CASTS}" for name, r in regularizers.items() if not r.does_nothing]
    perturbing = [name for name, r in regularizers.items() if r.points()]
    bare = unwrap(model)
    reasons = {name: r.refuses(bare) for name, r in regularizers.items()}
    found += [f"{name} {reason}" for name, reason in reasons.items() if reason]
    if reason := _unreadable(bare):
        found += [f"{name} with {reason}" for name, r in regularizers.items() if not r.does_nothing]
    found += [
        f"{name} with {narrow} and {environment}: its passes would not be float32: {_WIDE}"
        for name, r in regularizers.items()
        for narrow in NARROW
        for environment in NOT_NARROW
        if {narrow, environment} <= where and (r.needs_float32 or r.runs_model)
    ]
    config = getattr(transformer(bare), "config", None)
    if perturbing and not reads_text(bare):
        read = getattr(transformer(bare), "main_input_name", "")
        found.append(
            f"{', '.join(perturbing)} with a model that reads {read}: perturbations are verified "
            "at word embeddings only: use a weight-side method such as mixout or l2_sp"
        )
    if perturbing and getattr(config, "model_type", "") == "xlnet":
        found.append(
            f"{', '.join(perturbing)} with XLNet: its embeddings are (T, B, D), not (B, T, D): use "
            "a weight-side method such as mixout or l2_sp"
        )
    found += side_problems(regularizers, bare, where)
    if adds_tokens(bare):
        found += [f"{name} {_TOKENS}" for name, r in regularizers.items() if _by_position(r, bare)]
    found += plain_problems(regularizers.values(), bare, {})
    if found and "16-bit weights" in where and where & set(NARROW):
        names = [n for n, p in bare.named_parameters() if p.requires_grad and p.dtype in HALF]
        found.append(
            f"trained in 16 bits: {', '.join(names)}: make what is trained float32, after the "
            "trainer is made, as TRL's makes adapters beside quantized weights 16-bit: for w in "
            "model.parameters(): if w.requires_grad: w.data = w.data.float()"
        )
    refuse(found)


def _by_position(regularizer: Regularizer, model: nn.Module) -> bool:
    """Whether a method, or the loss beside it, needs a position of the model for every token."""
    inside = regularizer.uses_hidden_states or {*regularizer.points()} - {"word"}
    return predicts_tokens(model) or bool(inside)


def _wrapper_problems(model: nn.Module) -> list[str]:
    """Why nothing works in what a loop has put around a model, and what to change."""
    if type(model).__module__.startswith("deepspeed."):
        return [_DEEPSPEED]
    if any(isinstance(module, FullyShardedDataParallel) for module in model.modules()):
        return ["FSDP1, which is not verified: shard with fully_shard (FSDP2), or use DDP"]
    if isinstance(model, nn.DataParallel):
        return ["nn.DataParallel, which does not split perturbations: use DDP"]
    return []


def side_problems(
    regularizers: dict[str, Regularizer], model: nn.Module, where: set[Environment]
) -> list[str]:
    """Why methods cannot perturb a side of an unwrapped model, and what to change."""
    perturbing = {name: r for name, r in regularizers.items() if r.points()}
    names, found = ", ".join(perturbing), list[str]()
    kind = getattr(getattr(declaring(model), "config", None), "model_type", "")
    if perturbing and is_encoder_decoder(model):
        if kind not in ENCODER_DECODERS:
            found.append(
                f"{names} with an encoder-decoder model of type {kind!r}: perturbations are "
                f"verified in {', '.join(sorted(ENCODER_DECODERS))}: use one of them, or a "
                "weight-side method such as mixout or l2_sp"
            )
        found += [
            f"{names} with an encoder-decoder model and {environment} is not verified: use "
            "DDP, and load the model with dtype=torch.float32"
            for environment in ENVIRONMENTS
            if environment in where and environment in ("FSDP2", *NARROW)
        ]
    sides = {r.side for r in perturbing.values()}
    if len(sides) > 1:
        found.append(f"{names} have side={' and '.join(sorted(sides))}: give them one side")
    for name, regularizer in regularizers.items():
        if regularizer.side == "encoder":
            continue
        if name not in perturbing:
            found.append(f"{name} perturbs no tokens: leave side out")
        elif not is_seq2seq_lm(model):
            found.append(
                f'{name} with side="{regularizer.side}": {type(model).__name__} is no encoder-'
                "decoder language model, whose decoder reads its labels: leave side out"
            )
        elif regularizer.uses_hidden_states and regularizer.side == "both":
            found.append(
                f'{name} with side="both": it looks at the hidden states of one stack: give '
                'side="encoder" or "decoder"'
            )
    return found


def has_quantized(model: nn.Module) -> bool:
    """Whether a layer holds its weights in few bits: bitsandbytes, torchao, or as it declares."""
    if getattr(model, "is_quantized", False) or getattr(model, "hf_quantizer", None) is not None:
        return True
    parts: Iterator[nn.Module | Tensor] = chain(model.modules(), model.parameters())
    return any(map(is_quantized, parts))


def _unreadable(model: nn.Module) -> str | None:
    """Which quantized weights cannot be read as float32, and what to use; None if all can."""
    if not has_quantized(model):
        return None
    reasons = (why_unreadable(module) for module in model.modules())
    if reason := next(filter(None, reasons), None):
        return reason
    if any(map(is_quantized, model.parameters())):
        return None
    return f"quantized weights of an unknown kind: {INSTEAD_OF_QUANTIZED}"


def _reentrant(modules: list[nn.Module]) -> bool:
    functions = (getattr(module, "_gradient_checkpointing_func", None) for module in modules)
    return any((getattr(f, "keywords", None) or {}).get("use_reentrant") for f in functions)
