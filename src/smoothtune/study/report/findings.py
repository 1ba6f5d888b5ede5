"""The findings of a study as sentences; a null result is one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from smoothtune.report.page import Sentence, Verdict
from smoothtune.study.config import LONGER, PLAIN
from smoothtune.study.report.comparison import (
    by_condition,
    condition_of,
    condition_title,
    secondary,
    secondary_over_tasks,
)
from smoothtune.study.report.plots import POINTS
from smoothtune.study.report.tables import TITLES

LEVEL = 0.05
BETTER = {"brier": -1, "nll": -1, "ece": -1, "noise": 1}
"""Measures beside the score, and whether more or less is better. A gap shrinks by less fit too."""


def sentences(content: Mapping[str, Any]) -> list[Sentence]:
    """The findings in the content of ``results.json``."""
    found, methods, test = [*_completeness(content)], content["methods"], content["test"]
    for condition, group in by_condition(methods).items():
        found += _scores(group, condition_title(condition), test)
        found += _beside_the_score(secondary(group), condition_title(condition), test)
    return found + [*_aggregate(content), *_stability(methods), *_budget(content)]


def _completeness(content: Mapping[str, Any]) -> Iterator[Sentence]:
    asked = sum(item["asked"] for item in content["methods"])
    seeds = [item["measures"]["score"]["n"] for item in content["methods"] if item["metric"]]
    done = sum(seeds)
    failed = sum(sum(item["failed"].values()) for item in content["methods"])
    verdict: Verdict = "note" if done == asked else "fragile"
    text = f"{done} of {asked} runs are done, {failed} failed."
    yield Sentence(verdict, text + " Failed runs are in no mean." * (failed > 0))
    if (most := max(seeds, default=0)) < 5:
        few = "1 seed is" if most == 1 else f"{most} seeds are"
        yield Sentence("fragile", f"{few} few: nothing here is established.")
    mixed = [name for name, values in content["versions"].items() if len(values) > 1]
    if mixed:
        yield Sentence("fragile", f"The runs used several versions of {', '.join(mixed)}.")


def _scores(group: Sequence[Mapping[str, Any]], title: str, test: str) -> Iterator[Sentence]:
    """Who beats plain, and who loses to it."""
    plain = next((item for item in group if item["method"] == PLAIN), None)
    score = plain and plain["measures"]["score"]
    if plain is None or not score:
        yield Sentence("fragile", f"{title}: plain fine-tuning has no finished run.")
        return
    if score["mean"] <= plain["trivial_baseline"]:
        yield Sentence(
            "fragile",
            f"{title}: plain fine-tuning ({score['mean']:.3f}) is not above the "
            f"{plain['trivial_baseline']:.3f} of a constant answer; comparisons mean little.",
        )
    compared = [item for item in group if item["against_plain"]]
    named: dict[bool, list[str]] = {True: [], False: []}
    for item in compared:
        p, gap = item["against_plain"]["p_holm"], item["against_plain"]["difference"]["value"]
        if p is not None and p < LEVEL:
            named[gap > 0].append(f"{item['method']} ({POINTS * gap:+.1f} points, p = {p:.2g})")
    yield from _better_and_worse(named, f"{title}:", f"after Holm's correction ({test})")
    if compared and not any(named.values()):
        yield Sentence(
            "note",
            f"{title}: none of {len(compared)} methods differs from plain at 5 % after Holm's "
            f"correction ({test}; seeds: {score['n']}).",
        )


def _beside_the_score(
    tests: Mapping[str, Mapping[str, Mapping[str, Any] | None]], where: str, test: str
) -> Iterator[Sentence]:
    """Calibration and noise: where a method differs from plain, whatever its score."""
    named: dict[bool, list[str]] = {True: [], False: []}
    for measure, sign in BETTER.items():
        for method, tested in tests[measure].items():
            if tested and tested["p_holm"] is not None and tested["p_holm"] < LEVEL:
                gap = tested["difference"]["value"]
                text = f"{TITLES[measure]} {method} ({gap:+.3f}, p = {tested['p_holm']:.2g})"
                named[sign * gap > 0].append(text)
    corrected = f"after Holm's correction within each measure ({test})"
    yield from _better_and_worse(named, f"{where}: beside the score", corrected)


def _better_and_worse(
    named: Mapping[bool, Sequence[str]], where: str, how: str
) -> Iterator[Sentence]:
    """The methods that are better than plain (True), and those that are worse."""
    if named[True]:
        yield Sentence("good", f"{where} better than plain {how}: {', '.join(named[True])}.")
    if named[False]:
        yield Sentence("fragile", f"{where} worse than plain {how}: {', '.join(named[False])}.")


def _aggregate(content: Mapping[str, Any]) -> Iterator[Sentence]:
    for item in content["over_tasks"]:
        if item["p_holm"] is not None and item["p_holm"] < LEVEL:
            gap = item["difference"]["value"]
            yield Sentence(
                "good" if gap > 0 else "fragile",
                f"Over {item['conditions']} conditions {item['method']} is {POINTS * gap:+.1f} "
                f"points from plain (p = {item['p_holm']:.2g} after Holm, {item['test']}).",
            )
    tests = secondary_over_tasks(content)
    if measured := [item for measure in BETTER for item in tests[measure].values()]:
        where = "Over all conditions that have the measure"
        yield from _beside_the_score(tests, where, measured[0]["test"])


def _stability(methods: Sequence[Mapping[str, Any]]) -> Iterator[Sentence]:
    for item in methods:
        against = item["against_plain"]
        ratio = against and against["variance_ratio"]
        if ratio and against["p_variance"] is not None and against["p_variance"] < LEVEL:
            stabler = ratio["value"] < 1
            yield Sentence(
                "good" if stabler else "fragile",
                f"{condition_title(condition_of(item))}: {item['method']} is "
                f"{'stabler' if stabler else 'less stable'} than plain: {ratio['value']:.2f} times "
                f"the variance over seeds (Brown-Forsythe test, p = {against['p_variance']:.2g}, "
                "not corrected for the number of methods).",
            )


def _budget(content: Mapping[str, Any]) -> Iterator[Sentence]:
    """How many settings were tried, by method."""
    tried = {item["method"]: 1 for item in content["methods"]}
    tried |= {choice["method"]: choice["tried"] for choice in content["choices"]}
    if len(set(tried.values())) > 1:
        listed = ", ".join(f"{name} {count}" for name, count in tried.items())
        yield Sentence("fragile", f"Methods did not get the same number of settings: {listed}.")
    elif content["choices"]:
        count = next(iter(tried.values()))
        yield Sentence(
            "note",
            f"Each method got {count} settings to choose from, on held-out training rows.",
        )
    if LONGER in tried:
        longer = [m for m in content["methods"] if m["method"] == LONGER and m["against_plain"]]
        for item in longer:
            ratio = item["against_plain"]["cost_ratio"]
            yield Sentence(
                "cost",
                f"{condition_title(condition_of(item))}: {LONGER} took {ratio:.2f} times plain's "
                "training time: a method of that cost has to beat it, not only plain.",
            )
