"""Weights that an update made NaN or infinite."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from smoothtune.errors import NonFiniteWeights


def check_weights(model: Any, update: int) -> None:
    """Stop after an update that made a trained weight NaN or infinite.

    Args:
        model: the trained model.
        update: number of the update, for the message.

    Raises:
        NonFiniteWeights: a weight is not finite.
    """
    trained = {name: _local(p) for name, p in model.named_parameters() if p.requires_grad}
    trained = {name: weight for name, weight in trained.items() if weight.numel()}
    if not trained:
        return
    largest = torch._foreach_norm(list(trained.values()), torch.inf)
    finite = torch.stack([norm.isfinite().to(largest[0].device) for norm in largest])
    if finite.all():
        return
    first = list(trained)[int((~finite).nonzero()[0])]
    raise NonFiniteWeights(
        f"the weight {first} is not finite after update {update}: lower learning_rate or "
        "weight_decay, or clip gradients with max_grad_norm; no checkpoint was written with it"
    )


def _local(weight: Tensor) -> Tensor:
    """The part of a sharded weight that this process holds."""
    weight = weight.detach()
    return weight.to_local() if hasattr(weight, "to_local") else weight
