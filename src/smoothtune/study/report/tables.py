"""The tables of a study's report, as text."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from smoothtune.core.quantities import QUANTITIES
from smoothtune.report.page import DASH, Table, number
from smoothtune.report.tables import POINTS, Summary, effect_text, p_text, score_grid
from smoothtune.study.comparison import Comparison
from smoothtune.study.fields import ConditionKey
from smoothtune.study.plan import Choice
from smoothtune.study.report.methods import MORE_IS_BETTER, SECONDARY, MethodResult
from smoothtune.study.report.statistics import ENOUGH_SEEDS, LEVEL
from smoothtune.study.table import ROBUSTNESS

BESIDE_QUANTITIES = {
    "changed by the worst perturbation": "share of predicted classes that the worst perturbation "
    "changes, whatever the size of the logits",
    "logit Jacobian, relative to the logits": "||df/dx|| over the rms norm of the logits",
    "logit Hessian, relative to the logits": "||d^2 f/dx^2|| over the same",
}
BETTER, WORSE, NOT_AFTER_HOLM = "better", "worse", "open: not after Holm"
NOTHING, EQUAL, FEW = "no difference seen", "equal to plain in every run", "too few seeds"
SMALLEST = "shown from, points"
"""Head of the column of the smallest differences that would have been shown."""


def is_better(item: Comparison) -> bool:
    """Whether a difference is to the good: more of a score, less of an error or a quantity."""
    return (item.difference.value > 0) == (item.measure in MORE_IS_BETTER)


def verdict(item: Comparison) -> str:
    """What the test says about a method, in words."""
    if item.equal:
        return EQUAL
    if item.p_holm is None:
        return FEW if len(item.seeds) < 2 else NOTHING
    if item.differs and len(item.seeds) < ENOUGH_SEEDS:
        return FEW
    if item.differs:
        return BETTER if is_better(item) else WORSE
    return NOT_AFTER_HOLM if item.p is not None and item.p < LEVEL else NOTHING


# --- scores ------------------------------------------------------------------------------------


def main_table(methods: Sequence[MethodResult]) -> Table:
    """Mean scores of all methods and conditions, with average and rank; methods as in the study."""
    conditions = {item.condition: item.metric for item in methods if item.metric}
    titles = {key: f"{_short_title(key, conditions)}: {name}" for key, name in conditions.items()}
    scores: dict[str, dict[Any, Summary]] = {item.method: {} for item in methods}
    for item in methods:
        if item.score:
            scores[item.method][item.condition] = item.score
    return score_grid(scores, titles)


def _short_title(condition: ConditionKey, others: Iterable[ConditionKey]) -> str:
    """A condition without what all have in common beside the task."""
    model, size = (len({other[place] for other in others}) > 1 for place in (1, 2))
    return condition._replace(
        model=condition.model if model else "",
        max_train_samples=condition.max_train_samples if size else None,
    ).title


def score_table(group: Sequence[MethodResult]) -> Table:
    """Scores of each method, and how far they are from plain's."""
    metric = next((m.metric for m in group if m.metric), "score")
    lost = any(method.failed for method in group)
    head = ["method", "seeds", f"{metric}, mean", "sd", "median", "max", *["failed"] * lost]
    head += ["minus plain, points", "p", "p, Holm", "verdict", SMALLEST, "time, x plain"]
    rows = []
    for method in group:
        score, against = method.score, method.score_against_plain
        numbers = (score.mean, score.sd, score.median, score.max) if score else [None] * 4
        cells = [method.method, f"{score.n if score else 0} of {method.planned}"]
        cells += map(number, numbers)
        if lost:
            failed = (f"{count} {status}" for status, count in method.failed.items())
            cells.append(", ".join(failed) or "0")
        if against:
            cells += [*_difference(against), verdict(against), _smallest(against)]
            cells.append(number(method.cost_ratio, ".2f"))
        rows.append(cells + [DASH] * (len(head) - len(cells)))
    return Table(head, rows)


def _difference(item: Comparison) -> list[str]:
    """In points, with its p-values."""
    points = effect_text(item.difference, POINTS, "+.1f")
    return [points, p_text(item.p), p_text(item.p_holm)]


def _smallest(item: Comparison) -> str:
    """More than the whole scale is no difference."""
    points = item.smallest and POINTS * item.smallest
    return "> 100" if points and points > POINTS else number(points, ".1f")


