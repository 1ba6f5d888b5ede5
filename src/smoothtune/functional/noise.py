"""Noise in embedding space, scaled relative to the embeddings it is added to."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from smoothtune.core.forward import ForwardPass
from smoothtune.functional.neighbors import Metric, Neighbors, audit, in_manifold
from smoothtune.nn import rng
from smoothtune.nn.architecture import embedding_table, transformer, unwrap
from smoothtune.nn.hooks import Layer

NoiseKind = Literal["standard", "in_manifold"]
RescaleOver = Literal["token", "sequence", "none"]

logger = logging.getLogger(__name__)


def rescale(noise: Tensor, x: Tensor, mask: Tensor, ratio: float, over: RescaleOver) -> Tensor:
    """Give noise the norm `ratio` * ||x||, and zero on padding.

    Args:
        noise: (B, T, D) draws.
        x: (B, T, D) what it is added to.
        mask: (B, T) real tokens.
        ratio: ||noise|| / ||x||; for "none" what the draws are multiplied with.
        over: "token": every token for itself; "sequence": the norms run over the real tokens of
            an example together; "none": no norm is looked at.
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
    metric: Metric = "l2"
    min_count: int = 1

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
        self.counts: Tensor | None = None  # of the tokens in the training texts
        self.special: set[int] = set()
        self.decode: Callable[[int], str] | None = None
        self.counted = False
        self._moves = self._audited = False

    def attach(self, model: nn.Module) -> None:
        """Index the pre-trained embeddings for their neighbors."""
        if self.kind == "in_manifold":
            self._moves = embedding_table(model).requires_grad
            self.special |= special_ids(model)
            self._index(embedding_table(model))

    def count(
        self,
        counts: Tensor,
        special: Sequence[int] = (),
        decode: Callable[[int], str] | None = None,
    ) -> None:
        """Say which tokens occur in the training texts; before `attach` or after.

        Args:
            counts: (n,) as `token_counts` returns them.
            special: ids of tokens that stand for no word.
            decode: id -> token, for what is logged.
        """
        self.counts, self.decode, self.counted = counts, decode, True
        self.special |= set(special)
        if self.neighbors is not None:
            self._index(self.neighbors.table)

    def _index(self, table: Tensor) -> None:
        keep = torch.ones(len(table), dtype=torch.bool)
        if self.counts is not None:
            if len(self.counts) > len(keep):
                raise ValueError(
                    f"the training texts hold token {len(self.counts) - 1}, and the model has "
                    f"{len(keep)} word embeddings: tokenize with the tokenizer of the model"
                )
            counts = F.pad(self.counts.cpu(), (0, len(keep) - len(self.counts)))
            keep = counts >= self.min_count
        keep[[i for i in sorted(self.special) if i < len(keep)]] = False
        self.neighbors = Neighbors(table, self.k, candidates=keep, metric=self.metric)

    def detach(self) -> None:
        """Save the neighbors found, for later runs."""
        if self.neighbors is not None:
            self.neighbors.save()
            self.neighbors = None

    def state_dict(self) -> dict[str, Tensor]:
        """Candidates, and the table they are compared in, if training moves the model's."""
        if self.neighbors is None or self.neighbors.candidates is None:
            return {}
        table = {"table": self.neighbors.table} if self._moves else {}
        return {"candidates": self.neighbors.candidates} | table

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore them."""
        if self.neighbors is not None and "candidates" in state:
            device = self.neighbors.table.device
            table = state.get("table", self.neighbors.table).to(device)
            candidates, self.counted = state["candidates"], True
            self.neighbors = Neighbors(table, self.k, candidates=candidates, metric=self.metric)

    def draw(self, clean: ForwardPass) -> Tensor:
        """(B, T, D) one draw, zero on padding, for the point `self.point`."""
        x, mask = clean.embeddings(self.point), clean.mask
        if self.kind == "standard":
            return gaussian(x, mask, self.norm_ratio, self.rescale_over)
        table = embedding_table(unwrap(clean.model))
        if self.neighbors is None:
            self.attach(unwrap(clean.model))
        assert self.neighbors is not None
        if not self._audited:
            self._audited = True
            rows = audit(self.neighbors, self.decode)
            logger.info("in-manifold noise: %s", "; ".join(map(": ".join, rows)))
        draws = in_manifold(clean.input_ids, table, self.neighbors, self.orthonormal)
        return rescale(draws, x, mask, self.norm_ratio, self.rescale_over)
