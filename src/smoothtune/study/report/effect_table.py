"""The comparisons of `smoothtune.study.report.effect` as a table and in sentences."""

from __future__ import annotations

from collections.abc import Sequence

from smoothtune.core.quantities import QUANTITIES
from smoothtune.report.page import Sentence, Table, number
from smoothtune.report.tables import POINTS, effect_text, p_text
from smoothtune.study.config import PLAIN
from smoothtune.study.report.effect import (
    ALL,
    FEW,
    LESS,
    MORE,
    MOVES,
    NOTHING,
    WEAKLY,
    WRONG,
    Compared,
    QuantityComparison,
)
from smoothtune.study.report.effect_rows import BESIDE, ROBUSTNESS, MeasuredRun
from smoothtune.study.report.statistics import ENOUGH_SEEDS

TOLERATED = 0.5  # points of score that may be lost

HEAD = (
    *("condition", "method", "quantity", "seeds", "plain", "with the method", "minus plain"),
    *("change", "p", "p, Holm", "score, points", "time, x plain", "verdict"),
)


def effect_table(compared: Sequence[QuantityComparison]) -> Table:
    """Every method, quantity and condition, as text."""
    return Table(list(HEAD), [_cells(item) for item in compared])


def quantity_table(compared: Sequence[QuantityComparison]) -> Table:
    """What the quantities of a table are."""
    shown = {item.quantity for item in compared}
    known = [*QUANTITIES.items(), *BESIDE.items(), *ROBUSTNESS.items()]
    meanings = [[name, text] for name, text in known if name in shown]
    return Table(["quantity", "what is measured"], meanings, wraps=True)


def _cells(item: QuantityComparison) -> list[str]:
    return [
        item.condition,
        item.method,
        item.quantity,
        str(len(item.seeds)),
        number(item.plain, ".4g"),
        number(item.with_method, ".4g"),
        effect_text(item.difference, 1, "+.3g"),
        effect_text(item.change, 100, "+.1f") + " %",
        p_text(item.p),
        p_text(item.p_holm),
        effect_text(item.score, POINTS, "+.1f"),
        number(item.cost_ratio, ".2f"),
        item.verdict,
    ]


def findings_of(runs: Sequence[MeasuredRun], compared: Compared) -> list[Sentence]:
    """All that is said of comparisons; that nothing is established where seeds are few."""
    said = effect_sentences(compared.claimed, runs)
    said += beside_sentences(compared.scale_free) + robustness_sentences(compared.robust)
    most = max((len(item.seeds) for item in compared.rows), default=0)
    if not most or most >= ENOUGH_SEEDS:
        return said
    seeds = "1 seed is" if most == 1 else f"{most} seeds are"
    text = f"{seeds} few: nothing here is established, whatever p and verdicts say."
    cautious = [
        found._replace(verdict="note") if found.verdict == "good" else found for found in said
    ]
    return [Sentence("fragile", text), *cautious]


def effect_sentences(
    compared: Sequence[QuantityComparison], runs: Sequence[MeasuredRun]
) -> list[Sentence]:
    """Which methods move their quantity, which do not, and which lose score."""
    shown = [item for item in compared if item.condition == ALL] or list(compared)
    found: list[Sentence] = []
    kinds = ((MOVES, True), (WEAKLY, True), (NOTHING, False), (WRONG, False), (FEW, False))
    for verdict, good in kinds:
        here = [f"{i.method} ({i.quantity})" for i in shown if i.verdict == verdict]
        if here:
            text = f"{verdict}: {len(here)} of {len(shown)}: {', '.join(here)}."
            found.append(Sentence("good" if good else "fragile", text))
    losing = {
        item.method: f"{item.method} ({POINTS * item.score.value:+.1f})"
        for item in shown
        if POINTS * item.score.value < -TOLERATED
    }
    if losing:
        text = (
            f"more than {TOLERATED} points of score lost on average: {', '.join(losing.values())}."
        )
        found.append(Sentence("fragile", text))
    without = dict.fromkeys(r.method for r in runs if r.claims == [] and r.method != PLAIN)
    if without:
        found.append(Sentence("note", f"no quantity of their own: {', '.join(without)}."))
    reasons = dict.fromkeys(
        f"{claim} of {row.method}: {row.missing[claim]}"
        for row in runs
        for claim in row.claims or ()
        if claim in row.missing
    )
    return found + [Sentence("note", f"not measured: {reason}.") for reason in reasons]


def beside_sentences(compared: Sequence[QuantityComparison]) -> list[Sentence]:
    """Which methods do more than make the logits smaller.

    Args:
        compared: of `Compared.scale_free`.
    """
    shown = [item for item in compared if item.condition == ALL] or list(compared)
    moved = [item for item in shown if item.verdict in (MOVES, WEAKLY)]
    named = ", ".join(
        f"{i.method} ({i.quantity}{'' if i.verdict == MOVES else '; not after Holm'})"
        for i in moved
    )
    if not shown:
        return []
    text = (
        f"Of numbers that do not depend on the size of the logits {len(moved)} of {len(shown)} fall"
    )
    return [Sentence("note" if moved else "fragile", f"{text}{': ' + named if named else ''}.")]


def robustness_sentences(compared: Sequence[QuantityComparison]) -> list[Sentence]:
    """Which methods are more robust than plain, and which less.

    Args:
        compared: of `Compared.robust`.
    """
    shown = [item for item in compared if item.condition == ALL] or list(compared)
    found: list[Sentence] = []
    for verdict, good in ((MORE, True), (LESS, False)):
        here = [
            f"{i.method} ({i.quantity}: {effect_text(i.change, 100, '+.1f')} %)"
            for i in shown
            if i.verdict == verdict
        ]
        if here:
            text = f"{verdict} than plain after Holm's correction: {', '.join(here)}."
            found.append(Sentence("good" if good else "fragile", text))
    if shown and not found:
        found = [Sentence("note", "No method is shown to be more or less robust than plain.")]
    return found
