"""ALICE: adversarial training with the true label and with the model's own prediction.

Reference: Pereira, Liu, Cheng, Asahara, Kobayashi: Adversarial Training for Commonsense Inference,
    RepL4NLP 2020 (arXiv 2005.08156), known from its abstract. Code by others:
    archinetai/vat-pytorch.

Equation: total = L(f(x), y) + weight * (R_gold + alpha R_virtual)
    R_gold    = max_{||delta|| <= epsilon} L(f(x + delta), y),
    R_virtual = max_{||delta|| <= epsilon} l_v(f(x + delta), f(x)),   each with a search of its own,
    l_v: symmetric KL, squared error for regression.

Departures:
    * The sum with the task loss, alpha, and the search, which is SMART's, are RECONSTRUCTED. Sizes
      are relative to the embeddings as for `smart`.
    * The public code softmaxes the one-hot label, so that the gold target is (0.58, 0.21, 0.21)
      for three classes, divides noise plus gradient by the largest entry of each token and never
      projects. `compat="vat-pytorch"` reproduces its number and gradient, for one label an example.
    * Dropout masks of all passes are shared; the public code draws new ones.
    * Batches without labels have the virtual term alone.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from smoothtune.core import rng
from smoothtune.core.forward import Dropout, ForwardPass
from smoothtune.core.hooks import Layer, Point
from smoothtune.core.regularizer import STRICT, NonNegative, Positive, Regularizer
from smoothtune.functional.adversarial import (
    Ascent,
    Inner,
    Norm,
    Per,
    Scale,
    ascend,
    diagnostics,
    given,
    task_loss,
)
from smoothtune.functional.divergences import divergence, kl
from smoothtune.methods.smart import DEFAULTS, mt_dnn_direction

# sigma, eta, guard of the division
VAT_PYTORCH = (1e-5, 1e-3, 1e-6)


@dataclass(config=STRICT, kw_only=True)
class ALICE(Regularizer):
    """The worst small perturbation must change neither the loss nor the prediction."""

    name: ClassVar[str] = "alice"
    version: ClassVar[int] = 2

    alpha: NonNegative = 1.0
    """alpha, strength of the virtual term. Public code: 1."""
    epsilon: Positive | None = None
    """epsilon, radius of the ball; default 0.02 (relative), 1e-5 (absolute). RECONSTRUCTED."""
    sigma: Positive | None = None
    """sigma, deviation of delta_0; default 0.01 (relative), 1e-5 (absolute). Public code: 1e-5."""
    eta: Positive | None = None
    """eta, step size; default 2 (relative), 1e-3 (absolute). Public code: 1e-3."""
    num_steps: Annotated[int, Field(ge=1)] = 1
    """K, ascent steps of each search. Public code: 1."""
    norm: Norm = "linf"
    """Norm of the ball. Public code: infinity."""
    per: Per = "example"
    """What norms run over. Public code: token."""
    scale: Scale = "relative"
    """Whether sizes are multiples of the embedding's norm (rms for linf). Public code: absolute."""
    layer: Layer = "word"
    """Where the perturbation enters, "word" or a block number from 0."""
    dropout: Dropout = "shared"
    """Dropout masks of the other passes relative to the clean one. Public code: independent."""
    compat: Literal["vat-pytorch"] | None = None
    """"vat-pytorch": number and gradient of the public code; sizes 1e-5 and 1e-3, guard 1e-6."""

    def __post_init__(self):
        super().__post_init__()
        defaults = VAT_PYTORCH if self.compat else DEFAULTS[self.scale]
        sigma, eta, epsilon = given((self.sigma, self.eta, self.epsilon), defaults)
        self._ascent = Ascent.of(self, sigma, eta, epsilon)

    def points(self) -> tuple[Point, ...]:
        """The one point where the perturbations enter."""
        return (self.layer,)

    def loss(self, clean: ForwardPass) -> Tensor:
        """R_gold + alpha R_virtual."""
        terms = []
        if self.alpha or not clean.labeled:
            terms.append(self.alpha * self._worst(clean, self._virtual(clean)))
        if clean.labeled:
            terms.append(self._worst(clean, self._gold))
        return torch.stack(terms).sum()

    def _virtual(self, clean: ForwardPass) -> Inner:
        clean.run()
        if self.compat:
            return lambda run: divergence(clean, run, kl)
        return lambda run: divergence(clean, run)

    def _gold(self, run: ForwardPass) -> Tensor:
        if not self.compat:
            return task_loss(run)
        classes = run.logits.shape[-1]
        return kl(F.one_hot(run.batch["labels"], classes).to(run.logits.dtype), run.logits).mean()

    def _worst(self, clean: ForwardPass, inner: Inner) -> Tensor:
        """The maximum of `inner`; diagnostics are those of the last search, the gold one."""
        search = self._ascent.search if not self.compat else self._vat_pytorch_search
        delta, gradient = search(clean, inner)
        x = clean.embeddings(self.layer)
        self.diagnostics |= diagnostics(delta, gradient, x, clean.mask)
        return inner(clean.at(delta, self.layer, dropout=self.dropout))

    def _vat_pytorch_search(self, clean: ForwardPass, inner: Inner) -> tuple[Tensor, Tensor]:
        """The public search; its gradient is that of a mean over the batch."""
        search = self._ascent
        return ascend(
            clean,
            search.sigma * rng.normal_like(clean.zeros(self.layer)),
            inner,
            mt_dnn_direction(search.step_size / len(clean.mask), search.epsilon),
            point=self.layer,
            num_steps=self.num_steps,
            dropout=self.dropout,
        )
