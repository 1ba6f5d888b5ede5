"""Mixed precision: which one is on, and float32 in its midst.

Autocast is on around a training step, or inside the forward that accelerate has wrapped, or both;
frozen weights may be stored in fewer than 32 bits, with or without it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from accelerate.state import AcceleratorState
from torch import nn

from smoothtune.nn.architecture import unwrap
from smoothtune.nn.low_bit import Float32Compute

MIXED = {"bf16": torch.bfloat16, "fp16": torch.float16}


def autocast_dtype(model: nn.Module, device: torch.device) -> torch.dtype | None:
    """The 16-bit type that a forward on `device` computes in; None without autocast."""
    if torch.is_autocast_enabled(device.type):
        return torch.get_autocast_dtype(device.type)
    if "_original_forward" not in vars(unwrap(model)):
        return None
    return MIXED.get(AcceleratorState._shared_state.get("_mixed_precision", "no"))


@contextmanager
def tf32_products() -> Iterator[None]:
    """Matrix products of float32 on CUDA devices read 10 bits (TF32); afterwards as before.

    Where they do already, or `fp32_precision` of torch says what they read, nothing is changed.
    """
    matmul = torch.backends.cuda.matmul
    try:
        before = bool(matmul.allow_tf32)
    except RuntimeError:  # as torch has it, it cannot be asked beside `fp32_precision`
        before = True
    if not before:
        matmul.allow_tf32 = True
    try:
        yield
    finally:
        if not before:
            matmul.allow_tf32 = False


@contextmanager
def in_float32(model: nn.Module, device: torch.device) -> Iterator[None]:
    """Autocast off, also that which accelerate wraps around a model's forward; weights read wide.

    Inner gradients belong inside too: their products would be cast like those of a forward.
    """
    bare: Any = unwrap(model)
    wrapped = vars(bare).get("forward")
    inner = vars(bare).get("_original_forward") if wrapped is not None else None
    with torch.autocast(device.type, enabled=False), Float32Compute(bare):
        if inner is not None:
            bare.forward = inner
        try:
            yield
        finally:
            if inner is not None:
                bare.forward = wrapped
