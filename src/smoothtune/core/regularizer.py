"""Base classes of all methods: validated dataclasses with a function for each part of an update.

`Regularizer` is any method, `Penalty` one that adds a term to the task loss, and `TaskLoss` one
whose loss takes its place.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Annotated, Any, ClassVar, Literal, TypeVar, dataclass_transform

import torch
from pydantic import Field, PositiveInt, model_validator
from pydantic.dataclasses import dataclass
from pydantic_core import ArgsKwargs
from torch import Tensor, nn

from smoothtune.core.forward import ForwardPass
from smoothtune.core.traits import Between, Traits
from smoothtune.core.validated import STRICT, validated
from smoothtune.nn.hooks import Point
from smoothtune.nn.model_facts import Side

NonNegative = Annotated[float, Field(ge=0)]
Positive = Annotated[float, Field(gt=0)]
Probability = Annotated[float, Field(ge=0, le=1)]
Fraction = Annotated[float, Field(gt=0, le=1)]
BelowOne = Annotated[float, Field(ge=0, lt=1)]

SHARE = 0.3  # the default, unless a method has its own
CALIBRATION_ROWS = 32  # of the training data, that trainers give to `calibrate`

R = TypeVar("R", bound="Regularizer")


@dataclass_transform(kw_only_default=True)
def method(name: str, traits: Traits | None = None) -> Callable[[type[R]], type[R]]:
    """Make a class a method: a validated dataclass, whose fields are given by name.

    Its constructor raises `ConfigError`, which names each wrong field and what to write.

    Args:
        name: on the command line, in run files and logs.
        traits: what it declares.

    Raises:
        TypeError: it has a loss, and does not say what the loss is for.
    """

    def made(cls: type[R]) -> type[R]:
        if hasattr(cls, "loss") and not issubclass(cls, LossTerm):
            raise TypeError(f"{cls.__name__} has a loss: make it a Penalty or a TaskLoss")
        cls.name, cls.declared = name, traits or Traits()
        return validated(cls)

    return made


def entries_under(prefix: str, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The entries of a state whose key starts with a prefix, without the prefix."""
    return {key.removeprefix(prefix): v for key, v in state.items() if key.startswith(prefix)}


