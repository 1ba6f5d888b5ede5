r"""SMART: smoothness-inducing adversarial regularization and Bregman proximal point optimization.

Reference: Jiang, He, Chen, Liu, Gao, Zhao: SMART: Robust and Efficient Fine-Tuning for Pre-trained
    Natural Language Models through Principled Regularized Optimization, ACL 2020
    (arXiv 1911.03437). Code: namisan/mt-dnn.

Equation:
    $$total = L(f(x), y) + weight \cdot (\lambda_s R_s + \mu D)$$
    $$R_s = E \max_{\|\delta\| \le \epsilon} l_s(f(x + \delta), f(x))$$
    $$D = E \, l_s(f(x), \tilde{f}(x))$$
    $l_s$: symmetric KL, squared error for regression; from $\delta \sim N(0, \sigma^2 I)$
    $$\delta \gets Project(\delta + \eta g / \|g\|), \quad g = \nabla_\delta l_s$$
    the teacher $\tilde{f}$ has the weights $\tilde{w} \gets \beta \tilde{w} + (1 - \beta) w$,
    updated after every step.

Departures:
    * With the paper's sigma = epsilon = 1e-5 the term is next to nothing (6e-6 on a tuned MiniLM,
      whose embeddings have an rms of 0.06). Sizes are relative to the embeddings and RECONSTRUCTED,
      with eta / epsilon = 100 as in the paper; `units="absolute"` has its values.
    * The released code adds the gradient to the noise, divides by the largest entry of each token
      and never projects. Epsilon only guards the division: the perturbation is the initial noise
      scaled up to size 1. `compat="mt-dnn"` reproduces it. The gradient of its outer loss has
      detached targets, about half the true one. Its inner loss `stable_kl` is no KL. For
      regression it has the error over all pairs of examples.
    * Other code differs in the criteria. The inner one matters where the step is large beside the
      noise, and with released sizes it is not.
    * mt-dnn: inner stable_kl, summed over the batch; outer sym_kl. Its other outer criteria are kl
      (of the clean prediction from the perturbed one), stable_kl (targets detached), js and mse.
    * smart-pytorch: inner kl, outer sym_kl. `compat="mt-dnn", inner_criterion="kl"` with a step
      size of 1e-3 / batch size (its inner loss is a mean) and weight * batch size (its outer one
      is a sum).
    * vat-pytorch: its SMART has the same losses, the outer one a mean: the weight as it is.
    * CreAT: the same again, guard 1e-5. But the first noise stays in the embeddings when the
      second is added, which no field here does.
    * The released code perturbs the input of block 0 (`layer=0`).
    * No released code has D. The teacher is a moving average that starts at the first weights.
    * Dropout masks of all passes are shared, so that R_s and D measure smoothness only; the
      released code draws new ones. The paper does not say.
    * With a bound the clean prediction is a constant in R_s, see `r3f`.
"""

import logging
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor, nn

from smoothtune.core.forward import ForwardPass
from smoothtune.core.predictions import heads, no_compat
from smoothtune.core.regularizer import NonNegative, Positive, Probability, method
from smoothtune.core.traits import Traits
from smoothtune.functional.divergences import (
    Divergence,
    check_released,
    divergence,
    kl,
    squared_error,
    symmetric_kl,
    symmetric_kl_detached,
)
from smoothtune.functional.ema_teacher import Teacher
from smoothtune.methods.adversarial_base import AdversarialSearch

logger = logging.getLogger(__name__)

Criterion = Literal["sym_kl", "kl", "stable_kl", "js", "mse"]

MT_DNN = (1e-5, 1e-5, 1e-6)  # sigma, step_size, guard of the division


def stable_kl(p: Tensor, q: Tensor, epsilon: float = 1e-6) -> Tensor:
    """mt-dnn's inner loss sum_c 2 q_c (logit q_c - logit p_c), log-odds constant; shape (...)."""

    def log_odds(probability: Tensor) -> Tensor:
        return -(1 / (probability + epsilon) - 1 + epsilon).detach().log()

    p, q = p.softmax(-1), q.softmax(-1)
    return 2 * (q * (log_odds(q) - log_odds(p))).sum(-1)


