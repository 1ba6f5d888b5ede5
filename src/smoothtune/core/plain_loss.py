"""Methods that compute the task loss themselves, and where theirs would be another than the user's.

The task loss is whatever the user's trainer or loop computes. A method that makes one of its own
from logits and labels knows the plain one alone: the mean cross entropy that the model declares.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torch import nn

from smoothtune.core.regularizer import Regularizer
from smoothtune.nn.model_facts import added_loss

_REMEDY = (
    "the method computes the plain task loss from logits and labels: leave the method out, or "
    "train with the "
)


def plain_problems(
    methods: Iterable[Regularizer],
    model: nn.Module,
    batch: Mapping[str, Any],
    *,
    declared: bool = True,
) -> list[str]:
    """Why methods that need the plain task loss do not have it, and what to change.

    Args:
        methods: all of them.
        model: unwrapped.
        batch: may ask the model for another loss.
        declared: the task loss is the one that the model declares, and not of the loop's own.
    """
    added = added_loss(model, batch)
    if declared and added is None:
        return []
    what = "your loss is another" if added is None else f"{type(model).__name__} adds {added}"
    loss = "model's own" if added is None else "model's without it"
    return [
        f"{each.name}: {what}, and {_REMEDY}{loss}" for each in methods if each.traits.plain_loss
    ]