@dataclass(config=STRICT, kw_only=True)
class Regularizer:
    """Base of all methods; a subclass implements the parts of an update it needs.

    `attach` comes once, on the pre-trained model, then `bind_optimizer`; `detach` undoes both. In
    every update come the `loss` of a `Penalty` or `TaskLoss` (before backward), `before_step`
    (after backward and the loop's own clipping, just before the update) and `after_step` (after
    it). Methods do not see one another.
    """

    name: ClassVar[str]
    declared: ClassVar[Traits] = Traits()
    """Traits of the class; `method` sets both."""

    def __post_init__(self):
        self.diagnostics: dict[str, Tensor] = {}
        self.num_training_steps: int | None = None  # of the run, where it is known

    # --- what it is --------------------------------------------------------------------------

    @property
    def traits(self) -> Traits:
        """What it declares; a class in which a trait depends on fields overrides this."""
        return self.declared

    @classmethod
    def search_space(cls) -> Mapping[str, Between]:
        """Fields worth a search, with what to try."""
        return cls.declared.searched or {}

    def settings(self) -> dict[str, Any]:
        """Every field with its value, as run files and `result.json` carry it."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def points(self) -> tuple[Point, ...]:
        """Where the method perturbs or reads activations; see `smoothtune.nn.hooks`."""
        return self.traits.points

    def refuses(self, model: nn.Module) -> str | None:
        """Why it does not support an unwrapped model, and what to change; None if it does."""
        return None

    @property
    def is_on(self) -> bool:
        """Whether it does anything."""
        return True

    @property
    def acts_without_labels(self) -> bool:
        """Whether it has a loss on batches without labels."""
        return False

    @property
    def acts_before(self) -> bool:
        """Whether it reads or edits gradients just before an update."""
        return type(self).before_step is not Regularizer.before_step

    @property
    def acts_after(self) -> bool:
        """Whether it does anything just after an update."""
        return type(self).after_step is not Regularizer.after_step

    @property
    def calibrates(self) -> bool:
        """Whether `calibrate` has something left to measure."""
        return False

    def updates(self, duration: float) -> int:
        """A duration, in updates or as a fraction of the run, in updates.

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

    # --- what it does ------------------------------------------------------------------------

    def read_training_rows(self, rows: Any, tokenizer: Any = None) -> None:
        """Look at the rows to be trained on, before the first update."""

    def attach(self, model: nn.Module) -> None:
        """Prepare on the unwrapped, pre-trained model: snapshots, parametrizations, statistics."""

    def bind_optimizer(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Change the optimizer, such as its parameter groups; after `attach`."""

    def before_step(self, model: nn.Module) -> None:
        """Edit the gradients of the unwrapped model, unscaled and reduced over processes."""

    def after_step(self, model: nn.Module) -> None:
        """Read or correct the updated weights of the unwrapped model."""

    def detach(self, model: nn.Module) -> None:
        """Leave the model as `attach` found it, apart from what training changed."""

    def state_dict(self) -> dict[str, Tensor]:
        """What a resumed run needs beside the model's weights."""
        return {}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore what `state_dict` returned."""


@dataclass(config=STRICT, kw_only=True)
class LossTerm(Regularizer, ABC):
    """Base of the methods with a loss, for what `Penalty` and `TaskLoss` have in common."""

    side: Side = "encoder"
    """Of an encoder-decoder, whose tokens are perturbed: the encoder's, the decoder's, or both."""

    @abstractmethod
    def loss(self, clean: ForwardPass) -> Tensor | None:
        """() the loss, a mean over the batch's examples; None if it does not apply."""

    def calibrate(self, clean: ForwardPass) -> None:
        """Measure the pre-trained model, before the first update.

        Args:
            clean: a pass over rows of the training data, which has not run.
        """

    @property
    def shares_masks(self) -> bool:
        """Whether it has passes that may see the dropout masks of the clean one."""
        passes = bool(self.points()) or self.traits.ascends_weights
        return passes and getattr(self, "dropout", "shared") == "shared"

    def acts(self, step: int, *, labeled: bool) -> bool:
        """Whether it has a loss in the update after `step` others, on a batch of this kind."""
        return labeled or self.acts_without_labels

    def has_acted(self, step: int) -> bool:
        """Whether it has had a loss in one of the first `step` updates."""
        return step > 0

    @property
    def acts_without_labels(self) -> bool:
        """Unless its loss is made of the task's, or looks at no row: it would count twice."""
        return not (self.traits.needs_labels or self.traits.weights_only)


class TaskLoss(LossTerm):
    """A method whose loss takes the place of the task loss."""


@dataclass(config=STRICT, kw_only=True)
class Penalty(LossTerm):
    """A method that adds weight * loss to the task loss."""

    weight: NonNegative | None = 1.0
    """Factor of the loss term, in place of share; 0 turns the method off."""
    share: Positive | None = None
    """In place of weight: the term's gradient is about this share of the task's, 0.3 say; more
    while a model learns fast."""
    max_share: Positive | None = None
    """Bound of the term's gradient in every update, as a share of the task's. Default with a share:
    1, of jacobian and double_backprop 0.1; none with a weight, as in the papers. With several terms
    the largest holds for their sum, too."""
    every: PositiveInt = 1
    """Apply the loss term in every k-th update, k times as strong: same expected gradient."""
    rows: Fraction = 1.0
    """Part of a batch's examples that the loss term is taken on, drawn again in every batch: same
    expected gradient for less time."""
    batches: Literal["labeled", "unlabeled", "both"] = "both"
    """Batches the loss term is taken on; a batch without labels has no task loss."""
    ramp_start: NonNegative = 0.0
    """Updates before the loss term acts; below 1, a fraction of the run."""
    ramp_steps: NonNegative = 0.0
    """Updates over which weight or share then rises linearly; below 1, a fraction of the run."""

    usual_bound: ClassVar[float] = 1.0
    """`max_share`, unless it is given, of a term with a share."""

    @model_validator(mode="before")
    @classmethod
    def _one_strength(cls, values: Any) -> Any:
        """A weight in the call takes the place of a default share, and vice versa."""
        arguments = values.kwargs or {} if isinstance(values, ArgsKwargs) else values
        if arguments.get("compat") and not arguments.keys() & {"weight", "share"}:
            arguments = {**arguments, "weight": 1.0}  # released code knows no shares
        for one, other in (("weight", "share"), ("share", "weight")):
            if arguments.get(one) is not None and other not in arguments:
                arguments = {**arguments, other: None}
        if isinstance(values, ArgsKwargs):
            return ArgsKwargs(values.args, arguments)
        return arguments

    def __post_init__(self):
        super().__post_init__()
        if self.weight is None and self.share is None:
            raise ValueError(f"{self.name} needs weight or share")
        if self.weight is not None and self.share is not None:
            both = f"share={self.share} and weight={self.weight}"
            raise ValueError(f"{self.name} has both {both}: give one, as share sets the weight")
        if self.rows < 1 and (reason := self.why_all_rows()):
            raise ValueError(f"{self.name} {reason}, so rows is 1")
        declared = self.declared  # as the traits may read what a subclass has not set yet
        if self.batches == "unlabeled" and (declared.needs_labels or declared.weights_only):
            raise ValueError(
                f'{self.name} has no term on batches without labels: leave batches at "both"'
            )
        if self.share is not None and self.max_share is None:
            self.max_share = self.usual_bound

    @classmethod
    def why_all_rows(cls) -> str | None:
        """Why `rows` is 1; None if it may be less."""
        if cls.declared.weights_only:
            return "has a term about weights, not about examples"
        if cls.declared.holds_task_loss:
            return "holds the task loss, which may be a mean over tokens"
        return None

    @classmethod
    def search_space(cls) -> Mapping[str, Between]:
        """What it declares, or its share up to the bound, with the default in the middle."""
        if cls.declared.searched is not None:
            return cls.declared.searched
        low = round((cls.share or SHARE) ** 2 / cls.usual_bound, 3)
        return {"share": Between(low, cls.usual_bound, log=True)}

    def settings(self) -> dict[str, Any]:
        """Every field with its value; of weight and share the one that holds."""
        values = super().settings()
        del values["weight" if self.weight is None else "share"]
        return values

    @property
    def is_on(self) -> bool:
        """Unless its weight is 0."""
        return self.weight != 0

    @property
    def acts_without_labels(self) -> bool:
        """As its fields and its loss allow."""
        return self.batches != "labeled" and super().acts_without_labels

    def acts(self, step: int, *, labeled: bool) -> bool:
        """Whether it is on, in its turn, and allowed on the batch."""
        allowed = self.batches in ("labeled" if labeled else "unlabeled", "both")
        allowed = allowed and super().acts(step, labeled=labeled)
        return allowed and self.has_turn(step) and self.ramp(step) > 0

    def has_turn(self, step: int) -> bool:
        """Whether the update after `step` others is one of every k-th."""
        return step % self.every == 0

    def has_acted(self, step: int) -> bool:
        """Whether its ramp had begun in the last of its turns."""
        last_turn = (step - 1) // self.every
        return last_turn >= 0 and self.ramp(last_turn * self.every) > 0

    def ramp(self, step: int) -> float:
        """Part of the weight or share that holds in the update after `step` others."""
        start = self.updates(self.ramp_start)
        if step < start:
            return 0.0
        rise = self.updates(self.ramp_steps)
        return min(1.0, (step - start + 1) / rise) if rise else 1.0

    @property
    def has_own_graph(self) -> bool:
        """Whether its term reaches the weights through passes of its own alone.

        A bound then needs no further backward pass: the clean pass is a constant to the term.
        """
        return self.traits.small_difference and self.max_share is not None

    def clean_target(self, clean: ForwardPass) -> ForwardPass:
        """The clean pass as passes are compared with it; a constant one has run."""
        return clean.run().constant() if self.has_own_graph else clean