def mt_dnn_js(p: Tensor, q: Tensor) -> Tensor:
    """mt-dnn's JSCriterion, KL(M || P) + KL(M || Q) with the mean M a constant; shape (...)."""
    mean = ((p.softmax(-1) + q.softmax(-1)) / 2).detach()
    log_p, log_q = p.log_softmax(-1), q.log_softmax(-1)
    return (mean * (2 * mean.log() - log_p - log_q)).sum(-1)


def all_pairs(clean: ForwardPass, noisy: ForwardPass) -> Tensor:
    """(B, B) mt-dnn's regression error: squared differences of every two examples' scores."""
    return (clean.logits.view(-1, 1) - noisy.logits.view(1, -1)).square()


def mean_squared_error(p: Tensor, q: Tensor) -> Tensor:
    """Mean over classes of (p - q)^2; shape (...)."""
    return (p - q).square().mean(-1)


# (target, scores that are perturbed) -> loss of an example
PAPER: dict[Criterion, Divergence] = {"sym_kl": symmetric_kl, "kl": kl, "mse": squared_error}
RELEASED_INNER: dict[Criterion, Divergence] = {
    "sym_kl": symmetric_kl_detached,
    "kl": kl,
    "stable_kl": stable_kl,
    "js": mt_dnn_js,
    "mse": mean_squared_error,
}
RELEASED_OUTER: dict[Criterion, Divergence] = RELEASED_INNER | {
    "kl": lambda clean, noisy: kl(noisy, clean),
    "stable_kl": lambda clean, noisy: stable_kl(noisy.detach(), clean),
}


