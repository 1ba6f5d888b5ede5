"""The error for an objective that is NaN or infinite."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from smoothtune.errors import NonFiniteLoss


def non_finite_loss(
    model: nn.Module, losses: Mapping[str, Tensor], example_ids: Any, update: int
) -> NonFiniteLoss:
    """Says which parts are not finite, on which examples, and what to do.

    Args:
        model: the trained model; its weights may be spoiled already.
        losses: the parts () by name.
        example_ids: (B,) of the batch, or None.
        update: number of the update.
    """
    bad = [f"{name} = {value.item()}" for name, value in sorted(losses.items())]
    where = "" if example_ids is None else f", examples {example_ids.tolist()}"
    broken = [n for n, p in model.named_parameters() if not p.isfinite().all()]
    state = (
        f"{len(broken)} weights are not finite, {broken[0]} among them: an earlier update has "
        "spoiled them, so go back to a checkpoint"
        if broken
        else "The weights hold the last good state"
    )
    return NonFiniteLoss(
        f"the objective is not finite in update {update}{where}: {', '.join(bad)}. "
        f"{state}. Lower the learning rate or the weight of the term, or look at the examples "
        "named."
    )
