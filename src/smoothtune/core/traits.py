"""What a method declares of itself, beside its fields."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from smoothtune.catalog import MethodGroup
from smoothtune.core.quantities import Quantity
from smoothtune.nn.hooks import Point


class Between(NamedTuple):
    """Values of a field that a search may try, both ends included; whole numbers between ints."""

    low: float
    high: float
    log: bool = False
    """Spread evenly on a logarithmic scale."""


@dataclass(frozen=True, kw_only=True)
class Traits:
    """What follows from a method's equation; see `Regularizer.traits`."""

    group: MethodGroup = "other"
    """What kind of thing it does."""
    step: str = ""
    """What a step takes with its default fields: a pass is a forward and a backward of the model, a
    search a forward and a backward to the perturbation."""
    lowers: tuple[Quantity, ...] = ()
    """Its target metrics: the quantities that it is to lower; studies measure them."""
    searched: Mapping[str, Between] | None = None
    """Fields that `smoothtune tune` searches, with what it may try; None: the share of a penalty,
    nothing of another method."""
    version: int = 1
    """Raise it when a change of the code changes results: a study then repeats its runs."""

    # what it reads
    points: tuple[Point, ...] = ()
    """Where it perturbs or reads activations, if no field says so; see `smoothtune.nn.hooks`."""
    differentiates: bool = False
    """Takes gradients with respect to `clean.delta(point)`."""
    hidden_states: bool = False
    weights_only: bool = False
    """Its loss looks at weights alone, so it goes with any task loss, and on all rows; once in an
    update, with the labeled ones."""
    needs_labels: bool = False
    """Its loss is made of the task's, which batches without labels do not have."""
    compares_classes: bool = False
    """It compares class scores, so it asks whether an example has one label or several; so do all
    small differences of predictions, which need not say it."""
    holds_task_loss: bool = False
    """Its penalty holds the task loss, which may be no mean over examples, so it is on all rows."""
    plain_loss: bool = False
    """It computes the plain task loss itself, so that it fits no other."""

    # its arithmetic
    small_difference: bool = False
    """Its loss is a small difference of two passes, which 16-bit rounding would drown."""
    products: Literal["float32", "tf32", "bfloat16"] = "float32"
    """What matrix products may read: its gradient was measured to be that of float32 there."""
    finite_differences: bool = False
    """Its loss holds derivatives from differences of passes."""
    derivative_order: Literal[1, 2, 3] = 1
    """2 if the loss holds a gradient of the model, 3 if it holds a second derivative."""

    # what it does to the model and its updates
    changes_dropout: bool = False
    """It runs the model at other dropout rates."""
    whole_weights: bool = False
    """It copies weights or takes gradients in them, which fails on sharded weights."""
    reparametrizes: bool = False
    """Every forward uses a function of a trained weight in its place."""
    random_weights: bool = False
    """It draws random numbers in every forward, so dropout masks differ from plain training's."""
    resets_weights: bool = False
    """`attach` changes the weights, so it comes before methods that remember them."""
    ascends_weights: bool = False
    """It ascends the loss of a whole batch in the weights: its loss is no mean over examples."""
    clips_gradients: bool = False
    """It clips gradients itself: the loop's own clipping must be off."""
    does_nothing: bool = False
    """It leaves training as it is, so it works wherever training does."""

    @property
    def needs_float32(self) -> bool:
        """Whether rounding errors of 16-bit arithmetic would dominate the loss.

        Under autocast all passes of an update are then computed in float32.
        """
        spoiled = self.small_difference or self.finite_differences or self.derivative_order > 1
        return spoiled and self.products != "bfloat16"
