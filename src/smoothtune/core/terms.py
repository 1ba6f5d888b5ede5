"""The losses of the methods in one update: which of them act, on which rows, with which draws."""

import logging
from collections.abc import Collection, Iterable
from contextlib import nullcontext

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from smoothtune.core.compute_loss import ComputeLoss
from smoothtune.core.forward import Batch, ForwardPass, device_of
from smoothtune.core.regularizer import LossTerm, Penalty, Regularizer, TaskLoss
from smoothtune.core.row_subset import subset_pass
from smoothtune.core.strength import TASK, Strengths
from smoothtune.core.support import runs_model
from smoothtune.nn import rng
from smoothtune.nn.dropout import SharedMasks
from smoothtune.nn.environments import COMPILED, Environment
from smoothtune.nn.higher_order import differentiable_attention
from smoothtune.nn.model_facts import Side

MASKS_FROM = 512  # tokens of a batch, from which on masks are drawn slower than looked up

logger = logging.getLogger(__name__)


class Terms:
    """The methods of an objective that have a loss, in the update that `strengths` is at.

    Args:
        methods: by name.
        strengths: holds the number of updates so far.
    """

    def __init__(self, methods: dict[str, Regularizer], strengths: Strengths):
        self.methods = {name: r for name, r in methods.items() if isinstance(r, LossTerm)}
        self.strengths = strengths
        self._measured: dict[str, int] = {}  # by a method on its own batch, in which update
        # what no update changes
        terms = list(self.methods.values())
        traits = [term.traits for term in terms]
        self.plain_loss = any(each.plain_loss for each in traits)
        self._points = tuple({point: None for term in terms for point in term.points()})
        sides: list[Side] = [term.side for term in terms if term.points()]
        self._side = sides[0] if sides else "encoder"
        self._differentiates = any(each.differentiates for each in traits)
        self._hidden_states = any(each.hidden_states for each in traits)
        self._derivative_order = max((each.derivative_order for each in traits), default=1)
        sharing = [term for term in terms if term.shares_masks]
        self._shares_masks = bool(sharing)
        self._shares_rows = any(isinstance(term, Penalty) and term.rows < 1 for term in sharing)

    def active(self, labeled: bool) -> dict[str, LossTerm]:
        """The methods that give a loss in this update, on batches with labels or without."""
        step = self.strengths.step
        return {name: r for name, r in self.methods.items() if r.acts(step, labeled=labeled)}

    def has_waiting(self) -> bool:
        """Whether the ramp of a term on unlabeled batches, in its turn, has not begun yet."""
        step = self.strengths.step
        return any(
            isinstance(r, Penalty)
            and r.acts_without_labels
            and r.has_turn(step)
            and not r.ramp(step)
            for r in self.methods.values()
        )

    def compare_unlabeled(self) -> bool:
        """Whether one of this update compares class scores on unlabeled batches."""
        active = [r.traits for r in self.active(False).values()]
        return any(
            traits.compares_classes or (traits.small_difference and not traits.hidden_states)
            for traits in active
        )

    def need_float32(self, dtype: torch.dtype | None, labeled: bool, *, low_bit: bool) -> bool:
        """Whether rounding would spoil what one of this update adds, compares or bounds.

        The clean pass, task loss included, is then float32 too: a method compares with it.

        Args:
            dtype: of autocast, if there is one.
            labeled: whether the batch has labels.
            low_bit: whether frozen weights in few bits are read as float32.
        """
        if dtype is None and not low_bit:
            return False
        if dtype == torch.float16 and self.strengths.bounded:
            return True  # also where the task alone is measured, before a scaler has its say
        rounds = dtype == torch.float16 or low_bit
        active = self.active(labeled).values()
        return any(r.traits.needs_float32 or (rounds and runs_model(r)) for r in active)

    def tolerate_tf32(self, labeled: bool) -> bool:
        """Whether float32 products may read 10 bits for those of this update that need float32."""
        active = [r.traits for r in self.active(labeled).values()]
        return all(each.products == "tf32" for each in active if each.needs_float32)

    def shared_masks(
        self, batch: Batch, where: Collection[Environment] = frozenset()
    ) -> SharedMasks | None:
        """None where no pass shares masks, or to draw one costs less than to look it up.

        So it is on accelerators, and in small batches. Passes over some rows have no other masks.
        """
        if not self._shares_masks or device_of(batch).type != "cpu" or COMPILED & {*where}:
            return None
        tokens = batch.get("input_ids")  # those who read none: SAM on images
        large = tokens is not None and tokens.numel() >= MASKS_FROM
        return SharedMasks() if large or self._shares_rows else None

    def clean_pass(
        self,
        model: nn.Module,
        batch: Batch,
        compute_loss: ComputeLoss,
        labeled: bool,
        where: Collection[Environment] = frozenset(),
        optimizer: Optimizer | None = None,
    ) -> ForwardPass:
        """The pass that all methods share, which has not run."""
        return ForwardPass(
            model,
            batch,
            compute_loss=compute_loss,
            points=self._points,
            differentiable=self._differentiates,
            hidden_states=self._hidden_states,
            side=self._side,
            labeled=labeled,
            start=rng.get_state(device_of(batch)),
            shared_masks=self.shared_masks(batch, where),
            optimizer=optimizer,
        )

    def losses(self, clean: ForwardPass, seed: int, calls: int) -> dict[str, Tensor]:
        """Losses () by name, the task's too, without weights; draws depend on seed and call."""
        if self._measured:
            self._warn_of_one_batch()
        to_measure = [name for name, method in self.methods.items() if method.calibrates]
        higher = self._derivative_order > 1
        with differentiable_attention() if higher else nullcontext():
            losses = self._of_methods(clean, seed, calls)
            if clean.labeled and not any(isinstance(self.methods[n], TaskLoss) for n in losses):
                loss = clean.run().loss
                assert loss is not None
                losses[TASK] = loss
        measured = [name for name in to_measure if not self.methods[name].calibrates]
        self._measured = dict.fromkeys(measured, self.strengths.step)
        return losses

    def _of_methods(self, clean: ForwardPass, seed: int, calls: int) -> dict[str, Tensor]:
        for method in self.methods.values():
            method.diagnostics.clear()
        active, losses = self.active(clean.labeled), dict[str, Tensor]()
        replaced = any(isinstance(method, TaskLoss) for method in active.values())
        for name, method in active.items():
            rows = clean
            if isinstance(method, Penalty) and method.rows < 1:
                with rng.stream(clean.device, seed, f"{name}/rows", calls):
                    rows = subset_pass(clean, method, runs=clean.labeled and not replaced)
            with rng.stream(clean.device, seed, name, calls):
                loss = method.loss(rows)
            detached = {key: value.detach() for key, value in method.diagnostics.items()}
            method.diagnostics = detached
            if loss is not None:
                losses[name] = loss
        return losses

    def _warn_of_one_batch(self) -> None:
        """Say so where an update has several batches, and a method has measured on the first."""
        step = self.strengths.step
        if names := [name for name, measured_in in self._measured.items() if measured_in == step]:
            logger.warning(
                "%s measured the model on the first of several batches of an update: call "
                "objective.calibrate(model, batch) before, with rows of the training data",
                ", ".join(names),
            )


def all_have_acted(methods: Iterable[Regularizer], step: int) -> bool:
    """Whether the term of every method of a run has acted in one of the first `step` updates.

    A model that a term has not touched is plain's: its score says nothing about the method.
    """
    terms = [method for method in methods if isinstance(method, LossTerm) and method.is_on]
    return all(term.has_acted(step) for term in terms)
