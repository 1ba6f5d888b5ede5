"""What a study says in sentences: first what to do, then what was found; a null result is one."""

import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from smoothtune.report.page import Sentence, Verdict
from smoothtune.report.tables import POINTS
from smoothtune.study.comparison import Comparison
from smoothtune.study.fields import LONGER, PLAIN
from smoothtune.study.report.content import StudyContent
from smoothtune.study.report.decision import CHANCE, decision, where
from smoothtune.study.report.methods import (
    RELATIVE_TO_LOGITS,
    SECONDARY,
    MethodResult,
    method_names,
)
from smoothtune.study.report.statistics import ENOUGH_SEEDS, LEVEL, TEST
from smoothtune.study.report.tables import is_better
from smoothtune.study.table import ROBUSTNESS

MOST_NAMED = 6
"""Methods that a sentence names; tables have them all."""


def findings(content: StudyContent) -> list[Sentence]:
    """What is to be done, and at most six findings."""
    if not content.methods:
        chosen = all(choice.complete for choice in content.choices)
        text = (
            "Change the study: none of its settings could be trained, for the reasons below."
            if chosen
            else "Go on with the study: the settings to report are still being chosen."
        )
        return [Sentence("fragile", text), *_budget(content)]
    return [
        decision(content),
        _completeness(content),
        *_scores(content),
        *_beside(content),
        *_temperature(content),
        *_spread(content),
        *_budget(content),
        *_cost(content),
    ]


def _completeness(content: StudyContent) -> Sentence:
    planned = sum(item.planned for item in content.methods)
    seeds = [item.score.n for item in content.methods if item.score]
    done, most = sum(seeds), max(seeds, default=0)
    failed = sum(sum(item.failed.values()) for item in content.methods)
    text = f"{done} of {planned} runs are done, {failed} failed."
    text += " Failed runs are in no mean." * (failed > 0)
    absent = [item for item in content.methods if item.missing == item.planned > 0]
    if 0 < len(absent) <= MOST_NAMED:
        names = (f"{item.method} on {item.condition.title}" for item in absent)
        text += f" Nothing was run of {'; '.join(names)}."
    refused = [f"{m.method} on {m.condition.title}" for m in content.methods if not m.planned]
    if refused:
        more = len(refused) - MOST_NAMED
        named = "; ".join(refused[:MOST_NAMED]) + f" and {more} more" * (more > 0)
        text += f" Not supported, and left out: {named}."
    if few := most < ENOUGH_SEEDS:
        text += f" {_few_seeds(most)}"
    mixed = [name for name, values in content.versions.items() if len(values) > 1]
    if mixed:
        text += f" The runs used several versions of {', '.join(mixed)}."
    if len(content.devices) > 1:
        text += (
            " They ran on several kinds of device, and times are compared only on one and the "
            f"same: {'; '.join(content.devices)}."
        )
    return Sentence("note" if done == planned and not (few or mixed) else "fragile", text)


def _few_seeds(count: int) -> str:
    seeds = "1 seed is" if count == 1 else f"{count} seeds are"
    return f"{seeds} few: nothing here is established."


def _scores(content: StudyContent) -> Iterator[Sentence]:
    """Who beats plain and who loses to it, task by task; a null result with what it could see."""
    several = len(content.conditions) > 1
    compared = [item for method in content.methods if (item := method.score_against_plain)]
    if not compared:
        return
    named = [
        (f"{item.method}{f' on {item.condition}' * several} ({_points(item)})", item)
        for item in compared
    ]
    sentence = _against_plain(f"Score, task by task after Holm's correction ({TEST})", named)
    if sentence is None:
        names = method_names(compared)
        who = f"{names[0]} is not" if len(names) == 1 else "none of the methods is"
        text = f"Score, task by task: {who} shown to differ from plain ({TEST}, after Holm)."
        sentence = Sentence("note", text + _could_see(content))
    if weak := _at_chance(content):
        text = f"{sentence.text} Not above a constant answer, so of no meaning: {', '.join(weak)}."
        sentence = Sentence("fragile", text)
    yield sentence


def _points(item: Comparison) -> str:
    p = "" if item.p_holm is None else f", p = {item.p_holm:.2g}"
    return f"{POINTS * item.gap:+.1f} points{p}"


def _against_plain(what: str, named: Iterable[tuple[str, Comparison]]) -> Sentence | None:
    """The established differences, the first few that are better and worse; None without any."""
    shown = [(text, is_better(item)) for text, item in named if item.is_established]
    better = [text for text, to_the_good in shown if to_the_good]
    worse = [text for text, to_the_good in shown if not to_the_good]
    if not shown:
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
    compared = content.overall()
    smallest = sorted(POINTS * item.smallest for item in compared if item.smallest)
    if not smallest:
        return ""
    middle = statistics.median(smallest)
    if middle > POINTS:  # the whole scale
        text = "With so few seeds hardly a difference that is possible would have been shown"
        return f" {text} {CHANCE}."
    spread = f" (median of the methods; {smallest[0]:.1f} to {smallest[-1]:.1f})"
    return (
        f" Had a method truly been {middle:.1f} points better{where(content, compared[0])}"
        f"{spread * (len(smallest) > 1)}, a paired t-test of its seeds would have shown it "
        f"{CHANCE}."
    )


