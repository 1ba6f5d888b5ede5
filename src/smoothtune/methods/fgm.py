r"""FGM: fast gradient method, adversarial training in one step.

Reference: Miyato, Dai, Goodfellow: Adversarial Training Methods for Semi-Supervised Text
    Classification, ICLR 2017 (arXiv 1605.07725).

Equation:
    $$total = L(f(x), y) + weight \cdot L(f(x + r), y)$$
    $$r = \epsilon g / \|g\|_2, \quad g = \nabla_x L(f(x), y)$$
    over all tokens of an example.

Departures:
    * The paper normalizes the embeddings; here epsilon is relative to ||x|| instead, and
      RECONSTRUCTED. `units="absolute"` has 1, usual in public code on transformers.
    * Public code perturbs the embedding matrix, found by its name, so all places of a token in a
      batch move alike, and nothing happens where no name fits. The equation, and this, perturb the
      input.
    * Dropout masks of both passes are shared, so that r belongs to the loss it raises. The paper
      does not say.
"""

from torch import Tensor

from smoothtune.core.forward import ForwardPass
from smoothtune.core.regularizer import Penalty, Positive, method
from smoothtune.core.traits import Between, Traits
from smoothtune.functional.adversarial import gradient_at, normalize, task_loss
from smoothtune.methods.adversarial_base import Adversarial

DEFAULTS = {"relative": 0.01, "absolute": 1.0}


@method(
    "fgm",
    Traits(
        group="adversarial",
        step="2 passes, 1 backward to the embeddings",
        lowers=("worst divergence",),
        searched={"epsilon": Between(0.001, 0.1, log=True)},
        differentiates=True,
        needs_labels=True,
        holds_task_loss=True,
    ),
)
class FGM(Adversarial, Penalty):
    """The task loss is added once more, one step up its gradient."""

    epsilon: Positive | None = None
    """epsilon, l2 norm of r. Paper: 5, normalized embeddings; default 0.01 (relative), 1
    (absolute)."""

    def loss(self, clean: ForwardPass) -> Tensor | None:
        """Task loss at x + r."""
        gradient = gradient_at(clean, task_loss(clean.run()), self.layer, keep_graph=True)
        epsilon = self.epsilon or DEFAULTS[self.units]
        r = epsilon * self.unit(clean) * normalize(gradient, "l2", "example")
        return self.attacked(clean, r, gradient).loss
