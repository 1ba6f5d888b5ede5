"""Regularized training with Hugging Face's Trainer or any subclass of it."""

import logging
from collections.abc import Sequence
from functools import partial
from typing import Any, TypeVar, cast

from torch import nn
from transformers import Trainer

from smoothtune.core.bound_methods import methods_in
from smoothtune.core.objective import Objective
from smoothtune.core.regularizer import Regularizer
from smoothtune.methods.vat import VAT
from smoothtune.trainer.binding import Binding
from smoothtune.trainer.compatibility import check_trainer, check_unlabeled
from smoothtune.trainer.regularized import Regularized, put_in_front
from smoothtune.trainer.unlabeled import Alternate, alternating_loader

T = TypeVar("T", bound=Trainer)

logger = logging.getLogger(__name__)


def regularize(
    trainer: T,
    *regularizers: Regularizer | Sequence[Regularizer],
    unlabeled_dataset: Any = None,
    alternate: Alternate = "batch",
) -> T:
    """Add regularizers to an existing trainer; the only line to add to a training script.

    ::

        trainer = regularize(trainer, LNSR(), L2SP())

    The trainer's own `compute_loss` stays the task loss, whatever subclass it is, on every batch
    but unlabeled ones. An update is that of all its rows together, however accumulation and
    processes cut it, equally or not (transformers alone mis-scales models whose loss ignores
    `num_items_in_batch`): terms weigh by rows, in causal language models by label tokens; the task
    loss weighs by what it is a mean over. That is known, and exact, of

    * losses of the models themselves and label smoothing: labels that are not -100, or rows;
    * class weights by `smoothtune.trainer.weighted_losses.ClassWeightedLoss`: the weights of rows;
    * a `compute_loss_func` that is a mean over labels, whether it uses `num_items_in_batch` or not;
    * a `compute_loss` of one's own that says `loss_is_scaled_for_ga = True`, or that takes
      `num_items_in_batch` on a model for which the Trainer counts it, if it is a mean over labels.

    Any other `compute_loss` weighs the same for every batch, as `loss_is_scaled_for_ga = False`
    says it should; that is exact for batches of equal size, if it is a mean over rows. Losses that
    are no means over rows or labels (contrastive ones, class weights of one's own) depend on how an
    update is cut.

    The trainer's class becomes a subclass of its own, `RegularizedTrainer` for a `Trainer`. When
    `train()` ends, the model is as it was, apart from what training changed, and the trainer
    computes its own loss. A second call attaches the methods again, with the state that they had.

    Subclasses of other libraries: TRL's SFTTrainer, with packed batches unpacked, and
    sentence-transformers' SentenceTransformerTrainer, whose loss gets its columns from one forward.

    Args:
        trainer: any `transformers.Trainer`, before `train()`, on the pre-trained model.
        regularizers: methods to add, or lists of them; order does not matter. Without any it is
            `VAT()`, which a study shows to help (docs/evidence.md). Two of one class are
            two terms with draws of their own, such as LNSR with both kinds of noise; the second is
            called ``lnsr_2`` in logs and records. A run file has each method once.
        unlabeled_dataset: map-style dataset of more rows like `train_dataset`'s, tokenized as they
            are; their labels, if any, are not used. Its batches have no task loss, only the terms
            of the methods.
        alternate: "batch": half the batches of every update are unlabeled, and the update is that
            of the task loss and terms of its labeled rows plus the terms of its unlabeled ones;
            needs an even `gradient_accumulation_steps`. A term is the sum of two means then, one
            over the labeled rows and one over the unlabeled ones: with `batches="both"` a fixed
            weight counts twice what it would for a mean over all rows, as in VAT's paper. Or
            unlabeled updates come after every labeled one ("step") or after all of an epoch's
            labeled ones ("epoch"); there are as many of them, and `max_steps`, epochs and the
            learning-rate schedule count both. Under Adam they are hardly smaller than those with
            labels.

    Returns:
        The same trainer. Its `objective` holds the methods. `save_model()` writes
        ``result.json`` beside the model, as `smoothtune train` does, with every field of every
        method; `create_model_card()` and `push_to_hub()` put methods and scores into the card.

    Raises:
        RuntimeError: another objective is attached to the model.
        TypeError: something else than a trainer or a method is given.
        ValueError: an empty list is given; or methods, model and trainer are not a supported
            combination; the message says what to change.
    """
    if not isinstance(trainer, Trainer):
        raise TypeError(_no_trainer(trainer))
    if isinstance(trainer, Regularized):
        raise ValueError(
            "this trainer is regularized already: pass all methods in one call. To begin again, "
            "make model and trainer anew"
        )
    if not regularizers:
        logger.warning(
            "no method is given, so VAT() is taken: it helped in a study of film reviews. A step "
            "takes nearly three times as long. Plain() is plain fine-tuning"
        )
    methods = methods_in(regularizers or VAT())
    if not methods:
        raise ValueError("no method is given: pass one, or Plain() for plain fine-tuning")
    if trainer.model is None:  # a search gives it up after every trial
        trainer.model = trainer.call_model_init()
    if trainer.state.global_step and trainer.model_init is None:
        logger.warning(
            "this trainer has made %d updates: the methods take what they left for the "
            "pre-trained model. To compare, make model and trainer anew",
            trainer.state.global_step,
        )
    objective, undo = Objective(methods), put_in_front(trainer)
    try:
        check_trainer(objective.regularizers, trainer)
        if unlabeled_dataset is not None:
            check_unlabeled(objective.regularizers, trainer, unlabeled_dataset, alternate)
        binding = Binding(trainer, objective)
    except BaseException:
        undo()
        raise
    regularized: Any = trainer
    regularized._binding, regularized.objective = binding, objective
    if unlabeled_dataset is not None:
        loader = partial(alternating_loader, trainer, unlabeled_dataset, alternate)
        regularized._unlabeled_loader = loader
        if alternate != "step":  # not told by a checkpoint's arguments
            regularized.run_identity = {"alternate": alternate}
    trainer.add_callback(binding)
    return trainer


