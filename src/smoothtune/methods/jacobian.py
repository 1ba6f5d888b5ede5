r"""Jacobian regularization of the predictions.

Reference: Hoffman, Roberts, Yaida: Robust Learning with Jacobian Regularization, 2019
    (arXiv 1908.02729). Code: facebookresearch/jacobian_regularizer.

Equation:
    $$total = L(f(x), y) + weight \cdot \frac{1}{2} \|J\|_F^2,
    \quad J = \frac{\partial f}{\partial x}$$
    $$\|J\|_F^2 = C \cdot E_v \|v^T J\|^2$$
    $f$ the $C$ logits, $v$ uniform on the unit sphere in $R^C$.

Departures:
    * x are the word embeddings, the only continuous input a language model has.
    * Extractive QA: the logits are those of all real tokens, start and end.
    * Its passes stay in 16 bits where training has them: its gradient is that of float32
      (benchmarks/results/bf16-terms.md), but with estimator="finite_difference".
"""

from dataclasses import replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from smoothtune.core.forward import ForwardPass
from smoothtune.core.predictions import prediction_mean
from smoothtune.core.regularizer import NonNegative, Positive, method
from smoothtune.core.traits import Traits
from smoothtune.functional.derivative_norms import Probe
from smoothtune.functional.input_derivatives import InputDerivatives, scores
from smoothtune.methods.derivative_base import DerivativePenalty


@method(
    "jacobian",
    Traits(
        group="derivatives",
        step="1 pass, 1 backward to the embeddings that is itself trained through",
        lowers=("logit Jacobian",),
        points=("word",),
        differentiates=True,
    ),
)
class Jacobian(DerivativePenalty):
    """Small derivatives of the logits in the word embeddings."""

    usual_bound: ClassVar[float] = 0.1
    weight: NonNegative | None = None
    """lambda_JR, in place of share. Code: 0.01."""
    share: Positive | None = 0.03
    """The term's gradient, as a share of the task's. 0.3 kept a model from learning."""
    num_probes: int = 1
    """n_proj: random projections; -1 computes the norm exactly. Paper and code: 1."""
    probe: Probe = "sphere"
    """Distribution of the projections. Paper: sphere."""
    estimator: Literal["projected", "directional", "finite_difference"] = "projected"
    """"projected" is the paper's; the others draw directions in the input."""

    def input_derivatives(self) -> InputDerivatives:
        """The paper's estimator, or what the fields say; a ValueError where they disagree."""
        if self.num_probes == 0 or self.num_probes < -1:
            raise ValueError(
                f"num_probes = {self.num_probes}: give a number of projections, or -1 for all"
            )
        if self.num_probes == -1 and self.estimator != "projected":
            raise ValueError(
                f'num_probes = -1 computes the norm exactly, and estimator="{self.estimator}" '
                "draws directions: give a number of them, or leave estimator out"
            )
        name = "exact" if self.num_probes == -1 else self.estimator
        return InputDerivatives(name, False, self.num_probes, self.probe, self.difference_step)

    @property
    def traits(self) -> Traits:
        """Gradients of gradients are exact enough in 16 bits, differences of passes are not."""
        traits = super().traits
        return replace(traits, products="float32" if traits.finite_differences else "bfloat16")

    def loss(self, clean: ForwardPass) -> Tensor:
        """1/2 ||J||_F^2, a mean over examples (or label tokens)."""
        estimate = self._derivatives.estimate(
            clean, lambda run: [scores(run)], torch.ones(1, device=clean.device)
        )
        return prediction_mean(clean, self.clipped(0.5 * estimate.jacobian))
