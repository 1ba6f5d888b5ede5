"""Fine-tuning on noisy embeddings: the ablation FT+Gaussian / FT+In-manifold of the LNSR papers.

Reference: Hua et al.: Improving Pre-trained Language Model Fine-tuning with Noise Stability
    Regularization, IEEE TNNLS 2023 (arXiv 2206.05658), rows "FT+Gaussian" and "FT+In-manifold".

Equation: total = L(f(x + eps), y), with the noise eps of LNSR and without its regularizer R.

Departures:
    * The paper does not say where the noise of these rows enters; here it is where LNSR's does.
    * All that LNSR leaves open about the noise (magnitude, scale, basis) is decided as there.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from smoothtune.core.forward import ForwardPass
from smoothtune.core.hooks import Layer, Point
from smoothtune.core.regularizer import STRICT, Positive, Regularizer
from smoothtune.functional.noise import EmbeddingNoise, NoiseKind, Scale, relative_norm


@dataclass(config=STRICT, kw_only=True)
class Noise(Regularizer):
    """The task loss on noisy embeddings, and nothing else."""

    name: ClassVar[str] = "noise"
    replaces_task_loss: ClassVar[bool] = True

    noise: NoiseKind = "standard"
    """standard: FT+Gaussian; in_manifold: FT+In-manifold."""
    noise_ratio: Positive | None = None
    """||eps|| / ||x||. Papers: 0.05 (standard), 0.10-0.20 (in-manifold); default 0.05 and 0.10."""
    layer: Layer | None = None
    """Where noise enters, "word" or a block number from 0. Default: 0, in-manifold "word"."""
    k: Annotated[int, Field(ge=1)] = 10
    """Nearest neighbors of in-manifold noise. Paper: 10."""
    orthonormal: bool = True
    """Basis vectors of length 1. Paper: text says orthogonal, Claim 2 needs orthonormal."""
    scale: Scale = "token"
    """What the rescaling runs over; "none" leaves N(0, noise_ratio^2). Paper: not stated."""

    def __post_init__(self):
        super().__post_init__()
        self._noise = EmbeddingNoise(
            self.noise, self.noise_ratio, self.layer, self.k, self.orthonormal, self.scale
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
        """Keep the neighbors found for later runs."""
        self._noise.detach()

    def loss(self, clean: ForwardPass) -> Tensor | None:
        """Task loss of the noisy forward; the clean one runs only up to the embeddings."""
        if not clean.labeled:
            return None
        delta, point = self._noise.draw(clean), self._noise.point
        self.diagnostics["delta_ratio"] = relative_norm(delta, clean.embeddings(point), clean.mask)
        return clean.at(delta, point, dropout="shared").loss
