"""Does each method move the quantity it is about? From the part `effect` of a study's runs.

Beside these stand, for every method, what the parts `robustness` (or `noise_curve`), `corruption`
and `substitution` say where a study has them, with the part `effect` or without: more is better.

A method and plain fine-tuning are compared on the seeds that both have, quantity by quantity, by a
paired t-test with the interval of the same test. Over several conditions the differences are taken
relative to plain's mean on each, because units and sizes differ, and averaged for every seed. A
method names its quantities itself (`claims`); of each, less is what its paper claims.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from smoothtune.errors import OutputError
from smoothtune.files import read_json
from smoothtune.methods import METHODS
from smoothtune.report.curves import LOSES, LOST, Curve
from smoothtune.results import CellContent, Measured, Part
from smoothtune.study.config import PLAIN
from smoothtune.study.records import STUDY, Extras, Records
from smoothtune.study.report.comparison import CONDITION, Condition, condition_of, condition_title
from smoothtune.study.report.statistics import (
    TrainingTime,
    holm,
    mean_difference,
    p_value,
    time_ratio,
)

LEVEL = 0.05
EFFECT, ALL = "effect", "all conditions"
PARTS = {EFFECT, "robustness", "corruption", "substitution"}
NOISE, TOKENS = "noise that costs 10 points", "random tokens that cost 10 points"
WORDS = "score under word substitutions"
ROBUSTNESS = {
    NOISE: "Gaussian noise on the word embeddings relative to their norm",
    TOKENS: "share of tokens that are random ones",
    WORDS: "main metric when an attack has tried to exchange the three worst words",
}
"""What is compared for every method, by name; more is better."""
WITHOUT_SCALE = {
    "worst divergence": "changed by the worst perturbation",
    "logit Jacobian": "logit Jacobian, relative to the logits",
    "logit Hessian": "logit Hessian, relative to the logits",
}
"""What stands beside quantities that also fall where a model predicts smaller logits."""
BESIDE = {
    "changed by the worst perturbation": "share of predicted classes that the worst perturbation "
    "changes, whatever the size of the logits",
    "logit Jacobian, relative to the logits": "||df/dx|| over the rms norm of the logits",
    "logit Hessian, relative to the logits": "||d^2 f/dx^2|| over the same",
}
BY_BLOCK = {
    "noise sensitivity": "noise_sensitivity",
    "layer Jacobian": "jacobian",
    "layer Hessian": "hessian",
    "gradient spread": "gradient_spread",
}
"""Quantities that are one number for several layers, with their curve in the part `effect`."""
AT_INPUT = {"noise sensitivity"}
"""Quantities whose curve begins at layer 0 with what was put in."""
MORE, LESS = "more robust", "less robust"
MOVES, WEAKLY = "moves it", "moves it, not after Holm"
NOTHING, WRONG, FEW = "no effect seen", "moves it the wrong way", "too few seeds"


def rows_of_study(folder: Path) -> list[dict[str, Any]]:
    """What the finished runs of a study measured.

    Raises:
        OutputError: there is no study, or none of its runs measured one of the parts `PARTS`.
    """
    study = read_json(folder / STUDY)
    if study is None or not isinstance(study.get("cells"), list):
        raise OutputError(f"{folder} holds no study: run smoothtune study FILE --output-dir DIR")
    records = Records(folder)
    labeled = [(cell["label"], records.read(cell["id"])) for cell in study["cells"]]
    rows = effect_rows((label, record) for label, record in labeled if record)
    if not rows:
        raise OutputError(
            f"no finished run of {folder} has the part effect, robustness, corruption or "
            "substitution: put evaluate: [effect] into the study file and run the study again, "
            "with another output folder"
        )
    return rows


def is_compared(extras: Extras) -> bool:
    """Whether runs with these extras have something that is compared here."""
    return extras.noise_curve or not PARTS.isdisjoint(extras.evaluate)


def effect_rows(labeled: Iterable[tuple[str, CellContent]]) -> list[dict[str, Any]]:
    """One row for each finished run that has one of the parts `PARTS`, or a curve of noise.

    Args:
        labeled: the label of a study's entry, and the record of a run.
    """
    rows = []
    for label, record in labeled:
        result, extras = record.result, record.extras
        if result is None or extras is None:
            continue
        part = extras.parts.get(EFFECT)
        numbers = part.numbers if part else {"quantities": {}, "not measured": {}}
        score = result.score
        above = score - result.trivial_baseline
        values = numbers["quantities"] | numbers.get("beside", {}) | robustness_of(extras, above)
        if not values:
            continue
        config = result.config
        rows.append(
            {
                **{name: config.get(name) for name in CONDITION},
                "method": label,
                "claims": claims_of(config["methods"], extras.claims) if part else None,
                "seed": config["seed"],
                "score": score,
                "cost": TrainingTime(result.cost.train_seconds, result.cost.device),
                "values": values,
                "layers": layers_of(part) if part else {},
                "missing": numbers["not measured"],
            }
        )
    return rows


def layers_of(part: Part) -> dict[str, dict[int, float]]:
    """Quantities of the part `effect` that are one number for several layers, layer by layer.

    Layer 0 are the embeddings, where they have a value.
    """
    found = {}
    for quantity, curve in BY_BLOCK.items():
        if curve in part.curves:
            points, *_ = part.curves[curve].series.values()
            first = 1 if quantity in AT_INPUT else 0
            found[quantity] = {round(p.x): p.y for p in points if p.x >= first}
    return found


def robustness_of(extras: Measured, above: float) -> dict[str, float]:
    """How much a run bears; a metric that never falls bears all that was tried.

    Args:
        extras: of the record of a run.
        above: its score above that of a constant answer; what it has not it cannot lose, so a run
            with less than 0.1 bears nothing that could be compared.
    """
    found = {}

    def curve(part: str, name: str) -> Curve | None:
        return extras.parts[part].curves.get(name) if part in extras.parts else None

    for name, measured in (
        (NOISE, curve("robustness", "gaussian")),
        (TOKENS, curve("corruption", "tokens")),
    ):
        if measured is not None and above >= LOST:
            (points,) = measured.series.values()
            found[name] = measured.numbers.get(LOSES, points[-1].x)
    if NOISE not in found and above >= LOST and (noise := extras.noise):
        levels = [float(level) for level in noise if level[0].isdigit()]
        found[NOISE] = noise.get(LOSES, max(levels))
    if (measured := curve("substitution", "words")) is not None:
        (points,) = measured.series.values()
        found[WORDS] = points[-1].y
    return found


def claims_of(methods: Iterable[str], recorded: Mapping[str, Sequence[str]]) -> list[str]:
    """The quantities that methods are about, each once.

    Args:
        methods: their names.
        recorded: what methods of other packages said when they ran; their code is not imported.
    """
    known = [
        METHODS[name].declared.lowers if name in METHODS else recorded.get(name, ())
        for name in methods
    ]
    return list(dict.fromkeys(claim for claims in known for claim in claims))


def compare_effects(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Every method and quantity against plain, under every condition and over all of them.

    Args:
        rows: of `effect_rows`.

    Returns:
        A dictionary for every condition, method and quantity it is about. p-values are corrected
        after Holm over those of a condition.
    """
    asked = dict.fromkeys((row["method"], claim) for row in rows for claim in row["claims"] or ())
    return _by_condition(rows, list(asked), _verdict)


