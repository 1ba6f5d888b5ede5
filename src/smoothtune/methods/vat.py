r"""VAT: virtual adversarial training.

Reference: Miyato, Maeda, Koyama, Ishii: Virtual Adversarial Training: A Regularization Method for
    Supervised and Semi-Supervised Learning, IEEE TPAMI 2018 (arXiv 1704.03976).
    Code: takerum/vat_tf.

Equation:
    $$total = L(f(x), y) + weight \cdot E \, KL(p \,\|\, p(. | x + r))$$
    $p = p(. | x)$ without gradient;
    $$r = \epsilon d, \quad d \gets g / \|g\|_2$$
    $$g = \nabla_d KL(p \,\|\, p(. | x + \xi d))$$
    from $d \sim N(0, I)$, of length 1: power iteration on the Hessian of the KL at 0. Squared error
    for regression.

Departures:
    * The input is the word embedding, with norms over all real tokens of an example.
    * epsilon is relative to ||x|| and RECONSTRUCTED; `units="absolute"` has the code's 8.
    * xi is always relative to ||x||: the released 1e-6 is lost in float32 rounding on transformers.
    * Dropout masks of all passes are shared, so that the KL is 0 without r; the released code draws
      new ones.
    * The mean of the paper is over labeled and unlabeled rows together. With a batch of each in an
      update the term is the sum of their two means: a `weight` of 0.5 is 1 in the paper.
"""

from pydantic import PositiveInt
from torch import Tensor

from smoothtune.core.forward import ForwardPass
from smoothtune.core.regularizer import NonNegative, Penalty, Positive, method
from smoothtune.core.traits import Traits
from smoothtune.functional.adversarial import ascend, normalize, unit
from smoothtune.functional.divergences import divergence, kl
from smoothtune.methods.adversarial_base import Adversarial
from smoothtune.nn import rng

DEFAULTS = {"relative": 0.02, "absolute": 8.0}


@method(
    "vat",
    Traits(
        group="worst case",
        step="2 passes, 1 search",
        lowers=("worst divergence",),
        small_difference=True,
        products="tf32",
    ),
)
class VAT(Adversarial, Penalty):
    """The prediction is the label of the worst perturbation; needs no true label."""

    weight: NonNegative | None = None
    """Factor of the term, in place of share. Paper: 1."""
    share: Positive | None = 0.3
    """The term's gradient, as a share of the task's."""
    epsilon: Positive | None = None
    """epsilon, l2 norm of r. Released code: 8; default 0.02 (relative), 8 (absolute)."""
    xi: Positive = 0.01
    """xi, l2 norm of the probe, relative to ||x||. Released code: 1e-6, absolute."""
    num_steps: PositiveInt = 1
    """Power iterations. Paper: 1."""

    def loss(self, clean: ForwardPass) -> Tensor:
        """KL(p || p(.|x + r)), also on batches without labels."""
        clean = self.clean_target(clean.run())
        probe = self.xi * unit(clean, self.layer, "l2", "example", "relative")
        draws = rng.normal_like(clean.zeros(self.layer)) * clean.mask[..., None]

        def target(run: ForwardPass) -> Tensor:
            return divergence(clean, run, kl, detach_p=True)

        direction, gradient = ascend(
            clean,
            probe * normalize(draws, "l2", "example"),
            target,
            lambda _, g: probe * normalize(g, "l2", "example"),
            point=self.layer,
            num_steps=self.num_steps,
            dropout=self.dropout,
        )
        epsilon = self.epsilon or DEFAULTS[self.units]
        r = epsilon * self.unit(clean) * normalize(direction, "l2", "example")
        return target(self.attacked(clean, r, gradient))
