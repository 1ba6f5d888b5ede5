"""What the outcome of a search says, in sentences."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

from smoothtune.config.tuning import Metric, Tune
from smoothtune.errors import counted
from smoothtune.report.page import Sentence, number
from smoothtune.report.tables import POINTS, Effect
from smoothtune.results import CellRecord, Cost, RunResult
from smoothtune.study.report.statistics import TrainingTime, time_ratio
from smoothtune.tune.confirm import LEVEL, Comparison, Fresh
from smoothtune.tune.search import Trial
from smoothtune.tune.space import PLAIN

NAMES = {"nll": "NLL", "brier": "Brier score"}


@dataclass(frozen=True)
class Outcome:
    """The outcome of a search."""

    trials: list[Trial]
    plain: Trial
    """The best plain setting."""
    method: Trial | None
    """The best of the methods; None if no trial of theirs ended with a score."""
    fresh: list[Fresh]
    comparison: Comparison
    records: dict[str, list[CellRecord | str]]
    """Of the confirming runs, by arm; messages of those that failed."""
    misfits: dict[str, str]
    """Why methods were left out."""
    rows: int
    """Training rows, all parts together."""
    compared: Metric = "score"
    """What decided. All scores are better when more: of NLL and Brier score they are the negative,
    which `shown` turns back."""
    by_score: Effect | None = None
    """Gain of the same runs by their main metric, where another one decides."""
    calibrated: Effect | None = None
    """Gain of the same runs where both have a temperature, where NLL or Brier score decides."""

    @property
    def pick(self) -> Trial:
        """What to use."""
        return self.method if self.method and self.comparison.better else self.plain

    @property
    def metric(self) -> str:
        """Name of what decided."""
        return self.headline if self.compared == "score" else NAMES[self.compared]

    @property
    def headline(self) -> str:
        """Name of the main metric."""
        done = [result for ends in self.records.values() for result in _results(ends) if result]
        return done[0].headline if done else "score"

    def shown(self, score: float | None) -> float | None:
        """A score as the metric has it; None if it is not a number."""
        return shown(score, self.compared)

    def difference(self, gain: float) -> str:
        """A gain as the metric has it, with its sign."""
        return f"{POINTS * gain:+.1f}" if self.compared == "score" else f"{-gain:+.3f}"

    @property
    def trivial_baseline(self) -> float | None:
        """Mean score of the best constant answer in the fresh runs; None if plain finished none."""
        done = [result for result in _results(self.records[PLAIN]) if result]
        return fmean(result.trivial_baseline for result in done) if done else None

    def cost(self, name: str) -> float | None:
        """Time of the method relative to plain's: of a step ("step") or of training ("train")."""
        if self.method is None:
            return None
        ours, plain = (_results(self.records[t.arm]) for t in (self.method, self.plain))
        pairs = zip(ours, plain, strict=True)
        return time_ratio((_time(a.cost, name), _time(b.cost, name)) for a, b in pairs if a and b)


def shown(score: float | None, metric: Metric) -> float | None:
    """A score as the metric has it; None if it is not a number."""
    if score is None or not math.isfinite(score):
        return None
    return score if metric == "score" else -score


def _results(ended: Sequence[CellRecord | str]) -> list[RunResult | None]:
    return [None if isinstance(end, str) else end.result for end in ended]


def _time(cost: Cost, name: str) -> TrainingTime:
    seconds = cost.seconds_per_step if name == "step" else cost.train_seconds
    return TrainingTime(seconds, cost.device)


def sentence(outcome: Outcome) -> str:
    """What to use, what it gains and what it costs, as the interval of the gain has it."""
    method, by = outcome.method, outcome.comparison
    stay = f"Stay with {outcome.plain.setting.describe()}"
    if method is None:
        return f"{stay}: no trial of another method ended with a score."
    if by.gain is None:
        return f"{stay}: too few of the fresh runs ended with a score to say what is better."
    ratio = outcome.cost("step")
    price = f", at {ratio:.1f} times the time of a step" if ratio else ""
    use, gained = method.setting.describe(), _gain(outcome, by.gain)
    if by.better:
        return f"Use {use}: {gained} over tuned plain fine-tuning{price}."
    lost = f"; its loss diverged in {by.diverged} of {len(by.method)} runs" if by.diverged else ""
    stands, limit = _standing(outcome, by.gain)
    return f"{stay}: the best other method ({use}) {stands}: {gained}{lost}{price}.{limit}"


