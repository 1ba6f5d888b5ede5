"""Base class of all methods: a validated dataclass with a function for each part of an update."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import torch
from pydantic import ConfigDict, Field, PositiveInt, model_validator
from pydantic.dataclasses import dataclass
from pydantic_core import ArgsKwargs
from torch import Tensor, nn

from smoothtune.core.forward import ForwardPass
from smoothtune.core.quantities import Quantity
from smoothtune.errors import former_name
from smoothtune.nn.architecture import Side
from smoothtune.nn.hooks import Point

STRICT = ConfigDict(extra="forbid", use_attribute_docstrings=True, arbitrary_types_allowed=True)

NonNegative = Annotated[float, Field(ge=0)]
Positive = Annotated[float, Field(gt=0)]
Probability = Annotated[float, Field(ge=0, le=1)]
Fraction = Annotated[float, Field(gt=0, le=1)]
BelowOne = Annotated[float, Field(ge=0, lt=1)]


class Between(NamedTuple):
    """Values of a field that a search may try, both ends included; whole numbers between ints."""

    low: float
    high: float
    log: bool = False
    """Spread evenly on a logarithmic scale."""


SHARES = Between(0.09, 1.0, log=True)  # in the middle 0.3, the default
CALIBRATION_ROWS = 32  # of the training data, that trainers give to `calibrate`
MAX_SHARE = 1.0  # the bound of terms with a share


def entries_under(prefix: str, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The entries of a state whose key starts with a prefix, without the prefix."""
    return {key.removeprefix(prefix): v for key, v in state.items() if key.startswith(prefix)}


