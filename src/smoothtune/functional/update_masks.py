"""Which weights an update may change, and updates that leave the others where they were."""

import math
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

Scope = Literal["per_tensor", "global"]
Saliency = Literal["taylor", "grad", "fisher"]


def saliencies(weights: list[Tensor], gradients: list[Tensor], kind: Saliency) -> list[Tensor]:
    """|w g| (taylor, the first-order change of the loss if w were 0), |g| or g^2 by element.

    By taylor a weight that is 0 and has a gradient, as half of those of new adapters, comes first:
    once last it would stay 0 for good.
    """
    if kind == "grad":
        return list(torch._foreach_abs(gradients))
    products = torch._foreach_mul(gradients, gradients if kind == "fisher" else weights)
    torch._foreach_abs_(products)
    if kind == "taylor":  # in few operations: there are hundreds of weights
        at_zero = torch._foreach_abs(torch._foreach_sign(weights))
        torch._foreach_sub_(at_zero, 1)  # -1 where a weight is 0, else 0
        torch._foreach_mul_(at_zero, gradients)
        torch._foreach_abs_(at_zero)
        torch._foreach_mul_(at_zero, torch.finfo(at_zero[0].dtype).max ** 0.75)
        torch._foreach_add_(products, at_zero)
    return list(products)


def top_fraction(saliency: Tensor, keep: float) -> Tensor:
    """True for the ceil(keep * n) largest of n values in a row; of equal ones the first are taken.

    A weight of saliency 0, as the embedding of a word that is not in the batch, is never among
    them, unless `keep` is 1.

    >>> top_fraction(torch.tensor([1.0, 3.0, 2.0, 3.0]), 0.3)
    tensor([False,  True, False,  True])
    """
    if keep == 1:
        return torch.ones_like(saliency, dtype=torch.bool)
    n = saliency.shape[-1]
    count = math.ceil(round(keep * n, 6))  # 0.1 * 30 is a little more than 3
    mask = saliency > 0
    on_host = saliency.device.type == "cpu"  # where a look at how many there are waits for nothing
    if on_host and (torch.count_nonzero(mask, -1) <= count).all():
        return mask
    threshold = _kth_largest(saliency, count)
    mask &= saliency >= threshold
    if not on_host or (torch.count_nonzero(mask, -1) > count).any():
        left = count - torch.count_nonzero(saliency > threshold, -1)
        equal = saliency == threshold
        mask &= ~equal | (equal.cumsum(-1, dtype=torch.int32) <= left[..., None])
    return mask


def _kth_largest(values: Tensor, k: int) -> Tensor:
    """(..., 1) the k-th largest of values (..., n), k from 1."""
    at = values.shape[-1] - k
    if values.device.type == "cpu" and values.dtype != torch.bfloat16:
        # numpy's selection uses vector instructions: ten times faster than torch's
        return torch.as_tensor(np.partition(values.numpy(), at)[..., at : at + 1])
    # not kthvalue, one block of a GPU: with it a step of UEGR on 109 M weights took ten times
    # plain's there
    return values.topk(k, sorted=False).values.amin(-1, keepdim=True)


def keep_probabilities(saliency: Tensor, keep: float, floor: float) -> Tensor:
    """Probabilities that rise with the rank of the saliency in a row, with mean `keep`.

    p = floor + (1 - floor) u^a, u in (0, 1) the rank (i + 1/2) / n, a such that the mean over u
    is `keep`.
    """
    n = saliency.shape[-1]
    ranks = torch.arange(n, device=saliency.device, dtype=saliency.dtype).expand_as(saliency)
    rank = torch.empty_like(saliency).scatter_(-1, saliency.argsort(-1), ranks)
    exponent = (1 - floor) / (keep - floor) - 1
    return floor + (1 - floor) * ((rank + 0.5) / n) ** exponent


def over(
    scope: Scope, function: Callable[[Tensor], Tensor], values: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Apply a function of rows (..., n) to every tensor for itself, or to all as one row."""
    groups = defaultdict[Any, list[str]](list)
    for name, value in values.items():  # those of one size together, in few operations
        size = (value.numel(), value.dtype, value.device)
        groups[size if scope == "per_tensor" else "all"].append(name)
    ranked: dict[str, Tensor] = {}
    for names in groups.values():
        flat = [values[name].flatten() for name in names]
        if scope == "per_tensor":
            parts = function(torch.stack(flat)).unbind()
        else:
            parts = function(torch.cat(flat)).split([len(each) for each in flat])
        ranked |= {n: part.view_as(values[n]) for n, part in zip(names, parts, strict=True)}
    return ranked


class PartialUpdate:
    """An update of which every weight keeps a part: w <- w_before + factor * (w - w_before).

    Momentum and weight decay move weights whose gradient is masked; this does not.

    Args:
        factors: by name, 0 leaves a weight bit for bit, 1 lets it go; or masks, True for 1.
        weights: by name too, before the update.
    """

    @torch.no_grad()
    def __init__(self, factors: Mapping[str, Tensor], weights: Mapping[str, Tensor]):
        self.factors = list(factors.values())
        self.weights = [weights[name].detach() for name in factors]
        self.before = [torch.empty_like(weight) for weight in self.weights]
        if self.weights:
            torch._foreach_copy_(self.before, self.weights)

    @torch.no_grad()
    def finish(self) -> None:
        """Cut the update back, after it."""
        for weight, before, factor in zip(self.weights, self.before, self.factors, strict=True):
            if factor.dtype == torch.bool:
                torch.where(factor, weight, before, out=weight)
            else:
                weight.copy_(torch.lerp(before, weight, factor.to(weight.dtype)))