@method(
    "smart",
    Traits(
        group="worst case",
        step="2 passes, 1 search, 1 forward of the teacher",
        lowers=("worst divergence",),
        small_difference=True,
        products="tf32",
    ),
)
class SMART(AdversarialSearch):
    """Predictions change neither under the worst small perturbation nor fast between steps."""

    weight: NonNegative | None = None
    """Factor of lambda_s R_s + mu D, in place of share. Paper: 1."""
    share: Positive | None = 0.3
    """The term's gradient, as a share of the task's."""
    lambda_s: NonNegative = 1.0
    """lambda_s, strength of the adversarial term. Paper: 1, 3 or 5; 0 leaves it out."""
    mu: NonNegative | None = None
    """mu, strength of the proximal term. Paper: 1; 0 with `compat`, whose code has none."""
    beta: Probability = 0.99
    """beta, momentum of the teacher. Paper: 0.99 in the first 10 % of the updates."""
    late_beta: Probability = 0.999
    """beta after `late_after` updates. Paper: 0.999."""
    late_after: NonNegative | None = 0.1
    """Updates after which `late_beta` holds, below 1 a fraction of the run; None: never. Paper:
    0.1, which a run of unknown length leaves out."""
    compat: Literal["mt-dnn"] | None = None
    """"mt-dnn": number and gradient of the released code; sizes 1e-5, 1e-5 and guard 1e-6."""
    inner_criterion: Criterion | None = None
    """Loss that the search climbs. Paper: l_s (default: `criterion`). compat: released code
    stable_kl (the default), other code kl; the target is a constant."""
    criterion: Criterion = "sym_kl"
    """l_s of classification: sym_kl (paper), kl from the clean prediction, or mse, the squared
    error of the scores. compat: the released adv_loss, with its gradients: SymKlCriterion (its
    default), KlCriterion, NsKlCriterion, JSCriterion, MseCriterion. Regression has its own."""

    def __post_init__(self):
        super().__post_init__()
        if self.compat:
            self._ascent = self.ascent(MT_DNN)
        if self.compat and self.rows < 1:
            raise ValueError("compat compares examples of a whole batch, so rows is 1")
        inner = self.inner_criterion or ("stable_kl" if self.compat else self.criterion)
        for name, chosen in (("criterion", self.criterion), ("inner_criterion", inner)):
            if chosen not in PAPER and self.compat is None:
                raise ValueError(
                    f'{name}="{chosen}" is a form of the released code: set compat="mt-dnn"'
                )
        self._inner = (RELEASED_INNER if self.compat else PAPER)[inner]
        self._outer = (RELEASED_OUTER if self.compat else PAPER)[self.criterion]
        self._mu = self.mu if self.mu is not None else 0.0 if self.compat else 1.0
        if not self.lambda_s and not self._mu:
            raise ValueError("smart has no term left: give lambda_s or mu a value above 0")
        self._teacher: Teacher | None = None
        self._updates = 0

    @property
    def traits(self) -> Traits:
        """The teacher has a copy of the weights."""
        return replace(super().traits, whole_weights=bool(self._mu))

    @property
    def has_own_graph(self) -> bool:
        """Not with the proximal term, which is a function of the clean pass alone."""
        return super().has_own_graph and not self._mu

    def refuses(self, model: nn.Module) -> str | None:
        """The released code compares the class scores of one prediction."""
        return no_compat(model, self.compat)

    def attach(self, model: nn.Module) -> None:
        """Copy the model: the first teacher."""
        self._updates = 0
        self._teacher = Teacher(model) if self._mu else None

    def detach(self, model: nn.Module) -> None:
        """Drop the teacher."""
        self._teacher = None

    def loss(self, clean: ForwardPass) -> Tensor:
        """lambda_s R_s + mu D; a ValueError with `compat` on a task unknown to that code."""
        clean.run()
        if self.compat:
            check_released(self.name, self.compat, clean)
        terms = []
        if self.lambda_s:
            terms.append(self.lambda_s * self.smoothness(clean))
        if self._mu:
            terms.append(self._mu * self.proximal(clean))
        return torch.stack(terms).sum()

    def smoothness(self, clean: ForwardPass) -> Tensor:
        """R_s at the perturbation found."""
        clean = clean.constant() if self.max_share is not None else clean
        pairs = self.compat is not None and heads(clean)[0].regression

        def inner(run: ForwardPass) -> Tensor:
            if pairs:  # mt-dnn climbs a sum: by B, as `gradient_at` undoes it
                return all_pairs(clean, run).sum() / len(clean.mask)
            return divergence(clean, run, self._inner)

        if self.compat:
            delta, gradient = self.released_search(clean, inner, self._ascent.step_size)
        else:
            delta, gradient = self._ascent.search(clean, inner)
        noisy = self.attacked(clean, delta, gradient)
        return all_pairs(clean, noisy).mean() if pairs else divergence(clean, noisy, self._outer)

    def proximal(self, clean: ForwardPass) -> Tensor:
        """D: divergence from the teacher on the clean input."""
        if self._teacher is None:
            raise RuntimeError("attach smart to the model first: its proximal term needs a teacher")
        measure = symmetric_kl if self.compat else self._outer  # no released code has this term
        return divergence(clean, self._teacher.run(clean, self.dropout), measure)

    def after_step(self, model: nn.Module) -> None:
        """w~ <- beta w~ + (1 - beta) w."""
        self._updates += 1
        if self._teacher is not None:
            self._teacher.update(self.late_beta if self._is_late() else self.beta)

    def _is_late(self) -> bool:
        if self.late_after is None:
            return False
        is_fraction = 0 < self.late_after < 1
        if not is_fraction or self.num_training_steps is not None:
            return self._updates > self.updates(self.late_after)
        if self._updates == 1:
            logger.warning(
                "the length of the run is not known, so smart's teacher keeps beta=%s: give "
                "num_training_steps to bind",
                self.beta,
            )
        return False

    def state_dict(self) -> dict[str, Tensor]:
        """The teacher's weights and the number of updates."""
        teacher = self._teacher.state_dict() if self._teacher else {}
        return teacher | {"updates": torch.tensor(self._updates)}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore them."""
        self._updates = int(state["updates"])
        if self._teacher:
            self._teacher.load_state_dict(state)
