"""Which weights an update may change, and updates that leave the others where they were."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Literal

import numpy as np
import torch
from torch import Tensor

Scope = Literal["per_tensor", "global"]
Saliency = Literal["taylor", "grad", "fisher"]


def saliency(weight: Tensor, gradient: Tensor, kind: Saliency) -> Tensor:
    """|w g| (taylor, the first-order change of the loss if w were 0), |g| or g^2 by element."""
    if kind == "fisher":
        return gradient.square()
    return (gradient * weight).abs_() if kind == "taylor" else gradient.abs()


def top_fraction(saliency: Tensor, keep: float) -> Tensor:
    """True for the ceil(keep * n) largest of n values; of equal ones the first are taken.

    A weight of saliency 0, as the embedding of a word that is not in the batch, is never among
    them, unless `keep` is 1.

    Args:
        saliency: any shape, not negative.
        keep: in (0, 1].

    >>> top_fraction(torch.tensor([1.0, 3.0, 2.0, 3.0]), 0.3)
    tensor([False,  True, False,  True])
    >>> top_fraction(torch.tensor([0.0, 3.0, 0.0, 0.0]), 0.5)
    tensor([False,  True, False, False])
    """
    if keep == 1:
        return torch.ones_like(saliency, dtype=torch.bool)
    flat = saliency.flatten()
    count = math.ceil(round(keep * flat.numel(), 6))  # 0.1 * 30 is a little more than 3
    mask = flat > 0
    on_host = flat.device.type == "cpu"  # where a look at how many there are waits for nothing
    if on_host and torch.count_nonzero(mask) <= count:
        return mask.view_as(saliency)
    threshold = _kth_largest(flat, count)
    mask &= flat >= threshold
    if not on_host or torch.count_nonzero(mask) > count:
        mask &= _first(flat == threshold, count - torch.count_nonzero(flat > threshold))
    return mask.view_as(saliency)


def _first(equal: Tensor, count: Tensor) -> Tensor:
    """(n,) all but those of `equal` (n,) that come after the first `count` () of them."""
    return ~equal | (equal.cumsum(0, dtype=torch.int32) <= count)


def _kth_largest(values: Tensor, k: int) -> Tensor:
    """() the k-th largest of some values (n,), k from 1."""
    at = len(values) - k
    if values.device.type == "cpu" and values.dtype != torch.bfloat16:
        # numpy's selection uses vector instructions: ten times faster than torch's
        return torch.as_tensor(np.partition(values.numpy(), at)[at])
    # not kthvalue, one block of a GPU: with it a step of UEGR on 109 M weights took ten times
    # plain's there
    return values.topk(k, sorted=False).values.min()


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
    if scope == "per_tensor" or not values:
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
        factors: by name, in the shape of the weight: 0 leaves a weight bit for bit, 1 lets it go;
            or masks, True for 1.
        weights: the weights before the update.
    """

    @torch.no_grad()
    def __init__(self, factors: Mapping[str, Tensor], weights: Mapping[str, Tensor]):
        self.factors = factors
        now = [weights[name].detach() for name in factors]
        kept = [torch.empty_like(weight) for weight in now]
        if now:
            torch._foreach_copy_(kept, now)
        self.before = dict(zip(factors, kept, strict=True))

    @torch.no_grad()
    def finish(self, weights: Mapping[str, Tensor]) -> None:
        """Cut the update back, after it."""
        for name, before in self.before.items():
            weight, factor = weights[name], self.factors[name]
            if factor.dtype == torch.bool:
                torch.where(factor, weight, before, out=weight)
            else:
                weight.copy_(torch.lerp(before, weight, factor.to(weight.dtype)))
