r"""NEFTune: uniform noise on the word embeddings.

Reference: Jain, Chiang, Wen, Kirchenbauer, Chu, Somepalli, Bartoldson, Kailkhura, Schwarzschild,
    Saha, Goldblum, Geiping, Goldstein: NEFTune: Noisy Embeddings Improve Instruction Finetuning,
    ICLR 2024 (arXiv 2310.05914). Code: neelsjain/NEFTune.

Equation:
    $$total = L(f(x + z), y), \quad z = \frac{\alpha}{\sqrt{T D}} U(-1, 1)$$
    $T$: number of tokens of the example, $D$: width of the embeddings.

Departures:
    * T is the true length, as in the authors' experiments. transformers
      (`neftune_noise_alpha`) takes the length of the padded batch, so that the noise of an example
      depends on its neighbors: `compat="transformers"`. That switch of the Trainer does the same;
      this method is for plain loops, for logging, and for composition with others.
    * The paper tunes decoders on instructions; nothing in it is bound to them.
"""

from typing import Literal

import torch
from torch import Tensor

from smoothtune.core.forward import ForwardPass
from smoothtune.core.regularizer import Positive, TaskLoss, method
from smoothtune.core.traits import Between, Traits
from smoothtune.functional.noise import relative_norm
from smoothtune.nn import rng


@method(
    "neftune",
    Traits(
        group="noise",
        step="1 pass",
        lowers=("noise divergence",),
        searched={"alpha": Between(0.5, 15.0, log=True)},
        points=("word",),
        needs_labels=True,
    ),
)
class NEFTune(TaskLoss):
    """NEFTune: the task loss on embeddings with uniform noise."""

    alpha: Positive = 2.0
    """Magnitude of the noise. Paper: 5, 10 or 15, for decoders whose embeddings are larger; on
    MiniLM 5 is half the norm of the embeddings, 2 a fifth."""
    compat: Literal["transformers"] | None = None
    """"transformers": T is the padded length, and padding gets noise too."""

    def loss(self, clean: ForwardPass) -> Tensor | None:
        """Task loss of the noisy forward; the clean one is not run."""
        draws = rng.uniform_like(clean.zeros())
        tokens = torch.ones_like(clean.mask) if self.compat == "transformers" else clean.mask
        scale = self.alpha / (tokens.sum(1).clamp(min=1) * draws.shape[-1]).sqrt()
        z = scale.to(draws.dtype)[:, None, None] * draws * tokens[..., None]
        self.diagnostics["delta_ratio"] = relative_norm(z, clean.embeddings(), clean.mask)
        return clean.at(z, dropout="shared").loss