def compare_beside(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Every method in what `WITHOUT_SCALE` has beside its quantities, as `compare_effects`.

    p-values are corrected after Holm over these rows alone.
    """
    asked = dict.fromkeys(
        (row["method"], WITHOUT_SCALE[claim])
        for row in rows
        for claim in row["claims"] or ()
        if claim in WITHOUT_SCALE
    )
    return _by_condition(rows, list(asked), _verdict)


def compare_robustness(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Every method but plain in what `ROBUSTNESS` names, as `compare_effects`."""
    methods = dict.fromkeys(row["method"] for row in rows if row["method"] != PLAIN)
    asked = [(method, name) for name in ROBUSTNESS for method in methods]
    return _by_condition(rows, asked, _robust_verdict)


def _by_condition(
    rows: Sequence[Mapping[str, Any]],
    asked: Sequence[tuple[str, str]],
    judge: Callable[[float, float | None, float | None, int], str],
) -> list[dict[str, Any]]:
    by_condition: dict[Condition, list[Mapping[str, Any]]] = {}
    for row in rows:
        by_condition.setdefault(condition_of(row), []).append(row)
    compared: list[dict[str, Any]] = []
    for condition, group in by_condition.items():
        found = [against_plain([group], method, claim) for method, claim in asked]
        compared += _corrected(condition_title(condition), found, judge)
    if len(by_condition) > 1:
        groups = list(by_condition.values())
        compared += _corrected(ALL, [against_plain(groups, *each) for each in asked], judge)
    return compared


def _corrected(
    title: str,
    found: Sequence[dict[str, Any] | None],
    judge: Callable[[float, float | None, float | None, int], str],
) -> list[dict[str, Any]]:
    """Add condition, p-values after Holm, and verdicts."""
    known = [item for item in found if item is not None]
    for item, p in zip(known, holm([item["p"] for item in known]), strict=True):
        item |= {"condition": title, "p_holm": p}
        item["verdict"] = judge(item["change"]["value"], item["p"], p, len(item["seeds"]))
    return known


def _verdict(change: float, p: float | None, p_holm: float | None, seeds: int) -> str:
    if seeds < 2:
        return FEW
    if p is None or p_holm is None or p >= LEVEL:
        return NOTHING
    if change > 0:
        return WRONG
    return MOVES if p_holm < LEVEL else WEAKLY


def _robust_verdict(change: float, p: float | None, p_holm: float | None, seeds: int) -> str:
    if seeds < 2:
        return FEW
    if p_holm is None or p_holm >= LEVEL:
        return NOTHING
    return MORE if change > 0 else LESS


def against_plain(
    groups: Sequence[Sequence[Mapping[str, Any]]], method: str, claim: str
) -> dict[str, Any] | None:
    """A method and a quantity against plain; None where not every condition has both."""
    pairs = [_pairs(group, method, claim) for group in groups]
    seeds = [s for s in pairs[0] if all(s in pair for pair in pairs)] if pairs else []
    if not seeds:
        return None

    def of(which: int, value: Callable[[Mapping[str, Any]], float]) -> np.ndarray:
        return np.array([[value(pair[seed][which]) for seed in seeds] for pair in pairs])

    ours, plain = (of(i, lambda run: run["values"][claim]) for i in (0, 1))
    score, base = (of(i, lambda run: run["score"]) for i in (0, 1))  # (conditions, seeds)
    costs = ((a["cost"], b["cost"]) for pair in pairs for a, b in (pair[s] for s in seeds))
    scale = np.abs(plain.mean(1, keepdims=True))
    change = ((ours - plain) / np.where(scale > 0, scale, 1)).mean(0)
    alone = len(groups) == 1
    return {
        "method": method,
        "quantity": claim,
        "seeds": seeds,
        "plain": float(plain.mean()) if alone else None,
        "ours": float(ours.mean()) if alone else None,
        "difference": _student((ours - plain)[0]) if alone else None,
        "change": _student(change),
        "p": p_value(change, np.zeros_like(change), "paired t"),
        "score": _student((score - base).mean(0)),
        "cost_ratio": time_ratio(costs),
    }


def _student(gaps: np.ndarray) -> dict[str, Any]:
    """Mean of differences (N,) with its interval."""
    return asdict(mean_difference(gaps, np.zeros_like(gaps)))


def _pairs(
    group: Sequence[Mapping[str, Any]], method: str, claim: str
) -> dict[int, tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """By seed: the run with the method and the plain one, where both have the quantity."""
    ours, plain = (
        {r["seed"]: r for r in group if r["method"] == name and claim in r["values"]}
        for name in (method, PLAIN)
    )
    return {seed: (run, plain[seed]) for seed, run in ours.items() if seed in plain}
