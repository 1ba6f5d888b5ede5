"""An exponential moving average of the weights: the teacher of a proximal term."""

import copy
from typing import Any

import torch
from torch import Tensor, nn

from smoothtune.core.forward import Dropout, ForwardPass
from smoothtune.nn.low_bit import Float32Compute


class Teacher:
    """w~_t = beta w~_{t-1} + (1 - beta) w_t, from w~_0 = w_0.

    Attributes:
        model: the frozen copy. Weights are shared with the student until they are trained, and so
            is its configuration.
    """

    def __init__(self, student: nn.Module):
        shared: dict[int, Any] = {id(w): w for w in student.parameters() if not w.requires_grad}
        for module in student.modules():  # weights that a module computes, which cannot be copied
            computed = (x for x in vars(module).values() if isinstance(x, Tensor) and x.grad_fn)
            shared |= {id(value): value.detach() for value in computed}
            config = vars(module).get("config")  # says what labels are, from the first ones on
            shared[id(config)] = config
        self.model: nn.Module = copy.deepcopy(student, shared)
        self.model.__dict__.pop("forward", None)  # accelerate's wrapper would run the student
        # pairs are made here: other methods may replace the student's parts later
        self._modules = list(zip(student.modules(), self.model.modules(), strict=True))
        self._averaged = [
            (name, weight, average)
            for (name, weight), average in zip(
                student.named_parameters(), self.model.parameters(), strict=True
            )
            if weight.requires_grad
        ]
        self.model.requires_grad_(False)

    def _separate(self, name: str, weight: nn.Parameter) -> None:
        """Give the teacher a copy of a weight that was shared because it was frozen."""
        average = nn.Parameter(weight.detach().clone(), requires_grad=False)
        for module in self.model.modules():
            for key, parameter in module._parameters.items():
                if parameter is weight:
                    module._parameters[key] = average
        self._averaged.append((name, weight, average))

    def run(self, clean: ForwardPass, dropout: Dropout) -> ForwardPass:
        """The teacher's predictions on the batch of the student's pass, without graph.

        Every module of the teacher is in the mode of the student's.
        """
        for module, copied in self._modules:
            copied.training = module.training
        for name, weight in list(self.model.named_parameters()):
            if weight.requires_grad:  # the student's, unfrozen since, and it has not moved yet
                self._separate(name, weight)
        with torch.no_grad(), Float32Compute(self.model):  # as the student's
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
        averaged = {name for name, _, _ in self._averaged}
        for name, weight in list(self.model.named_parameters()):
            if name in state and name not in averaged:  # frozen so far in this run
                self._separate(name, weight)
        for name, _, average in self._averaged:
            average.copy_(state[name])
