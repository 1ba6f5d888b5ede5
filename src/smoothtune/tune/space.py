"""What is searched: for every method its own fields, and for all learning rate and epochs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from smoothtune.config.tuning import PLAIN as PLAIN
from smoothtune.core.regularizer import Between
from smoothtune.errors import counted
from smoothtune.methods.find import find_method
from smoothtune.report.page import as_text

if TYPE_CHECKING:
    from optuna import Trial as OptunaTrial


@dataclass(frozen=True)
class Setting:
    """One way to train."""

    method: str
    fields: dict[str, Any]
    """Of the method, those that are searched or set for all trials."""
    learning_rate: float
    epochs: float

    def describe(self) -> str:
        """As in reports: ``lnsr with share 0.4, learning rate 3e-05, 4 epochs``."""
        fields = [f"{name} {as_text(value)}" for name, value in self.fields.items()]
        method = f"{self.method} with {', '.join(fields)}" if fields else self.method
        epochs = counted(f"{self.epochs:g}", "epoch")
        return f"{method}, learning rate {self.learning_rate:g}, {epochs}"

    def changes(self) -> dict[str, Any]:
        """The fields of a run that it sets."""
        return {
            "methods": {self.method: self.fields},
            "learning_rate": self.learning_rate,
            "num_train_epochs": self.epochs,
        }


@dataclass(frozen=True)
class Space:
    """The settings of one arm of the search: of plain fine-tuning, or of the other methods."""

    methods: Mapping[str, Mapping[str, Any]]
    """Names, with the fields that are set for all trials."""
    learning_rates: tuple[float, ...]
    """One, or the lowest and the highest."""
    epochs: Sequence[float]

    @cached_property
    def searched(self) -> dict[str, dict[str, Between]]:
        """Fields to search, by method."""
        searched = {}
        for name, fixed in self.methods.items():
            taken = {*fixed, "share"} if "weight" in fixed else {*fixed}  # one excludes the other
            fields = find_method(name).search_space()
            searched[name] = {key: to for key, to in fields.items() if key not in taken}
        return searched

    def starts(self, near: Setting | None = None) -> list[dict[str, Any]]:
        """What is tried first: every method once, in the middle of the ranges of its fields.

        Learning rate and epochs are those of `near`; None: the middle of their ranges.
        """
        rate = near.learning_rate if near else _middle(self._rates)
        epochs = near.epochs if near else self.epochs[len(self.epochs) // 2]
        starts = []
        for name, searched in self.searched.items():
            fields = {f"{name}.{key}": _middle(to) for key, to in searched.items()}
            starts.append({"method": name, "learning_rate": rate, "epochs": epochs} | fields)
        return starts

    def suggest(self, trial: OptunaTrial) -> Setting:
        """Let Optuna choose; numbers have three digits, so that what is shown is what is run."""
        name = trial.suggest_categorical("method", list(self.methods))
        fields = {
            key: _choose(trial, f"{name}.{key}", to) for key, to in self.searched[name].items()
        }
        rate = _choose(trial, "learning_rate", self._rates)
        epochs = trial.suggest_categorical("epochs", list(self.epochs))
        return Setting(name, dict(self.methods[name]) | fields, rate, epochs)

    @property
    def _rates(self) -> Between:
        return Between(float(self.learning_rates[0]), float(self.learning_rates[-1]), log=True)


def _choose(trial: OptunaTrial, name: str, to: Between) -> Any:
    if isinstance(to.low, int) and isinstance(to.high, int):
        return trial.suggest_int(name, to.low, to.high)
    value = float(f"{trial.suggest_float(name, to.low, to.high, log=to.log):.3g}")
    return min(max(value, to.low), to.high)


def _middle(to: Between) -> float:
    if isinstance(to.low, int) and isinstance(to.high, int):
        return (to.low + to.high) // 2
    middle = (to.low * to.high) ** 0.5 if to.log else (to.low + to.high) / 2
    return min(max(middle, to.low), to.high)
