"""Base of LNSR and its ablation: the noise of the papers, and where it enters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from pydantic import PositiveInt
from pydantic.dataclasses import dataclass
from torch import nn

from smoothtune.core.forward import Dropout, ForwardPass
from smoothtune.core.hooks import Layer, Point
from smoothtune.core.regularizer import STRICT, Positive, Regularizer
from smoothtune.functional.noise import EmbeddingNoise, NoiseKind, RescaleOver, relative_norm


@dataclass(config=STRICT, kw_only=True)
class NoisyEmbeddings(Regularizer):
    """Base of the methods that run the model on embeddings with LNSR's noise."""

    renamed: ClassVar[Mapping[str, str]] = {"scale": "rescale_over"}

    noise: NoiseKind = "standard"
    """Kind of noise; the papers use both."""
    noise_ratio: Positive | None = None
    """||eps|| / ||x||. Papers: 0.05 (standard), 0.10-0.20 (in-manifold); default 0.05 and 0.10."""
    layer: Layer | None = None
    """b: where noise enters, "word" or a block number from 0. Default: 0, in-manifold "word"."""
    k: PositiveInt = 10
    """Nearest neighbors of in-manifold noise. Paper: 10."""
    orthonormal: bool = True
    """Basis vectors of length 1. Paper: text says orthogonal, Claim 2 needs orthonormal."""
    rescale_over: RescaleOver = "token"
    """What the rescaling runs over; "none" leaves N(0, noise_ratio^2). Paper: not stated."""

    def __post_init__(self):
        super().__post_init__()
        self._noise = EmbeddingNoise(
            self.noise, self.noise_ratio, self.layer, self.k, self.orthonormal, self.rescale_over
        )

    @property
    def needs_whole_weights(self) -> bool:
        """In-manifold noise keeps the pre-trained word embeddings."""
        return self.noise == "in_manifold"

    def points(self) -> tuple[Point, ...]:
        """The one point where noise enters."""
        return (self._noise.point,)

    def attach(self, model: nn.Module) -> None:
        """Index the pre-trained embeddings."""
        self._noise.attach(model)

    def detach(self, model: nn.Module) -> None:
        """Save the neighbors found, for later runs."""
        self._noise.detach()

    def noisy(self, clean: ForwardPass, dropout: Dropout) -> ForwardPass:
        """The pass on a draw of the noise, whose size is logged."""
        delta, point = self._noise.draw(clean), self._noise.point
        self.diagnostics["delta_ratio"] = relative_norm(delta, clean.embeddings(point), clean.mask)
        return clean.at(delta, point, dropout=dropout)
