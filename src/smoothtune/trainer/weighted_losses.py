"""Task losses with weights, of classes or of labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from smoothtune.nn.model_facts import IGNORED


class ClassWeightedLoss:
    """Weighted mean of the cross entropy over rows, divided by the sum of their weights.

    As `compute_loss_func` of a Trainer. With `regularize` or `SmoothTrainer` an update has the
    weighted mean over all its rows, whatever batches they come in; in other Trainers the mean of
    the batches' own, by their numbers of rows.

    Args:
        weights: of class 0, 1, ...; > 0.

    Raises:
        ValueError: a weight is not positive.
    """

    def __init__(self, weights: Sequence[float]) -> None:
        self.weights = _positive(weights, "class")

    def __call__(
        self, outputs: Mapping[str, Any], labels: Tensor, num_items_in_batch: Any = None
    ) -> Tensor:
        """() weighted mean over a batch with logits (B, C) and labels (B,)."""
        logits = _logits(outputs)
        mean = F.cross_entropy(logits, labels, weight=self.weights.to(logits))
        return _in_update(mean, labels, num_items_in_batch)

    def total(self, labels: Tensor) -> Tensor:
        """() sum of the weights of labels (B,)."""
        weights = self.weights.to(labels.device)[labels.clamp(min=0)]
        return (weights * (labels != IGNORED)).sum()


class LabelWeightedLoss:
    """Mean of the binary cross entropy over rows and labels, weighted where a row has the label.

    As `compute_loss_func` of a Trainer, for several labels of a row: `pos_weight` of torch.

    Args:
        weights: of label 0, 1, ... where a row has it, against 1 where it has not; > 0.

    Raises:
        ValueError: a weight is not positive.
    """

    def __init__(self, weights: Sequence[float]) -> None:
        self.weights = _positive(weights, "label")

    def __call__(
        self, outputs: Mapping[str, Any], labels: Tensor, num_items_in_batch: Any = None
    ) -> Tensor:
        """() mean over a batch with logits (B, L) and labels (B, L), 0 or 1."""
        logits = _logits(outputs)
        mean = F.binary_cross_entropy_with_logits(
            logits, labels.to(logits.dtype), pos_weight=self.weights.to(logits)
        )
        return _in_update(mean, labels, num_items_in_batch)


def _in_update(mean: Tensor, labels: Tensor, num_items: Any) -> Tensor:
    """() what a Trainer adds up: the mean of a batch, times its part of the update's labels."""
    return mean if num_items is None else mean * ((labels != IGNORED).sum() / num_items)


def _positive(weights: Sequence[float], kind: str) -> Tensor:
    """(C,) the weights, all above 0."""
    if not all(weight > 0 for weight in weights):
        raise ValueError(f"{kind} weights must be above 0, not {list(weights)}")
    return torch.tensor([float(weight) for weight in weights])


def _logits(outputs: Mapping[str, Any]) -> Tensor:
    """The logits, in float32 where they have 16 bits."""
    logits: Tensor = outputs["logits"]
    return logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits
