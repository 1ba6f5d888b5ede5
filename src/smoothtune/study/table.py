"""What tables and progress need of a cell's record: its measures by name."""

import re
from dataclasses import dataclass, field
from typing import Any

from smoothtune.report.curves import LOSES, LOST
from smoothtune.results import CellRecord, Measured, Numbers, RunResult

NOISE, TOKENS = "noise that costs 10 points", "random tokens that cost 10 points"
WORDS = "score under word substitutions"
ROBUSTNESS = {
    NOISE: "Gaussian noise on the word embeddings relative to their norm",
    TOKENS: "share of tokens that are random ones",
    WORDS: "main metric when an attack has tried to exchange the three worst words",
}
"""What is compared of every run whose evaluation has it, by name; more is better."""
LEVEL = re.compile(r"\d+(\.\d+)?(e[+-]?\d+)?", re.ASCII)
"""Name of a level of noise; other names are those of summaries."""


@dataclass(frozen=True)
class Row:
    """A cell that has ended."""

    cell: str = ""
    """Its id."""
    status: str = "done"
    message: str = ""
    metric: str | None = None
    """Name of the main metric."""
    trivial_baseline: float | None = None
    """Score of the best constant answer."""
    measures: Numbers = field(default_factory=dict)
    """Scores, times, quantities that methods are about, and `ROBUSTNESS`; what was measured."""
    claims: tuple[str, ...] = ()
    """The quantities that its methods are to lower."""
    device: str | None = None
    methods: dict[str, dict[str, Any]] | None = None
    """Fields by method."""
    applied: dict[str, Numbers] = field(default_factory=dict)
    """How strong each loss term with a bound was, as `Applied` names it."""
    versions: dict[str, str] = field(default_factory=dict)

    @property
    def score(self) -> float | None:
        """Main metric on the validation rows."""
        return self.measures.get("score")


def row_of(record: CellRecord) -> Row:
    """The row of a verified record."""
    result, extras = record.result, record.extras
    if result is None or extras is None:
        return Row(record.id, record.status, record.message)
    claims = [claim for name in result.methods for claim in extras.claims.get(name, ())]
    return Row(
        cell=record.id,
        status=record.status,
        metric=result.headline,
        trivial_baseline=result.trivial_baseline,
        measures=_measures(result, extras),
        claims=tuple(dict.fromkeys(claims)),
        device=result.cost.device,
        methods=result.methods,
        applied=result.applied,
        versions=result.versions,
    )


def _measures(result: RunResult, extras: Measured) -> Numbers:
    """All that was measured, by name."""
    measured = {
        "score": result.score,
        "train_score": result.train_metrics[result.headline],
        "generalization_gap": result.generalization_gap,
        "brier": result.metrics.get("brier"),
        "nll": result.metrics.get("nll"),
        "ece": extras.ece,
        "noise": extras.noise.get("area"),
        "ood": extras.score_on_other_data(result.headline),
        "steps": result.cost.steps,
        "train_seconds": result.cost.train_seconds,
        "evaluation_seconds": result.cost.evaluation_seconds,
    }
    measured |= extras.calibrated
    measured |= extras.effect.quantities | extras.effect.beside
    measured |= robustness_of(extras, result.score - result.trivial_baseline)
    return {name: value for name, value in measured.items() if value is not None}


def robustness_of(extras: Measured, above: float) -> Numbers:
    """How much a run withstands; a metric that never falls withstands all that was tried.

    Args:
        extras: of the record of a run.
        above: its score above that of a constant answer, `LOST` of which it can lose or not.
    """
    tolerated = {}
    if above >= LOST:
        for name, path in ((NOISE, "robustness/gaussian"), (TOKENS, "corruption/tokens")):
            if curve := extras.curve(path):
                *_, last = next(iter(curve.series.values()))
                tolerated[name] = curve.numbers.get(LOSES, last.x)
        levels = [float(level) for level in extras.noise if LEVEL.fullmatch(level)]
        if NOISE not in tolerated and levels:
            tolerated[NOISE] = extras.noise.get(LOSES, max(levels))
    if curve := extras.curve("substitution/words"):
        *_, last = next(iter(curve.series.values()))
        tolerated[WORDS] = last.y
    return tolerated
