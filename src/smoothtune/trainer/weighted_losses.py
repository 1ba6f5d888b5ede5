"""Task losses with weights, of classes or of labels, as `compute_loss_func` of a Trainer."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from smoothtune.nn.model_facts import IGNORED


class WeightedLoss(ABC):
    """A weighted mean of a batch, times its part of `num_items_in_batch` where that is given."""

    def __init__(self, weights: Sequence[float]) -> None:
        if not all(weight > 0 for weight in weights):
            raise ValueError(f"class and label weights must be above 0, not {list(weights)}")
        self.weights = torch.tensor([float(weight) for weight in weights])

    def __call__(
        self, outputs: Mapping[str, Any], labels: Tensor, num_items_in_batch: Any = None
    ) -> Tensor:
        """() what a Trainer adds up, of a batch with `logits` (B, C)."""
        logits: Tensor = outputs["logits"]
        if logits.dtype in (torch.float16, torch.bfloat16):
            logits = logits.float()
        mean = self.mean(logits, labels)
        if num_items_in_batch is None:
            return mean
        return mean * ((labels != IGNORED).sum() / num_items_in_batch)

    @abstractmethod
    def mean(self, logits: Tensor, labels: Tensor) -> Tensor:
        """() of a batch."""


class ClassWeightedLoss(WeightedLoss):
    """Weighted mean of the cross entropy over rows, divided by the sum of their weights.

    With `regularize` or `SmoothTrainer` an update has the weighted mean over all its rows, whatever
    batches they come in; in other Trainers the mean of the batches' own, by their numbers of rows.

    Args:
        weights: of class 0, 1, ...; > 0.

    Raises:
        ValueError: a weight is not positive.
    """

    def mean(self, logits: Tensor, labels: Tensor) -> Tensor:
        """() of logits (B, C) and labels (B,)."""
        return F.cross_entropy(logits, labels, weight=self.weights.to(logits))

    def total(self, labels: Tensor) -> Tensor:
        """() sum of the weights of labels (B,)."""
        weights = self.weights.to(labels.device)[labels.clamp(min=0)]
        return (weights * (labels != IGNORED)).sum()


class LabelWeightedLoss(WeightedLoss):
    """Mean of the binary cross entropy over rows and labels, weighted where a row has the label.

    Args:
        weights: `pos_weight` of torch: of label 0, 1, ... where a row has it, against 1; > 0.

    Raises:
        ValueError: a weight is not positive.
    """

    def mean(self, logits: Tensor, labels: Tensor) -> Tensor:
        """() of logits (B, L) and labels (B, L), 0 or 1."""
        return F.binary_cross_entropy_with_logits(
            logits, labels.to(logits.dtype), pos_weight=self.weights.to(logits)
        )
