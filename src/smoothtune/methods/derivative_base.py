"""Base of the methods that penalize derivatives in the word embeddings."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar

from pydantic import PositiveInt
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from smoothtune.core.architecture import is_multiple_choice_model
from smoothtune.core.hooks import Point
from smoothtune.core.regularizer import STRICT, Positive, Regularizer
from smoothtune.core.support import ONE_SEQUENCE
from smoothtune.functional.derivative_norms import Probe
from smoothtune.functional.input_derivatives import (
    EstimatorName,
    InputDerivatives,
)


@dataclass(config=STRICT, kw_only=True)
class DerivativePenalty(Regularizer, ABC):
    """Base of the methods that estimate derivatives in the word embeddings."""

    differentiates: ClassVar[bool] = True
    waits_with_share: ClassVar[bool] = True
    renamed: ClassVar[Mapping[str, str]] = {"probes": "num_probes", "step": "difference_step"}

    num_probes: PositiveInt = 1
    """Random probes."""
    probe: Probe = "rademacher"
    """Distribution of the probes: signs vary least."""
    estimator: EstimatorName | None = None
    """Default: projected without the Hessian, else finite_difference."""
    difference_step: Positive = 0.01
    """h of finite differences, relative to the rms of the pre-trained word embeddings."""

    def __post_init__(self):
        super().__post_init__()
        self._derivatives = self.input_derivatives()

    @abstractmethod
    def input_derivatives(self) -> InputDerivatives:
        """The estimator that the fields describe."""

    @property
    def derivative_order(self) -> int:
        """As the estimator says."""
        return self._derivatives.order

    @property
    def finite_differences(self) -> bool:
        """As the estimator says."""
        return self._derivatives.name == "finite_difference"

    def points(self) -> tuple[Point, ...]:
        """Derivatives are taken at the word embeddings."""
        return ("word",)

    def refuses(self, model: nn.Module) -> str | None:
        """Several sequences have no common word embeddings."""
        return ONE_SEQUENCE if is_multiple_choice_model(model) else None

    def attach(self, model: nn.Module) -> None:
        """Measure the rms of the pre-trained embeddings."""
        self._derivatives.attach(model)

    def state_dict(self) -> dict[str, Tensor]:
        """The rms of the pre-trained embeddings."""
        return self._derivatives.state_dict()

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore it."""
        self._derivatives.load_state_dict(state)
