r"""Fine-tuning on noisy embeddings: the ablation FT+Gaussian / FT+In-manifold of the LNSR papers.

Reference: Hua et al.: Improving Pre-trained Language Model Fine-tuning with Noise Stability
    Regularization, IEEE TNNLS 2023 (arXiv 2206.05658), rows "FT+Gaussian" and "FT+In-manifold".

Equation:
    $$total = L(f(x + \epsilon), y)$$
    with the noise $\epsilon$ of LNSR and without its regularizer $R$.

Departures:
    * The rows have LNSR's noise, so it enters where LNSR's does; the loss is the noisy pass's.
    * All that LNSR leaves open about the noise (magnitude, rescaling, basis) is decided as there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from pydantic.dataclasses import dataclass
from torch import Tensor

from smoothtune.core.forward import ForwardPass
from smoothtune.core.quantities import Quantity
from smoothtune.core.regularizer import STRICT, Between
from smoothtune.functional.noise import NoiseKind
from smoothtune.methods.noise_base import NoisyEmbeddings


@dataclass(config=STRICT, kw_only=True)
class Noise(NoisyEmbeddings):
    """The task loss on noisy embeddings, and nothing else."""

    name: ClassVar[str] = "noise"
    claims: ClassVar[tuple[Quantity, ...]] = ("noise divergence",)
    replaces_task_loss: ClassVar[bool] = True
    needs_labels: ClassVar[bool] = True
    searched: ClassVar[Mapping[str, Between] | None] = {"noise_ratio": Between(0.01, 0.5, log=True)}

    noise: NoiseKind = "standard"
    """standard: FT+Gaussian; in_manifold: FT+In-manifold."""

    def loss(self, clean: ForwardPass) -> Tensor | None:
        """Task loss of the noisy forward; the clean one runs only up to the embeddings."""
        if not clean.labeled:
            return None
        return self.noisy(clean, dropout="shared").loss
