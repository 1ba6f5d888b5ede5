"""The search: plain fine-tuning first, then all other methods, with the same number of trials.

The methods begin at the learning rate and the epochs that were best for plain. A trial is a
setting, scored on one held-out part; then the best race over more parts, not over more epochs. The
search is a function of its settings and of the scores, for any number of workers, so a stopped one
is gone through again from its records.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, NamedTuple

from smoothtune.config.tuning import Tune
from smoothtune.errors import ConfigError, Problem
from smoothtune.tune.space import PLAIN, Setting, Space

METHODS = "methods"
SEMIFINALISTS, FINALISTS = 4, 2
"""Trials of an arm that are scored on a second part, and on all of them."""
RANDOM = 6
"""Trials of an arm, its first ones in the middle of the ranges included, before TPE begins."""

State = Literal["running", "stopped", "complete", "diverged", "failed"]
"""Stopped: scored on fewer parts than a complete one."""


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

    @property
    def broken(self) -> bool:
        """Whether one of its trainings failed or diverged."""
        return self.state in ("diverged", "failed")

    def take(self, outcome: Outcome, folds: int) -> None:
        """Add how the training on the next of its folds ended."""
        if self.broken:
            return
        if outcome.score is None or math.isnan(outcome.score):
            self.state = "failed" if outcome.score is None else "diverged"
            self.message = outcome.message
        else:
            self.scores.append(outcome.score)
            self.state = "complete" if len(self.scores) == folds else "stopped"


Run = Callable[[Sequence[tuple[Trial, int]]], Sequence[Outcome]]
"""Trains trials on folds, and says how each ended, in their order."""


def stages(folds: int) -> list[tuple[int, int]]:
    """Number of folds that trials have after each stage of the race, and how many of an arm race.

    >>> stages(1), stages(5)
    ([(1, 4), (1, 2)], [(2, 4), (5, 2)])
    """
    return [(min(2, folds), SEMIFINALISTS), (folds, FINALISTS)]


class Arm:
    """One of the two searches, with a budget of trials and the seed of Optuna's draws.

    It begins with every method once, at the learning rate and the epochs of the setting `near`, or
    in the middle of their ranges. The sampler is "tpe", or "random" to compare with.
    """

    def __init__(
        self,
        name: str,
        space: Space,
        budget: int,
        seed: int,
        near: Setting | None = None,
        sampler: str = "tpe",
    ) -> None:
        package = optuna()
        self.random = max(RANDOM, len(space.methods))
        chosen = (
            package.samplers.TPESampler(seed=seed, n_startup_trials=self.random)
            if sampler == "tpe"
            else package.samplers.RandomSampler(seed=seed)
        )
        self.study = package.create_study(direction="maximize", sampler=chosen)
        for start in space.starts(near)[:budget]:
            self.study.enqueue_trial(start)
        self.name, self.space, self.budget = name, space, budget
        self.trials: list[Trial] = []
        """Optuna numbers them alike."""

    def ask(self, count: int) -> list[Trial]:
        """The next trials, at most `count`; at first all that do not depend on scores."""
        if not self.trials:
            count = max(count, self.random)
        new = []
        for number in range(len(self.trials), min(len(self.trials) + count, self.budget)):
            new.append(Trial(self.name, number, self.space.suggest(self.study.ask())))
        self.trials += new
        return new

    def tell(self, trial: Trial) -> None:
        """Let Optuna know how a trial did on its first fold."""
        states = optuna().trial.TrialState
        # Optuna keeps away from where trials are pruned
        state = {"diverged": states.PRUNED, "failed": states.FAIL}.get(trial.state)
        self.study.tell(trial.number, None if state else trial.score, state=state)

    def leaders(self, count: int) -> list[Trial]:
        """The best trials, at most `count`: first those of the most folds, then by score."""
        sound = [trial for trial in self.trials if trial.state in ("stopped", "complete")]
        sound.sort(key=lambda trial: (len(trial.scores), trial.score), reverse=True)
        return sound[:count]

    def best(self) -> Trial | None:
        """The trial of the highest score among those that had all folds; None if there is none."""
        return next((trial for trial in self.leaders(1) if trial.state == "complete"), None)


Ended = Callable[[Arm, Trial], None]
"""Is called when a trial has a score on one more of its folds, or has broken down."""


def search_all(tune: Tune, *, run: Run, ended: Ended = lambda arm, trial: None) -> list[Arm]:
    """Search for plain fine-tuning, and then for all methods together, which begin at its best.

    Returns:
        The arm of plain; the arm of the methods, unless no trial of plain has a score.
    """
    settings, seed = tune.settings, tune.run.seed
    common = (settings.learning_rates, settings.epochs)
    race = partial(
        search, folds=settings.folds, round_size=settings.round_size, run=run, ended=ended
    )
    half = settings.budget // 2
    plain = Arm(PLAIN, Space({PLAIN: {}}, *common), settings.budget - half, seed)
    race(plain)
    best = plain.best()
    if best is None:
        return [plain]
    methods = Arm(METHODS, Space(tune.methods, *common), half, seed, best.setting)
    race(methods)
    return [plain, methods]


def search(
    arm: Arm,
    *,
    folds: int,
    round_size: int,
    run: Run,
    ended: Ended = lambda arm, trial: None,
) -> None:
    """Spend the budget of an arm, round by round, and let its best race.

    Where one that races breaks down, the next best takes its place: an arm has a trial with all
    folds in the end, unless each of its trials failed or diverged.
    """

    def train(trials: Sequence[Trial], stop: int) -> None:
        work = [(trial, fold) for trial in trials for fold in range(len(trial.scores), stop)]
        for (trial, _), outcome in zip(work, run(work), strict=True):
            trial.take(outcome, folds)

    while new := arm.ask(round_size):
        train(new, 1)
        for trial in new:
            arm.tell(trial)
            ended(arm, trial)
    for stop, count in stages(folds):
        while behind := [trial for trial in arm.leaders(count) if len(trial.scores) < stop]:
            train(behind, stop)
            for trial in behind:
                ended(arm, trial)


def optuna() -> Any:
    """Optuna, silent.

    Raises:
        ConfigError: it is not installed.
    """
    try:
        import optuna
    except ImportError as error:
        message = 'needs Optuna: pip install "smoothtune[tune]"'
        raise ConfigError([Problem("smoothtune tune", "", message)]) from error
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna
