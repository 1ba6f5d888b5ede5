"""A row for every cell of a study: what tables and progress need of its record."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from smoothtune.results import CellRecord


@dataclass(frozen=True)
class Row:
    """A cell that has ended, or is missing; None stands for what was not measured."""

    cell: str
    status: str
    message: str = ""
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
    ood: float | None = None
    """Mean score on the other data sets."""
    steps: int | None = None
    train_seconds: float | None = None
    evaluation_seconds: float | None = None
    device: str | None = None
    methods: dict[str, dict[str, Any]] | None = None
    """Fields by method."""
    versions: dict[str, str] = field(default_factory=dict)


def row_of(record: CellRecord) -> Row:
    """The row of a verified record."""
    result, extras = record.result, record.extras
    if result is None or extras is None:
        return Row(record.id, record.status, record.message)
    return Row(
        cell=record.id,
        status=record.status,
        metric=result.headline,
        score=result.score,
        trivial_baseline=result.trivial_baseline,
        train_score=result.train_metrics[result.headline],
        generalization_gap=result.generalization_gap,
        brier=result.metrics.get("brier"),
        nll=result.metrics.get("nll"),
        ece=extras.ece,
        noise=extras.noise.get("area"),
        ood=extras.score_on_other_data(result.headline),
        steps=result.cost.steps,
        train_seconds=result.cost.train_seconds,
        evaluation_seconds=result.cost.evaluation_seconds,
        device=result.cost.device,
        methods=result.methods,
        versions=result.versions,
    )
