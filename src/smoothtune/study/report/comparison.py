"""Records of cells as rows, and rows as comparisons with plain fine-tuning."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from smoothtune.study.config import PLAIN
from smoothtune.study.records import Cell, Records
from smoothtune.study.report import statistics


@dataclass(frozen=True)
class Row:
    """One run that is reported; None: not measured, or the run gave nothing."""

    task: str
    model: str
    max_train_samples: int | None
    method: str
    """Label of the entry."""
    setting: str
    seed: int
    status: str
    """done, nan, killed, out of memory, error, or missing."""
    metric: str | None = None
    score: float | None = None
    trivial_baseline: float | None = None
    train_score: float | None = None
    generalization_gap: float | None = None
    brier: float | None = None
    nll: float | None = None
    ece: float | None = None
    noise: float | None = None
    """Mean score under Gaussian noise on the embeddings."""
    steps: int | None = None
    train_seconds: float | None = None
    evaluation_seconds: float | None = None
    cell: str = ""

    @property
    def condition(self) -> tuple[str, str, int | None]:
        """Task, model and number of training examples."""
        return self.task, self.model, self.max_train_samples


MEASURES = ("score", "train_score", "generalization_gap", "brier", "nll", "ece", "noise")
COSTS = ("steps", "train_seconds", "evaluation_seconds")
SECONDARY = ("generalization_gap", "brier", "nll", "ece", "noise")
"""Measures that are tested against plain's beside the score."""


def condition_of(item: Mapping[str, Any]) -> tuple[str, str, int | None]:
    """`Row.condition` of a comparison or a choice."""
    return item["task"], item["model"], item["max_train_samples"]


def row(cell: Cell, records: Records) -> Row:
    """The row of a cell, done or not."""
    common: dict[str, Any] = {
        "task": cell.task,
        "model": cell.model,
        "max_train_samples": cell.max_train_samples,
        "method": cell.label,
        "setting": cell.setting,
        "seed": cell.seed,
        "cell": cell.id,
    }
    record = records.read(cell.id)
    if record is None:
        failure = records.failure(cell.id)
        return Row(**common, status=failure["status"] if failure else "missing")
    if record["status"] != "done":
        return Row(**common, status=record["status"])
    result, extras = record["result"], record["extras"]
    metric, metrics = result["headline"], result["metrics"]
    return Row(
        **common,
        status="done",
        metric=metric,
        score=metrics[metric],
        trivial_baseline=result["trivial_baseline"],
        train_score=result["train_metrics"][metric],
        generalization_gap=result["generalization_gap"],
        brier=metrics.get("brier"),
        nll=metrics.get("nll"),
        ece=extras.get("ece"),
        noise=extras.get("noise", {}).get("area"),
        steps=result["cost"]["steps"],
        train_seconds=result["cost"]["train_seconds"],
        evaluation_seconds=result["cost"]["evaluation_seconds"],
    )


def to_csv(rows: Sequence[Row]) -> str:
    """All rows, with a line of names."""
    text = io.StringIO()
    names = list(Row.__dataclass_fields__)
    table = csv.DictWriter(text, names, lineterminator="\n")
    table.writeheader()
    table.writerows(asdict(item) for item in rows)
    return text.getvalue()


def compare(rows: Sequence[Row], test: str) -> list[dict[str, Any]]:
    """Every method against plain fine-tuning, under every condition.

    Args:
        rows: of all cells.
        test: the test that decides, of `statistics.NAMES`; its p-values are corrected after Holm
            over the methods of a condition.

    Returns:
        A dictionary for every condition and method: summaries of all measures, and for all but
        plain the comparison on the seeds that both have.
    """
    found = []
    for condition in dict.fromkeys(item.condition for item in rows):
        mine = [item for item in rows if item.condition == condition]
        group = [
            _method(name, [item for item in mine if item.method == name], mine, test)
            for name in dict.fromkeys(item.method for item in mine)
        ]
        compared: dict[str, dict[str, Any]] = {
            item["method"]: item["against_plain"] for item in group if item["against_plain"]
        }
        corrected = statistics.holm({name: c["p"][test] for name, c in compared.items()})
        for name, comparison in compared.items():
            comparison |= {"test": test, "p_holm": corrected[name]}
        for measure in SECONDARY:
            _correct([c["secondary"][measure] for c in compared.values()])
        found += group
    return found


