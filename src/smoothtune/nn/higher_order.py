"""Makes second and third derivatives of transformers models exist and be right.

Fused attention has no second derivative and raises. PyTorch's `nn.LayerNorm` has a wrong third
one, without an error: its double backward treats the saved mean and deviation as constants when it
is differentiated again.
"""

from __future__ import annotations

import functools
import logging
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from smoothtune.nn.architecture import transformer
from smoothtune.nn.hf_versions import can_change_attention

warn_once = functools.cache(logging.getLogger(__name__).warning)


class CompositeLayerNorm(nn.LayerNorm):
    """`nn.LayerNorm` from elementary operations, right at every order of differentiation."""

    def forward(self, input: Tensor) -> Tensor:
        """(x - mean) / sqrt(var + eps), then the affine map."""
        dims = tuple(range(-len(self.normalized_shape), 0))
        x = input.to(torch.promote_types(input.dtype, torch.float32))
        centered = x - x.mean(dims, keepdim=True)
        normed = centered * torch.rsqrt(centered.square().mean(dims, keepdim=True) + self.eps)
        if self.weight is not None:
            normed = normed * self.weight
        if self.bias is not None:
            normed = normed + self.bias
        return normed if torch.is_autocast_enabled(input.device.type) else normed.to(input.dtype)


def differentiable_attention() -> AbstractContextManager[None]:
    """Where modules call torch's fused attention themselves: a kernel with second derivatives."""
    return sdpa_kernel(SDPBackend.MATH)


class HigherDerivatives:
    """Makes a model differentiable to some order, until `undo`.

    Args:
        model: the unwrapped model.
        order: 1: nothing is changed; 2: attention without fused kernels; 3: also every
            `nn.LayerNorm` composite. Parameters, hooks and state dicts stay as they are.

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
            self.norms = [module for module in model.modules() if type(module) is nn.LayerNorm]
            for module in self.norms:
                module.__class__ = CompositeLayerNorm
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
            module.__class__ = nn.LayerNorm
        self.attention, self.norms = None, []

    def _implementation(self) -> Any:
        if not hasattr(self.model, "set_attn_implementation"):
            return None
        return getattr(self.model.config, "_attn_implementation", None)