def save_checkpoint(trainer: Trainer) -> None:
    """Write a checkpoint of a regularized trainer after `train()`, to resume at its last step."""
    binding: Binding = cast(Regularized, trainer)._binding
    binding.attach()
    try:
        assert trainer.model is not None
        with binding.checkpoints.all_kept():
            trainer._save_checkpoint(trainer.model, None)
    finally:
        binding.detach()


class SmoothTrainer(Trainer):
    """A `transformers.Trainer` with regularizers; see `regularize`."""

    def __init__(
        self,
        *args: Any,
        regularizers: Regularizer | Sequence[Regularizer] | None = None,
        unlabeled_dataset: Any = None,
        alternate: Alternate = "batch",
        **kwargs: Any,
    ):
        """Make a trainer with the arguments of `transformers.Trainer`, and these.

        Args:
            args: as for `Trainer`.
            regularizers: a method, or a sequence of methods; default: see `regularize`.
            unlabeled_dataset: more rows, without labels; see `regularize`.
            alternate: when their updates come; see `regularize`.
            kwargs: as for `Trainer`.

        Raises:
            ValueError: as `regularize`.
        """
        super().__init__(*args, **kwargs)
        methods = () if regularizers is None else (regularizers,)
        regularize(self, *methods, unlabeled_dataset=unlabeled_dataset, alternate=alternate)


def _no_trainer(value: object) -> str:
    if isinstance(value, type):
        what = f"{value.__name__} is a class"
    else:
        kind = "a model" if isinstance(value, nn.Module) else "no trainer"
        what = f"this {type(value).__name__} is {kind}"
    return f"{what}: pass a transformers.Trainer that holds the model, or use Objective in a loop"
