"""Noise in embedding space, scaled relative to the embeddings it is added to."""

from typing import Literal

import torch
from torch import Tensor, nn

from smoothtune.nn import rng
from smoothtune.nn.architecture import embedding_table
from smoothtune.nn.model_facts import transformer

NoiseKind = Literal["standard", "in_manifold"]
RescaleOver = Literal["token", "sequence", "none"]


def rescale(noise: Tensor, x: Tensor, mask: Tensor, ratio: float, over: RescaleOver) -> Tensor:
    """Give noise the norm `ratio` * ||x||, and zero on padding.

    Args:
        noise: (B, T, D) draws.
        x: (B, T, D) what it is added to.
        mask: (B, T) real tokens.
        ratio: ||noise|| / ||x||; for "none" what the draws are multiplied with.
        over: what the norms run over: a "token", a "sequence" of real tokens; "none": no norm.
    """
    keep = mask[..., None]
    noise = noise * keep
    if over == "none":
        return ratio * noise
    dims = (-1,) if over == "token" else (1, 2)
    norm = torch.linalg.vector_norm
    target = ratio * norm((x * keep).to(noise.dtype), dim=dims, keepdim=True)
    size = norm(noise, dim=dims, keepdim=True)
    return noise * (target / size.clamp(min=torch.finfo(noise.dtype).tiny))


def gaussian(x: Tensor, mask: Tensor, ratio: float, over: RescaleOver = "token") -> Tensor:
    """Isotropic noise: N(0, I), then `rescale`; with "none" its deviation is `ratio`."""
    draws = rng.normal_like(x.to(torch.promote_types(x.dtype, torch.float32)))
    return rescale(draws, x, mask, ratio, over)


def relative_norm(delta: Tensor, x: Tensor, mask: Tensor) -> Tensor:
    """() ||delta|| / ||x|| over the real tokens of a batch: what is logged as `delta_ratio`."""
    keep = mask[..., None]
    return torch.linalg.vector_norm(delta * keep) / torch.linalg.vector_norm(x * keep)


def special_ids(model: nn.Module) -> set[int]:
    """Ids of padding, start, end and the like that a model's configuration names."""
    config = getattr(transformer(model), "config", None)
    ids: set[int] = set()
    for name, value in (vars(config) if config is not None else {}).items():
        if name.endswith("_token_id") and value is not None:
            ids |= set(value if isinstance(value, list) else [value])
    return ids


def number_of_neighbors(model: nn.Module, k: int) -> int:
    """`k`, or as many neighbors as a token has in a smaller vocabulary, special tokens apart."""
    size = len(embedding_table(model))
    return min(k, size - sum(i < size for i in special_ids(model)) - 1)
