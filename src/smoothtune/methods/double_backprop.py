r"""Double backpropagation: small derivatives of the loss.

Reference: Drucker, LeCun: Improving Generalization Performance Using Double Backpropagation,
    IEEE Transactions on Neural Networks 3 (1992) 991-997.

Equation:
    $$total = L(f(x), y) + weight \cdot \frac{1}{2} \|\frac{\partial L}{\partial x}\|^2$$
    $L$ the loss of one example.

Departures:
    * x are the word embeddings, the only continuous input a language model has.
    * The task loss is a mean over B examples: its gradient is multiplied by B. Where a task
      averages over tokens instead (token classification), L is an example's share times B.
    * The factor 1/2 and the weight are not those of the paper (RECONSTRUCTED).
"""

from typing import ClassVar

from torch import Tensor, nn

from smoothtune.core.forward import ForwardPass
from smoothtune.core.predictions import ONE_SEQUENCE
from smoothtune.core.regularizer import NonNegative, Positive, method
from smoothtune.core.traits import Traits
from smoothtune.functional.adversarial import task_loss
from smoothtune.functional.derivative_norms import gradient, squared_norm
from smoothtune.methods.derivative_base import ClippedPenalty
from smoothtune.nn.architecture import is_multiple_choice_model
from smoothtune.nn.model_facts import predicts_tokens


@method(
    "double_backprop",
    Traits(
        group="derivatives",
        step="1 pass, 1 backward to the embeddings that is itself trained through",
        lowers=("loss gradient",),
        points=("word",),
        differentiates=True,
        needs_labels=True,
        holds_task_loss=True,
        derivative_order=2,
        products="bfloat16",
    ),
)
class DoubleBackprop(ClippedPenalty):
    """Small derivatives of the task loss in the word embeddings."""

    usual_bound: ClassVar[float] = 0.1
    weight: NonNegative | None = None
    """Factor of the term, in place of share. Not stated for language models."""
    share: Positive | None = 0.03
    """The term's gradient, as a share of the task's. 0.3 kept a model from learning."""

    def refuses(self, model: nn.Module) -> str | None:
        """Only the gradient of a mean over examples holds each example's."""
        if predicts_tokens(model):
            return "needs each example's gradient, and the loss is a mean over tokens: use jacobian"
        return ONE_SEQUENCE if is_multiple_choice_model(model) else None

    def loss(self, clean: ForwardPass) -> Tensor:
        """1/2 ||dL/dx||^2, a mean over examples."""
        row = gradient(task_loss(clean.run()), clean.delta()) * len(clean.mask)
        return self.clipped(0.5 * squared_norm(row)).mean()
