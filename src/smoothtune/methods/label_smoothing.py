r"""Label smoothing: cross entropy against softened labels.

Reference: Szegedy, Vanhoucke, Ioffe, Shlens, Wojna: Rethinking the Inception Architecture for
    Computer Vision, CVPR 2016 (arXiv 1512.00567), section 7.

Equation:
    $$total = -\sum_c q_c \log p_c, \quad q_c = (1 - s) [c = y] + s / C$$

Departures:
    * transformers has `label_smoothing_factor`. It works in the Trainer alone, replaces the loss
      after other methods have changed it and reads one `logits` only; this one composes, works in
      plain loops and for extractive QA.
    * With s = 0 it is the task loss, and its mean is over the same labels. A task loss that is not
      the plain cross entropy (class weights, a loss of your own, the loss of a router) is refused
      when it differs in one of the first 10 batches.
    * Extractive QA: the C of an example are its real tokens, and the mean of the start and the end
      loss is taken.
    * Several labels of an example: each is yes or no, so C = 2 and yes has 1 - s / 2 in the place
      of 1, as in Keras. The mean is over labels, then over examples, as the task loss is.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from smoothtune.core.compute_loss import factor_of, times
from smoothtune.core.forward import ForwardPass
from smoothtune.core.predictions import CLASS_SCORES, Head, heads
from smoothtune.core.regularizer import BelowOne, TaskLoss, method
from smoothtune.core.traits import Between, Traits
from smoothtune.functional.adversarial import task_loss
from smoothtune.nn.architecture import is_embedding_model, unwrap
from smoothtune.nn.causal_lm import model_is_rounded, num_items, targets
from smoothtune.nn.model_facts import is_undeclared_regression, predicts_tokens, problem_type

ENDS = ("start", "end")
CHECKED = 10  # batches whose task loss is compared, since to look at it waits for the device
NO_CLASSES = "needs one class number, or a yes or no for each label: regression has none"


Surprise = tuple[Tensor, Tensor]
"""-log p of the label, and the mean of it over all classes"""


def surprise(logits: Tensor, target: Tensor, real: Tensor | None = None) -> Surprise:
    """(...) each, in float32 or wider.

    Args:
        logits: (..., C).
        target: (...) class numbers.
        real: (..., C) classes that count in the mean; None: all.
    """
    wide = torch.promote_types(logits.dtype, torch.float32)
    all_classes = -F.log_softmax(logits, -1, dtype=wide)
    chosen = all_classes.gather(-1, target[..., None]).squeeze(-1)
    if real is None:
        return chosen, all_classes.mean(-1)
    return chosen, (all_classes * real).sum(-1) / real.sum(-1).clamp(min=1)


def averaged(each: Surprise, counted: Tensor, number: Tensor | float | None = None) -> Surprise:
    """() the sums over the labels that count, by their number or another one."""
    number = counted.sum().clamp(min=1) if number is None else number
    label, other = (torch.where(counted, x, 0).sum() / number for x in each)
    return label, other


def of_spans(clean: ForwardPass, name: str) -> Surprise:
    """Of the first or the last tokens of answers; those that are cut off do not count."""
    logits, labels = clean.outputs[f"{name}_logits"], clean.batch[f"{name}_positions"]
    last = logits.shape[-1]
    labels = labels.view(len(logits)).clamp(0, last)  # as the task loss does
    real = clean.mask & (logits > torch.finfo(logits.dtype).min)
    return averaged(surprise(logits, labels.clamp(max=last - 1), real), labels < last)


def of_yes_or_no(head: Head, labels: Tensor) -> Surprise:
    """Of several labels of an example, each of which is there (1) or not (0)."""
    wide = torch.promote_types(head.logits.dtype, torch.float32)
    yes, no = (-F.log_softmax(head.logits, -1, dtype=wide)).unbind(-1)
    labels = labels.to(yes.dtype)
    return averaged((labels * yes + (1 - labels) * no, (yes + no) / 2), head.mask)


def of_classes(head: Head, labels: Tensor, number: Tensor | float | None = None) -> Surprise:
    """Of one class for every prediction with a label; a ValueError where labels do not fit."""
    if head.regression or labels.is_floating_point():
        raise ValueError(f"label_smoothing {NO_CLASSES}. Leave it out")
    if labels.numel() != head.mask.numel():
        raise ValueError(
            f"label_smoothing needs one class number per prediction: labels of shape "
            f"{tuple(labels.shape)} do not fit predictions of shape {tuple(head.mask.shape)}. "
            "Leave it out"
        )
    labels, classes = labels.view(head.mask.shape), head.logits.shape[-1]
    counted = head.mask & (labels >= 0) & (labels < classes)
    return averaged(surprise(head.logits, labels.clamp(0, classes - 1)), counted, number)


@method(
    "label_smoothing",
    Traits(
        group="labels",
        step="1 pass",
        lowers=("calibration error",),
        searched={"smoothing": Between(0.02, 0.3)},
        needs_labels=True,
        plain_loss=True,
    ),
)
class LabelSmoothing(TaskLoss):
    """The task loss with smoothed labels."""

    smoothing: BelowOne = 0.1
    """s, the probability spread evenly over all classes. Paper: 0.1."""

    def __post_init__(self):
        super().__post_init__()
        self._checked = 0  # batches

    def attach(self, model: nn.Module) -> None:
        """Compare the task loss of the first batches again."""
        self._checked = 0

    def refuses(self, model: nn.Module) -> str | None:
        """Labels of an embedding are no classes, and scores have none."""
        if is_embedding_model(model):
            return f"{CLASS_SCORES}: use r3f, smart or jacobian"
        if problem_type(model) == "regression" or is_undeclared_regression(model):
            return f"{NO_CLASSES}: leave it out"
        return None

    def loss(self, clean: ForwardPass) -> Tensor:
        """Smoothed cross entropy, a mean over what the task loss is a mean over.

        Raises:
            ValueError: the model does not choose one of several classes, the batch says none, or
                the task loss of one of the first batches is not the plain cross entropy.
        """
        parts = zip(*self._surprises(clean.run()), strict=True)
        factor = 1.0 if predicts_tokens(unwrap(clean.model)) else factor_of(clean.compute_loss)
        of_label, of_any = (times(factor, torch.stack(part).mean()) for part in parts)
        if self._checked < CHECKED:
            self._checked += 1
            self._check(clean, of_label)
        return (1 - self.smoothing) * of_label + self.smoothing * of_any

    def _surprises(self, clean: ForwardPass) -> list[Surprise]:
        """One, or two of start and end."""
        predictions, bare = heads(clean), unwrap(clean.model)
        names = ["labels"] if len(predictions) == 1 else [f"{name}_positions" for name in ENDS]
        if not clean.batch.keys() >= set(names):
            raise ValueError(
                f"label_smoothing needs {' and '.join(names)} in the batch, and this task loss is "
                "computed without: leave label_smoothing out"
            )
        if len(predictions) == 2:
            return [of_spans(clean, name) for name in ENDS]
        (head,) = predictions
        if problem_type(bare) == "multi_label_classification":
            return [of_yes_or_no(head, clean.batch["labels"])]
        if predicts_tokens(bare):  # a sum over the label tokens of an update
            return [of_classes(head, targets(clean.batch), num_items(clean.batch))]
        return [of_classes(head, clean.batch["labels"])]

    def _check(self, clean: ForwardPass, plain: Tensor) -> None:
        """Compare the task loss of the batch with the plain one."""
        own, plain = task_loss(clean).detach().float(), plain.detach().float()
        rounded = model_is_rounded(unwrap(clean.model), clean.device)
        same = torch.isclose(own, plain, rtol=0.05 if rounded else 1e-3, atol=1e-5)
        if not same and plain != 0:  # 0 without a label, where the mean of a task loss is NaN
            raise ValueError(
                f"label_smoothing softens the labels of the plain cross entropy, which is "
                f"{plain.item():.6g} on this batch, and the task loss is {own.item():.6g}: leave "
                "label_smoothing out, or smooth the labels in your loss"
            )
