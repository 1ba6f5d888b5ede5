"""What the best answer that is the same for all examples would lose on the labels seen so far."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from smoothtune.core.declarations import (
    IGNORED,
    declaring,
    labels_at_the_token,
    predicts_tokens,
    problem_type,
)


def label_sums(model: nn.Module, batch: Mapping[str, Any]) -> Tensor | None:
    """What the loss of a constant answer follows from: numbers that add up over batches.

    Args:
        model: unwrapped.
        batch: model inputs; without labels the sums are 0.

    Returns:
        (2 + C,) how many labels are one of C classes, how many rows may have several, and how often
        each class occurs; (1 + 2C,) of C scores: rows, and the sums of their targets and of these
        squared. None where the model does not say what its loss is, as for spans, choices, and
        classes with a forward of their own.
    """
    size = _targets(model)
    if size is None:
        return None
    labels = batch.get("labels")
    scores = _gives_scores(model)
    if labels is None:
        return torch.zeros(1 + 2 * size if scores else 2 + size)
    if not scores and not labels.is_floating_point():
        counts = torch.bincount(labels[labels != IGNORED], minlength=size).float()
        return torch.cat([counts.sum()[None], counts.new_zeros(1), counts])
    targets = labels.detach().float().reshape(-1, size)
    rows, sums = targets.new_tensor([len(targets)]), targets.sum(0)
    if scores:
        return torch.cat([rows, sums, targets.square().sum(0)])
    return torch.cat([rows.new_zeros(1), rows, sums])


def constant_loss(model: nn.Module, sums: Tensor) -> float | None:
    """The mean loss of the best constant answer: an entropy in nats, or a variance.

    Args:
        model: unwrapped.
        sums: of `label_sums`, over all that was seen.

    Returns:
        None without labels.
    """
    if _gives_scores(model):
        mean, square = (sums[1:] / sums[0]).chunk(2)
        return (square - mean**2).mean().item() if sums[0] else None
    labels, rows = sums[:2].tolist()
    if rows:
        parts = sums[2:] / rows
        return (torch.special.entr(parts) + torch.special.entr(1 - parts)).mean().item()
    return torch.special.entr(sums[2:] / labels).sum().item() if labels else None


def _targets(model: nn.Module) -> int | None:
    """Number of tokens, classes or scores that an unwrapped model's own loss is about."""
    declared: Any = declaring(model)
    if predicts_tokens(model):
        return int(declared.get_output_embeddings().weight.shape[0])
    if not type(declared).forward.__module__.startswith("transformers."):
        return None  # transformers goes by the name of the class, whatever its loss is
    of_sequences = getattr(declared, "loss_type", None) == "ForSequenceClassification"
    known = of_sequences or labels_at_the_token(model)
    return int(declared.config.num_labels) if known else None


def _gives_scores(model: nn.Module) -> bool:
    """Whether the loss is a squared error, by transformers' rule."""
    declared: Any = declaring(model)
    if getattr(declared, "loss_type", None) != "ForSequenceClassification":
        return False
    kind = problem_type(model)
    return kind == "regression" or (kind is None and declared.config.num_labels == 1)
