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

from torch import Tensor

from smoothtune.core.forward import ForwardPass
from smoothtune.core.regularizer import TaskLoss, method
from smoothtune.core.traits import Between, Traits
from smoothtune.functional.noise import NoiseKind
from smoothtune.methods.noise_base import NoisyEmbeddings


@method(
    "noise",
    Traits(
        group="noise",
        step="1 pass",
        lowers=("noise divergence",),
        searched={"noise_ratio": Between(0.01, 0.5, log=True)},
        needs_labels=True,
    ),
)
class Noise(NoisyEmbeddings, TaskLoss):
    """The task loss on noisy embeddings, and nothing else."""

    noise: NoiseKind = "standard"
    """standard: FT+Gaussian; in_manifold: FT+In-manifold."""

    def loss(self, clean: ForwardPass) -> Tensor | None:
        """Task loss of the noisy forward; the clean one runs only up to the embeddings."""
        return self.noisy(clean, dropout="shared").loss
