"""The findings of a study as sentences; a null result is one."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from smoothtune.report.page import Sentence, Verdict, number
from smoothtune.report.tables import POINTS
from smoothtune.study.comparison import Comparison
from smoothtune.study.config import LONGER, PLAIN
from smoothtune.study.report.content import StudyContent
from smoothtune.study.report.decision import decision, equal_methods, overall
from smoothtune.study.report.methods import MethodResult, by_condition, secondary
from smoothtune.study.report.power import POWER
from smoothtune.study.report.statistics import ENOUGH_SEEDS, LEVEL
from smoothtune.study.report.tables import TITLES, comparisons_by_method

BETTER = {"brier": -1, "nll": -1, "ece": -1, "noise": 1, "ood": 1}
"""Measures beside the score, and whether more or less is better. A gap shrinks by less fit too."""
MOST_NAMED = 6
"""Methods that a sentence names; tables have them all."""
Named = Mapping[bool, Sequence[str]]
"""What is said of methods that are better than plain (True), and of those that are worse."""


def sentences(content: StudyContent) -> list[Sentence]:
    """What is to be done, and at most six findings, from the content of ``results.json``."""
    if not content.methods:
        chosen = all(choice.complete for choice in content.choices)
        text = (
            "Change the study: none of its settings could be trained, for the reasons below."
            if chosen
            else "Run the study on: the settings to report are still being chosen."
        )
        return [Sentence("fragile", text), *_budget(content)]
    conditions = by_condition(content.methods)
    kinds = (
        [decision(content)],
        _completeness(content),
        _scores_in_short(conditions.values(), content.test, _could_see(content)),
        _beside_in_short(content, conditions.values()),
        _joined(_not_above_constant(content.methods), _stability_in_short(content.methods)),
        _budget(content),
        _cost(content.methods),
    )
    return [sentence for kind in kinds for sentence in kind]


def condition_sentences(group: Sequence[MethodResult], test: str) -> list[Sentence]:
    """The findings about one condition, all of them.

    Args:
        group: its comparisons, of ``results.json``.
        test: name of the test that decides.
    """
    found = [*_chance(group), *_not_above_constant(group), *_scores(group, test)]
    named = _named_beside(secondary(group))
    found += _better_and_worse(
        named, "Beside the score", f"after Holm within each measure ({test})"
    )
    return found + [Sentence(verdict, text) for verdict, text in _stability(group)]


def _completeness(content: StudyContent) -> Iterator[Sentence]:
    asked = sum(item.asked for item in content.methods)
    seeds = [item.score.n for item in content.methods if item.score]
    done = sum(seeds)
    failed = sum(sum(item.failed.values()) for item in content.methods)
    text = f"{done} of {asked} runs are done, {failed} failed."
    text += " Failed runs are in no mean." * (failed > 0)
    if few := (most := max(seeds, default=0)) < ENOUGH_SEEDS:
        count = "1 seed is" if most == 1 else f"{most} seeds are"
        text += f" {count} few: nothing here is established."
    mixed = [name for name, values in content.versions.items() if len(values) > 1]
    if mixed:
        text += f" The runs used several versions of {', '.join(mixed)}."
    if len(content.devices) > 1:
        text += (
            " They ran on several kinds of device, and times are compared only on one and the "
            f"same: {'; '.join(content.devices)}."
        )
    yield Sentence("note" if done == asked and not (few or mixed) else "fragile", text)


def _chance(group: Sequence[MethodResult]) -> Iterator[Sentence]:
    """Whether comparisons with plain mean anything."""
    plain = _finished_plain(group)
    if plain is None:
        yield Sentence("fragile", "Plain fine-tuning has no finished run.")
    elif plain.is_at_chance:
        score = number(plain.score.mean if plain.score else None, ".3f")
        constant = number(plain.trivial_baseline, ".3f")
        yield Sentence(
            "fragile",
            f"Plain fine-tuning ({score}) is not above the {constant} of a constant answer; "
            "comparisons mean little.",
        )


def _not_above_constant(methods: Iterable[MethodResult]) -> Iterator[Sentence]:
    """How many runs of each method learned nothing that shows in their score."""
    runs, stuck = Counter[str](), Counter[str]()
    for item in methods:
        if item.score:
            runs[item.method] += item.score.n
            stuck[item.method] += item.not_above_constant
    named = [f"{count} of {runs[name]} of {name}" for name, count in stuck.most_common() if count]
    if named:
        rest = "; none of the other methods" if len(named) < len(runs) else ""
        text = f"Runs that end no better than the best constant answer: {_few(named)}{rest}."
        yield Sentence("fragile", text)


def _finished_plain(group: Iterable[MethodResult]) -> MethodResult | None:
    """Plain fine-tuning, if a run of it has a score."""
    return next((i for i in group if i.method == PLAIN and i.score), None)


def established(group: Iterable[MethodResult]) -> bool:
    """Whether a method differs from plain in its score under a condition."""
    return any(item.against_plain and item.against_plain.is_established for item in group)


def _named_scores(group: Iterable[MethodResult], where: str = "") -> Named:
    named: dict[bool, list[str]] = {True: [], False: []}
    for item in group:
        against = item.against_plain
        if against and against.is_established:
            gap = against.difference.value
            shown = f"{POINTS * gap:+.1f} points, p = {against.p_holm:.2g}"
            named[gap > 0].append(f"{item.method}{where} ({shown})")
    return named


def _scores(group: Sequence[MethodResult], test: str) -> Iterator[Sentence]:
    """Who beats plain, and who loses to it."""
    compared = [item.against_plain for item in group if item.against_plain]
    named = _named_scores(group)
    yield from _better_and_worse(named, "Score", f"after Holm's correction ({test})")
    if compared and not any(named.values()):
        if any(item.differs for item in compared):
            text = f"Seeds are too few to show that a method differs from plain in score ({test})."
        else:
            name, count = compared[0].method, len(compared)
            who = f"None of {count} methods differs" if count > 1 else f"{name} does not differ"
            how = f"after Holm's correction ({test}; seeds: {len(compared[0].seeds)})"
            text = f"{who} from plain in score at 5 % {how}."
        yield Sentence("note", text)


def _scores_in_short(
    conditions: Iterable[Sequence[MethodResult]], test: str, could_see: str
) -> Iterator[Sentence]:
    """The same over all conditions in one sentence, a null result with what it could have seen."""
    groups = list(conditions)
    compared = [m.against_plain for group in groups for m in group if m.against_plain]
    named: dict[bool, list[str]] = {True: [], False: []}
    for group in groups:
        where = f" on {group[0].condition.title}" if len(groups) > 1 else ""
        found = _named_scores(group, where)
        named = {good: [*named[good], *found[good]] for good in (True, False)}
    weak = _weak(groups)
    doubt = f" Not above a constant answer, so of no meaning: {', '.join(weak)}." if weak else ""
    if any(named.values()):
        text = f"Score, task by task after Holm's correction ({test}): {_both(named)}."
    elif any(item.differs for item in compared):
        text = (
            "Score, task by task: seeds are too few to show that a method differs from plain "
            f"({test}).{could_see}"
        )
    else:
        one = len({item.method for item in compared}) == 1
        who = "the method does not differ" if one else "none of the methods differs"
        text = (
            f"Score, task by task: {who} from plain at 5 % after Holm's correction ({test})."
            f"{could_see}"
        )
    yield Sentence("fragile" if doubt else _tone(named), text + doubt)


def _could_see(content: StudyContent) -> str:
    """The true differences that would have been found, from the least to the greatest."""
    compared = overall(content)
    smallest = sorted(POINTS * item.smallest for item in compared if item.smallest)
    if not smallest:
        return ""
    if statistics.median(smallest) > POINTS:  # the whole scale
        return (
            " With so few seeds hardly a difference that is possible would have been shown with a "
            f"chance of {100 * POWER:.0f} %."
        )
    tasks = compared[0].conditions
    where = f" on average over {tasks} tasks" if tasks > 1 else ""
    spread = f" (median of the methods; {smallest[0]:.1f} to {smallest[-1]:.1f})"
    return (
        f" Had a method truly been {statistics.median(smallest):.1f} points better{where}"
        f"{spread * (len(smallest) > 1)}, a paired t-test of its seeds would have shown it with a "
        f"chance of {100 * POWER:.0f} %."
    )


def _weak(groups: Iterable[Sequence[MethodResult]]) -> list[str]:
    """Titles of the conditions in which comparisons with plain mean little."""
    plain = [found for group in groups if (found := _finished_plain(group))]
    return [found.condition.title for found in plain if found.is_at_chance]


def _named_beside(tests: Mapping[str, Mapping[str, Comparison | None]]) -> Named:
    """Calibration and noise: where a method differs from plain, whatever its score."""
    named: dict[bool, list[str]] = {True: [], False: []}
    for measure, sign in BETTER.items():
        for method, tested in tests[measure].items():
            if tested and tested.is_established:
                gap = tested.difference.value
                text = f"{TITLES[measure]} {method} ({gap:+.3f}, p = {tested.p_holm:.2g})"
                named[sign * gap > 0].append(text)
    return named


def _beside_in_short(
    content: StudyContent, conditions: Iterable[Sequence[MethodResult]]
) -> Iterator[Sentence]:
    groups = list(conditions)
    several = len(groups) > 1
    tests = comparisons_by_method(content.over_tasks_secondary) if several else secondary(groups[0])
    measures_by_method: dict[bool, dict[str, list[str]]] = {True: {}, False: {}}
    for measure, sign in BETTER.items():
        for method, tested in tests[measure].items():
            if tested and tested.is_established:
                good = sign * tested.difference.value > 0
                measures_by_method[good].setdefault(method, []).append(TITLES[measure])
    named = {
        good: [f"{method} ({', '.join(measures)})" for method, measures in found.items()]
        for good, found in measures_by_method.items()
    }
    if any(named.values()):
        where = " over all tasks that have the measure" if several else ""
        text = f"Beside the score{where}, after Holm within each measure: {_both(named)}."
        if _weak(groups):  # a model that has learned nothing is calibrated by saying so
            text += " That means little where plain fine-tuning is not above a constant answer."
        yield Sentence("fragile" if _weak(groups) else _tone(named), text)


def _tone(named: Named) -> Verdict:
    if named[True] and not named[False]:
        return "good"
    return "fragile" if named[False] and not named[True] else "note"


def _both(named: Named) -> str:
    """Better and worse methods, the first few of each."""
    kinds = (("better than plain", named[True]), ("worse than plain", named[False]))
    return "; ".join(f"{how}: {_few(names)}" for how, names in kinds if names)


def _few(names: Sequence[str]) -> str:
    more = len(names) - MOST_NAMED
    return ", ".join(names[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def _better_and_worse(named: Named, what: str, how: str) -> Iterator[Sentence]:
    """The methods that are better than plain, and those that are worse, all of them."""
    if named[True]:
        yield Sentence("good", f"{what} better than plain {how}: {', '.join(named[True])}.")
    if named[False]:
        yield Sentence("fragile", f"{what} worse than plain {how}: {', '.join(named[False])}.")


def _stability(methods: Sequence[MethodResult]) -> Iterator[tuple[Verdict, str]]:
    for item in methods:
        against = item.against_plain
        if against is None or len(against.seeds) < ENOUGH_SEEDS:
            continue
        ratio, p = against.variance_ratio, against.p_variance
        if ratio and p is not None and p < LEVEL:
            stabler = ratio.value < 1
            yield (
                "good" if stabler else "fragile",
                f"{item.method} is {'stabler' if stabler else 'less stable'} than plain: "
                f"{ratio.value:.2f} times the variance over seeds (Brown-Forsythe test, p = "
                f"{p:.2g}, not corrected for the number of methods).",
            )


def _stability_in_short(methods: Sequence[MethodResult]) -> Iterator[Sentence]:
    found = [(item, text) for item in methods for _, text in _stability([item])]
    if len(found) == 1:
        item, text = found[0]
        yield Sentence("note", f"{item.condition.title}: {text}")
    elif found:
        names = [f"{item.method} on {item.condition.title}" for item, _ in found]
        text = f"Variance over seeds differs from plain's, uncorrected: {_few(names)}."
        yield Sentence("note", text)


def _joined(*kinds: Iterable[Sentence]) -> Iterator[Sentence]:
    """Several findings as one, in the tone of the first."""
    found = [sentence for kind in kinds for sentence in kind]
    if found:
        yield Sentence(found[0].verdict, " ".join(sentence.text for sentence in found))


def _budget(content: StudyContent) -> Iterator[Sentence]:
    """How many settings were tried, by method, and which methods did nothing."""
    tried = {item.method: 1 for item in content.methods}
    tried |= {choice.method: choice.tried for choice in content.choices}
    said: list[str] = []
    if uneven := len(set(tried.values())) > 1:
        listed = ", ".join(f"{name} {count}" for name, count in tried.items())
        said.append(f"Methods did not get the same number of settings: {listed}.")
    elif content.choices:
        count = next(iter(tried.values()))
        said.append(f"Each method got {count} settings to choose from, on held-out training rows.")
    if equal := equal_methods(content):
        said.append(f"Equal to plain in every run: {', '.join(equal)}.")
    if said:
        yield Sentence("fragile" if uneven or equal else "note", " ".join(said))


def _cost(methods: Sequence[MethodResult]) -> Iterator[Sentence]:
    """What plain fine-tuning with more time costs."""
    ratios = [
        item.against_plain.cost_ratio
        for item in methods
        if item.method == LONGER and item.against_plain
    ]
    if known := [ratio for ratio in ratios if ratio is not None]:
        low, high = f"{min(known):.2f}", f"{max(known):.2f}"
        yield Sentence(
            "cost",
            f"{LONGER} took {low if low == high else f'{low} to {high}'} times plain's training "
            "time: a method of that cost has to beat it, not only plain.",
        )
