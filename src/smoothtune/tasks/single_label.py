"""Heads and scorers of tasks with one label per example: a class, or a score."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch.nn.functional as F
from datasets import Dataset
from torch import Tensor

from smoothtune.tasks.head import Head, ProblemType, label_config
from smoothtune.tasks.metrics import (
    CLASS_METRICS,
    Measure,
    class_scores,
    correlations,
    majority,
    roc_auc,
)
from smoothtune.tasks.scorer import Scorer


@dataclass(frozen=True)
class ClassHead(Head):
    """Predictions are logits (N, C) of which the softmax is taken."""

    problem_type: ClassVar[ProblemType | None] = "single_label_classification"

    def fit_outputs(self, config: Any) -> tuple[int, ...] | None:
        """See `Head.fit_outputs`; a model that gives a row several labels is refused, too."""
        if config.problem_type == "multi_label_classification":
            raise ValueError(
                f"gives a row several labels, and {self.task.task_type} has one: give task_type: "
                "multi-label-classification"
            )
        return super().fit_outputs(config)

    def loss(self, outputs: Mapping[str, Tensor], batch: Mapping[str, Tensor]) -> Tensor:
        """Cross entropy."""
        return F.cross_entropy(outputs["logits"], batch["labels"])


@dataclass(frozen=True)
class ScoreHead(ClassHead):
    """Predictions are scores (N, 1)."""

    problem_type = "regression"

    def config(self) -> dict[str, Any]:
        """One output, and the loss."""
        return label_config(("score",)) | {"problem_type": self.problem_type}

    def loss(self, outputs: Mapping[str, Tensor], batch: Mapping[str, Tensor]) -> Tensor:
        """Squared error."""
        logits = outputs["logits"]
        return F.mse_loss(logits[:, 0], batch["labels"].to(logits.dtype))


@dataclass(frozen=True)
class ClassScorer(Scorer):
    """The statistics of an example are its label and its logits."""

    losses: ClassVar[tuple[str, ...]] = ("brier", "nll")
    measures: ClassVar[Mapping[str, Measure]] = CLASS_METRICS
    """Metrics of the most likely classes, by name."""

    @property
    def num_label_statistics(self) -> int:
        """The label."""
        return 1

    def answers(self, predictions: np.ndarray, rows: Dataset) -> list[Any]:
        """The name of the most likely class."""
        return [self.task.known_label_names[index] for index in predictions.argmax(1)]

    def statistic_names(self) -> list[str]:
        """The label, then the logits."""
        return ["label", *(f"logit_{index}" for index in range(self.task.num_labels))]

    def example_statistics(self, predictions: np.ndarray, rows: Dataset) -> np.ndarray:
        """(N, 1 + C)."""
        logits = np.asarray(predictions).reshape(len(rows), -1)
        return np.column_stack([np.asarray(rows["labels"][:]), logits])

    def scores(self, statistics: np.ndarray) -> dict[str, float]:
        """See `class_scores`."""
        logits, labels = statistics[:, 1:], statistics[:, 0].astype(int)
        measures = {name: self.measures[name] for name in self.task.metrics}
        return class_scores(measures, logits, labels, self.task.num_labels)

    def detailed_scores(self, statistics: np.ndarray) -> dict[str, float]:
        """`scores`, and for two classes `roc_auc`."""
        scores = self.scores(statistics)
        if self.task.num_labels == 2:
            scores["roc_auc"] = roc_auc(statistics[:, 1:], statistics[:, 0])
        return scores

    def baseline(self, rows: Dataset) -> float:
        """Main metric of the most frequent class."""
        constant = majority(np.asarray(rows["labels"][:]), self.task.num_labels)
        return self.score(constant, rows)[self.task.main_metric]


@dataclass(frozen=True)
class ScoreScorer(ClassScorer):
    """The statistics of an example are its gold score and the predicted one."""

    losses = ()

    def answers(self, predictions: np.ndarray, rows: Dataset) -> list[float]:
        """The score."""
        return predictions[:, 0].tolist()

    def scores(self, statistics: np.ndarray) -> dict[str, float]:
        """See `correlations`."""
        return correlations(self.task.metrics, statistics[:, 1:], statistics[:, 0])

    def baseline(self, rows: Dataset) -> float:
        """Main metric of one score for all, of which a correlation is 0."""
        return 0.0
