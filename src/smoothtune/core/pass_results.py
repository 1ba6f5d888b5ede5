"""What a forward pass has computed."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor, nn

from smoothtune.core.compute_loss import logits_of
from smoothtune.nn.architecture import unwrap
from smoothtune.nn.hooks import INSTEAD, Point


class Result(NamedTuple):
    """What a forward computed."""

    loss: Tensor | None
    outputs: Any
    hidden_states: list[Tensor] | None
    values: dict[Point, Tensor]  # (B, T, D) at every point before the perturbation, with graph


class PassResults:
    """The results of a `ForwardPass`, which are there once it has run."""

    model: nn.Module
    _result: Result | None = None

    @property
    def has_run(self) -> bool:
        """Whether the forward has been computed."""
        return self._result is not None

    @property
    def _finished(self) -> Result:
        if self._result is None:
            raise RuntimeError(
                "this pass has not run: call `run()` before its loss, outputs or hidden states"
            )
        return self._result

    @property
    def input_ids(self) -> Tensor:
        """(B, T) the tokens."""
        raise NotImplementedError

    @property
    def outputs(self) -> Any:
        """What the model returned."""
        return self._finished.outputs

    @property
    def logits(self) -> Tensor:
        """(B, C) logits or scores; (B, T, C) for token tasks.

        Raises:
            ValueError: the model gives none, or several under other names.
        """
        return logits_of(unwrap(self.model), self.outputs)

    @property
    def hidden_states(self) -> tuple[Tensor, ...]:
        """L+1 tensors (B, T, D): the input of block 0, then the output of every block.

        Raises:
            RuntimeError: they were not recorded, or are no states of the batch's tokens.
        """
        states = self._finished.hidden_states
        if states is None:
            raise RuntimeError("hidden states were not recorded: the trait hidden_states is False")
        tokens = self.input_ids.shape
        if other := [tuple(s.shape) for s in states if s.shape[:-1] != tokens]:
            raise RuntimeError(
                f"a hidden state of shape {other[0]} does not fit a batch of {tuple(tokens)} "
                f"tokens: {INSTEAD}"
            )
        return tuple(states)
