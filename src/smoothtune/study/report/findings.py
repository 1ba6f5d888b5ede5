"""What a study says in sentences: first what to do, then what was found; a null result is one."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from smoothtune.report.page import Sentence, Verdict
from smoothtune.report.tables import POINTS, effect_text
from smoothtune.study.comparison import Comparison
from smoothtune.study.fields import LONGER, PLAIN
from smoothtune.study.report.content import StudyContent
from smoothtune.study.report.methods import (
    RELATIVE_TO_LOGITS,
    MethodResult,
    by_condition,
    method_names,
)
from smoothtune.study.report.statistics import (
    ENOUGH_SEEDS,
    LEVEL,
    MOST_SEEDS,
    POWER,
    TEST,
    seeds_needed,
)
from smoothtune.study.report.tables import TITLES, is_better
from smoothtune.study.table import ROBUSTNESS

WORTH = 0.002
"""Difference in score, from which more seeds are worth running."""
SEEDS_FOR_SPREAD = 3
"""With fewer seeds their spread is not known."""
MOST_NAMED = 6
"""Methods that a sentence names; tables have them all."""
CHANCE = f"with a chance of {100 * POWER:.0f} %"


def findings(content: StudyContent) -> list[Sentence]:
    """What is to be done, and at most six findings."""
    if not content.methods:
        chosen = all(choice.complete for choice in content.choices)
        text = (
            "Change the study: none of its settings could be trained, for the reasons below."
            if chosen
            else "Run the study on: the settings to report are still being chosen."
        )
        return [Sentence("fragile", text), *_budget(content)]
    return [
        decision(content),
        _completeness(content),
        *_scores(content),
        *_beside(content),
        *_spread(content),
        *_budget(content),
        *_cost(content),
    ]


# --- what to do --------------------------------------------------------------------------------


def decision(content: StudyContent) -> Sentence:
    """Use a method, run more seeds, or stay with plain fine-tuning."""
    plain = [item for item in content.methods if item.method == PLAIN and item.score]
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
    better = [item for item in compared if item.is_established and is_better(item)]
    if better:
        best = max(better, key=_gap)
        return Sentence(
            "good",
            f"Use {best.method}: {_shown(best)} against plain{_where(content)}, p = "
            f"{best.p_holm:.2g} after Holm's correction, for {_cost_of(content, best)} times "
            "plain's training time.",
        )
    return _undecided(content, compared)


def _undecided(content: StudyContent, compared: Sequence[Comparison]) -> Sentence:
    """No method is shown to be better with enough seeds and after the correction."""
    where, above = _where(content), [item for item in compared if _gap(item) >= WORTH]
    if not above:
        text = f"Use plain: no method is more than {POINTS * WORTH:.1f} points above it{where}."
        return Sentence("note", text)
    if (seeds := max(len(item.seeds) for item in above)) < SEEDS_FOR_SPREAD:
        best = max(above, key=_gap)
        few = "one says" if seeds == 1 else f"{seeds} say"
        text = f"{few} nothing, not even of {best.method} ({_shown(best)}{where})."
        return Sentence("fragile", f"Run {ENOUGH_SEEDS - seeds} more seeds: {text}")
    needs = {item.method: _needed(item, len(compared)) for item in above}
    best = min(above, key=lambda item: (needs[item.method], -_gap(item)))
    needed, ahead = needs[best.method], f"{best.method} is ahead of it by {_shown(best)}{where}"
    if needed > MOST_SEEDS:
        return Sentence(
            "note",
            f"Use plain: {ahead}, and would need more than {MOST_SEEDS} seeds to be told from "
            "chance.",
        )
    more = max(1, needed - len(best.seeds))
    return Sentence(
        "note",
        f"Run {more} more seed{'s' * (more > 1)}, or use plain: {ahead}, which {len(best.seeds)} "
        f"seeds and {len(compared)} comparison{'s' * (len(compared) > 1)} do not establish. If it "
        f"is as good as it looks, {needed} seeds in all would show it {CHANCE}.",
    )


def _needed(item: Comparison, num_methods: int) -> int:
    if item.sd is None:
        return MOST_SEEDS + 1
    return max(ENOUGH_SEEDS, seeds_needed(_gap(item), item.sd, num_methods))


def overall(content: StudyContent) -> list[Comparison]:
    """Scores of every method against plain over all conditions, or in the only one."""
    if len(by_condition(content.methods)) > 1:
        return content.over_tasks.get("score", [])
    return [against for item in content.methods if (against := item.score_against_plain)]


def _gap(item: Comparison) -> float:
    return item.difference.value


def _shown(item: Comparison) -> str:
    text = effect_text(item.difference, POINTS, "+.1f").replace(" [", " points [")
    return text if "points" in text else f"{text} points"


def _where(content: StudyContent) -> str:
    count = len(by_condition(content.methods))
    return f" on average over {count} tasks" if count > 1 else ""


def _cost_of(content: StudyContent, best: Comparison) -> str:
    ratios = [item.cost_ratio for item in content.methods if item.method == best.method]
    known = [ratio for ratio in ratios if ratio is not None]
    return f"{np.median(known):.1f}" if known else "unknown"


# --- what was found ----------------------------------------------------------------------------


def _completeness(content: StudyContent) -> Sentence:
    asked = sum(item.asked for item in content.methods)
    seeds = [item.score.n for item in content.methods if item.score]
    done = sum(seeds)
    failed = sum(sum(item.failed.values()) for item in content.methods)
    text = f"{done} of {asked} runs are done, {failed} failed."
    text += " Failed runs are in no mean." * (failed > 0)
    if few := max(seeds, default=0) < ENOUGH_SEEDS:
        text += f" {_few_seeds(max(seeds, default=0))}"
    mixed = [name for name, values in content.versions.items() if len(values) > 1]
    if mixed:
        text += f" The runs used several versions of {', '.join(mixed)}."
    if len(content.devices) > 1:
        text += (
            " They ran on several kinds of device, and times are compared only on one and the "
            f"same: {'; '.join(content.devices)}."
        )
    return Sentence("note" if done == asked and not (few or mixed) else "fragile", text)


def _few_seeds(count: int) -> str:
    seeds = "1 seed is" if count == 1 else f"{count} seeds are"
    return f"{seeds} few: nothing here is established."


def _scores(content: StudyContent) -> Iterator[Sentence]:
    """Who beats plain and who loses to it, task by task; a null result with what it could see."""
    several = len(by_condition(content.methods)) > 1
    compared = [(m, item) for m in content.methods if (item := m.score_against_plain)]
    named = [
        (f"{m.method}{f' on {m.condition.title}' * several} ({_points(item)})", item)
        for m, item in compared
    ]
    sentence = _against_plain(f"Score, task by task after Holm's correction ({TEST})", named)
    if sentence is None:
        one = len({item.method for _, item in compared}) == 1
        who = "the method is not" if one else "none of the methods is"
        text = f"Score, task by task: {who} shown to differ from plain ({TEST}, after Holm)."
        sentence = Sentence("note", text + _could_see(content))
    if weak := _at_chance(content):
        text = f"{sentence.text} Not above a constant answer, so of no meaning: {', '.join(weak)}."
        sentence = Sentence("fragile", text)
    yield sentence


def _points(item: Comparison) -> str:
    return f"{POINTS * _gap(item):+.1f} points, p = {item.p_holm:.2g}" if item.p_holm else ""


def _against_plain(what: str, named: Iterable[tuple[str, Comparison]]) -> Sentence | None:
    """The established differences, the first few that are better and worse; None without any.

    Args:
        what: what is compared.
        named: comparisons, as they are named.
    """
    groups: dict[bool, list[str]] = {True: [], False: []}
    for text, item in named:
        if item.is_established:
            groups[is_better(item)].append(text)
    better, worse = groups[True], groups[False]
    if not better and not worse:
        return None
    kinds = (("better than plain", better), ("worse than plain", worse))
    text = "; ".join(f"{how}: {_few(names)}" for how, names in kinds if names)
    tone: Verdict = "note" if better and worse else "good" if better else "fragile"
    return Sentence(tone, f"{what}: {text}.")


def _few(names: Sequence[str]) -> str:
    more = len(names) - MOST_NAMED
    return ", ".join(names[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def _could_see(content: StudyContent) -> str:
    """The true differences that would have been found, from the least to the greatest."""
    compared = overall(content)
    smallest = sorted(POINTS * item.smallest for item in compared if item.smallest)
    if not smallest:
        return ""
    middle = statistics.median(smallest)
    if middle > POINTS:  # the whole scale
        text = "With so few seeds hardly a difference that is possible would have been shown"
        return f" {text} {CHANCE}."
    spread = f" (median of the methods; {smallest[0]:.1f} to {smallest[-1]:.1f})"
    return (
        f" Had a method truly been {middle:.1f} points better{_where(content)}"
        f"{spread * (len(smallest) > 1)}, a paired t-test of its seeds would have shown it "
        f"{CHANCE}."
    )


def _at_chance(content: StudyContent) -> list[str]:
    """Titles of the conditions in which comparisons with plain mean little."""
    plain = (item for item in content.methods if item.method == PLAIN)
    return [item.condition.title for item in plain if item.is_at_chance]


def _beside(content: StudyContent) -> Iterator[Sentence]:
    """Calibration, noise and other data: where a method differs from plain, whatever its score."""
    several = len(by_condition(content.methods)) > 1
    by_measure = content.over_tasks.items() if several else ()
    compared = [item for _, items in by_measure for item in items]
    if not several:
        compared = [item for m in content.methods for item in m.against_plain.values()]
    # a gap shrinks by less fit too
    shown = [c for c in compared if c.measure not in ("score", "generalization_gap")]
    where = " over all tasks that have the measure" * several
    named = [(f"{c.method} ({TITLES[c.measure]} {_gap(c):+.3f})", c) for c in shown]
    sentence = _against_plain(f"Beside the score{where}, after Holm within each measure", named)
    if sentence and _at_chance(content):  # who has learned nothing is calibrated by saying so
        text = " That means little where plain fine-tuning is not above a constant answer."
        sentence = Sentence("fragile", sentence.text + text)
    if sentence:
        yield sentence


def _spread(content: StudyContent) -> Iterator[Sentence]:
    """Runs that learned nothing that shows in their score, and who is stabler than plain."""
    texts = []
    runs, stuck = Counter[str](), Counter[str]()
    for item in content.methods:
        if item.score:
            runs[item.method] += item.score.n
            stuck[item.method] += item.not_above_constant
    named = [f"{count} of {runs[name]} of {name}" for name, count in stuck.most_common() if count]
    if named:
        rest = "; none of the other methods" if len(named) < len(runs) else ""
        texts.append(f"Runs that end no better than the best constant answer: {_few(named)}{rest}.")
    for stabler, how in ((True, "Stabler"), (False, "Less stable")):
        items = [item for item in content.methods if _is_stabler(item) is stabler]
        spread = [
            f"{item.method} on {item.condition.title} ({item.variance_ratio.value:.2f} times the "
            "variance)"
            for item in items
            if item.variance_ratio
        ]
        if spread:
            test = "Brown-Forsythe test, not corrected for the number of methods"
            texts.append(f"{how} than plain over seeds ({test}): {_few(spread)}.")
    if texts:
        yield Sentence("fragile" if named else "note", " ".join(texts))


def _is_stabler(item: MethodResult) -> bool | None:
    """Whether the variance over seeds is below plain's; None where that is open."""
    against, ratio, p = item.score_against_plain, item.variance_ratio, item.p_variance
    if against is None or len(against.seeds) < ENOUGH_SEEDS or ratio is None or p is None:
        return None
    return ratio.value < 1 if p < LEVEL else None


