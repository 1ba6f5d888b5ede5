r"""ALUM: adversarial training for large neural language models.

Reference: Liu, Cheng, He, Chen, Wang, Poon, Gao: Adversarial Training for Large Neural Language
    Models, 2020 (arXiv 2004.08994). Code: namisan/mt-dnn, branch v0.2, alum/.

Equation:
    $$total = L(f(x), y) + weight \cdot \max_{\|\delta\| \le \epsilon} l_v(f(x + \delta), f(x))$$
    $l_v$: symmetric KL, squared error for regression; the search is SMART's, without its proximal
    term; a curriculum trains without the second term first. The paper calls weight $\alpha$: 1 in
    fine-tuning, 10 in pre-training.

Departures:
    * Sizes are relative to the embeddings and RECONSTRUCTED, as for `smart`: with the paper's
      1e-5 the term is next to nothing. `units="absolute"` has its values.
    * The released code scales the noise up to size 1 instead of projecting it, and perturbs the
      input of block 0; see `smart`.
    * Both KLs carry gradient into both predictions, as in the equation; `detach_targets=True` makes
      the target of each a constant, as in the released code.
    * How long the curriculum is, is not stated: `ramp_start` begins later, `ramp_steps` lets the
      term grow. By default it acts from the first update on, held by its bound.
    * With a bound the clean prediction is a constant, see `r3f`.
    * The released script never runs its adversarial branch.
    * Dropout masks of all passes are shared; the released code draws new ones.
"""

from torch import Tensor

from smoothtune.core.forward import ForwardPass
from smoothtune.core.regularizer import NonNegative, Positive, method
from smoothtune.core.traits import Traits
from smoothtune.functional.divergences import divergence, symmetric_kl, symmetric_kl_detached
from smoothtune.methods.adversarial_base import AdversarialSearch


@method(
    "alum",
    Traits(
        group="worst case",
        step="2 passes, 1 search",
        lowers=("worst divergence",),
        small_difference=True,
        products="tf32",
    ),
)
class ALUM(AdversarialSearch):
    """Predictions must not change under the worst small perturbation, after a plain start."""

    weight: NonNegative | None = None
    """alpha, in place of share. Paper: 1."""
    share: Positive | None = 0.3
    """The term's gradient, as a share of the task's."""
    detach_targets: bool = False
    """Targets of both KLs are constants. Released code: yes. Regression is left as it is."""

    def loss(self, clean: ForwardPass) -> Tensor:
        """The divergence under the perturbation found."""
        target = self.clean_target(clean.run())
        delta, gradient = self._ascent.search(target, lambda run: divergence(target, run))
        measure = symmetric_kl_detached if self.detach_targets else symmetric_kl
        return divergence(target, self.attacked(target, delta, gradient), measure)