def _at_chance(content: StudyContent) -> list[str]:
    """Titles of the conditions in which comparisons with plain mean little."""
    plain = (item for item in content.methods if item.method == PLAIN)
    return [item.condition.title for item in plain if item.is_at_chance]


def _beside(content: StudyContent) -> Iterator[Sentence]:
    """Calibration, noise and other data: where a method differs from plain, whatever its score."""
    several = len(content.conditions) > 1
    groups: Iterable[Iterable[Comparison]] = content.over_tasks.values()
    if not several:
        groups = (item.against_plain.values() for item in content.methods)
    # a gap shrinks by less fit too
    left_out = ("score", "generalization_gap")
    shown = [c for group in groups for c in group if c.measure not in left_out]
    tasks = " over all tasks that have the measure" * several
    named = [(f"{c.method} ({SECONDARY[c.measure]} {c.gap:+.3f})", c) for c in shown]
    sentence = _against_plain(f"Beside the score{tasks}, after Holm within each measure", named)
    if sentence and _at_chance(content):  # who has learned nothing is calibrated by saying so
        text = " That means little where plain fine-tuning is not above a constant answer."
        sentence = Sentence("fragile", sentence.text + text)
    if sentence:
        yield sentence


def _temperature(content: StudyContent) -> Iterator[Sentence]:
    """Whose NLL is below that of plain with a temperature, which everyone can have."""
    before, after = (_means(content, f"nll_{when}") for when in ("uncalibrated", "calibrated"))
    others = {name: mean for name, mean in before.items() if name != PLAIN}
    if PLAIN not in after or not others:
        return
    if after[PLAIN] >= before[PLAIN]:
        numbers = f"{before[PLAIN]:.3f} without one, {after[PLAIN]:.3f} with it"
        yield Sentence("note", f"A temperature does not lower plain's NLL: {numbers}.")
        return
    best = min(others, key=others.__getitem__)
    below = [f"{name} ({mean:.3f})" for name, mean in others.items() if mean < after[PLAIN]]
    who = _few(below) or f"no method; the lowest is {best}, {others[best]:.3f}"
    yield Sentence(
        "note",
        f"A temperature takes plain's NLL from {before[PLAIN]:.3f} to {after[PLAIN]:.3f} on rows "
        f"on which it was not fitted. Below that without one: {who}.",
    )


def _means(content: StudyContent, measure: str) -> dict[str, float]:
    """Means over the conditions, of the methods that have the measure where plain has it."""
    values: dict[str, dict[str, float]] = {}
    for item in content.methods:
        if measure in item.measures:
            values.setdefault(item.method, {})[item.condition.title] = item.measures[measure].mean
    common = values.get(PLAIN, {}).keys()
    return {
        name: statistics.mean(by[title] for title in common)
        for name, by in values.items()
        if by.keys() >= common
    }


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
        spread = [
            f"{item.method} on {item.condition.title} ({ratio:.2f} times the variance)"
            for item in content.methods
            if (ratio := _shown_ratio(item)) is not None and (ratio < 1) == stabler
        ]
        if spread:
            test = "Brown-Forsythe test, not corrected for the number of methods"
            texts.append(f"{how} than plain over seeds ({test}): {_few(spread)}.")
    if texts:
        yield Sentence("fragile" if named else "note", " ".join(texts))


def _shown_ratio(item: MethodResult) -> float | None:
    """Variance over seeds relative to plain's; None where it is not shown to differ."""
    against, ratio, p = item.score_against_plain, item.variance_ratio, item.p_variance
    if against is None or len(against.seeds) < ENOUGH_SEEDS or ratio is None or p is None:
        return None
    return ratio.value if p < LEVEL else None


def _budget(content: StudyContent) -> Iterator[Sentence]:
    """How many settings were tried, by method, and which methods did nothing."""
    tried = dict.fromkeys(method_names(content.methods), 1)
    tried |= {choice.method: choice.tried for choice in content.choices}
    compared, texts = content.overall(), []
    equal = [item.method for item in compared if item.equal]
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
    """Which methods move what they are about, and which are more robust than plain."""
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
        named = [(f"{c.method} ({c.measure} {_change(c)})", c) for c in shown]
        if shown:
            null = f"{title}: no method is shown to differ from plain."
            sentence = _against_plain(f"{title}, after Holm's correction", named)
            sentences.append(sentence or Sentence("note", null))
    return sentences


def _change(item: Comparison) -> str:
    return f"{100 * item.gap:+.0f} %" if item.relative else f"{item.gap:+.3g}"