def _budget(content: StudyContent) -> Iterator[Sentence]:
    """How many settings were tried, by method, and which methods did nothing."""
    tried = dict.fromkeys(method_names(content.methods), 1)
    tried |= {choice.method: choice.tried for choice in content.choices}
    compared = overall(content)
    equal = [item.method for item in compared if item.equal]
    texts = []
    if uneven := len(set(tried.values())) > 1:
        listed = ", ".join(f"{name} {count}" for name, count in tried.items())
        texts.append(f"Methods did not get the same number of settings: {listed}.")
    elif content.choices:
        count = next(iter(tried.values()))
        texts.append(f"Each method got {count} settings to choose from, on held-out training rows.")
    if some := 0 < len(equal) < len(compared):  # all are: that is the decision
        texts.append(f"Equal to plain in every run: {', '.join(equal)}.")
    if texts:
        yield Sentence("fragile" if uneven or some else "note", " ".join(texts))


def _cost(content: StudyContent) -> Iterator[Sentence]:
    """What plain fine-tuning with more time costs."""
    ratios = [item.cost_ratio for item in content.methods if item.method == LONGER]
    if known := [ratio for ratio in ratios if ratio is not None]:
        low, high = f"{min(known):.2f}", f"{max(known):.2f}"
        yield Sentence(
            "cost",
            f"{LONGER} took {low if low == high else f'{low} to {high}'} times plain's training "
            "time: a method of that cost has to beat it, not only plain.",
        )


# --- quantities --------------------------------------------------------------------------------


def effect_findings(compared: Sequence[Comparison]) -> list[Sentence]:
    """Which methods move what they are about, and which are more robust than plain.

    Args:
        compared: of `compare_quantities`.
    """
    most = max((len(item.seeds) for item in compared), default=0)
    if most < ENOUGH_SEEDS:
        return [Sentence("fragile", _few_seeds(most))] if compared else []
    relative = set(RELATIVE_TO_LOGITS.values())
    families = {
        "What methods are about": lambda name: name not in ROBUSTNESS and name not in relative,
        "Relative to the size of the logits": relative.__contains__,
        "Robustness": ROBUSTNESS.__contains__,
    }
    sentences = []
    widest = max(len(item.conditions) for item in compared)
    for title, holds in families.items():
        shown = [c for c in compared if holds(c.measure) and len(c.conditions) == widest]
        named = [(f"{c.method} ({c.measure} {100 * _gap(c):+.0f} %)", c) for c in shown]
        if shown:
            null = f"{title}: no method is shown to differ from plain."
            found = _against_plain(f"{title}, after Holm's correction", named)
            sentences.append(found or Sentence("note", null))
    return sentences
