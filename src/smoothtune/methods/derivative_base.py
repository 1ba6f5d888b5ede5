"""Bases of the methods that penalize derivatives in the word embeddings."""

from abc import ABC, abstractmethod
from dataclasses import replace

from pydantic import PositiveInt
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from smoothtune.core.predictions import ONE_SEQUENCE
from smoothtune.core.regularizer import STRICT, NonNegative, Penalty, Positive, entries_under
from smoothtune.core.traits import Traits
from smoothtune.functional.derivative_norms import Probe
from smoothtune.functional.example_clip import ExampleClip
from smoothtune.functional.input_derivatives import EstimatorName, InputDerivatives
from smoothtune.nn.architecture import is_multiple_choice_model

CLIP = "clip."


@dataclass(config=STRICT, kw_only=True)
class ClippedPenalty(Penalty, ABC):
    """Base of the methods whose term is a mean of squared derivatives, one value of each example.

    With a clip the term begins in its second update, as there is no running mean before.
    """

    clip: NonNegative = 0.0
    """Largest value of an example, in running means: one sentence cannot rule an update. 0: none,
    as in the papers; the bound of a share holds the whole term."""

    def __post_init__(self):
        super().__post_init__()
        self._clip = ExampleClip(self.clip)

    @property
    def acts_after(self) -> bool:
        """With a clip."""
        return self.clip > 0

    @property
    def shares_masks(self) -> bool:
        """Only where derivatives are differences of passes."""
        return self.traits.finite_differences

    def clipped(self, values: Tensor) -> Tensor:
        """(B,) the values of a batch's examples, none above its bound."""
        return self._clip.factors(values) * values if self.clip else values

    def attach(self, model: nn.Module) -> None:
        """Forget the values of other runs."""
        self._clip = ExampleClip(self.clip)

    def after_step(self, model: nn.Module) -> None:
        """Record the values of an update."""
        if self.clip:
            self._clip.finish(next(model.parameters()).device)

    def state_dict(self) -> dict[str, Tensor]:
        """The running mean of the values."""
        state = self._clip.state_dict() if self.clip else {}
        return {CLIP + key: value for key, value in state.items()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore it."""
        if self.clip:
            self._clip.load_state_dict(entries_under(CLIP, state))


@dataclass(config=STRICT, kw_only=True)
class DerivativePenalty(ClippedPenalty, ABC):
    """Base of the methods that estimate derivatives in the word embeddings."""

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
    def traits(self) -> Traits:
        """Derivatives as the estimator takes them."""
        differences = self._derivatives.name == "finite_difference"
        order = self._derivatives.order
        return replace(super().traits, derivative_order=order, finite_differences=differences)

    def refuses(self, model: nn.Module) -> str | None:
        """Several sequences have no common word embeddings."""
        return ONE_SEQUENCE if is_multiple_choice_model(model) else None

    def attach(self, model: nn.Module) -> None:
        """Measure the rms of the pre-trained embeddings."""
        super().attach(model)
        self._derivatives.attach(model)

    def state_dict(self) -> dict[str, Tensor]:
        """The rms of the pre-trained embeddings, and the running mean."""
        return super().state_dict() | self._derivatives.state_dict()

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore them."""
        super().load_state_dict(state)
        self._derivatives.load_state_dict(state)