@dataclass(config=STRICT, kw_only=True)
class Regularizer:
    """Base of all methods; a subclass implements the parts of an update it needs.

    The parts of one update, in order: `loss` (before backward), `before_step` (after backward and
    the loop's own clipping, just before the update), `after_step` (after it). `attach` comes once,
    on the pre-trained model; `detach` undoes it. Methods do not see one another: terms are summed.
    """

    name: ClassVar[str]
    version: ClassVar[int] = 1
    """Raise it when a change of the code changes results: a study then repeats its runs."""
    differentiates: ClassVar[bool] = False
    """Takes gradients with respect to `clean.delta(point)`."""
    uses_hidden_states: ClassVar[bool] = False
    replaces_task_loss: ClassVar[bool] = False
    """Its loss takes the place of the task loss."""
    clips_gradients: ClassVar[bool] = False
    """It clips gradients itself: the loop's own clipping must be off."""
    compares_passes: ClassVar[bool] = False
    """Its loss is a small difference of two passes, which 16-bit rounding would drown."""
    draws_weights: ClassVar[bool] = False
    """It draws random numbers in every forward, so dropout masks differ from plain training's."""
    substitutes_weights: ClassVar[bool] = False
    """Every forward uses a function of a trained weight in its place."""
    climbs_in_weights: ClassVar[bool] = False
    """It ascends the loss of a whole batch in the weights: its loss is no mean over examples."""
    resets_weights: ClassVar[bool] = False
    """`attach` changes the weights, so it comes before methods that remember them."""
    claims: ClassVar[tuple[Quantity, ...]] = ()
    """What it is about: the quantities that it is to lower, see `smoothtune effect`."""
    needs_labels: ClassVar[bool] = False
    """Its loss is made of the task's, which batches without labels do not have."""
    needs_all_rows: ClassVar[str | None] = None
    """Why its loss term cannot be taken on a part of the batch."""
    about_weights: ClassVar[bool] = False
    """Its loss looks at weights alone, so it goes with any task loss."""
    does_nothing: ClassVar[bool] = False
    """It leaves training as it is, so it works wherever training does."""
    renamed: ClassVar[Mapping[str, str]] = {"on": "batches"}
    """Former names of the fields that this class declares, with the present ones."""
    searched: ClassVar[Mapping[str, Between] | None] = None
    """Fields that `smoothtune tune` searches, with what it may try; None: `share` where the method
    adds a term to the task loss, else nothing."""

    weight: NonNegative | None = 1.0
    """Factor of the loss term, in place of share; 0 turns the method off."""
    share: Positive | None = None
    """In place of weight: the term's gradient is usually this share of the task's, 0.3 say."""
    max_share: Positive | None = None
    """Bound of the term's gradient in every update, as a share of the task's. Default: 1 with a
    share; none with a weight, as in the papers. With several terms the largest holds for their
    sum."""
    every: PositiveInt = 1
    """Apply the loss term in every k-th update, k times as strong: same expected gradient."""
    rows: Fraction = 1.0
    """Part of a batch's examples that the loss term is taken on, drawn anew in every batch: same
    expected gradient for less time."""
    batches: Literal["labeled", "unlabeled", "both"] = "both"
    """Batches the loss term is taken on; a batch without labels has no task loss."""
    side: Side = "encoder"
    """Of an encoder-decoder, whose tokens are perturbed: the encoder's, the decoder's, or both."""
    ramp_start: NonNegative = 0.0
    """Updates before the loss term acts; below 1, a fraction of the run."""
    ramp_steps: NonNegative = 0.0
    """Updates over which weight or share then rises linearly; below 1, a fraction of the run."""

    @model_validator(mode="before")
    @classmethod
    def _read(cls, values: Any) -> Any:
        """Refuse former names; a weight that is given takes the place of share, and vice versa."""
        given = values.kwargs or {} if isinstance(values, ArgsKwargs) else values
        former = cls.former_names()
        if found := [former_name(old, former[old]) for old in former if old in given]:
            raise ValueError("; ".join(found))
        if given.get("compat") and not given.keys() & {"weight", "share"}:
            given = {**given, "weight": 1.0}  # released code knows no shares
        for one, other in (("weight", "share"), ("share", "weight")):
            if given.get(one) is not None and other not in given:
                given = {**given, other: None}
        return given if not isinstance(values, ArgsKwargs) else ArgsKwargs(values.args, given)

    def __post_init__(self):
        if self.weight is None and self.share is None:
            raise ValueError(f"{self.name} needs weight or share")
        if self.weight is not None and self.share is not None:
            raise ValueError(
                f"{self.name} has both share={self.share} and weight={self.weight}: give one, as "
                "share sets the weight"
            )
        ramps = self.ramp_start or self.ramp_steps
        if ramps and (self.replaces_task_loss or not self.has_loss):
            raise ValueError(
                f"{self.name} adds no term to the task loss, so ramp_start and ramp_steps are 0"
            )
        if not self.has_loss and (self.weight not in (0, 1) or self.every != 1):
            raise ValueError(
                f"{self.name} has no loss term, so weight is 1 (on) or 0 (off) and every is 1"
            )
        if self.rows < 1 and (reason := self.why_all_rows()):
            raise ValueError(f"{self.name} {reason}, so rows is 1")
        if self.share is not None and self.replaces_task_loss:
            raise ValueError(
                f"{self.name} replaces the task loss, so it can have no share beside it"
            )
        if self.max_share is not None and (self.replaces_task_loss or not self.has_loss):
            raise ValueError(
                f"{self.name} adds no term to the task loss, so max_share has nothing to bound"
            )
        if self.share is not None and self.max_share is None:
            self.max_share = MAX_SHARE
        self.diagnostics: dict[str, Tensor] = {}
        self.num_training_steps: int | None = None  # of the run, where it is known

    @classmethod
    def why_all_rows(cls) -> str | None:
        """Why `rows` is 1; None if it may be less."""
        if cls.loss is Regularizer.loss:
            return "has no loss term"
        if cls.replaces_task_loss:
            return "replaces the task loss, which is that of the whole batch"
        return cls.needs_all_rows

    @property
    def shares_masks(self) -> bool:
        """Whether its passes may see the dropout masks of the clean one."""
        return getattr(self, "dropout", "shared") == "shared"

    @property
    def is_on(self) -> bool:
        """Whether it does anything."""
        return self.weight != 0

    def updates(self, duration: float) -> int:
        """A duration in updates.

        Args:
            duration: a number of updates, or a fraction of the run.

        Raises:
            ValueError: it is a fraction, and the length of the run is not known.
        """
        if not 0 < duration < 1:
            return round(duration)
        if self.num_training_steps is None:
            raise ValueError(
                f"{self.name} has a field of {duration}, a fraction of a run whose length is not "
                "known: give a number of updates, or num_training_steps to bind"
            )
        return round(duration * self.num_training_steps)

    def ramp(self, step: int) -> float:
        """Part of the weight or share that holds in the update after `step` others.

        Args:
            step: number of updates before this one.
        """
        start = self.updates(self.ramp_start)
        if step < start:
            return 0.0
        rise = self.updates(self.ramp_steps)
        return min(1.0, (step - start + 1) / rise) if rise else 1.0

    @classmethod
    def search_space(cls) -> Mapping[str, Between]:
        """Fields worth a search, with what to try."""
        if cls.searched is not None:
            return cls.searched
        adds_term = cls.loss is not Regularizer.loss and not cls.replaces_task_loss
        return {"share": SHARES} if adds_term else {}

    @classmethod
    def former_names(cls) -> dict[str, str]:
        """Former names of all fields, with the present ones."""
        tables = [vars(base).get("renamed", {}) for base in cls.__mro__]
        return {old: new for table in tables for old, new in table.items()}

    @property
    def results_version(self) -> int:
        """`version`, or a later one where a change concerns some fields only.

        Two more for terms with a share, which followed from single measurements, without a bound.
        """
        return self.version + 2 * (self.share is not None)

    @property
    def has_loss(self) -> bool:
        """Whether the method contributes a loss term."""
        return type(self).loss is not Regularizer.loss

    @property
    def has_own_graph(self) -> bool:
        """Whether its term reaches the weights through passes of its own alone.

        So it is where a bound needs the two gradients apart, at no further backward pass: the
        clean pass is a constant to what is compared with it.
        """
        return self.compares_passes and self.max_share is not None

    def clean_target(self, clean: ForwardPass) -> ForwardPass:
        """The clean pass, which has run, as passes are compared with it."""
        return clean.constant() if self.has_own_graph else clean

    @property
    def acts_without_labels(self) -> bool:
        """Whether it has a term on batches without labels."""
        return self.has_loss and self.batches != "labeled" and not self.needs_labels

    @property
    def acts_after(self) -> bool:
        """Whether it does anything just after an update."""
        return type(self).after_step is not Regularizer.after_step

    @property
    def derivative_order(self) -> int:
        """1; 2 if the loss holds a gradient of the model; 3 if it holds a second derivative."""
        return 1

    @property
    def second_order(self) -> bool:
        """Whether the loss holds derivatives of the model, so that it needs higher ones."""
        return self.derivative_order > 1

    @property
    def finite_differences(self) -> bool:
        """Whether the loss holds derivatives from differences of passes."""
        return False

    @property
    def needs_float32(self) -> bool:
        """Whether rounding errors of 16-bit arithmetic would dominate the loss.

        Under autocast all passes of an update are then computed in float32.
        """
        return self.compares_passes or self.second_order or self.finite_differences

    @property
    def runs_model(self) -> bool:
        """Whether its loss comes from passes of its own, or from derivatives of the clean one."""
        return bool(self.points()) or self.changes_dropout or self.climbs_in_weights

    @property
    def uses_passes(self) -> bool:
        """Whether it has a term on what the model computes, and not on its weights alone."""
        return self.has_loss and not self.about_weights

    @property
    def plain_loss(self) -> bool:
        """Whether it computes the plain task loss itself, so that it fits no other."""
        return False

    @property
    def needs_whole_weights(self) -> bool:
        """Whether it copies weights or takes gradients in them, which fails on sharded weights."""
        return False

    @property
    def changes_dropout(self) -> bool:
        """Whether it runs the model at other dropout rates."""
        return False

    def points(self) -> tuple[Point, ...]:
        """Where the method perturbs or reads activations; see `smoothtune.nn.hooks`."""
        return ()

    def refuses(self, model: nn.Module) -> str | None:
        """Why it does not support an unwrapped model, and what to change; None if it does."""
        return None

    @property
    def reads_training_rows(self) -> bool:
        """Whether `read_training_rows` looks at the tokens of the rows."""
        return type(self).read_training_rows is not Regularizer.read_training_rows

    @property
    def calibrates(self) -> bool:
        """Whether `calibrate` has something left to measure."""
        return False

    def calibrate(self, clean: ForwardPass) -> None:
        """Measure the pre-trained model on rows of the training data, before the first update.

        Args:
            clean: a pass over these rows, which has not run.
        """

    def read_training_rows(self, rows: Any, tokenizer: Any = None) -> None:
        """Look at the rows to be trained on, before the first update."""

    def attach(self, model: nn.Module) -> None:
        """Prepare on the unwrapped, pre-trained model: snapshots, parametrizations, statistics."""

    def bind_optimizer(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Change the optimizer, such as its parameter groups; after `attach`."""

    def detach(self, model: nn.Module) -> None:
        """Leave the model as `attach` found it, apart from what training changed."""

    def loss(self, clean: ForwardPass) -> Tensor | None:
        """() the term to add, a mean over the batch's examples; None if it does not apply."""

    def before_step(self, model: nn.Module) -> None:
        """Edit the gradients of the unwrapped model, unscaled and reduced over processes."""

    def after_step(self, model: nn.Module) -> None:
        """Read or correct the updated weights of the unwrapped model."""

    def state_dict(self) -> dict[str, Tensor]:
        """What a resumed run needs beside the model's weights."""
        return {}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore what `state_dict` returned."""

    def settings(self) -> dict[str, Any]:
        """Every field with its value, as YAML and `result.json` carry it; weight or share."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        del values["weight" if self.weight is None else "share"]
        return values
