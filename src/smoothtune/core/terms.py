"""The losses of the methods in one update: which of them act, on which rows, with which draws."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from smoothtune.core.forward import ForwardPass
from smoothtune.core.regularizer import LossTerm, Penalty, Regularizer, TaskLoss
from smoothtune.core.row_subset import subset_pass
from smoothtune.core.strength import Strengths
from smoothtune.core.support import runs_model
from smoothtune.nn import rng


class Terms:
    """The methods of an objective that have a loss, in the update that `strengths` is at.

    Args:
        methods: by name.
        strengths: holds the number of updates so far.
    """

    def __init__(self, methods: dict[str, Regularizer], strengths: Strengths):
        self.methods = {name: r for name, r in methods.items() if isinstance(r, LossTerm)}
        self.strengths = strengths

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

    def compare_predictions(self, labeled: bool) -> bool:
        """Whether one of this update compares the predictions of two passes."""
        active = [r.traits for r in self.active(labeled).values()]
        return any(traits.small_difference and not traits.hidden_states for traits in active)

    def need_float32(self, dtype: torch.dtype | None, labeled: bool, *, low_bit: bool) -> bool:
        """Whether rounding would spoil what one of this update adds, compares or bounds.

        The clean pass, task loss included, is then float32 too: a method compares with it.

        Args:
            dtype: of autocast, if there is one.
            labeled: whether the batch has labels.
            low_bit: whether frozen weights in few bits are read as float32.
        """
        if dtype == torch.float16 and self.strengths.bounded:
            return True  # also where the task alone is measured, before a scaler has its say
        rounds = dtype == torch.float16 or low_bit
        active = self.active(labeled).values()
        return any(r.traits.needs_float32 or (rounds and runs_model(r)) for r in active)

    def tolerate_tf32(self, labeled: bool) -> bool:
        """Whether float32 products may read 10 bits for those of this update that need float32."""
        active = [r.traits for r in self.active(labeled).values()]
        return all(traits.tolerates_tf32 for traits in active if traits.needs_float32)

    def losses(self, clean: ForwardPass, seed: int, calls: int) -> Iterator[tuple[str, Tensor]]:
        """Losses () by name, without weights, with draws that depend on seed, name and call."""
        for method in self.methods.values():
            method.diagnostics.clear()
        active = self.active(clean.labeled)
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
                yield name, loss