def beside_table(group: Sequence[MethodResult]) -> Table:
    """Spread over seeds, fit and calibration: means, and differences from plain with their p."""
    measured = [name for name in SECONDARY if any(name in m.measures for m in group)]
    head = ["method", "variance, x plain's", "p (Brown-Forsythe)", "train score"]
    rows = []
    for method in group:
        cells = [method.method, effect_text(method.variance_ratio, 1, ".2f")]
        cells += [p_text(method.p_variance), number(_mean(method, "train_score"))]
        for name in measured:
            mean = number(_mean(method, name))
            against = method.against_plain.get(name)
            cells.append(f"{mean}, {_with_p(against)}" if against else mean)
        rows.append(cells)
    return Table(head + [SECONDARY[name] for name in measured], rows)


def _mean(method: MethodResult, measure: str) -> float | None:
    summary = method.measures.get(measure)
    return summary.mean if summary else None


def _with_p(item: Comparison | None) -> str:
    """A difference with its corrected p-value."""
    if item is None:
        return DASH
    value = _signed(item.difference.value)
    return value if item.p_holm is None else f"{value} ({p_text(item.p_holm)})"


def _signed(value: float) -> str:
    """With four digits after the point, or one digit that counts where these would be zeros.

    >>> _signed(0.01234), _signed(-0.00002), _signed(0.0)
    ('+0.0123', '-2e-05', '+0.0000')
    """
    return f"{value:+.1g}" if 0 < abs(value) < 5e-5 else f"{value:+.4f}"


def over_tasks_table(compared: Mapping[str, Sequence[Comparison]]) -> Table:
    """Mean differences over all conditions, of the score and of what is measured beside it.

    A method that lacks a condition has a row, too, if it has every one in which another measure is.
    """
    others = [name for name in SECONDARY if compared.get(name)]
    head = ["method", "seeds", "minus plain, mean over tasks, points", "p", "p, Holm", SMALLEST]
    by_method: dict[str, dict[str, Comparison]] = {}
    for name in ("score", *others):
        for item in compared.get(name, ()):
            by_method.setdefault(item.method, {})[name] = item
    rows = []
    for method, own in by_method.items():
        score = own.get("score")
        cells = [*_difference(score), _smallest(score)] if score else [DASH] * 4
        seeds = len(next(iter(own.values())).seeds)
        rows.append([method, str(seeds), *cells, *(_with_p(own.get(name)) for name in others)])
    return Table(head + [SECONDARY[name] for name in others], rows)


# --- quantities --------------------------------------------------------------------------------


def effect_table(compared: Sequence[Comparison]) -> Table:
    """Every method, quantity and condition, as text."""
    head = ["condition", "method", "quantity", "seeds", "plain", "with the method"]
    head += ["change", "p", "p, Holm", "verdict"]
    rows = []
    for item in compared:
        both = (item.plain, item.with_method) if len(item.conditions) == 1 else (None, None)
        cells = [item.condition, item.method, item.measure, str(len(item.seeds))]
        cells += [number(mean, ".4g") for mean in both]
        change, unit = (100, " %") if item.relative else (1, "")
        cells.append(effect_text(item.difference, change, "+.1f" if unit else "+.3g") + unit)
        rows.append([*cells, p_text(item.p), p_text(item.p_holm), verdict(item)])
    return Table(head, rows)


def quantity_table(compared: Sequence[Comparison]) -> Table:
    """What the quantities of a table are."""
    shown = {item.measure for item in compared}
    known = [*QUANTITIES.items(), *BESIDE_QUANTITIES.items(), *ROBUSTNESS.items()]
    meanings = [[name, text] for name, text in known if name in shown]
    return Table(["quantity", "what is measured"], meanings, wraps=True)


# --- others ------------------------------------------------------------------------------------


def choice_table(choices: Sequence[Choice]) -> Table:
    """Which settings were tried, and which one was chosen."""
    rows = [
        [
            choice.condition.title,
            choice.method,
            str(choice.tried),
            choice.chosen or ("none: all failed" if choice.complete else "not yet"),
            "; ".join(f"{name}: {number(score)}" for name, score in choice.scores.items()),
        ]
        for choice in choices
    ]
    head = ["condition", "method", "tried", "chosen", "score on held-out training rows"]
    return Table(head, rows, wraps=True)


COMPARISON_COLUMNS = (
    *("condition", "method", "measure", "relative", "seeds", "plain", "with_method"),
    *("difference", "low", "high", "sd", "p", "p_holm", "shown_from"),
)
"""`relative`: whether the difference is in units of plain's mean."""


def comparison_rows(compared: Iterable[Comparison]) -> Iterator[list[object]]:
    """Comparisons as plain numbers, with `COMPARISON_COLUMNS`."""
    for item in compared:
        yield [
            *(item.condition, item.method, item.measure, item.relative, len(item.seeds)),
            *(item.plain, item.with_method, item.difference.value, *item.difference.bounds),
            *(item.sd, item.p, item.p_holm, item.smallest),
        ]
