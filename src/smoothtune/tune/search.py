"""The search: two arms, plain fine-tuning and all other methods, with the same number of trials.

A trial is one setting, trained on the first fold; if it is among the best there, on the others too
(asynchronous successive halving, ASHA). Its score is the mean over its folds. More folds, and not
more epochs, are what a good trial gets: under a schedule that ends at 0 the score after one of
eight epochs says little about the end, regularized runs learn more slowly at first, and with few
rows the noise of one held-out part is what has to come down. An arm whose leading trials all broke
down on a later fold takes the best of those that were stopped for them through the others.

Trials are asked for in rounds of a fixed size and told in their order, so the search is a function
of its settings and of the scores: it is the same for any number of workers, and a stopped search is
gone through again from its records, without training.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from smoothtune.config.tuning import Tune
from smoothtune.errors import ConfigError, Problem
from smoothtune.tune.space import PLAIN, Setting, Space

METHODS = "methods"
KEEP = 3
"""Of the trials of a rung, the best one in this many goes on."""
RANDOM = 6
"""Trials of an arm, its first ones in the middle of the ranges included, before TPE begins."""

State = Literal["running", "complete", "pruned", "diverged", "failed"]


class Outcome(NamedTuple):
    """How a training ended."""

    score: float | None
    """Main metric on held-out rows; NaN: the loss was; None: it failed."""
    message: str = ""


@dataclass
class Trial:
    """A setting and its scores."""

    arm: str
    number: int
    """In its arm, from 0."""
    setting: Setting
    scores: list[float] = field(default_factory=list)
    """By fold."""
    state: State = "running"
    message: str = ""

    @property
    def score(self) -> float:
        """Mean over the folds so far."""
        return math.fsum(self.scores) / len(self.scores) if self.scores else math.nan


Run = Callable[[Sequence[tuple[Trial, int]]], Sequence[Outcome]]
"""Trains trials on folds, and says how each ended, in their order."""


def rungs(folds: int) -> list[int]:
    """Numbers of folds after which a trial may be stopped, and the last.

    >>> rungs(1), rungs(3), rungs(5)
    ([1], [1, 3], [1, 3, 5])
    """
    stops, count = [], 1
    while count < folds:
        stops.append(count)
        count *= KEEP
    return [*stops, folds]


class Arm:
    """One of the two searches.

    Args:
        name: "plain" or "methods".
        space: what it may try.
        budget: number of trials.
        seed: of Optuna's draws.
        sampler: "tpe", or "random" to compare with.

    Raises:
        ConfigError: Optuna is not installed.
    """

    def __init__(
        self, name: str, space: Space, budget: int, seed: int, sampler: str = "tpe"
    ) -> None:
        self.optuna = optuna()
        samplers = self.optuna.samplers
        random = max(RANDOM, len(space.methods))
        chosen = (
            samplers.TPESampler(seed=seed, n_startup_trials=random)
            if sampler == "tpe"
            else samplers.RandomSampler(seed=seed)
        )
        pruner = self.optuna.pruners.SuccessiveHalvingPruner(min_resource=1, reduction_factor=KEEP)
        self.study = self.optuna.create_study(direction="maximize", sampler=chosen, pruner=pruner)
        for start in space.starts()[:budget]:
            self.study.enqueue_trial(start)
        self.name, self.space, self.budget = name, space, budget
        self.trials: list[Trial] = []
        self._asked: list[Any] = []

    @property
    def left(self) -> int:
        """Trials that are not asked for yet."""
        return self.budget - len(self.trials)

    def ask(self, count: int) -> list[Trial]:
        """The next trials, at most `count`."""
        new = []
        for _ in range(min(count, self.left)):
            asked = self.study.ask()
            self._asked.append(asked)
            new.append(Trial(self.name, len(self.trials), self.space.suggest(asked)))
            self.trials.append(new[-1])
        return new

    def judge(self, trial: Trial, folds: int, *, last: bool) -> None:
        """Stop a trial that is not among the best, or end it."""
        asked = self._asked[trial.number]
        if trial.state == "running":
            asked.report(trial.score, folds)
            if last:
                trial.state = "complete"
                self.study.tell(asked, trial.score)
            elif asked.should_prune():
                trial.state = "pruned"
                self.study.tell(asked, state=self.optuna.trial.TrialState.PRUNED)
        elif trial.state == "diverged":
            if not trial.scores:  # else Optuna knows the score of the first fold
                asked.report(math.nan, 1)
            self.study.tell(asked, state=self.optuna.trial.TrialState.PRUNED)
        elif trial.state == "failed":
            self.study.tell(asked, state=self.optuna.trial.TrialState.FAIL)

    def best_stopped(self) -> Trial | None:
        """The trial that came furthest and scored highest among those that were stopped, if any."""
        stopped = [trial for trial in self.trials if trial.state == "pruned"]
        return max(stopped, key=lambda trial: (len(trial.scores), trial.score), default=None)

    def best(self) -> Trial | None:
        """The trial of the highest score among those that had all folds; None if there is none."""
        complete = [trial for trial in self.trials if trial.state == "complete"]
        return max(complete, key=lambda trial: trial.score, default=None)


def arms(tune: Tune) -> list[Arm]:
    """The search for plain fine-tuning, and that for all methods together."""
    settings, seed = tune.settings, tune.run.seed
    common = (settings.learning_rates, settings.epochs)
    half = settings.budget // 2
    return [
        Arm(PLAIN, Space({PLAIN: {}}, *common), settings.budget - half, seed),
        Arm(METHODS, Space(tune.methods, *common), half, seed),
    ]


def search(
    searches: Sequence[Arm],
    *,
    folds: int,
    round_size: int,
    run: Run,
    ended: Callable[[Trial], None] = lambda trial: None,
) -> None:
    """Spend the budget of all arms, round by round.

    An arm has a trial with all folds in the end, unless each of its trials failed or diverged.

    Args:
        searches: the arms; their trials are filled in.
        folds: held-out parts for a good trial.
        round_size: trials of each arm that start together.
        run: trains.
        ended: is told every trial that has ended.
    """
    while any(arm.left for arm in searches):
        asked = [(arm, trial) for arm in searches for trial in arm.ask(round_size)]
        first = 0
        for stop in rungs(folds):
            alive = [(arm, trial) for arm, trial in asked if trial.state == "running"]
            work = [(trial, fold) for _, trial in alive for fold in range(first, stop)]
            for (trial, _), outcome in zip(work, run(work) if work else (), strict=True):
                _take(trial, outcome)
            for arm, trial in alive:
                arm.judge(trial, stop, last=stop == folds)
                if trial.state != "running":
                    ended(trial)
            first = stop
    for arm in searches:
        _complete_one(arm, folds, run, ended)


def _complete_one(arm: Arm, folds: int, run: Run, ended: Callable[[Trial], None]) -> None:
    """Where no trial had all folds, take the best of those that were stopped through the others.

    The trial that the others were stopped for failed, or diverged, on a later fold.
    """
    while arm.best() is None and (trial := arm.best_stopped()):
        trial.state = "running"
        for outcome in run([(trial, fold) for fold in range(len(trial.scores), folds)]):
            _take(trial, outcome)
        if trial.state == "running":
            trial.state = "complete"
        ended(trial)


def _take(trial: Trial, outcome: Outcome) -> None:
    if trial.state != "running":
        return
    if outcome.score is None:
        trial.state, trial.message = "failed", outcome.message
    elif math.isnan(outcome.score):
        trial.state, trial.message = "diverged", outcome.message
    else:
        trial.scores.append(outcome.score)


def optuna() -> Any:
    """Optuna, silent.

    Raises:
        ConfigError: it is not installed.
    """
    try:
        import optuna as found
    except ImportError as error:
        message = 'needs Optuna: pip install "smoothtune[tune]"'
        raise ConfigError([Problem("smoothtune tune", "", message)]) from error
    found.logging.set_verbosity(found.logging.ERROR)
    return found
