"""Jacobian regularization of the predictions.

Reference: Hoffman, Roberts, Yaida: Robust Learning with Jacobian Regularization, 2019
    (arXiv 1908.02729). Code: facebookresearch/jacobian_regularizer.

Equation: total = L(f(x), y) + weight * 1/2 ||J||_F^2,  J = d logits / d x,
    ||J||_F^2 = C E ||v^T J||^2 with v uniform on the unit sphere in R^C, C logits.

Departures:
    * x are the word embeddings, the only continuous input a language model has.
    * Extractive QA: the logits are those of all real tokens, start and end.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from smoothtune.core.forward import ForwardPass
from smoothtune.core.hooks import Point
from smoothtune.core.predictions import prediction_mean
from smoothtune.core.regularizer import STRICT, NonNegative, Positive, Regularizer
from smoothtune.functional.derivative_norms import Probe
from smoothtune.functional.input_derivatives import EstimatorName, InputDerivatives, scores


@dataclass(config=STRICT, kw_only=True)
class Jacobian(Regularizer):
    """Small derivatives of the logits in the word embeddings."""

    name: ClassVar[str] = "jacobian"
    differentiates: ClassVar[bool] = True

    weight: NonNegative = 0.01
    """lambda_JR. Code: 0.01."""
    n: int = 1
    """n_proj: random projections; -1 computes the norm exactly. Paper and code: 1."""
    probe: Probe = "sphere"
    """Distribution of the projections. Paper: sphere."""
    estimator: Literal["projected", "directional", "finite_difference"] = "projected"
    """"projected" is the paper's; the others draw directions in the input."""
    step: Positive = 0.01
    """h of finite differences, relative to the rms of the pre-trained word embeddings."""

    def __post_init__(self):
        super().__post_init__()
        if self.n == 0 or self.n < -1:
            raise ValueError(f"n = {self.n}: give a number of projections, or -1 for all")
        name: EstimatorName = "exact" if self.n == -1 else self.estimator
        self._derivatives = InputDerivatives(name, False, self.n, self.probe, self.step)

    @property
    def derivative_order(self) -> int:
        """As the estimator says."""
        return self._derivatives.order

    @property
    def needs_float32(self) -> bool:
        """Finite differences do."""
        return self._derivatives.name == "finite_difference"

    def points(self) -> tuple[Point, ...]:
        """Derivatives are taken at the word embeddings."""
        return ("word",)

    def attach(self, model: nn.Module) -> None:
        """Learn the size of the pre-trained embeddings."""
        self._derivatives.attach(model)

    def loss(self, clean: ForwardPass) -> Tensor:
        """1/2 ||J||_F^2, a mean over examples (or label tokens)."""
        estimate = self._derivatives.estimate(clean, lambda run: [scores(run)], torch.ones(1))
        return 0.5 * prediction_mean(clean, estimate.jacobian)

    def state_dict(self) -> dict[str, Tensor]:
        """The size of the pre-trained embeddings."""
        return self._derivatives.state_dict()

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Take it back."""
        self._derivatives.load_state_dict(state)
