"""Functions that compute a task loss, in the forms in which loops and trainers write them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from smoothtune.nn.hooks import WEIGHT_SIDE

NO_OUTPUTS = (
    "compute_loss gave a loss without outputs, and this method compares them: return (loss, "
    "outputs), in a Trainer where return_outputs is True, or use a method that needs none, such "
    "as mixout or l2_sp"
)
ComputeLoss = Callable[[nn.Module, dict[str, Any]], Any]
"""(model, batch) -> () mean loss over the batch or None, alone or with the outputs after it."""


def model_loss(model: nn.Module, batch: dict[str, Any]) -> tuple[Tensor | None, Any]:
    """`outputs.loss` as Hugging Face models compute it, None without labels, and the outputs."""
    outputs = model(**batch)
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
    return (factor.to(loss) if isinstance(factor, Tensor) else factor) * loss


def factor_of(compute_loss: ComputeLoss) -> float | Tensor:
    """What a loss is multiplied with, for its part in an update."""
    return compute_loss.factor if isinstance(compute_loss, Weighed) else 1.0


def loss_and_outputs(returned: Any) -> tuple[Tensor | None, Any]:
    """Take apart what a loss function has returned.

    Args:
        returned: a loss of one number, whatever its shape, or None; alone or with the outputs.

    Returns:
        The loss (), and the outputs, which are empty if there are none.

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
    return loss.reshape(()), outputs


def logits_of(model: nn.Module, outputs: Any) -> Tensor:
    """The logits among the outputs of an unwrapped model.

    Raises:
        ValueError: there are none, or several under other names.
    """
    if isinstance(outputs, tuple | list | Tensor):
        raise ValueError(
            f"{type(model).__name__} gives a {type(outputs).__name__}, and which part holds the "
            "logits is not known: set model.config.return_dict = True, or return a mapping, such "
            'as {"loss": loss, "logits": logits}'
        )
    if not outputs:
        raise ValueError(NO_OUTPUTS)
    if "logits" not in outputs:
        raise ValueError(
            f"{type(model).__name__} gives {', '.join(outputs)}, and no `logits` to compare: "
            f"{WEIGHT_SIDE}"
        )
    return outputs["logits"]
