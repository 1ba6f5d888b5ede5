"""The terms of the methods in one update: which of them act, on which rows, with which draws."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from smoothtune.core.forward import ForwardPass
from smoothtune.core.part import part_of
from smoothtune.core.regularizer import Regularizer
from smoothtune.core.strength import Strengths
from smoothtune.nn import rng


class Terms:
    """The methods of an objective, and what of them holds in the update that `strengths` is at.

    Args:
        regularizers: methods by name.
        strengths: their ramps, and the number of updates seen.
    """

    def __init__(self, regularizers: dict[str, Regularizer], strengths: Strengths):
        self.regularizers, self.strengths = regularizers, strengths

    def act(self, labeled: bool) -> dict[str, Regularizer]:
        """The methods that give a loss in this update."""
        batches = ("labeled" if labeled else "unlabeled", "both")
        return {
            name: regularizer
            for name, regularizer in self.regularizers.items()
            if regularizer.has_loss
            and regularizer.batches in batches
            and self._has_turn(regularizer)
            and self.strengths.ramp(regularizer) > 0
        }

    def wait(self) -> bool:
        """Whether the ramp of a term on unlabeled batches, in its turn, has not begun yet."""
        return any(
            regularizer.acts_without_labels
            and self._has_turn(regularizer)
            and not self.strengths.ramp(regularizer)
            for regularizer in self.regularizers.values()
        )

    def compare_passes(self, labeled: bool) -> bool:
        """Whether one of this update compares the predictions of two passes."""
        methods = self.act(labeled).values()
        return any(r.compares_passes and not r.uses_hidden_states for r in methods)

    def need_float32(self, dtype: torch.dtype | None, labeled: bool, *, narrow: bool) -> bool:
        """Whether rounding would spoil what one of this update adds, compares or bounds.

        The clean pass, task loss included, is then float32 too: a method compares with it.

        Args:
            dtype: of autocast, if there is one.
            labeled: whether the batch has labels.
            narrow: whether frozen weights in few bits are read as float32.
        """
        if dtype == torch.float16 and self.strengths.bounded:
            return True  # also where the task alone is measured, before a scaler has its say
        runs = dtype == torch.float16 or narrow
        methods = self.act(labeled).values()
        return any(r.needs_float32 or (runs and r.runs_model) for r in methods)

    def losses(self, clean: ForwardPass, seed: int, calls: int) -> Iterator[tuple[str, Tensor]]:
        """Losses () by name, without weights, with draws that depend on seed, name and call."""
        for regularizer in self.regularizers.values():
            if regularizer.has_loss:
                regularizer.diagnostics.clear()
        acting = self.act(clean.labeled)
        replaced = any(regularizer.replaces_task_loss for regularizer in acting.values())
        for name, regularizer in acting.items():
            if regularizer.rows == 1:
                rows = clean
            else:
                with rng.stream(clean.device, seed, f"{name}/rows", calls):
                    rows = part_of(clean, regularizer, runs=clean.labeled and not replaced)
            with rng.stream(clean.device, seed, name, calls):
                term = regularizer.loss(rows)
            found = regularizer.diagnostics
            regularizer.diagnostics = {key: value.detach() for key, value in found.items()}
            if term is not None:
                yield name, term

    def _has_turn(self, regularizer: Regularizer) -> bool:
        return self.strengths.step % regularizer.every == 0