def _method(name: str, own: list[Row], rows: list[Row], test: str) -> dict[str, Any]:
    """One method under one condition."""
    task, model, size = own[0].condition
    done = [item for item in own if item.status == "done"]
    content: dict[str, Any] = {
        "task": task,
        "model": model,
        "max_train_samples": size,
        "method": name,
        "setting": own[0].setting,
        "metric": done[0].metric if done else None,
        "trivial_baseline": max((item.trivial_baseline or 0.0 for item in done), default=None),
        "asked": len(own),
        "missing": sum(item.status == "missing" for item in own),
        "failed": {
            status: sum(item.status == status for item in own)
            for status in dict.fromkeys(item.status for item in own)
            if status not in ("done", "missing")
        },
        "measures": {},
        "against_plain": None,
    }
    for measure in (*MEASURES, *COSTS):
        values = [value for item in done if (value := getattr(item, measure)) is not None]
        content["measures"][measure] = asdict(statistics.summary(values)) if values else None
    plain = [item for item in rows if item.method == PLAIN]
    if name != PLAIN and done:
        content["against_plain"] = _against(done, plain, test)
    return content


def paired(done: Sequence[Row], plain: Sequence[Row], measure: str) -> tuple[list[int], np.ndarray]:
    """Seeds that both have, and the measure of both, (2, N)."""
    ours = {item.seed: getattr(item, measure) for item in done}
    theirs = {item.seed: getattr(item, measure) for item in plain if item.status == "done"}
    seeds = [s for s, value in ours.items() if value is not None and theirs.get(s) is not None]
    return seeds, np.array([[ours[s] for s in seeds], [theirs[s] for s in seeds]], np.float64)


def _against(done: Sequence[Row], plain: Sequence[Row], test: str) -> dict[str, Any] | None:
    seeds, (a, b) = paired(done, plain, "score")
    if not seeds:
        return None
    ratio = statistics.variance_ratio(a, b)
    return {
        "seeds": seeds,
        "difference": asdict(statistics.mean_difference(a, b)),
        "p": statistics.p_values(a, b),
        "improvement": asdict(statistics.probability_of_improvement(a, b)),
        "variance_ratio": ratio and asdict(ratio),
        "p_variance": statistics.variance_test(a, b),
        "secondary": {name: _difference(done, plain, name, test) for name in SECONDARY},
        "cost_ratio": _cost_ratio(done, plain),
    }


def _difference(
    done: Sequence[Row], plain: Sequence[Row], measure: str, test: str
) -> dict[str, Any] | None:
    """Mean difference in a measure and its uncorrected p-value; None where it is not measured."""
    seeds, (a, b) = paired(done, plain, measure)
    if not seeds:
        return None
    effect = statistics.mean_difference(a, b)
    return {"difference": asdict(effect), "p": statistics.p_values(a, b)[test]}


def _correct(found: Sequence[dict[str, Any] | None]) -> None:
    """Add p-values corrected after Holm over methods."""
    measured = [item for item in found if item]
    corrected = statistics.holm({str(k): item["p"] for k, item in enumerate(measured)})
    for item, p in zip(measured, corrected.values(), strict=True):
        item["p_holm"] = p


def _cost_ratio(done: Sequence[Row], plain: Sequence[Row]) -> float | None:
    seeds, (a, b) = paired(done, plain, "train_seconds")
    return float(np.median(a / b)) if seeds else None


def over_tasks(rows: Sequence[Row], measure: str = "score") -> list[dict[str, Any]]:
    """Mean difference from plain over all conditions, for methods that have every one of them.

    Args:
        rows: of all cells.
        measure: the score, or one of `SECONDARY`, for which conditions where it is not measured do
            not count.

    Returns:
        A dictionary for every method: effect, p-value with the name of its test, the p-value
        corrected after Holm over methods, and the seeds and number of conditions behind it.
        Empty for fewer than two conditions.
    """
    measured = [r for r in rows if measure == "score" or getattr(r, measure) is not None]
    conditions = list(dict.fromkeys(item.condition for item in measured))
    found: list[dict[str, Any]] = []
    if len(conditions) < 2:
        return []
    for name in dict.fromkeys(item.method for item in rows):
        gaps = [_gaps(rows, name, condition, measure) for condition in conditions]
        seeds = sorted(set.intersection(*(set(gap) for gap in gaps)))
        if name == PLAIN or not seeds:
            continue
        effect, p, test = statistics.mean_over_tasks([[gap[s] for s in seeds] for gap in gaps])
        found.append(
            {
                "method": name,
                "conditions": len(conditions),
                "seeds": seeds,
                "difference": asdict(effect),
                "p": p,
                "test": test,
            }
        )
    _correct(found)
    return found


def _gaps(
    rows: Sequence[Row], method: str, condition: tuple[str, str, int | None], measure: str
) -> dict[int, float]:
    """A measure minus plain's by seed."""
    mine = [item for item in rows if item.condition == condition]
    done = [item for item in mine if item.method == method and item.status == "done"]
    seeds, (a, b) = paired(done, [item for item in mine if item.method == PLAIN], measure)
    return dict(zip(seeds, (a - b).tolist(), strict=True))
