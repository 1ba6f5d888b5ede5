r"""CWGNC: component-wise gradient norm clipping.

Reference: Yang, Ma: Improving Stability of Fine-Tuning Pretrained Language Models via
    Component-Wise Gradient Norm Clipping, EMNLP 2022 (arXiv 2210.10325).
    Code: yangalan123/FineTuningStability.

Equation:
    for every component $i$
    $$g_i \gets g_i \min(1, c / \|g_i\|_2)$$

Departures:
    * A component is a named parameter tensor, as in the code; so query, key and value are clipped
      apart, as Hua et al. (TNNLS 2023) say too, except where a model keeps them in one (GPT-2).
    * The code clips inside the training step: partial sums under gradient accumulation, scaled
      gradients under a fp16 scaler. Here the clip sees what the optimizer would have seen.
    * It takes the place of the global clip, which must be off (`max_grad_norm=0`), as in the code.
"""

import torch
from torch import nn

from smoothtune.core.regularizer import Positive, Regularizer, method
from smoothtune.core.traits import Between, Traits


@method(
    "cwgnc",
    Traits(
        group="updates",
        step="1 pass",
        lowers=("gradient spread",),
        searched={"max_norm": Between(0.01, 5.0, log=True)},
        clips_gradients=True,
    ),
)
class CWGNC(Regularizer):
    """Every weight tensor has its gradient norm clipped for itself."""

    max_norm: Positive = 1.0
    """c, the largest gradient norm of a component. Paper: grid 0.01, 0.05, 0.1, 0.5, 1, 5."""

    @torch.no_grad()
    def before_step(self, model: nn.Module) -> None:
        """Clip every component."""
        gradients = [weight.grad for weight in model.parameters() if weight.grad is not None]
        if not gradients:
            self.diagnostics["clipped"] = torch.zeros(())
            return
        norms = torch.stack(torch._foreach_norm(gradients)).float()
        factors = (self.max_norm / norms.clamp(min=torch.finfo(norms.dtype).tiny)).clamp(max=1.0)
        torch._foreach_mul_(gradients, factors.unbind())
        self.diagnostics["clipped"] = (norms > self.max_norm).float().mean()
