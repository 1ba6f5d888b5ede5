r"""ALICE: adversarial training with the true label and with the model's own prediction.

Reference: Pereira, Liu, Cheng, Asahara, Kobayashi: Adversarial Training for Commonsense Inference,
    RepL4NLP 2020 (arXiv 2005.08156), known from its abstract. Code by others:
    archinetai/vat-pytorch.

Equation:
    $$total = L(f(x), y) + weight \cdot (R_{gold} + \alpha R_{virtual})$$
    $$R_{gold} = \max_{\|\delta\| \le \epsilon} L(f(x + \delta), y)$$
    $$R_{virtual} = \max_{\|\delta\| \le \epsilon} l_v(f(x + \delta), f(x))$$
    each with a search of its own; $l_v$: symmetric KL, squared error for regression.

Departures:
    * The sum with the task loss, alpha, and the search, which is SMART's, are RECONSTRUCTED. Sizes
      are relative to the embeddings as for `smart`.
    * The public code softmaxes the one-hot label, so that the gold target is (0.58, 0.21, 0.21)
      for three classes, divides noise plus gradient by the largest entry of each token and never
      projects. `compat="vat-pytorch"` reproduces its number and gradient, for one class out of
      several an example; other tasks are refused.
    * Dropout masks of all passes are shared; the public code draws new ones.
    * Batches without labels have the virtual term alone.
"""

from dataclasses import replace
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from smoothtune.core.forward import ForwardPass
from smoothtune.core.predictions import no_compat
from smoothtune.core.regularizer import NonNegative, method
from smoothtune.core.traits import Traits
from smoothtune.functional.adversarial import Inner, task_loss
from smoothtune.functional.divergences import check_released, divergence, kl, symmetric_kl
from smoothtune.methods.adversarial_base import AdversarialSearch

VAT_PYTORCH = (1e-5, 1e-3, 1e-6)  # sigma, step_size, guard of the division


@method(
    "alice",
    Traits(
        group="worst case",
        step="3 passes, 2 searches",
        lowers=("worst divergence",),
        holds_task_loss=True,
        small_difference=True,
    ),
)
class ALICE(AdversarialSearch):
    """The worst small perturbation must change neither the loss nor the prediction."""

    alpha: NonNegative = 1.0
    """alpha, strength of the virtual term. Public code: 1."""
    compat: Literal["vat-pytorch"] | None = None
    """"vat-pytorch": number and gradient of the public code; sizes 1e-5 and 1e-3, guard 1e-6."""

    def __post_init__(self):
        super().__post_init__()
        if self.compat:
            self._ascent = self.ascent(VAT_PYTORCH)

    @property
    def traits(self) -> Traits:
        """The public code's gold term is a divergence from the label."""
        return replace(super().traits, plain_loss=self.compat is not None)

    def refuses(self, model: nn.Module) -> str | None:
        """The public code compares the class scores of one prediction."""
        return no_compat(model, self.compat)

    def loss(self, clean: ForwardPass) -> Tensor:
        """R_gold + alpha R_virtual; a ValueError with `compat` on a task unknown to that code."""
        clean = self.clean_target(clean)
        if self.compat:
            check_released(self.name, self.compat, clean.run(), regression=False)
        terms = []
        if self.alpha or not clean.labeled:
            terms.append(self.alpha * self._worst(clean, self._virtual(clean)))
        if clean.labeled:
            terms.append(self._worst(clean, self._gold))
        return torch.stack(terms).sum()

    def _virtual(self, clean: ForwardPass) -> Inner:
        clean.run()
        measure = kl if self.compat else symmetric_kl
        return lambda run: divergence(clean, run, measure)

    def _gold(self, run: ForwardPass) -> Tensor:
        if not self.compat:
            return task_loss(run)
        classes = run.logits.shape[-1]
        return kl(F.one_hot(run.batch["labels"], classes).to(run.logits.dtype), run.logits).mean()

    def _worst(self, clean: ForwardPass, inner: Inner) -> Tensor:
        """The maximum of `inner`; diagnostics are those of the last search, the gold one."""
        if self.compat:  # the gradient of the public search is that of a mean over the batch
            step_size = self._ascent.step_size / len(clean.mask)
            delta, gradient = self.released_search(clean, inner, step_size)
        else:
            delta, gradient = self._ascent.search(clean, inner)
        return inner(self.attacked(clean, delta, gradient))
