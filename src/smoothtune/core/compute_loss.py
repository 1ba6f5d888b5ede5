"""Functions that compute a task loss, as loops and trainers write them, and what they give."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

from torch import Tensor, nn

from smoothtune.nn.architecture import unwrap
from smoothtune.nn.hooks import INSTEAD, WEIGHT_SIDE, Point

NO_LOSS = (
    "the model gave no loss on a batch that is not marked as unlabeled: give it labels under the "
    'name it declares, or set batch["unlabeled"] = True'
)
ComputeLoss = Callable[[nn.Module, dict[str, Any]], Any]
"""(model, batch) -> () mean loss over the batch or None, alone or with the outputs after it."""


def model_loss(model: nn.Module, batch: dict[str, Any]) -> tuple[Tensor | None, Any]:
    """`outputs.loss` as Hugging Face models compute it, None without labels, and the outputs.

    Raises:
        ValueError: the outputs have no names.
    """
    outputs = model(**batch)
    _check_names(unwrap(model), outputs)
    return outputs.get("loss"), outputs


@dataclass(frozen=True)
class Weighed:
    """A loss times a factor."""

    compute_loss: ComputeLoss
    factor: float | Tensor

    def __call__(self, model: nn.Module, batch: dict[str, Any]) -> tuple[Tensor | None, Any]:
        """The loss (), and the outputs."""
        value, outputs = loss_and_outputs(self.compute_loss(model, batch))
        return value if value is None else times(self.factor, value), outputs


def times(factor: float | Tensor, loss: Tensor) -> Tensor:
    """() a loss times a factor, in the loss's precision, as if the factor were a number."""
    if not isinstance(factor, Tensor) and factor == 1:
        return loss
    return (factor.to(loss) if isinstance(factor, Tensor) else factor) * loss


def factor_of(compute_loss: ComputeLoss) -> float | Tensor:
    """What a loss is multiplied with, for its part in an update."""
    return compute_loss.factor if isinstance(compute_loss, Weighed) else 1.0


def loss_and_outputs(returned: Any) -> tuple[Tensor | None, Any]:
    """The loss () or None, and the outputs, empty if there are none.

    Args:
        returned: by a loss function: a loss of one number, whatever its shape, or None; alone or
            with the outputs.

    Raises:
        ValueError: it is something else.
    """
    pair = isinstance(returned, tuple | list) and len(returned) == 2
    loss, outputs = returned if pair else (returned, None)
    outputs = {} if outputs is None else outputs
    if loss is None:
        return None, outputs
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        shape = f" of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else ""
        raise ValueError(
            f"compute_loss gave a {type(loss).__name__}{shape} for the loss: return a tensor of "
            "one number, or (loss, outputs)"
        )
    return (loss if loss.ndim == 0 else loss.reshape(())), outputs


def _check_names(model: nn.Module, outputs: Any) -> None:
    if isinstance(outputs, tuple | list | Tensor):
        raise ValueError(
            f"{type(model).__name__} gives a {type(outputs).__name__}, and which part holds the "
            "loss or the logits is not known: set model.config.return_dict = True, or return a "
            'mapping, such as {"loss": loss, "logits": logits}'
        )


class Result(NamedTuple):
    """What a forward computed."""

    loss: Tensor | Callable[[Any], Tensor | None] | None  # or what computes it from the outputs
    outputs: Any
    hidden_states: list[Tensor] | None
    values: dict[Point, Tensor]  # (B, T, D) at every point before the perturbation, with graph


class PassResults:
    """The results of a `ForwardPass`, which are there once it has run."""

    model: nn.Module
    labeled: bool
    _result: Result | None = None
    _full: Self | None = None  # the pass over all rows, where this one has some of them
    _clean: Self | None = None  # the pass that this one perturbs

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
    def loss(self) -> Tensor | None:
        """() task loss, a mean over the batch; None without labels.

        Raises:
            RuntimeError: the pass has some rows of a batch.
            ValueError: a batch that counts as labeled has given no loss.
        """
        result = self._finished
        if self._full or (self._clean and self._clean._full):
            raise RuntimeError(
                "with rows below 1 a term cannot hold the task loss, which may be no mean over "
                "examples: leave rows at 1, or give the method every=k"
            )
        if not self.labeled:
            return None
        loss = result.loss(result.outputs) if callable(result.loss) else result.loss
        if loss is None:
            raise ValueError(NO_LOSS)
        self._result = result._replace(loss=loss)
        return loss

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
        model, outputs = unwrap(self.model), self.outputs
        _check_names(model, outputs)
        if not outputs:
            raise ValueError(
                "compute_loss gave a loss without outputs, and this method compares them: return "
                "(loss, outputs), in a Trainer where return_outputs is True, or use a method that "
                "needs none, such as mixout or l2_sp"
            )
        if "logits" not in outputs:
            raise ValueError(
                f"{type(model).__name__} gives {', '.join(outputs)}, and no `logits` to compare: "
                f"{WEIGHT_SIDE}"
            )
        return outputs["logits"]

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
