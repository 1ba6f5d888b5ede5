"""What a study tells its reader to do, in one sentence."""

from collections.abc import Container, Sequence

import numpy as np

from smoothtune.report.page import Sentence
from smoothtune.report.tables import POINTS, effect_text
from smoothtune.study.comparison import Comparison
from smoothtune.study.fields import PLAIN
from smoothtune.study.report.content import StudyContent
from smoothtune.study.report.methods import SECONDARY
from smoothtune.study.report.statistics import ENOUGH_SEEDS, MOST_SEEDS, POWER, seeds_needed
from smoothtune.study.report.tables import is_better

WORTH = 0.002
"""Difference in score, from which more seeds are worth running."""
MARGIN = 0.005
"""Of the score: better probabilities are advised where its whole interval lies above minus this."""
PROBABILITIES = ("nll", "brier")
WITH_TEMPERATURE = {measure: f"{measure}_calibrated" for measure in PROBABILITIES}
SEEDS_FOR_SPREAD = 3
"""With fewer seeds their spread is not known."""
CHANCE = f"with a chance of {100 * POWER:.0f} %"


def decision(content: StudyContent) -> Sentence:
    """Use a method, run more seeds, or stay with plain fine-tuning."""
    plain = [item for item in content.methods if item.method == PLAIN and item.score]
    compared = content.overall()
    if not plain or not compared:
        missing = "plain fine-tuning" if not plain else "a method beside plain"
        text = f"Go on with the study: {missing} has no finished run everywhere."
        complete = plain and not any(item.missing for item in content.methods)
        if complete and any(item.score_against_plain for item in content.methods):
            text = "Compare task by task: no method has runs on all, and nothing is left to run."
        return Sentence("fragile", text)
    if all(item.is_at_chance for item in plain):
        text = (
            "plain fine-tuning is not above a constant answer, so comparisons with it mean nothing."
        )
        return Sentence("fragile", f"Train longer or with a higher learning rate first: {text}")
    if all(item.equal for item in compared):
        names = [item.method for item in compared]
        text = f"Check that {'it acts' if len(names) == 1 else 'they act'} at all."
        return Sentence("fragile", f"Equal to plain in every run: {', '.join(names)}. {text}")
    if better := _better(compared):
        best = max(better, key=lambda item: item.gap)
        return _use(content, best, best.method, _shown(best))
    if advice := _better_probabilities(content, compared):
        return advice
    advice = _undecided(content, compared)
    return advice._replace(text=advice.text + _at_an_open_score(content, compared))


def _better(compared: Sequence[Comparison]) -> list[Comparison]:
    return [item for item in compared if item.is_established and is_better(item)]


def _use(
    content: StudyContent, best: Comparison, what: str, difference: str, beside: str = ""
) -> Sentence:
    """A method is better than plain, at a price, and perhaps with failed runs."""
    lost = _lost(content, best)
    return Sentence(
        "fragile" if lost else "good",
        f"Use {what}: {difference} against plain{where(content, best)}, p = {best.p_holm:.2g} "
        f"after Holm's correction{_price(content, best)}.{beside}{lost}",
    )


def _better_probabilities(content: StudyContent, scores: Sequence[Comparison]) -> Sentence | None:
    """A method with a better NLL or Brier score, whose score is not lower than plain's."""
    kept = {
        item.method: item
        for item in scores
        if (interval := item.difference.interval) and interval[0] > -MARGIN
    }
    best = _best_probabilities(content, kept)
    if best is None:
        return None
    score = kept[best.method]
    how = f"lower by less than {POINTS * MARGIN:.1f} points" if _is_lower(score) else "not lower"
    beside = f" Its score is {how}: {_shown(score)}.{_beside_temperature(content, best)}"
    return _use(
        content, best, f"{best.method} for better probabilities", _probability(best), beside
    )


def _best_probabilities(content: StudyContent, methods: Container[str]) -> Comparison | None:
    """The lowest NLL, or else Brier score, that is shown to be better, of some methods."""
    for measure in PROBABILITIES:
        better = [item for item in _better(content.overall(measure)) if item.method in methods]
        if better:
            return min(better, key=lambda item: item.gap)
    return None


def _probability(item: Comparison) -> str:
    return f"{SECONDARY[item.measure]} {effect_text(item.difference, 1, '+.3f')}"


