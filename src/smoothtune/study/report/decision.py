"""What a study tells its reader to do, in one sentence."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from smoothtune.report.page import Sentence
from smoothtune.report.tables import POINTS, effect_text
from smoothtune.study.comparison import Comparison
from smoothtune.study.config import PLAIN
from smoothtune.study.report.content import StudyContent
from smoothtune.study.report.methods import MethodResult, by_condition
from smoothtune.study.report.power import MOST_SEEDS, POWER, seeds_needed
from smoothtune.study.report.statistics import ENOUGH_SEEDS

WORTH = 0.002
"""Difference in score, from which more seeds are worth running."""
SEEDS_FOR_SPREAD = 3
"""With fewer seeds their spread is not known."""


def decision(content: StudyContent) -> Sentence:
    """Use a method, run more seeds, or stay with plain fine-tuning.

    Args:
        content: what was found.
    """
    methods = content.methods
    plain = [item for item in methods if item.method == PLAIN and item.score]
    compared = overall(content)
    if not plain or not compared:
        missing = "plain fine-tuning" if not plain else "a method beside plain"
        return Sentence("fragile", f"Run the study on: {missing} has no finished run everywhere.")
    if all(item.is_at_chance for item in plain):
        return Sentence(
            "fragile",
            "Train longer or with a higher learning rate first: plain fine-tuning is not above a "
            "constant answer, so comparisons with it mean nothing.",
        )
    if all(item.equal for item in compared):
        names = [item.method for item in compared]
        acts = "it acts" if len(names) == 1 else "they act"
        return Sentence(
            "fragile",
            f"Equal to plain in every run: {', '.join(names)}. Check that {acts} at all.",
        )
    better = [item for item in compared if _gap(item) > 0 and item.is_established]
    if better:
        best = max(better, key=_gap)
        return Sentence(
            "good",
            f"Use {best.method}: {_shown(best)} against plain{_where(content)}, p = "
            f"{best.p_holm:.2g} after Holm's correction, for {_cost(methods, best)} times "
            "plain's training time.",
        )
    return _undecided(content, compared)


def _undecided(content: StudyContent, compared: Sequence[Comparison]) -> Sentence:
    """No method is shown to be better with enough seeds and after the correction."""
    ahead = [item for item in compared if item.difference.excludes_zero and _gap(item) > 0]
    if ahead := [item for item in ahead if len(item.seeds) >= SEEDS_FOR_SPREAD]:
        return _ahead(content, max(ahead, key=_gap), len(compared))
    above = [item for item in compared if _gap(item) >= WORTH]
    if all(item.difference.excludes_zero and _gap(item) < 0 for item in compared):
        worse = ", ".join(f"{item.method} ({_shown(item)})" for item in compared)
        return Sentence("note", f"Use plain: worse{_where(content)}: {worse}.")
    if not above:
        return Sentence(
            "note",
            f"Use plain: no method is more than {POINTS * WORTH:.1f} points above it"
            f"{_where(content)}.",
        )
    if (seeds := max(len(item.seeds) for item in above)) < SEEDS_FOR_SPREAD:
        best = max(above, key=_gap)
        where = f"{best.method} ({_shown(best)}{_where(content)})"
        few = "one says" if seeds == 1 else f"{seeds} say"
        more = ENOUGH_SEEDS - seeds
        return Sentence("fragile", f"Run {more} more seeds: {few} nothing, not even of {where}.")
    needs = {item.method: _needed(item, len(compared)) for item in above}
    best = min(above, key=lambda item: (needs[item.method], -_gap(item)))
    needed = needs[best.method]
    shown = f"{best.method} ({_shown(best)}{_where(content)})"
    more = max(1, needed - len(best.seeds))
    if needed > MOST_SEEDS:
        return Sentence(
            "note",
            f"Use plain: no method is shown to be better, and even {shown} would need more than "
            f"{MOST_SEEDS} seeds to be told from chance.",
        )
    return Sentence(
        "note",
        f"Run {more} more seed{'s' * (more > 1)}, or use plain: no method is shown to be better; "
        f"if {shown} is as good as it looks, {needed} seeds in all would show it with a chance of "
        f"{100 * POWER:.0f} %.",
    )


def _ahead(content: StudyContent, best: Comparison, compared: int) -> Sentence:
    """A method whose interval is above 0, which does not decide yet."""
    seeds, needed = len(best.seeds), _needed(best, compared)
    more = max(1, needed - seeds)
    why = f"{seeds} seeds are few"
    if seeds >= ENOUGH_SEEDS:
        known = best.p_holm is not None  # none where every run differs by the same
        chance = f" (p = {best.p_holm:.2g} after Holm's)" if known else ""
        why = f"it is one of {compared} comparisons{chance}"
    return Sentence(
        "note",
        f"Run {more} more seed{'s' * (more > 1)}: {best.method} is ahead of plain"
        f"{_where(content)} by {_shown(best)}, but {why}. If it is as good as it looks, {needed} "
        f"seeds in all would show it with a chance of {100 * POWER:.0f} %.",
    )


def _needed(item: Comparison, num_methods: int) -> int:
    if item.sd is None:
        return MOST_SEEDS + 1
    return max(ENOUGH_SEEDS, seeds_needed(_gap(item), item.sd, num_methods))


def overall(content: StudyContent) -> list[Comparison]:
    """Every method against plain over all conditions, or in the only one."""
    if len(by_condition(content.methods)) > 1:
        return content.over_tasks
    return [item.against_plain for item in content.methods if item.against_plain]


def equal_methods(content: StudyContent) -> list[str]:
    """Methods whose scores are plain's in every run; none where all are, which is the decision."""
    compared = overall(content)
    equal = [item.method for item in compared if item.equal]
    return equal if len(equal) < len(compared) else []


def _gap(item: Comparison) -> float:
    return item.difference.value


def _shown(item: Comparison) -> str:
    text = effect_text(item.difference, POINTS, "+.1f").replace(" [", " points [")
    return text if "points" in text else f"{text} points"


def _where(content: StudyContent) -> str:
    count = len(by_condition(content.methods))
    return f" on average over {count} tasks" if count > 1 else ""


def _cost(methods: Sequence[MethodResult], best: Comparison) -> str:
    ratios = [
        item.against_plain.cost_ratio
        for item in methods
        if item.method == best.method and item.against_plain
    ]
    known = [ratio for ratio in ratios if ratio is not None]
    return f"{np.median(known):.1f}" if known else "unknown"
