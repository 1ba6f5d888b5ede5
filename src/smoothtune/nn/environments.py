"""What is around a model, or done to it: precision, wrappers, compilation, adapters."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

import torch
from torch import Tensor, nn

from smoothtune.nn.architecture import unwrap
from smoothtune.nn.autocast import autocast_dtype
from smoothtune.nn.compile import is_compiled_block
from smoothtune.nn.distributed import shards
from smoothtune.nn.low_bit import HALF, INSTEAD_OF_QUANTIZED, is_quantized, why_unreadable

if TYPE_CHECKING:
    from torch.distributed.fsdp import FSDPModule

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
ENVIRONMENTS: tuple[Environment, ...] = get_args(Environment)
COMPILED: set[Environment] = {"torch.compile", "compiled blocks"}
LOW_BIT: tuple[Environment, ...] = ("16-bit base weights", "quantized base weights")
"""Frozen weights in fewer than 32 bits, which are read as float32 where a method needs it."""


class Surroundings(NamedTuple):
    """What is around a model, as the loop holds it in one precision; looked up once."""

    where: set[Environment]
    low_bit: bool
    """Whether frozen weights in few bits can be read as float32."""
    units: list[FSDPModule]
    """That FSDP2 shards."""


def environments(model: nn.Module, device: torch.device | None = None) -> set[Environment]:
    """The environments of a model as the loop holds it now; with a device its autocast, too."""
    bare = unwrap(model)
    modules = list(bare.modules())
    half = {p.requires_grad for p in model.parameters() if p.dtype in HALF and not is_quantized(p)}
    recomputes = any(getattr(module, "gradient_checkpointing", False) for module in modules)
    reentrant = recomputes and _reentrant(modules)
    dtype = None if device is None else autocast_dtype(model, device)
    present: dict[Environment, bool] = {
        "bf16 autocast": dtype not in (None, torch.float16),
        "fp16 and scaler": dtype == torch.float16,
        "16-bit weights": True in half,
        "16-bit base weights": False in half,
        "quantized base weights": has_quantized(bare),
        "activation checkpointing": recomputes and not reentrant,
        "reentrant checkpointing": reentrant,
        "torch.compile": _is_wrapped(model, modules),
        "compiled blocks": any(map(is_compiled_block, modules)),
        "DDP": isinstance(model, nn.parallel.DistributedDataParallel),
        "FSDP2": bool(shards(model)),
        "LoRA": hasattr(bare, "peft_config"),
    }
    return {environment for environment, is_there in present.items() if is_there}


def reads_float32(where: set[Environment]) -> bool:
    """Whether frozen weights in few bits can be read as float32; not beside trained ones."""
    return bool(where & set(LOW_BIT)) and "16-bit weights" not in where


def has_quantized(model: nn.Module) -> bool:
    """Whether a layer holds its weights in few bits: bitsandbytes, torchao, or as it declares."""
    if getattr(model, "is_quantized", False) or getattr(model, "hf_quantizer", None) is not None:
        return True
    parts: Iterator[nn.Module | Tensor] = chain(model.modules(), model.parameters())
    return any(map(is_quantized, parts))


def unreadable(model: nn.Module) -> str | None:
    """Which quantized weights cannot be read as float32, and what to use; None if all can."""
    if not has_quantized(model):
        return None
    reasons = (why_unreadable(module) for module in model.modules())
    if reason := next(filter(None, reasons), None):
        return reason
    if any(map(is_quantized, model.parameters())):
        return None
    return f"quantized weights of an unknown kind: {INSTEAD_OF_QUANTIZED}"


def _is_wrapped(model: nn.Module, modules: list[nn.Module]) -> bool:
    """Whether `torch.compile` or `model.compile()` acts on a part of the model."""
    return any(
        getattr(module, "_compiled_call_impl", None) or hasattr(module, "_orig_mod")
        for module in (model, *modules)
    )


def _reentrant(modules: list[nn.Module]) -> bool:
    functions = (getattr(module, "_gradient_checkpointing_func", None) for module in modules)
    return any((getattr(f, "keywords", None) or {}).get("use_reentrant") for f in functions)
