"""Noise in embedding space, scaled relative to the embeddings it is added to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from smoothtune.core import rng
from smoothtune.core.architecture import embedding_table, unwrap
from smoothtune.core.forward import ForwardPass
from smoothtune.core.hooks import Layer
from smoothtune.functional.neighbors import Neighbors, in_manifold

NoiseKind = Literal["standard", "in_manifold"]
RescaleOver = Literal["token", "sequence", "none"]


def rescale(noise: Tensor, x: Tensor, mask: Tensor, ratio: float, over: RescaleOver) -> Tensor:
    """Give noise the norm `ratio` * ||x||, and zero on padding.

    Args:
        noise: (B, T, D) draws.
        x: (B, T, D) what it is added to.
        mask: (B, T) real tokens.
        ratio: ||noise|| / ||x||; unused for "none".
        over: "token": every token for itself; "sequence": the norms run over the real tokens of
            an example together; "none": the noise keeps its norm.
    """
    keep = mask[..., None]
    noise = noise * keep
    if over == "none":
        return noise
    dims = (-1,) if over == "token" else (1, 2)
    norm = torch.linalg.vector_norm
    wanted = ratio * norm((x * keep).to(noise.dtype), dim=dims, keepdim=True)
    found = norm(noise, dim=dims, keepdim=True)
    return noise * (wanted / found.clamp(min=torch.finfo(noise.dtype).tiny))


def gaussian(x: Tensor, mask: Tensor, ratio: float, over: RescaleOver = "token") -> Tensor:
    """Isotropic noise: N(0, I), then `rescale`; with "none" its deviation is `ratio`."""
    draws = rng.normal_like(x.to(torch.promote_types(x.dtype, torch.float32)))
    return rescale(ratio * draws if over == "none" else draws, x, mask, ratio, over)


def relative_norm(delta: Tensor, x: Tensor, mask: Tensor) -> Tensor:
    """() ||delta|| / ||x|| over the real tokens of a batch: what is logged as `delta_ratio`."""
    keep = mask[..., None]
    return torch.linalg.vector_norm(delta * keep) / torch.linalg.vector_norm(x * keep)


@dataclass
class EmbeddingNoise:
    """The noise of the LNSR papers, at one point of the model.

    Raises:
        ValueError: in-manifold noise anywhere but at the word embeddings.
    """

    kind: NoiseKind
    ratio: float | None
    layer: Layer | None
    k: int
    orthonormal: bool
    rescale_over: RescaleOver

    def __post_init__(self):
        if self.kind == "in_manifold" and self.layer not in (None, "word"):
            raise ValueError(
                'in-manifold noise lives in the word-embedding space: use layer="word", or '
                'noise="standard" at the input of a block'
            )
        in_manifold = self.kind == "in_manifold"
        self.point: Layer = self.layer if self.layer is not None else "word" if in_manifold else 0
        self.norm_ratio = self.ratio if self.ratio is not None else 0.10 if in_manifold else 0.05
        self.neighbors: Neighbors | None = None

    def attach(self, model: nn.Module) -> None:
        """Index the pre-trained embeddings for their neighbors."""
        if self.kind == "in_manifold":
            self.neighbors = Neighbors(embedding_table(model), self.k)

    def detach(self) -> None:
        """Save the neighbors found, for later runs."""
        if self.neighbors is not None:
            self.neighbors.save()
            self.neighbors = None

    def draw(self, clean: ForwardPass) -> Tensor:
        """(B, T, D) one draw, zero on padding, for the point `self.point`."""
        x, mask = clean.embeddings(self.point), clean.mask
        if self.kind == "standard":
            return gaussian(x, mask, self.norm_ratio, self.rescale_over)
        table = embedding_table(unwrap(clean.model))
        if self.neighbors is None:
            self.neighbors = Neighbors(table, self.k)
        draws = in_manifold(clean.input_ids, table, self.neighbors, self.orthonormal)
        return rescale(draws, x, mask, self.norm_ratio, self.rescale_over)
