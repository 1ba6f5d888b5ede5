"""A batch as the methods of an objective need it, and what computes its task loss."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from torch import Tensor, nn

from smoothtune.core.compute_loss import ComputeLoss, model_loss
from smoothtune.core.packed_rows import one_document_a_row
from smoothtune.core.plain_loss import plain_problems
from smoothtune.core.regularizer import Regularizer
from smoothtune.core.support import refuse
from smoothtune.nn.architecture import unwrap
from smoothtune.nn.causal_lm import next_token_loss
from smoothtune.nn.model_facts import has_labels, predicts_tokens, undeclared_labels


class TaskBatch(NamedTuple):
    """A batch of one update."""

    inputs: dict[str, Any]
    """Of the model."""
    compute_loss: ComputeLoss
    labeled: bool
    """Whether it has a task loss."""
    example_ids: Tensor | None
    """(B,) names of the rows, in errors."""


def task_batch(
    model: nn.Module,
    batch: Mapping[str, Any],
    compute_loss: ComputeLoss | None,
    methods: Mapping[str, Regularizer],
    *,
    declared_loss: bool | None,
) -> TaskBatch:
    """Take a batch apart, and choose what computes its task loss.

    Args:
        model: as the loop holds it.
        batch: as of `Objective`, and the others too.
        compute_loss: of the loop; None: the model's own.
        methods: by name.
        declared_loss: whether `compute_loss` computes the mean loss that the model declares.

    Raises:
        ValueError: a method would act over several documents, or needs the plain task loss and
            does not have it.
    """
    inputs, bare = dict(batch), unwrap(model)
    example_ids, unlabeled = inputs.pop("example_id", None), inputs.pop("unlabeled", False)
    own = compute_loss is not None and compute_loss is not next_token_loss  # of the loop
    labeled = not unlabeled and (own or has_labels(bare, inputs))
    inputs = one_document_a_row(inputs, bare, methods, own_loss=own)
    if compute_loss is None or not own:
        by_token = bool(methods) and predicts_tokens(bare)  # else plain, bit for bit
        compute_loss = next_token_loss if by_token else model_loss
    if labeled:
        declared = bool(declared_loss) or not own
        refuse(plain_problems(methods.values(), bare, inputs, declared=declared))
    return TaskBatch(inputs, compute_loss, labeled, example_ids)


def refuse_undeclared_labels(model: nn.Module) -> None:
    """Refuse to compare predictions before it is known what they are of.

    Raises:
        ValueError: nothing says whether examples have one label or several.
    """
    if undeclared_labels(unwrap(model)):
        raise ValueError(
            "whether examples have one label or several is not known before a batch with "
            'labels has come: set model.config.problem_type = "single_label_classification" '
            '(or "multi_label_classification")'
        )
