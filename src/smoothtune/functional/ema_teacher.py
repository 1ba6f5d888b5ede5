"""An exponential moving average of the weights: the teacher of a proximal term."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from smoothtune.core.forward import Dropout, ForwardPass
from smoothtune.core.wide_weights import WideWeights


class Teacher:
    """w~_t = beta w~_{t-1} + (1 - beta) w_t, from w~_0 = w_0.

    Attributes:
        model: the frozen copy. Weights that do not train are shared with the student.
    """

    def __init__(self, student: nn.Module):
        shared = {id(weight): weight for weight in student.parameters() if not weight.requires_grad}
        self.model: nn.Module = copy.deepcopy(student, shared)
        self.model.__dict__.pop("forward", None)  # accelerate's wrapper would run the student
        # pairs are made here: other methods may reorder or replace the student's parts later
        self._modules = list(zip(student.modules(), self.model.modules(), strict=True))
        self._averaged = [
            (name, weight, average)
            for (name, weight), average in zip(
                student.named_parameters(), self.model.parameters(), strict=True
            )
            if weight.requires_grad
        ]
        self.model.requires_grad_(False)

    def run(self, clean: ForwardPass, dropout: Dropout) -> ForwardPass:
        """The teacher's predictions on the batch of a pass, without graph.

        Every module of the teacher is in the mode of the student's: a part that the student has in
        evaluation mode drops nothing out here either.

        Args:
            clean: the student's pass, which has run.
            dropout: masks "independent" of the student's, "shared" with them, or "off".
        """
        for module, copied in self._modules:
            copied.training = module.training
        with torch.no_grad(), WideWeights(self.model):  # as the student's
            return clean.at(dropout=dropout, model=self.model.to(clean.device))

    @torch.no_grad()
    def update(self, beta: float) -> None:
        """Move the average towards the present weights."""
        for _, weight, average in self._averaged:
            average.lerp_(weight.to(average.device), 1 - beta)

    def state_dict(self) -> dict[str, Tensor]:
        """The averaged weights by name, each of its own shape."""
        return {name: average for name, _, average in self._averaged}

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Set the averaged weights to what `state_dict` returned."""
        for name, _, average in self._averaged:
            average.copy_(state[name])