def _standing(outcome: Outcome, gain: Effect) -> tuple[str, str]:
    """How a method that is not used stands to plain; what these runs show, if that is open."""
    if gain.interval is None:
        same = "differs by the same" if gain.value else "is as plain"
        return f"{same} in every run, which says nothing of chance", ""
    low, high = gain.interval
    if high < 0:
        return "is worse", ""
    if low > 0:
        return "is better where it finishes", ""
    half = (high - low) / 2
    least = f"{POINTS * half:.1f} points" if outcome.compared == "score" else f"{half:.3f}"
    limit = f" On {outcome.rows} rows these runs show only gains above {least}."
    return "is not shown to be better", limit


def _gain(outcome: Outcome, gain: Effect) -> str:
    by = outcome.comparison
    runs = f"{by.pairs} of " * (by.pairs < len(by.plain)) + f"{len(by.plain)} fresh seeds"
    if gain.interval is not None:
        ends = gain.interval if outcome.compared == "score" else reversed(gain.interval)
        low, high = (outcome.difference(end).lstrip("+") for end in ends)
        runs = f"{100 * LEVEL:g} % interval {low} to {high}, {runs}"
    unit = "points of" if outcome.compared == "score" else "in"
    return f"{outcome.difference(gain.value)} {unit} {outcome.metric} ({runs})"


def _with_temperature(outcome: Outcome, gain: float, low: float, high: float) -> Sentence:
    """What is left of a gain beside a temperature, which costs nothing."""
    ends = f"{outcome.difference(high)} to {outcome.difference(low)}"
    text = f"With a temperature for both {outcome.metric} differs by {outcome.difference(gain)}"
    if low > 0:
        return Sentence("note", f"{text} ({ends}).")
    without = "a method is not shown to help beside one: smoothtune evaluate --calibration fits it"
    return Sentence("fragile", f"{text} ({ends}): {without}.")


def at_chance(outcome: Outcome) -> str:
    """That plain fine-tuning is not above a constant answer in the fresh runs; "" if it is."""
    base = outcome.trivial_baseline
    if base is None:
        return ""
    mean = fmean(result.score for result in _results(outcome.records[PLAIN]) if result)
    if mean > base:
        return ""
    return (
        f"Tuned plain fine-tuning ({mean:.3f}) is not above the {base:.3f} of a constant answer; "
        "comparisons mean little. More epochs, other learning rates or more rows may help."
    )


def findings(tune: Tune, outcome: Outcome) -> Iterator[Sentence]:
    """Sentences under the first one."""
    yield Sentence("good" if outcome.pick is not outcome.plain else "note", sentence(outcome))
    ratio = outcome.cost("train")
    if outcome.method is not None and ratio is not None:
        text = f"Training takes {ratio:.1f} times as long as tuned plain fine-tuning's."
        yield Sentence("cost", text)
    if (by := outcome.by_score) and by.interval:
        mean, low, high = (f"{POINTS * end:.1f}" for end in (by.value, *by.interval))
        text = f"In the same runs {outcome.headline} differs by {mean} points ({low} to {high})."
        yield Sentence("note" if by.interval[1] > 0 else "fragile", text)
    used = outcome.pick is outcome.method
    if used and (both := outcome.calibrated) and both.interval:
        yield _with_temperature(outcome, both.value, *both.interval)
    best = [trial for trial in (outcome.plain, outcome.method) if trial]
    seen = [f"{trial.setting.method} {number(outcome.shown(trial.score))}" for trial in best]
    yield Sentence(
        "note",
        f"In the search the best were {', '.join(seen)} ({outcome.metric}). The best of many looks "
        "better than it is, which is why fresh runs decide.",
    )
    if text := at_chance(outcome):
        yield Sentence("fragile", text)
    ends = tune.settings.learning_rates
    rate = outcome.pick.setting.learning_rate
    if ends[0] < ends[-1] and (rate < 1.25 * ends[0] or rate > 0.8 * ends[-1]):
        text = f"Learning rate {rate:g} is at the end of what was tried: try a wider range."
        yield Sentence("fragile", text)
    for state in ("diverged", "failed"):
        if lost := [trial for trial in outcome.trials if trial.state == state]:
            text = f"{counted(len(lost), 'trial')} {state}, the first: {lost[0].setting.describe()}"
            yield Sentence("fragile", f"{text} ({lost[0].message}).")
    for name, why in outcome.misfits.items():
        yield Sentence("note", f"{name} was left out: {why}")
