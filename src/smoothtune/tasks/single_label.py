"""Tasks with one label per example; predictions are class logits or scores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch.nn.functional as F
from datasets import Dataset
from torch import Tensor

from smoothtune.data.arrow import numbers
from smoothtune.tasks.base import Task
from smoothtune.tasks.metrics import compute_metrics, roc_auc, trivial_baseline


@dataclass(frozen=True)
class SingleLabelTask(Task):
    """One row for every example; predictions are logits (N, C), or scores (N, 1)."""

    predicts_logits = True

    @property
    def num_label_statistics(self) -> int:
        """The label."""
        return 1

    def label_counts(self, examples: Dataset, rows: Dataset) -> dict[str, float]:
        """Count of every class; minimum, mean and maximum of scores."""
        labels, names = numbers(rows, "labels"), self.known_label_names
        if self.regression:
            counts = {"min": labels.min(), "mean": labels.mean(), "max": labels.max()}
        else:
            counts = dict(zip(names, np.bincount(labels, minlength=len(names)), strict=True))
        return {name: value.item() for name, value in counts.items()}

    def loss(self, outputs: Mapping[str, Tensor], batch: Mapping[str, Tensor]) -> Tensor:
        """Cross entropy, or squared error."""
        logits, labels = outputs["logits"], batch["labels"]
        if self.regression:
            return F.mse_loss(logits[:, 0], labels.to(logits.dtype))
        return F.cross_entropy(logits, labels)

    def predictions(self, outputs: Mapping[str, np.ndarray], rows: Dataset) -> np.ndarray:
        """The logits."""
        return outputs["logits"]

    def answers(self, predictions: np.ndarray, rows: Dataset) -> list[Any]:
        """The score, or the name of the most likely class."""
        if self.regression:
            return predictions[:, 0].tolist()
        return [self.known_label_names[index] for index in predictions.argmax(1)]

    def statistic_names(self) -> list[str]:
        """The label, then the logits."""
        return ["label", *(f"logit_{index}" for index in range(self.num_labels))]

    def example_statistics(self, predictions: np.ndarray, rows: Dataset) -> np.ndarray:
        """(N, 1 + C)."""
        logits = np.asarray(predictions).reshape(len(rows), -1)
        return np.column_stack([np.asarray(rows["labels"][:]), logits])

    def scores(self, statistics: np.ndarray) -> dict[str, float]:
        """See `compute_metrics`."""
        labels = statistics[:, 0] if self.regression else statistics[:, 0].astype(int)
        return compute_metrics(self, statistics[:, 1:], labels)

    def detailed_scores(self, statistics: np.ndarray) -> dict[str, float]:
        """`scores`, and for two classes `roc_auc`."""
        scores = self.scores(statistics)
        if self.num_labels == 2:
            scores["roc_auc"] = roc_auc(statistics[:, 1:], statistics[:, 0])
        return scores

    def baseline(self, rows: Dataset) -> float:
        """See `trivial_baseline`."""
        return trivial_baseline(self, rows["labels"][:])
