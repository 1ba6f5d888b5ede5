r"""FreeLB: free large-batch adversarial training.

Reference: Zhu, Cheng, Gan, Sun, Goldstein, Liu: FreeLB: Enhanced Adversarial Training for Natural
    Language Understanding, ICLR 2020 (arXiv 1909.11764). Code: zhuchen03/FreeLB.

Equation:
    $$total = \frac{1}{K} \sum_{t<K} L(f(x + \delta_t), y)$$
    in place of $L(f(x), y)$, from
    $$\delta_0 \sim U(-1, 1) \cdot init\_size / \sqrt{N D}$$
    (l2; $N$ real tokens) or $U(-1, 1) \cdot init\_size$ (linf), by
    $$\delta_{t+1} = Project(\delta_t + step\_size \cdot g_t / \|g_t\|)$$
    $$g_t = \nabla_\delta L(f(x + \delta_t), y)$$

Departures:
    * Sizes are relative to the embeddings and RECONSTRUCTED, as the paper's were tuned for each
      task and model. `units="absolute"` has those of its RTE recipe for RoBERTa-large.
    * As in the released code one backward pass of a step serves both ascent and training; here the
      gradients of the weights wait until the objective is back-propagated, so the term composes.
    * Dropout masks are shared by the K steps, as in the paper, on every model; the released code
      has that for one model of its own.
    * Perturbations stay zero on padding; the released code masks only the first.
"""

from dataclasses import replace

from pydantic import PositiveInt
from torch import Tensor

from smoothtune.core.forward import ForwardPass
from smoothtune.core.regularizer import NonNegative, Positive, TaskLoss, method
from smoothtune.core.traits import Between, Traits
from smoothtune.functional.adversarial import (
    Norm,
    normalize,
    project,
    task_loss,
    uniform_start,
    with_defaults,
)
from smoothtune.methods.adversarial_base import Adversarial
from smoothtune.nn import rng
from smoothtune.nn.gradients import AccumulatedLoss

# step_size, init_size, epsilon
DEFAULTS = {"relative": (0.005, 0.005, 0.01), "absolute": (0.06, 0.16, 0.14)}


@method(
    "freelb",
    Traits(
        group="adversarial",
        step="K = 3 passes, K - 1 backwards to the perturbation",
        lowers=("worst divergence",),
        searched={"epsilon": Between(0.002, 0.1, log=True)},
        needs_labels=True,
    ),
)
class FreeLB(Adversarial, TaskLoss):
    """The task loss is averaged over the steps of an ascent."""

    step_size: Positive | None = None
    """adv_lr, step size. Paper: 0.025-0.1; default 0.005 (relative), 0.06 (absolute)."""
    num_steps: PositiveInt = 3
    """K, steps. Paper: 3 (RoBERTa), 2-4 (ALBERT)."""
    init_size: NonNegative | None = None
    """adv_init_mag, size of delta_0. Paper: 0.16-0.64 (RoBERTa); default 0.005 (relative), 0.16
    (absolute)."""
    epsilon: NonNegative | None = None
    """adv_max_norm, radius of the ball, 0: no limit. Paper: 0.14-0.4 (RoBERTa), mostly 0 (ALBERT);
    default 0.01 (relative), 0.14 (absolute)."""
    norm: Norm = "l2"
    """Norm of the ball, over an example. Paper: l2."""

    @property
    def traits(self) -> Traits:
        """Every step but the last differentiates at the weights."""
        return replace(super().traits, whole_weights=self.num_steps > 1)

    def loss(self, clean: ForwardPass) -> Tensor:
        """Mean task loss of K steps; no clean forward is run."""
        sizes = (self.step_size, self.init_size, self.epsilon)
        step_size, init_size, radius = with_defaults(sizes, DEFAULTS[self.units])
        u = self.unit(clean, self.norm)
        draws = rng.uniform_like(clean.zeros(self.layer))
        delta = uniform_start(draws, clean.mask, init_size * u, self.norm)
        losses = AccumulatedLoss(clean.weights)
        shared = clean.has_run  # another method needs what is below the perturbation
        for _ in range(self.num_steps - 1):
            run = clean.at(delta.requires_grad_(), self.layer, dropout=self.dropout)
            (slope,) = losses.add(task_loss(run), run.delta(self.layer), keep_graph=shared)
            del run  # and its graph
            gradient = slope * clean.mask[..., None]
            delta = delta.detach() + step_size * u * normalize(gradient, self.norm, "example")
            delta = project(delta, radius * u, self.norm, "example") if radius else delta
            self.log(clean, delta, gradient)
        last = task_loss(clean.at(delta, self.layer, dropout=self.dropout))
        return (losses.total() + last if losses.value is not None else last) / self.num_steps
