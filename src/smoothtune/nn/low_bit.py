"""Frozen weights that are stored in fewer than 32 bits, computed with in float32.

A perturbation of 1e-5 is lost where it is added to a 16-bit activation, and so is the small
difference of two passes. float32 holds every 16-bit number, so a pass that reads its frozen weights
as float32 is that of the same model in float32. Quantized weights give the pass of the model that
holds what they de-quantize to.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

HALF = (torch.float16, torch.bfloat16)
QUANTIZERS = ("bitsandbytes", "torchao")
INSTEAD_OF_QUANTIZED = (
    "use bitsandbytes (load_in_4bit, load_in_8bit) or a weight-only configuration of torchao, or "
    "load the base model with dtype=torch.float32 or torch.bfloat16"
)
aten = torch.ops.aten
VIEWS = (aten.t.default, aten.transpose.int, aten.detach.default, aten.alias.default)
Read = Callable[[], Tensor]


class Float32View(Tensor):
    """A frozen weight that is float32 to whoever looks, and stored as it was.

    Every operation makes a float32 copy and lets go of it. Autograd, which keeps this tensor for
    the backward pass, keeps the stored weight alone.

    Args:
        read: gives the weight in float32.
        like: has its shape and strides; on the meta device, perhaps.
        device: where it is.
        table: the stored weight, if its rows may be looked up before they are float32.
    """

    __torch_function__: Any = torch._C._disabled_torch_function_impl  # results are plain tensors
    read: Read
    table: Tensor | None

    @staticmethod
    def __new__(
        cls, read: Read, like: Tensor, device: torch.device, table: Tensor | None = None
    ) -> Float32View:
        """A tensor without data of its own."""
        made: Float32View = Tensor._make_wrapper_subclass(
            cls, like.shape, strides=like.stride(), dtype=torch.float32, device=device
        )
        made.read, made.table = read, table
        return made

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Views are views in float32 again; everything else is computed with float32 copies."""
        first, rest, kwargs = args[0], args[1:], kwargs or {}
        if func in VIEWS:
            like = torch.empty_strided(first.shape, first.stride(), device="meta")
            return cls(lambda: func(first.read(), *rest), func(like, *rest), first.device)
        if func is aten.embedding.default and first.table is not None:
            return func(first.table, *rest, **kwargs).float()
        args, kwargs = tree_map_only(cls, lambda weight: weight.read(), (args, kwargs))
        return func(*args, **kwargs)


def is_low_bit(weight: Tensor | None) -> bool:
    """Whether a weight is frozen and stored in fewer than 32 bits."""
    if weight is None or weight.requires_grad:
        return False
    return weight.dtype in HALF or is_quantized(weight)


def is_quantized(part: Tensor | nn.Module) -> bool:
    """Whether a weight or a layer is one of bitsandbytes' or torchao's."""
    return any(cls.__module__.startswith(QUANTIZERS) for cls in type(part).__mro__)


def why_unreadable(module: nn.Module) -> str | None:
    """Why a layer's quantized weights cannot be read as float32; None if they can, or it has none.

    Layers whose forward does more than `nn.Linear`'s, beside the arithmetic in few bits, are not
    known.
    """
    weights = [w for w in module._parameters.values() if w is not None and is_quantized(w)]
    if any(weight.requires_grad for weight in weights):
        return "quantized weights that are trained: freeze them, and train LoRA adapters"
    kinds = {type(weight).__name__ for weight in weights}
    if is_quantized(module):
        readable = isinstance(module, nn.Linear) and kinds in ({"Params4bit"}, {"Int8Params"})
    else:
        plain = not weights or type(module) in (nn.Linear, nn.Embedding)
        readable = plain and all(hasattr(weight, "dequantize") for weight in weights)
    if not readable:
        return f"quantized weights in {type(module).__name__}: {INSTEAD_OF_QUANTIZED}"
    if any(getattr(weight, "act_quant_kwargs", None) for weight in weights):
        return f"quantized activations, which have no gradient: {INSTEAD_OF_QUANTIZED}"
    return None


def float32_view(module: nn.Module, weight: Tensor) -> Float32View:
    """A weight in few bits of a module in float32.

    Raises:
        RuntimeError: bitsandbytes has packed it for inference.
    """
    kind = type(weight).__name__
    if kind == "Params4bit":
        return _four_bits(weight)
    if kind == "Int8Params":
        return _eight_bits(module, weight)
    if is_quantized(weight):
        return Float32View(lambda: weight.dequantize().float(), weight, weight.device)
    return Float32View(weight.float, weight, weight.device, weight)


def keep_unpacked(model: nn.Module) -> None:
    """Keep weights in 4 bits as they were loaded.

    On CPUs with bfloat16 arithmetic bitsandbytes packs them for good in the first pass in
    evaluation mode: they have no gradient then, so no training could go on, and layers whose width
    is no multiple of 32 end in an error.
    """
    for module in model.modules():
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.support_avx512bf16_for_cpu = False  # type: ignore[assignment]


def _four_bits(weight: Any) -> Float32View:
    from bitsandbytes.functional import dequantize_4bit

    state = weight.quant_state
    if getattr(state, "packing_format_for_cpu", False):
        raise RuntimeError(
            "bitsandbytes packed the 4-bit weights for inference when the model ran in evaluation "
            "mode on this CPU, and they have no gradient then: load the model again, and call "
            "bind() or regularize() before it is evaluated for the first time"
        )
    like = torch.empty(state.shape, device="meta")
    return Float32View(lambda: dequantize_4bit(weight.data, state).float(), like, weight.device)


def _eight_bits(module: Any, weight: Any) -> Float32View:
    from bitsandbytes.functional import int8_vectorwise_dequant

    scales = weight.SCB if module.state.SCB is None else module.state.SCB  # moved by a forward

    def read() -> Tensor:
        return int8_vectorwise_dequant(weight.data, scales.to(weight.device)).float()

    return Float32View(read, weight, weight.device)


class Float32Compute:
    """Lets a model compute in float32 where its frozen weights are stored in fewer bits.

    Blocks that are recomputed in the backward pass compute so again. It may be entered many times,
    as it is where a block is recomputed for a second derivative.
    """

    def __init__(self, model: nn.Module):
        self.model = model
        self.undo: list[ExitStack] = []

    def __enter__(self) -> None:
        with ExitStack() as stack:  # undone if a weight cannot be read
            for module in self.model.modules():
                _view_weights(module, self, stack)
            self.undo.append(stack.pop_all())

    def __exit__(self, *error: object) -> None:
        self.undo.pop().close()


def _view_weights(module: nn.Module, again: Float32Compute, undo: ExitStack) -> None:
    low_bit = {name: weight for name, weight in module._parameters.items() if is_low_bit(weight)}
    if low_bit:
        undo.callback(module._parameters.update, low_bit)
        for name, weight in low_bit.items():
            assert weight is not None
            module._parameters[name] = float32_view(module, weight)  # type: ignore[assignment]
        if is_quantized(module):  # bitsandbytes' own forward reads the stored weight
            undo.callback(delattr, module, "forward")
            module.forward = partial(nn.Linear.forward, module)  # type: ignore[arg-type]
    recompute = vars(module).get("_gradient_checkpointing_func")
    if recompute is not None:
        undo.callback(setattr, module, "_gradient_checkpointing_func", recompute)
        function = partial(recompute, context_fn=lambda: (nullcontext(), again))
        module._gradient_checkpointing_func = function  # type: ignore[assignment]
