r"""Label smoothing: cross entropy against softened labels.

Reference: Szegedy, Vanhoucke, Ioffe, Shlens, Wojna: Rethinking the Inception Architecture for
    Computer Vision, CVPR 2016 (arXiv 1512.00567), section 7.

Equation:
    $$total = -\sum_c q_c \log p_c, \quad q_c = (1 - s) [c = y] + s / C$$

Departures:
    * transformers has `label_smoothing_factor`. It works in the Trainer alone, replaces the loss
      after other methods have changed it and reads one `logits` only; this one composes, works in
      plain loops and for extractive QA.
    * Extractive QA: the C of an example are its real tokens, a position outside of them counts
      nothing, and the mean of the start and the end loss is taken.
    * Several labels of an example: each is yes or no, so C = 2 and yes has 1 - s / 2 in the place
      of 1, as in Keras; a mean over labels, then over examples, as the task loss is.
    * Token classification: a mean over an example's labeled tokens, then over examples.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
import torch.nn.functional as F
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from smoothtune.core.architecture import is_embedding_model, trained_weights, unwrap
from smoothtune.core.declarations import predicts_tokens, problem_type
from smoothtune.core.forward import ForwardPass
from smoothtune.core.next_token import targets
from smoothtune.core.predictions import Head, head_mean, heads
from smoothtune.core.quantities import Quantity
from smoothtune.core.regularizer import STRICT, BelowOne, Between, Regularizer
from smoothtune.core.support import CLASS_SCORES


def smoothed_cross_entropy(logits: Tensor, target: Tensor, smoothing: float) -> Tensor:
    """Cross entropy against (1 - s) one-hot + s / C.

    Args:
        logits: (..., C); classes at the lowest value of the type are padding and do not count.
        target: (...) class numbers.
        smoothing: s.

    Returns:
        (...) in float32 or wider.
    """
    wide = torch.promote_types(logits.dtype, torch.float32)
    surprise = -F.log_softmax(logits, -1, dtype=wide)
    real = logits > torch.finfo(logits.dtype).min
    uniform = (surprise * real).sum(-1) / real.sum(-1).clamp(min=1)  # 0: a row of padding
    chosen = surprise.gather(-1, target[..., None]).squeeze(-1)
    return (1 - smoothing) * chosen + smoothing * uniform


def smoothed_yes_or_no(logits: Tensor, labels: Tensor, smoothing: float) -> Tensor:
    """Cross entropy of yes and no against (1 - s) y + s / 2 and (1 - s) (1 - y) + s / 2.

    Args:
        logits: (..., 2) of yes and of no.
        labels: (...) y, 1 for yes and 0 for no.
        smoothing: s.

    Returns:
        (...) in float32 or wider.
    """
    yes, no = (
        smoothed_cross_entropy(logits, torch.full_like(labels, answer, dtype=torch.long), smoothing)
        for answer in (0, 1)
    )
    return labels * yes + (1 - labels) * no


@dataclass(config=STRICT, kw_only=True)
class LabelSmoothing(Regularizer):
    """The task loss with smoothed labels."""

    name: ClassVar[str] = "label_smoothing"
    claims: ClassVar[tuple[Quantity, ...]] = ("calibration error",)
    replaces_task_loss: ClassVar[bool] = True
    needs_labels: ClassVar[bool] = True
    searched: ClassVar[Mapping[str, Between] | None] = {"smoothing": Between(0.02, 0.3)}

    smoothing: BelowOne = 0.1
    """s, the probability spread evenly over all classes. Paper: 0.1."""

    def refuses(self, model: nn.Module) -> str | None:
        """Labels of an embedding are no classes."""
        if is_embedding_model(model):
            return f"{CLASS_SCORES}: use r3f, smart or jacobian"
        return None

    def loss(self, clean: ForwardPass) -> Tensor | None:
        """Smoothed cross entropy, a mean over heads and over the examples that have a label.

        Raises:
            ValueError: the model does not choose one of several classes, the batch says none, or
                the loss has weights of its own.
        """
        if not clean.labeled:
            return None
        if len(clean.weights) > len(trained_weights(clean.model)):
            raise ValueError(
                "label_smoothing takes the place of the task loss, of whose weights outside the "
                "model it knows nothing: put them into the model, or leave it out"
            )
        found = heads(clean.run())
        names = ["labels"] if len(found) == 1 else ["start_positions", "end_positions"]
        if not clean.batch.keys() >= set(names):
            raise ValueError(
                f"label_smoothing needs {' and '.join(names)} in the batch, and this task loss is "
                "computed without: leave label_smoothing out"
            )
        labels = [clean.batch[name] for name in names]
        if problem_type(unwrap(clean.model)) == "multi_label_classification":
            (head,) = found
            yes = labels[0].to(head.logits.dtype)
            return head_mean(smoothed_yes_or_no(head.logits, yes, self.smoothing), head)
        if predicts_tokens(unwrap(clean.model)):
            labels = [targets(clean.batch)]
        return torch.stack(
            [self._loss(head, label) for head, label in zip(found, labels, strict=True)]
        ).mean()

    def _loss(self, head: Head, labels: Tensor) -> Tensor:
        if head.regression or labels.is_floating_point():
            raise ValueError(
                "label_smoothing needs one class number, or a yes or no for each label: regression "
                "has none. Leave it out"
            )
        if labels.numel() != head.mask.numel():
            raise ValueError(
                f"label_smoothing needs one class number per prediction: labels of shape "
                f"{tuple(labels.shape)} do not fit predictions of shape {tuple(head.mask.shape)}. "
                "Leave it out"
            )
        labels = labels.view(head.mask.shape)
        classes = head.logits.shape[-1]
        counted = head.mask & (labels >= 0) & (labels < classes)
        losses = smoothed_cross_entropy(head.logits, labels.clamp(0, classes - 1), self.smoothing)
        labeled = counted.any(1).sum().clamp(min=1)  # as in the task loss, others are not there
        return head_mean(losses.where(counted, 0.0), head) * (len(losses) / labeled)
