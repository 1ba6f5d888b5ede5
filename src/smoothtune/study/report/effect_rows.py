"""What the runs of a study measured of the quantities that methods are about, and of robustness."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from smoothtune.errors import OutputError
from smoothtune.files import read_json
from smoothtune.methods import METHODS
from smoothtune.report.curves import LOSES, LOST, Curve
from smoothtune.results import CellContent, Measured, Part
from smoothtune.study.comparison import ConditionKey
from smoothtune.study.records import STUDY, Extras, Records
from smoothtune.study.report.statistics import TrainingTime

EFFECT = "effect"
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


@dataclass(frozen=True)
class MeasuredRun:
    """A finished run with one of the parts `PARTS`, or a curve of noise."""

    condition: ConditionKey
    method: str
    """Label of the study's entry."""
    seed: int
    claims: list[str] | None
    """The quantities that its methods are about; None without the part `effect`."""
    score: float
    time: TrainingTime
    values: dict[str, float]
    """By quantity."""
    layers: dict[str, dict[int, float]]
    """By quantity and layer."""
    missing: dict[str, str]
    """Why quantities were not measured."""


def runs_of_study(folder: Path) -> list[MeasuredRun]:
    """What the finished runs of a study measured.

    Raises:
        OutputError: there is no study, or none of its runs measured one of the parts `PARTS`.
    """
    study = read_json(folder / STUDY)
    if study is None or not isinstance(study.get("cells"), list):
        raise OutputError(f"{folder} holds no study: run smoothtune study FILE --output-dir DIR")
    records = Records(folder)
    labeled = [(cell["label"], records.read(cell["id"])) for cell in study["cells"]]
    runs = measured_runs((label, record) for label, record in labeled if record)
    if not runs:
        raise OutputError(
            f"no finished run of {folder} has the part effect, robustness, corruption or "
            "substitution: put evaluate: [effect] into the study file and run the study again, "
            "with another output folder"
        )
    return runs


def is_compared(extras: Extras) -> bool:
    """Whether runs with these extras have something that is compared here."""
    return extras.noise_curve or not PARTS.isdisjoint(extras.evaluate)


def measured_runs(labeled: Iterable[tuple[str, CellContent]]) -> list[MeasuredRun]:
    """The finished runs that have one of the parts `PARTS`, or a curve of noise.

    Args:
        labeled: the label of a study's entry, and the record of a run.
    """
    runs = []
    for label, record in labeled:
        result, extras = record.result, record.extras
        if result is None or extras is None:
            continue
        part = extras.parts.get(EFFECT)
        numbers = part.numbers if part else {"quantities": {}, "not measured": {}}
        values = numbers["quantities"] | numbers.get("beside", {})
        values |= robustness_of(extras, result.score - result.trivial_baseline)
        if not values:
            continue
        config = result.config
        runs.append(
            MeasuredRun(
                condition=ConditionKey(
                    config["task"], config["model"], config.get("max_train_samples")
                ),
                method=label,
                seed=config["seed"],
                claims=claims_of(config["methods"], extras.claims) if part else None,
                score=result.score,
                time=TrainingTime(result.cost.train_seconds, result.cost.device),
                values=values,
                layers=layers_of(part) if part else {},
                missing=numbers["not measured"],
            )
        )
    return runs


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
    """How much a run withstands; a metric that never falls withstands all that was tried.

    Args:
        extras: of the record of a run.
        above: its score above that of a constant answer; what it has not it cannot lose, so a run
            with less than 0.1 withstands nothing that could be compared.
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
    claims = [
        METHODS[name].declared.lowers if name in METHODS else recorded.get(name, ())
        for name in methods
    ]
    return list(dict.fromkeys(claim for each in claims for claim in each))
