r"""Cross-Hoelder regularization: penalizes input gradients and Hessians of score differences.

Reference: Mustafa, Vandermeulen, Kloft: Input Hessian Regularization of Neural Networks, 2020
    (arXiv 2009.06571), after Hein, Andriushchenko: Formal Guarantees on the Robustness of a
    Classifier against Adversarial Manipulation, NeurIPS 2017 (Cross-Lipschitz regularization).

Equation (RECONSTRUCTED):
    $$total = L(f(x), y) + weight \cdot \Omega$$
    $$\Omega = \frac{1}{K^2} \sum_{i,j} [ \|\nabla d_{ij}\|^2 + \gamma \|\nabla^2 d_{ij}\|^2 ],
    \quad d_{ij} = f_i - f_j$$
    $K$ classes; a single score (regression) stands for itself:
    $$\Omega = \|\nabla f\|^2 + \gamma \|\nabla^2 f\|^2$$
    `norm="op"`: operator norm of the Hessian, $\|H v\|$ after a power iteration with $v$ detached;
    `norm="fro"`: Frobenius norm, estimated by random probes.

Departures:
    * Only the abstract of the paper and a sentence of the JacHess paper are known, and no code is
      public: all of the equation but the Hessian operator norm is RECONSTRUCTED.
    * The JacHess paper names the norms of gradient and Hessian of the logits; here they are those
      of differences, as what all logits have in common changes no prediction.
    * x are the word embeddings, the only continuous input a language model has. Images vary around
      1, embeddings around 0.05, where a Hessian of size 1e4 is small: by default derivatives are
      taken in units of the embeddings' root mean square. With absolute ones and weight 0.01 a run
      on SST-2 learned nothing.
    * With norm="fro" all pairs cost as much as one: the sum over them is 2K times the sum over the
      scores less their mean.
    * pairs="sampled" draws one pair for every example, whose term is scaled by K (K-1) / K^2.
    * Extractive QA has as many classes as real tokens, so only norm="fro", pairs="all".
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Literal

import torch
from pydantic import PositiveInt
from torch import Tensor, nn

from smoothtune.core.forward import ForwardPass
from smoothtune.core.predictions import Head, heads, no_class_scores
from smoothtune.core.regularizer import NonNegative, Positive, method
from smoothtune.core.traits import Traits
from smoothtune.functional.adversarial import Units
from smoothtune.functional.derivative_norms import Estimate, gradient, squared_norm
from smoothtune.functional.input_derivatives import InputDerivatives
from smoothtune.methods.derivative_base import DerivativePenalty
from smoothtune.nn import rng
from smoothtune.nn.architecture import is_embedding_model


def centered_scores(run: ForwardPass) -> Tensor:
    """(B, N) scores less their mean over the K classes, times sqrt(2 / K).

    Its squared derivatives, summed, are 1/K^2 sum_{i,j} of those of f_i - f_j.
    """
    if "start_logits" in run.outputs:
        spans = torch.stack([run.outputs["start_logits"], run.outputs["end_logits"]], 1)
        return _center(spans, run.mask[:, None]).flatten(1)
    (head,) = heads(run)
    if head.logits.shape[-1] == 1:
        return (head.logits * head.mask[..., None]).flatten(1)
    return _center(head.logits, head.mask[..., None].expand_as(head.logits)).flatten(1)


def _center(logits: Tensor, mask: Tensor) -> Tensor:
    classes = mask.sum(-1, keepdim=True).clamp(min=1).to(logits.dtype)
    mean = (logits * mask).sum(-1, keepdim=True) / classes
    return (logits - mean) * mask * (2 / classes).sqrt()


def operator_norm_squared(score: Tensor, x: Tensor, start: Tensor, iterations: int) -> Estimate:
    """||grad||^2 and ||H||_op^2 of one score (B,) of every example, (B,) each.

    The power iteration begins at `start`, and its last product is trained through.
    """
    row = gradient(score.sum(), x)
    v = _unit(start)
    for _ in range(iterations):
        v = _unit(gradient((row * v).sum(), x).detach())
    return Estimate(squared_norm(row), squared_norm(gradient((row * v).sum(), x)))


def _unit(v: Tensor) -> Tensor:
    norm = squared_norm(v).sqrt().clamp(min=torch.finfo(v.dtype).tiny)
    return v / norm.view(-1, *[1] * (v.ndim - 1))


@method(
    "cross_holder",
    Traits(
        group="derivatives",
        step="5 passes",
        lowers=("logit Jacobian", "logit Hessian"),
        points=("word",),
        differentiates=True,
        compares_classes=True,
    ),
)
class CrossHolder(DerivativePenalty):
    """Small first and second derivatives of the differences between class scores."""

    weight: NonNegative | None = None
    """Factor of Omega, in place of share. Paper: not stated."""
    share: Positive | None = 0.3
    """The term's gradient, as a share of the task's."""
    gamma: NonNegative = 1.0
    """Weight of the Hessian against the gradient. Paper: not stated."""
    units: Units = "relative"
    """Unit of x: the rms of the pre-trained word embeddings, or 1."""
    norm: Literal["op", "fro"] = "fro"
    """Norm of the Hessian, "fro" by estimator and probes. Paper: operator norm (dearer: third-order
    autograd)."""
    pairs: Literal["all", "sampled"] = "all"
    """Pairs of classes. Paper: not stated."""
    iterations: PositiveInt = 5
    """Power iterations of norm="op". Paper: not stated."""

    def input_derivatives(self) -> InputDerivatives:
        """Of norm="fro"."""
        return InputDerivatives(
            self.estimator, self.gamma > 0, self.num_probes, self.probe, self.difference_step
        )

    @property
    def traits(self) -> Traits:
        """As the estimator says; the power iteration needs third derivatives."""
        if self.norm == "fro":
            return super().traits
        return replace(super().traits, derivative_order=3, finite_differences=False)

    def refuses(self, model: nn.Module) -> str | None:
        """It compares the class scores of one prediction."""
        other = "r3f, smart or jacobian" if is_embedding_model(model) else "jacobian"
        reason = no_class_scores(model)
        return f"{reason}: use {other}" if reason else super().refuses(model)

    def loss(self, clean: ForwardPass) -> Tensor:
        """Omega; pair by pair a ValueError where an example has several predictions."""
        if self.norm == "fro" and self.pairs == "all":
            return self.clipped(self._estimated(clean, centered_scores)).mean()
        pairs, factor = self._pairs(_single_head(clean.run()))
        terms = [self._pair_term(clean, *pair) for pair in pairs]
        return self.clipped(factor * torch.stack(terms).sum(0)).mean()

    def _pairs(self, head: Head) -> tuple[list[tuple[Tensor, Tensor | None]], float]:
        """Classes (i, j) of every example, (B,) each, and the factor of their terms."""
        logits = head.logits[:, 0]
        batch, classes = logits.shape
        if classes == 1:
            return [(logits.new_zeros(batch).long(), None)], 1.0
        if self.pairs == "sampled":
            draws = (rng.uniform_like(logits[:, :2]) + 1) / 2
            i = (draws[:, 0] * classes).long().clamp(max=classes - 1)
            other = (draws[:, 1] * (classes - 1)).long().clamp(max=classes - 2)
            return [(i, other + (other >= i))], (classes - 1) / classes
        both = torch.combinations(torch.arange(classes, device=logits.device))
        return [(i.expand(batch), j.expand(batch)) for i, j in both], 2 / classes**2

    def _pair_term(self, clean: ForwardPass, i: Tensor, j: Tensor | None) -> Tensor:
        def difference(run: ForwardPass) -> Tensor:
            logits = _single_head(run).logits[:, 0]
            score = logits.gather(1, i[:, None])
            return score if j is None else score - logits.gather(1, j[:, None])

        if self.norm == "fro":
            return self._estimated(clean, difference)
        start = rng.normal_like(clean.zeros()) * clean.mask[..., None]
        score = difference(clean).squeeze(1).to(start.dtype)
        return self._omega(operator_norm_squared(score, clean.delta(), start, self.iterations))

    def _estimated(self, clean: ForwardPass, read: Callable[[ForwardPass], Tensor]) -> Tensor:
        weights = torch.ones(1)
        return self._omega(self._derivatives.estimate(clean, lambda run: [read(run)], weights))

    def _omega(self, estimate: Estimate) -> Tensor:
        """(B,) both norms in the chosen unit."""
        unit = 1.0 if self.units == "absolute" else self._derivatives.unit
        return unit**2 * estimate.jacobian + self.gamma * unit**4 * estimate.hessian


def _single_head(run: ForwardPass) -> Head:
    predictions = heads(run)
    if len(predictions) > 1 or predictions[0].logits.shape[1] > 1:
        raise ValueError(
            'cross_holder with norm="op" or pairs="sampled" compares the classes of one prediction '
            'per example, and this model makes several: use norm="fro" and pairs="all"'
        )
    return predictions[0]
