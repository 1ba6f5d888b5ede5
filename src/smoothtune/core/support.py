"""Which methods work in which environments, and what to change where they do not.

Methods are grouped by what they do; a method may be of several kinds. Tests compare every supported
pair of kind and environment with a single float32 process; every other pair is in `REFUSED`.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn

from smoothtune.core.regularizer import LossTerm, Penalty, Regularizer
from smoothtune.errors import NotSupported
from smoothtune.nn.architecture import blocks, is_fsdp1, unwrap
from smoothtune.nn.distributed import casts, shards
from smoothtune.nn.environments import ENVIRONMENTS, LOW_BIT, Environment, environments, unreadable
from smoothtune.nn.hf_versions import recomputes_hooks
from smoothtune.nn.hooks import WEIGHT_SIDE
from smoothtune.nn.low_bit import HALF
from smoothtune.nn.model_facts import (
    ENCODER_DECODERS,
    added_loss,
    adds_tokens,
    declaring,
    has_merged_adapters,
    is_encoder_decoder,
    is_seq2seq_lm,
    predicts_tokens,
    reads_text,
    sides_of,
    transformer,
)

_FLOAT32 = (
    "load the model with dtype=torch.float32 and train with bf16=True, or freeze what has 16 bits "
    "and train LoRA adapters in float32"
)
_ROUNDED = f"16-bit weights round small perturbations away: {_FLOAT32}"
_NO_BF16 = f"its derivatives are lost in 16-bit rounding: {_FLOAT32}"
_LOST = "hooks that are added later are lost in a compiled model"
_NO_COMPILE = f"{_LOST}: compile its blocks alone, with smoothtune.compile_blocks(model)"
_COMPILE_NOTHING = "do not compile, or set torch_compile=False"
_NO_SECOND = f"compiled graphs have no second derivative: {_COMPILE_NOTHING}"
_NO_FSDP = "it needs whole weights where FSDP2 has shards: use DDP"
FULL_BATCH = "it needs the gradient of the full batch: use one process and no accumulation"
_NO_REENTRANCE = (
    'set activation_checkpointing_kwargs={"use_reentrant": False} (gradient_checkpointing_kwargs '
    "before transformers 5.23)"
)
_NON_REENTRANT = f"reentrant checkpointing has no inner gradients: {_NO_REENTRANCE}"

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

_MERGED = (
    "adapters that are merged into the weights, where they get no gradient: call "
    "model.unmerge_adapter() before"
)

REFUSED: dict[str, dict[Environment, str]] = {
    "perturbs": {
        "16-bit weights": _ROUNDED,
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
        "compiled blocks": f"every dropout rate would be compiled again: {_COMPILE_NOTHING}",
        "16-bit weights": _ROUNDED,
        "FSDP2": _NO_FSDP,
    },
    "ascends in weights": {
        "16-bit weights": f"16-bit weights round small steps away: {_FLOAT32}",
        "reentrant checkpointing": _NON_REENTRANT,
        "DDP": FULL_BATCH,
        "FSDP2": FULL_BATCH,
    },
    "has a bound": {
        "reentrant checkpointing": "the gradients of term and task cannot be told apart there: "
        f"{_NO_REENTRANCE}, or give a weight, such as weight=1, without a bound",
    },
}

KINDS = tuple(REFUSED)
"""What methods do."""
NO_NORMS: set[Environment] = set(REFUSED["has a bound"])
"""Where the gradients of losses cannot be told apart."""

NOT_FLOAT32 = ("reentrant checkpointing", "torch.compile", "compiled blocks", "FSDP2")
"""Where frozen weights in few bits are not read as float32."""


def kinds(method: Regularizer) -> set[str]:
    """What a method does, as far as it decides where it works."""
    traits = method.traits
    does = {
        "perturbs": bool(method.points()),
        "finite differences": traits.finite_differences,
        "differentiates twice": traits.derivative_order > 1,
        "substitutes weights": traits.reparametrizes,
        "needs whole weights": traits.whole_weights,
        "edits updates": method.acts_before,
        "changes dropout": traits.changes_dropout,
        "ascends in weights": traits.ascends_weights,
        "has a bound": isinstance(method, Penalty) and method.max_share is not None,
    }
    return {kind for kind in KINDS if does[kind]}


def runs_model(method: Regularizer) -> bool:
    """Whether its loss comes from passes of its own, or from derivatives of the clean one."""
    return bool(method.points()) or method.traits.changes_dropout or method.traits.ascends_weights


def problems(name: str, regularizer: Regularizer, where: set[Environment]) -> list[str]:
    """Why a method does not work in these environments, and what to change; empty if it does."""
    does = kinds(regularizer)
    return [
        f"{name} with {environment}: {REFUSED[kind][environment]}"
        for kind in KINDS
        for environment in ENVIRONMENTS
        if kind in does and environment in where and environment in REFUSED[kind]
    ]


def refuse(refusals: list[str]) -> None:
    """Raise for what was found, all of it at once.

    Raises:
        NotSupported: there is a problem.
    """
    if refusals:
        raise NotSupported(refusals)


def check(
    methods: dict[str, Regularizer], model: nn.Module, device: torch.device | None = None
) -> set[Environment]:
    """Refuse methods that do not support this model as it is.

    Returns:
        The environments of the model.

    Raises:
        ValueError: names every problem, and what to change.
    """
    refuse(_wrapper_problems(model))
    where, bare = environments(model, device), unwrap(model)
    refusals = [p for name, r in methods.items() for p in problems(name, r, where)]
    reasons = {name: r.refuses(bare) for name, r in methods.items()}
    refusals += [f"{name} {reason}" for name, reason in reasons.items() if reason]
    for_all = [
        _CASTS if any(map(casts, shards(model))) else None,
        _MERGED if has_merged_adapters(bare) else None,
        unreadable(bare),
    ]
    acting = [name for name, r in methods.items() if not r.traits.does_nothing]
    refusals += [f"{name} with {reason}" for reason in for_all if reason for name in acting]
    refusals += _low_bit_problems(methods, where)
    refusals += recomputation_problems(methods, bare, where)
    refusals += _perturbation_problems(methods, bare, where)
    refusals += plain_problems(methods.values(), bare, {})
    if refusals and "16-bit weights" in where and where & set(LOW_BIT):
        names = [n for n, p in bare.named_parameters() if p.requires_grad and p.dtype in HALF]
        refusals.append(
            f"trained in 16 bits: {', '.join(names)}: make them float32 once the trainer is made, "
            "as TRL turns adapters beside quantized weights into 16 bits: for w in "
            "model.parameters(): if w.requires_grad: w.data = w.data.float()"
        )
    refuse(refusals)
    return where


def plain_problems(
    methods: Iterable[Regularizer],
    model: nn.Module,
    batch: Mapping[str, Any],
    *,
    declared: bool = True,
) -> list[str]:
    """Why methods that compute the task loss themselves have another one, and what to change.

    They know the plain loss alone: the mean cross entropy that the model declares.

    Args:
        methods: all of them.
        model: unwrapped.
        batch: may ask the model for another loss.
        declared: the task loss is the one that the model declares, and not of the loop's own.
    """
    added = added_loss(model, batch)
    if declared and added is None:
        return []
    what = "your loss is another" if added is None else f"{type(model).__name__} adds {added}"
    loss = "model's own" if added is None else "model's without it"
    return [
        f"{each.name}: {what}, and the method computes the plain task loss from logits and labels: "
        f"leave the method out, or train with the {loss}"
        for each in methods
        if each.traits.plain_loss
    ]


def _low_bit_problems(methods: dict[str, Regularizer], where: set[Environment]) -> list[str]:
    """Which methods need float32 where frozen weights in few bits are not read so."""
    return [
        f"{name} with {low_bit} and {environment}: its passes would not be float32: load the base "
        "model with dtype=torch.float32"
        for name, r in methods.items()
        for low_bit in LOW_BIT
        for environment in NOT_FLOAT32
        if {low_bit, environment} <= where and (r.traits.needs_float32 or runs_model(r))
    ]


def recomputation_problems(
    methods: dict[str, Regularizer], model: nn.Module, where: set[Environment]
) -> list[str]:
    """Which methods act in blocks that would be recomputed without them."""
    refusals = list[str]()
    if "activation checkpointing" not in where:
        return refusals
    for name, method in methods.items():
        if not {*method.points()} - {"word"} and method.traits.derivative_order == 1:
            continue
        side = method.side if isinstance(method, LossTerm) else "encoder"
        layers = [layer for part in sides_of(model, side) for layer in blocks(model, part)]
        if any(map(recomputes_hooks, layers)):
            refusals.append(
                f"{name} with activation checkpointing: {type(layers[0]).__name__} would be "
                "recomputed without what the method does in it: use transformers 5.23 or newer, or "
                "turn checkpointing off"
            )
    return refusals


def _wrapper_problems(model: nn.Module) -> list[str]:
    """Why nothing works in what a loop has put around a model, and what to change."""
    if type(model).__module__.startswith("deepspeed."):
        return [_DEEPSPEED]
    classes: set[Any] = {type(module) for module in model.modules()}
    if any(map(is_fsdp1, classes)):
        return ["FSDP1, which is not verified: shard with fully_shard (FSDP2), or use DDP"]
    if isinstance(model, nn.DataParallel):
        return ["nn.DataParallel, which does not split perturbations: use DDP"]
    return []


def _perturbation_problems(
    methods: dict[str, Regularizer], model: nn.Module, where: set[Environment]
) -> list[str]:
    """Why methods cannot perturb, or compare, what an unwrapped model reads, or a side of it."""
    refusals = list[str]()
    if adds_tokens(model):
        refusals += [f"{name} {_TOKENS}" for name, r in methods.items() if _by_position(r, model)]
    for name, method in methods.items():
        if isinstance(method, LossTerm) and method.side != "encoder":
            refusals += _side_problems(name, method, model)
    perturbing = {name: r for name, r in methods.items() if r.points()}
    if not perturbing:
        return refusals
    names = ", ".join(perturbing)
    kind = getattr(getattr(declaring(model), "config", None), "model_type", "")
    if not reads_text(model):
        reads = getattr(transformer(model), "main_input_name", "")
        refusals.append(
            f"{names} with a model that reads {reads}: perturbations are verified at word "
            f"embeddings only: {WEIGHT_SIDE}"
        )
    if kind == "xlnet":
        refusals.append(
            f"{names} with XLNet: its embeddings are (T, B, D), not (B, T, D): {WEIGHT_SIDE}"
        )
    if is_encoder_decoder(model):
        if kind not in ENCODER_DECODERS:
            refusals.append(
                f"{names} with an encoder-decoder model of type {kind!r}: perturbations are "
                f"verified in {', '.join(sorted(ENCODER_DECODERS))}: use one of them, or a "
                "weight-side method such as mixout or l2_sp"
            )
        refusals += [
            f"{names} with an encoder-decoder model and {environment} is not verified: use "
            "DDP, and load the model with dtype=torch.float32"
            for environment in ENVIRONMENTS
            if environment in where and environment in ("FSDP2", *LOW_BIT)
        ]
    sides = {r.side for r in perturbing.values() if isinstance(r, LossTerm)}
    if len(sides) > 1:
        refusals.append(f"{names} have side={' and '.join(sorted(sides))}: give them one side")
    return refusals


def _side_problems(name: str, method: LossTerm, model: nn.Module) -> list[str]:
    """Why a method has no use for the decoder of an unwrapped model."""
    if not method.points():
        return [f"{name} perturbs no tokens: leave side out"]
    if not is_seq2seq_lm(model):
        return [
            f'{name} with side="{method.side}": {type(model).__name__} is no encoder-decoder '
            "language model, whose decoder reads its labels: leave side out"
        ]
    if method.traits.hidden_states and method.side == "both":
        return [
            f'{name} with side="both": it looks at the hidden states of one stack: give '
            'side="encoder" or "decoder"'
        ]
    return []


def _by_position(method: Regularizer, model: nn.Module) -> bool:
    """Whether a method, or the loss beside it, needs a position of the model for every token."""
    inside = method.traits.hidden_states or {*method.points()} - {"word"}
    return predicts_tokens(model) or bool(inside)