def _beside_temperature(content: StudyContent, best: Comparison) -> str:
    """What is left of better probabilities where plain has a temperature, too; "" if not known."""
    both = content.overall(WITH_TEMPERATURE[best.measure])
    own = next((item for item in both if item.method == best.method), None)
    if own is None:
        return ""
    gap = f"{SECONDARY[best.measure]} {effect_text(own.difference, 1, '+.3f')}"
    found = "not shown to differ"
    if own.is_established:
        found = f"p = {own.p_holm:.2g} after Holm's correction"
    return f" With a temperature for both: {gap}, {found}."


def _is_lower(score: Comparison) -> bool:
    return score.difference.excludes_zero and score.gap < 0


def _at_an_open_score(content: StudyContent, scores: Sequence[Comparison]) -> str:
    """A method with better probabilities whose score may be lower, for all that is known."""
    kept = {item.method: item for item in scores if not _is_lower(item)}
    best = _best_probabilities(content, kept)
    if best is None:
        return ""
    return (
        f" Probabilities are better with {best.method}: {_probability(best)}"
        f"{where(content, best)}, p = {best.p_holm:.2g} after Holm's correction. Whether its score "
        f"is lower is not decided: {_shown(kept[best.method])}."
        f"{_beside_temperature(content, best)}{_lost(content, best)}"
    )


def _undecided(content: StudyContent, compared: Sequence[Comparison]) -> Sentence:
    """No method is shown to be better with enough seeds and after the correction."""
    place, above = where(content, compared[0]), [item for item in compared if item.gap >= WORTH]
    if not above:
        text = f"Use plain: no method is more than {POINTS * WORTH:.1f} points above it{place}."
        return Sentence("note", text)
    if (seeds := max(len(item.seeds) for item in above)) < SEEDS_FOR_SPREAD:
        best = max(above, key=lambda item: item.gap)
        few = "one says" if seeds == 1 else f"{seeds} say"
        text = f"{few} nothing, not even of {best.method} ({_shown(best)}{place})."
        return Sentence("fragile", f"Run {ENOUGH_SEEDS - seeds} more seeds: {text}")
    needs = {item.method: _needed(item, len(compared)) for item in above}
    best = min(above, key=lambda item: (needs[item.method], -item.gap))
    needed, ahead = needs[best.method], f"{best.method} is ahead of it by {_shown(best)}{place}"
    if needed > MOST_SEEDS:
        return Sentence(
            "note",
            f"Use plain: {ahead}, and would need more than {MOST_SEEDS} seeds to be told from "
            "chance.",
        )
    more = max(1, needed - len(best.seeds))
    needed = len(best.seeds) + more
    return Sentence(
        "note",
        f"Run {more} more seed{'s' * (more > 1)}, or use plain: {ahead}, which {len(best.seeds)} "
        f"seeds and {len(compared)} comparison{'s' * (len(compared) > 1)} do not establish. If it "
        f"is as good as it looks, {needed} seeds in all would show it {CHANCE}.",
    )


def _needed(item: Comparison, num_methods: int) -> int:
    if item.sd is None:
        return MOST_SEEDS + 1
    return max(ENOUGH_SEEDS, seeds_needed(item.gap, item.sd, num_methods))


def _shown(item: Comparison) -> str:
    text = effect_text(item.difference, POINTS, "+.1f").replace(" [", " points [")
    return text if "points" in text else f"{text} points"


def where(content: StudyContent, item: Comparison) -> str:
    """What a difference is of, in a study of several tasks."""
    if (count := len(item.conditions)) > 1:
        return f" on average over {count} tasks"
    return f" on {item.condition}" if len(content.conditions) > 1 else ""


def _price(content: StudyContent, best: Comparison) -> str:
    """Training time relative to plain's; "" where no two runs were on the same kind of device."""
    ratios = [item.cost_ratio for item in content.methods if item.method == best.method]
    known = [ratio for ratio in ratios if ratio is not None]
    return f", for {np.median(known):.1f} times plain's training time" if known else ""


def _lost(content: StudyContent, best: Comparison) -> str:
    """How many runs of a method failed, of which its differences say nothing; "" without any."""
    own = [item for item in content.methods if item.method == best.method]
    failed = sum(count for item in own for count in item.failed.values())
    planned = sum(item.planned for item in own)
    return f" But {failed} of its {planned} runs failed, and are in no mean." * (failed > 0)
