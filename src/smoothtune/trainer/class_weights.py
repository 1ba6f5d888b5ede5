"""Cross entropy with class weights, which counts the same however an update is cut."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from smoothtune.core.causal_lm import IGNORED


class ClassWeightedLoss:
    """Weighted mean of the cross entropy over rows, divided by the sum of their weights.

    As `compute_loss_func` of a Trainer. With `regularize` or `SmoothTrainer` an update has the
    weighted mean over all its rows, whatever batches they come in.

    Args:
        weights: of class 0, 1, ...; > 0.

    Raises:
        ValueError: a weight is not positive.
    """

    def __init__(self, weights: Sequence[float]) -> None:
        if not all(weight > 0 for weight in weights):
            raise ValueError(f"class weights must be above 0, not {list(weights)}")
        self.weights = torch.tensor([float(weight) for weight in weights])

    def __call__(
        self, outputs: Mapping[str, Any], labels: Tensor, num_items_in_batch: Any = None
    ) -> Tensor:
        """() weighted mean over a batch with logits (B, C) and labels (B,)."""
        logits = outputs["logits"]
        if logits.dtype in (torch.float16, torch.bfloat16):
            logits = logits.float()
        return F.cross_entropy(logits, labels, weight=self.weights.to(logits))

    def total(self, labels: Tensor) -> float:
        """Sum of the weights of labels (B,)."""
        counted = labels[labels != IGNORED].cpu()
        return float(self.weights[counted].sum())
