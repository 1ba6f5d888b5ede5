"""Which weights an update may change, and updates that leave the others where they were."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Literal

import torch
from torch import Tensor

Scope = Literal["per_tensor", "global"]


def top_fraction(saliency: Tensor, keep: float) -> Tensor:
    """True for the ceil(keep * n) largest of n values; of equal ones the first are taken.

    Args:
        saliency: any shape.
        keep: in (0, 1].

    >>> top_fraction(torch.tensor([1.0, 3.0, 2.0, 3.0]), 0.3)
    tensor([False,  True, False,  True])
    """
    flat = saliency.flatten()
    count = math.ceil(round(keep * flat.numel(), 6))  # 0.1 * 30 is a little more than 3
    threshold = flat.kthvalue(flat.numel() - count + 1).values
    mask = flat > threshold
    ties = (flat == threshold).nonzero().squeeze(-1)
    mask[ties[: count - int(mask.sum())]] = True
    return mask.view_as(saliency)


def keep_probabilities(saliency: Tensor, keep: float, floor: float) -> Tensor:
    """Probabilities that rise with the rank of the saliency, with mean `keep`.

    p = floor + (1 - floor) u^a, u in (0, 1) the rank (i + 1/2) / n, a such that the mean over u
    is `keep`.

    Args:
        saliency: any shape.
        keep: in (floor, 1].
        floor: the smallest probability.
    """
    flat = saliency.flatten()
    rank = torch.empty_like(flat)
    rank[flat.argsort()] = torch.arange(len(flat), device=flat.device, dtype=flat.dtype)
    exponent = (1 - floor) / (keep - floor) - 1
    return (floor + (1 - floor) * ((rank + 0.5) / len(flat)) ** exponent).view_as(saliency)


def over(
    scope: Scope, function: Callable[[Tensor], Tensor], values: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Apply an element-wise ranking to every tensor for itself, or to all of them as one."""
    if scope == "per_tensor":
        return {name: function(value) for name, value in values.items()}
    together = function(torch.cat([value.flatten() for value in values.values()]))
    parts = together.split([value.numel() for value in values.values()])
    return {
        name: part.view_as(value) for part, (name, value) in zip(parts, values.items(), strict=True)
    }


class PartialUpdate:
    """An update of which every weight keeps a part: w <- w_before + factor * (w - w_before).

    Momentum and weight decay move weights whose gradient is masked; this does not.

    Args:
        factors: by name, in the shape of the weight: 0 leaves a weight bit for bit, 1 lets it go.
        weights: the weights before the update.
    """

    @torch.no_grad()
    def __init__(self, factors: Mapping[str, Tensor], weights: Mapping[str, Tensor]):
        self.factors = factors
        self.before = {name: weights[name].detach().clone() for name in factors}

    @torch.no_grad()
    def finish(self, weights: Mapping[str, Tensor]) -> None:
        """Cut the update back, after it."""
        for name, before in self.before.items():
            weight = weights[name]
            weight.copy_(torch.lerp(before, weight, self.factors[name].to(weight.dtype)))
