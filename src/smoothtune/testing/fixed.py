"""Draws, precision and perturbations that are held fixed, so that numbers can be compared."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._pytree import tree_map

from smoothtune.core.forward import ForwardPass
from smoothtune.functional import divergences
from smoothtune.nn import rng

_ATTENTION = F.scaled_dot_product_attention


@contextmanager
def fixed_draws(*, left: bool = False) -> Iterator[None]:
    """Draws that depend only on the position in an example, counted from the unpadded side."""

    def pattern(x: Tensor) -> Tensor:
        inner = x.shape[1:] if x.ndim > 1 else x.shape
        places = (torch.arange(size, device=x.device) for size in inner)
        index = torch.stack(torch.meshgrid(*places, indexing="ij"), -1).double()
        if left and x.ndim > 2:
            index[..., 0] -= inner[0]
        factors = torch.tensor([0.7, 1.9, 3.1], device=x.device)[: index.shape[-1]]
        phase = (index * factors).sum(-1)
        return torch.sin(phase + 0.5).to(x.dtype).expand_as(x).clone()

    with (
        mock.patch.object(rng, "normal_like", lambda x: 1.4 * pattern(x)),
        mock.patch.object(rng, "uniform_like", pattern),
        mock.patch.object(rng, "keep_mask", lambda shape, p, like: _alternate(shape, like)),
        mock.patch.object(F, "dropout", _scale_features),
        mock.patch.object(F, "scaled_dot_product_attention", _attention_without_dropout),
    ):
        yield


def _alternate(shape: tuple[int, ...], like: Tensor) -> Tensor:
    count = like.new_empty(shape).numel()
    return (torch.arange(count, device=like.device) % 3 > 0).view(shape).to(like)


def _scale_features(
    x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Tensor:
    """In place of dropout: depends on the rate and the feature; nothing for attention weights."""
    if not training or x.ndim > 3:
        return x
    feature = torch.arange(x.shape[-1], dtype=x.dtype, device=x.device)
    return x * (1 + p * torch.sin(1.3 * feature))


def _attention_without_dropout(*args: Any, **kwargs: Any) -> Tensor:
    return _ATTENTION(*args, **kwargs | {"dropout_p": 0.0})


@contextmanager
def all_in_float64() -> Iterator[None]:
    """Let models that compute parts in float32 whatever their type (RMSNorm, softmax) use float64.

    Otherwise finite differences and sums in another order agree to 1e-6 at best.
    """
    with (
        mock.patch.object(torch, "float32", torch.float64),
        mock.patch.object(torch, "float", torch.float64),
        mock.patch.object(torch.Tensor, "float", torch.Tensor.double),
    ):
        yield


@contextmanager
def frozen_perturbations(recorded: list[Any], *, replay: bool) -> Iterator[None]:
    """Record perturbations of `ForwardPass.at` and targets of divergences, or use recorded ones.

    Methods treat them as constants although they depend on the weights; finite differences must do
    so too.
    """
    original, stored = ForwardPass.at, iter(recorded)

    def at(self: ForwardPass, delta: Any = None, *args: Any, **kwargs: Any) -> ForwardPass:
        if not replay:
            recorded.append(tree_map(_leaf, delta))
        delta = next(stored) if replay else delta
        return original(self, delta, *args, **kwargs)

    def constant(x: Tensor) -> Tensor:
        if replay:
            return next(stored)
        recorded.append(x.detach())
        return recorded[-1]

    with (
        mock.patch.object(ForwardPass, "at", at),
        mock.patch.object(divergences, "constant", constant),
    ):
        yield


def _leaf(tensor: Tensor | None) -> Tensor | None:
    return (
        tensor if tensor is None else tensor.detach().clone().requires_grad_(tensor.requires_grad)
    )
