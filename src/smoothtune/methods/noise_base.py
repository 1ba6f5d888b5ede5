"""Base of LNSR and its ablation: the noise of the papers, and where it enters."""

from __future__ import annotations

import functools
import logging
from dataclasses import replace
from typing import Any

from pydantic import NonNegativeInt, PositiveInt
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from smoothtune.core.forward import Dropout, ForwardPass
from smoothtune.core.regularizer import STRICT, LossTerm, Positive
from smoothtune.core.traits import Traits
from smoothtune.functional.neighbors import Metric, countable, token_counts
from smoothtune.functional.noise import EmbeddingNoise, NoiseKind, RescaleOver, relative_norm
from smoothtune.nn.hooks import Layer, Point

warn_once = functools.cache(logging.getLogger(__name__).warning)


@dataclass(config=STRICT, kw_only=True)
class NoisyEmbeddings(LossTerm):
    """Base of the methods that run the model on embeddings with LNSR's noise."""

    noise: NoiseKind = "standard"
    """Kind of noise; the papers use both."""
    noise_ratio: Positive | None = None
    """||eps|| / ||x||. Papers: 0.05 (standard), 0.10-0.20 (in-manifold); default 0.05 and 0.10."""
    layer: Layer | None = None
    """b: where noise enters, "word" or a block number from 0. Default: 0, in-manifold "word"."""
    k: PositiveInt = 10
    """Nearest neighbors of in-manifold noise. Paper: 10."""
    metric: Metric = "l2"
    """What near means: Euclidean distance, or the angle. Paper: not stated."""
    min_count: NonNegativeInt = 1
    """How often a neighbor occurs in the training texts, at least; 0: special tokens alone are left
    out. Paper: not stated."""
    orthonormal: bool = True
    """Basis vectors of length 1. Paper: text says orthogonal, Claim 2 needs orthonormal."""
    rescale_over: RescaleOver = "token"
    """What the rescaling runs over; "none" leaves N(0, noise_ratio^2). Paper: not stated."""

    def __post_init__(self):
        super().__post_init__()
        self._noise = EmbeddingNoise(
            self.noise,
            self.noise_ratio,
            self.layer,
            self.k,
            self.orthonormal,
            self.rescale_over,
            self.metric,
            self.min_count,
        )

    @property
    def traits(self) -> Traits:
        """In-manifold noise keeps the pre-trained word embeddings."""
        return replace(super().traits, whole_weights=self.noise == "in_manifold")

    def points(self) -> tuple[Point, ...]:
        """The one point where noise enters."""
        return (self._noise.point,)

    def read_training_rows(self, rows: Any, tokenizer: Any = None) -> None:
        """Count the tokens of the training texts: others are no neighbors of in-manifold noise.

        Trainers call it. Call it yourself in a plain loop, before the first update::

            method = LNSR(noise="in_manifold")
            method.read_training_rows(rows, tokenizer)  # or a loader

        Args:
            rows: each holds `input_ids`; rows without, or without a length, are not counted.
            tokenizer: names the special tokens, which are no neighbors either.
        """
        if self.noise != "in_manifold" or not countable(rows):
            return
        tokenizer = getattr(tokenizer, "tokenizer", tokenizer)  # of a processor
        special = getattr(tokenizer, "all_special_ids", ())
        decode = getattr(tokenizer, "convert_ids_to_tokens", None)
        self._noise.count(token_counts(rows), special, decode)

    def attach(self, model: nn.Module) -> None:
        """Index the pre-trained embeddings."""
        self._noise.attach(model)

    def detach(self, model: nn.Module) -> None:
        """Save the neighbors found, for later runs."""
        self._noise.detach()

    def noisy(self, clean: ForwardPass, dropout: Dropout) -> ForwardPass:
        """The pass on a draw of the noise, whose size is logged."""
        if self.noise == "in_manifold" and not self._noise.counted and self.min_count:
            warn_once(
                "%s: it is not known which tokens the training texts hold, so unused ones of the "
                "vocabulary may be neighbors: call read_training_rows(tokenized rows, tokenizer) "
                "of the method before training, or set min_count=0",
                self.name,
            )
        delta, point = self._noise.draw(clean), self._noise.point
        self.diagnostics["delta_ratio"] = relative_norm(delta, clean.embeddings(point), clean.mask)
        return clean.at(delta, point, dropout=dropout)

    def state_dict(self) -> dict[str, Tensor]:
        """Which tokens may be neighbors, and the embeddings that say which are."""
        return self._noise.state_dict()

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore them."""
        self._noise.load_state_dict(state)
