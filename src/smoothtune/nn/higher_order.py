"""Makes second and third derivatives of transformers models exist and be right.

Fused attention has no second derivative and raises. PyTorch's `nn.LayerNorm` has a wrong third
one, without an error: its double backward treats the saved mean and deviation as constants when it
is differentiated again.
"""

import functools
import logging
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from smoothtune.nn.hf_versions import can_change_attention
from smoothtune.nn.model_facts import transformer

warn_once = functools.cache(logging.getLogger(__name__).warning)


def composite_layer_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """`F.layer_norm`, (x - mean) / sqrt(var + eps) and the affine map, right at every order."""
    dims = tuple(range(-len(normalized_shape), 0))
    x = input.to(torch.promote_types(input.dtype, torch.float32))
    centered = x - x.mean(dims, keepdim=True)
    normed = centered * torch.rsqrt(centered.square().mean(dims, keepdim=True) + eps)
    if weight is not None:
        normed = normed * weight
    if bias is not None:
        normed = normed + bias
    return normed if torch.is_autocast_enabled(input.device.type) else normed.to(input.dtype)


class CompositeLayerNorm(nn.LayerNorm):
    """`nn.LayerNorm` from elementary operations, right at every order of differentiation."""

    def forward(self, input: Tensor) -> Tensor:
        """As `composite_layer_norm`."""
        return composite_layer_norm(input, self.normalized_shape, self.weight, self.bias, self.eps)


class _CompositeCalls(TorchFunctionMode):
    """Takes `composite_layer_norm` wherever `F.layer_norm` is called."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        function = composite_layer_norm if func is F.layer_norm else func
        return function(*args, **(kwargs or {}))


@functools.cache
def _composite(cls: Any) -> Any:
    """The class of a layer norm of class `cls` in which elementary operations take its place."""
    if cls is nn.LayerNorm:
        return CompositeLayerNorm

    def forward(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        with _CompositeCalls():
            return cls.forward(module, *args, **kwargs)

    return type(f"Composite{cls.__name__}", (cls,), {"forward": forward})


def _is_layer_norm(module: nn.Module) -> bool:
    """Whether a module is a `nn.LayerNorm`, or one of a model's own that calls its function."""
    if isinstance(module, nn.LayerNorm):
        return True
    names: Any = getattr(getattr(type(module).forward, "__code__", None), "co_names", ())
    return type(module).__name__.endswith("LayerNorm") and "layer_norm" in names


def differentiable_attention() -> AbstractContextManager[None]:
    """Where modules call torch's fused attention themselves: a kernel with second derivatives."""
    return sdpa_kernel(SDPBackend.MATH)


class HigherDerivatives:
    """Makes a model differentiable to some order, until `undo`.

    Args:
        model: the unwrapped model.
        order: 1: nothing is changed; 2: attention without fused kernels; 3: also every
            layer norm composite. Parameters, hooks and state dicts stay as they are.

    Raises:
        ValueError: the model has fused attention that cannot be replaced.
    """

    def __init__(self, model: nn.Module, order: int):
        self.model = transformer(model)
        self.attention: Any = None
        self.norms: list[nn.Module] = []
        if order >= 2 and self._implementation() not in (None, "eager"):
            self._replace_attention()
        if order >= 3:
            self.norms = [module for module in model.modules() if _is_layer_norm(module)]
            for module in self.norms:
                kind: Any = type(module)
                module.__class__ = _composite(kind)
            if self.norms:
                warn_once(
                    "nn.LayerNorm is computed from elementary operations while training: the "
                    "third derivative of PyTorch's own is wrong"
                )

    def _replace_attention(self) -> None:
        """Compute attention by the eager implementation, or leave it to `differentiable_attention`.

        Raises:
            ValueError: the model has another fused one for good.
        """
        own = self._implementation()
        if can_change_attention(self.model):
            self.attention = own
            self.model.set_attn_implementation("eager")  # type: ignore[operator]
            warn_once(
                "attention is computed by the eager implementation while training: %s has no "
                "second derivative",
                own,
            )
        elif own != "sdpa":
            raise ValueError(
                f"{own} has no second derivative, and {type(self.model).__name__} keeps it in this "
                'version of transformers: load the model with attn_implementation="eager"'
            )

    def undo(self) -> None:
        """Restore the model's own attention and LayerNorm."""
        if self.attention is not None:
            self.model.set_attn_implementation(self.attention)  # type: ignore[operator]
        for module in self.norms:
            module.__class__ = type(module).__base__  # type: ignore[assignment]
        self.attention, self.norms = None, []

    def _implementation(self) -> Any:
        if not hasattr(self.model, "set_attn_implementation"):
            return None
        return getattr(self.model.config, "_attn_implementation", None)
