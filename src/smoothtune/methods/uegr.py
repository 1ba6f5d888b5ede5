r"""UEGR: unified enhancement of generalization and robustness (reconstruction).

Reference: Sun, Yin, Zhao, Zhang, Liu, Chen: Unified Enhancement of the Generalization and
    Robustness of Language Models via Bi-Stage Optimization (arXiv 2503.16550), known from its
    summary only: neither full text nor code was available. What the summary says is kept; the rest
    is RECONSTRUCTED.

Equation:
    $$total = \gamma L_{adv} + \alpha L_{JS} + \beta L(f(x), y)$$
    $$L_{adv} = \frac{1}{K} \sum_k L(P_k, y)$$
    $$L_{JS} = \frac{1}{K} \sum_k KL(P_k \,\|\, M) = H(M) - \frac{1}{K} \sum_k H(P_k)$$
    with $K$ sub-models $P_k = f(x + \delta)$ of the adversarial sample, each at a dropout rate
    $p_k$ of its own, and their mean $M = \frac{1}{K} \sum_k P_k$ (regression: mean squared
    deviation of the $K$ scores from their mean); per example
    $$\delta = \epsilon g / \|g\|_2, \quad g = \nabla_x L$$
    (FGM), or projected steps (PGD). Then only the fraction $\rho$ of the weights with the largest
    saliency $|w \, \partial L / \partial w|$ is updated, or each with probability $p_i$, by
    $1/p_i$ as much.

Departures: all of the following is RECONSTRUCTED.
    * The attack, its norm, size and layer; number, range and combination of dropout rates; how they
      adapt; the weights gamma, alpha, beta; saliency, fraction, scope and kind of the mask.
    * By default the dropout rates stay; the summary's adapt: `adaptive="divergence"`. Theorem 1 has
      the probabilities of a random mask, `mask="bernoulli"`; the default is the summary's update of
      the most critical weights.
    * A deterministic mask is not rescaled: it would be biased, like a rescaled one. A random one
      is rescaled by 1 / p_i, which makes it unbiased. p_i rises with the rank of the saliency, from
      `p_min` to 1, with mean rho.
    * Momentum and weight decay move weights whose gradient is masked. So the mask is put on the
      update: the optimizer sees all gradients, masked weights stay bit for bit.
      `apply_to="gradient"` masks the gradient.
    * A weight without any saliency, as the embedding of a word that is not in the batch, is never
      among the most salient. One that is 0 and has a gradient comes first: |w g| says nothing of
      it, and adapters, half of whose weights begin at 0, would not be trained.
    * The first sub-model draws its dropout from the same numbers as the clean pass.
    * With adaptive="divergence" every process follows the divergence of its own batches.
    * Batches without labels have no term.
"""

import math
from dataclasses import replace
from typing import Literal

import torch
from pydantic import NonNegativeInt, PositiveInt
from torch import Tensor, nn

from smoothtune.core.forward import Dropout, ForwardPass
from smoothtune.core.regularizer import (
    BelowOne,
    Fraction,
    NonNegative,
    Positive,
    Probability,
    TaskLoss,
    entries_under,
    method,
)
from smoothtune.core.traits import Between, Traits
from smoothtune.functional import adversarial, update_masks
from smoothtune.functional.adversarial import Units, normalize, project, task_loss
from smoothtune.functional.divergences import ensemble_divergence
from smoothtune.functional.update_masks import PartialUpdate, Saliency, Scope
from smoothtune.nn import rng
from smoothtune.nn.architecture import trainable
from smoothtune.nn.dropout import DropoutKind, Rate
from smoothtune.nn.hooks import Layer, Point


def even_rates(low: float, high: float, count: int) -> list[float]:
    """Rates from low to high at equal distances; a single one is in the middle.

    >>> even_rates(0.0, 0.5, 3), even_rates(0.0, 0.5, 1)
    ([0.0, 0.25, 0.5], [0.25])
    """
    if count == 1:
        return [(low + high) / 2]
    return [low + (high - low) * k / (count - 1) for k in range(count)]


@method(
    "uegr",
    Traits(
        group="sub-models",
        step="K = 2 passes, 1 forward, 1 backward to the embeddings",
        lowers=("dropout divergence",),
        searched={"epsilon": Between(0.0005, 0.05, log=True)},
        differentiates=True,
        needs_labels=True,
        version=2,
    ),
)
class UEGR(TaskLoss):
    """UEGR: agreeing sub-models on adversarial samples, and an update of the salient weights."""

    attack: Literal["fgm", "pgd", "none"] = "fgm"
    """How adversarial samples are made. RECONSTRUCTED."""
    layer: Layer = "word"
    """Where they are perturbed, "word" or a block number from 0. RECONSTRUCTED."""
    epsilon: Positive = 0.005
    """||delta|| per example; see units. RECONSTRUCTED; 1.0 absolute is usual for FGM on BERT."""
    units: Units = "relative"
    """Unit of epsilon: the norm of the example's embeddings, or 1. RECONSTRUCTED."""
    num_steps: PositiveInt = 3
    """pgd: number of steps. RECONSTRUCTED."""
    step_size: Positive | None = None
    """pgd: length of a step, in the unit of epsilon; default epsilon / 2. RECONSTRUCTED."""
    random_start: bool = False
    """pgd: start at a random point of the ball instead of 0. RECONSTRUCTED."""
    attack_dropout: Literal["model", "off"] = "model"
    """Dropout while the attack is computed. RECONSTRUCTED."""
    passes: PositiveInt = 2
    """K, number of sub-models. Paper: varied, values not known; 1-5 suggested. RECONSTRUCTED."""
    dropout_range: tuple[BelowOne, BelowOne] = (0.05, 0.15)
    """Smallest and largest dropout rate. Paper: varied, values not known. RECONSTRUCTED: on SST-2
    (0.1, 0.5) has far better probabilities; on 500 scores of STS-B it loses 9 points."""
    combination: Literal["even", "random", "list", "model"] = "even"
    """Rates of the sub-models: even in the range, random in it, `rates`, or the model's own."""
    rates: list[BelowOne] | None = None
    """combination="list": the K rates. Paper: two combinations compared, values not known."""
    adaptive: Literal["none", "divergence"] = "none"
    """divergence: p_k <- clip(p_k (1 + kappa (tau - JS)), range), JS a running mean."""
    target: NonNegative = 0.02
    """tau, in nats. RECONSTRUCTED."""
    kappa: NonNegative = 1.0
    """Speed of the adaptation, 1 / nats. RECONSTRUCTED."""
    ema: BelowOne = 0.9
    """Decay of the running mean of JS, in [0, 1). RECONSTRUCTED."""
    modules: list[DropoutKind] | None = None
    """Kinds of dropout that change their rate; default all. RECONSTRUCTED."""
    gamma: NonNegative = 1.0
    """Weight of the adversarial losses. RECONSTRUCTED."""
    alpha: NonNegative = 1.0
    """Weight of the JS divergence. RECONSTRUCTED."""
    beta: NonNegative = 0.0
    """Weight of the clean task loss; whether the paper keeps it is unknown. RECONSTRUCTED."""
    js_over: Literal["adversarial", "adversarial+clean"] = "adversarial"
    """Predictions among which the divergence is taken. RECONSTRUCTED."""
    js_norm: Literal["none", "log_k"] = "none"
    """log_k: divide by log of their number, the largest value. RECONSTRUCTED."""
    saliency: Saliency = "taylor"
    """|w g|, |g| or g^2. RECONSTRUCTED."""
    keep: Fraction = 0.7
    """rho, fraction of the weights that are updated; 1 turns the mask off. RECONSTRUCTED: related
    methods take 0.3, with which short runs (126 updates) hardly learned."""
    scope: Scope = "per_tensor"
    """What the fraction is taken of. RECONSTRUCTED."""
    mask: Literal["topk", "bernoulli"] = "topk"
    """The most salient weights, or random ones by the rank of their saliency. RECONSTRUCTED."""
    rescale: Literal["auto", "always", "never"] = "auto"
    """Divide what is kept by its probability (topk: by rho); auto: bernoulli only."""
    p_min: Probability = 0.1
    """bernoulli: the smallest probability, below rho. RECONSTRUCTED."""
    apply_to: Literal["update", "gradient"] = "update"
    """Mask the update (masked weights do not move) or the gradient. RECONSTRUCTED."""
    mask_every: PositiveInt = 1
    """Updates between two choices of the mask. RECONSTRUCTED."""
    start_step: NonNegativeInt = 0
    """Updates before the first mask. RECONSTRUCTED."""
    exclude_head: bool = True
    """Always update the new head. RECONSTRUCTED."""

    def __post_init__(self):
        super().__post_init__()
        low, high = self.dropout_range
        if low > high:
            raise ValueError(f"dropout_range starts at {low} and ends at {high}: swap them")
        if (self.combination == "list") != (self.rates is not None):
            raise ValueError('`rates` and combination="list" go together: set both or neither')
        if self.rates is not None and len(self.rates) != self.passes:
            raise ValueError(f"rates has {len(self.rates)} entries, but passes is {self.passes}")
        if self.adaptive == "divergence" and self.combination not in ("even", "list"):
            raise ValueError('adaptive rates start from combination="even" or "list"')
        if self.mask == "bernoulli" and self.keep <= self.p_min:
            raise ValueError(f"keep={self.keep} must be above p_min={self.p_min} for bernoulli")
        self._reset()

    def _reset(self) -> None:
        low, high = self.dropout_range
        self._rates = self.rates or even_rates(low, high, self.passes)
        self._running, self._step = self.target, 0
        self._divergences: list[Tensor] = []  # of the batches since the last update
        self._factors: dict[str, Tensor] = {}
        self._update: PartialUpdate | None = None

    @property
    def traits(self) -> Traits:
        """Dropout changes unless the sub-models keep the model's own rates."""
        return replace(super().traits, changes_dropout=self.combination != "model")

    def points(self) -> tuple[Point, ...]:
        """The one point that is attacked."""
        return (self.layer,)

    def detach(self, model: nn.Module) -> None:
        """Forget rates and masks."""
        self._reset()

    def loss(self, clean: ForwardPass) -> Tensor:
        """The total: gamma L_adv + alpha L_JS + beta L."""
        delta = None if self.attack == "none" else self._adversary(clean)
        passes = [
            clean.at(delta, self.layer, dropout="independent" if k else "shared", rate=rate)
            for k, rate in enumerate(self._dropout_rates())
        ]
        total = self.gamma * torch.stack([task_loss(each) for each in passes]).mean()
        among = [clean.run(), *passes] if self.js_over == "adversarial+clean" else passes
        apart = ensemble_divergence(among)
        self.diagnostics["js"] = apart
        if self.adaptive == "divergence":
            self._divergences.append(apart.detach())
        if self.js_norm == "log_k" and len(among) > 1:
            apart = apart / math.log(len(among))
        total = total + self.alpha * apart
        return total + self.beta * task_loss(clean.run()) if self.beta else total

    def _adversary(self, clean: ForwardPass) -> Tensor:
        """(B, T, D) the attack."""
        point, pgd = self.layer, self.attack == "pgd"
        u = adversarial.unit(clean, point, "l2", "example", self.units)
        length = (self.step_size or self.epsilon / 2) if pgd else self.epsilon
        steps = self.num_steps if pgd else 1

        def update(delta: Tensor, gradient: Tensor) -> Tensor:
            step = length * u * normalize(gradient, "l2", "example")
            return project(delta + step, self.epsilon * u, "l2", "example")

        delta = clean.zeros(point)
        if pgd and self.random_start:
            noise = rng.normal_like(delta) * clean.mask[..., None]
            share = (rng.uniform_like(delta[:, :1, :1]) + 1) / 2
            delta = share * self.epsilon * u * normalize(noise, "l2", "example")
        elif self.attack_dropout == "model":  # the clean pass has the first gradient already
            loss = task_loss(clean.run())
            gradient = adversarial.gradient_at(clean, loss, point, keep_graph=True)
            delta, steps = update(delta, gradient), steps - 1
        if steps:
            dropout: Dropout = "off" if self.attack_dropout == "off" else "shared"
            delta, gradient = adversarial.ascend(
                clean, delta, task_loss, update, point=point, num_steps=steps, dropout=dropout
            )
        x = clean.embeddings(point)
        self.diagnostics |= adversarial.diagnostics(delta, gradient, x, clean.mask)
        return delta

    def _dropout_rates(self) -> list[Rate | None]:
        if self.combination == "model":
            return [None] * self.passes
        rates = self._rates
        if self.combination == "random":
            low, high = self.dropout_range
            draws = rng.uniform_like(torch.empty(self.passes))
            rates = [low + (high - low) * (u + 1) / 2 for u in draws.tolist()]
        if self.modules is None:
            return list(rates)
        return [{kind: rate for kind in self.modules} for rate in rates]

    def _adapt(self) -> None:
        """Move the rates after an update, by the divergences of its batches."""
        low, high = self.dropout_range
        apart = torch.stack(self._divergences).mean().item()
        self._running = self.ema * self._running + (1 - self.ema) * apart
        factor = 1 + self.kappa * (self.target - self._running)
        self._rates = [min(max(rate * factor, low), high) for rate in self._rates]

    def before_step(self, model: nn.Module) -> None:
        """Choose the weights to update, and mask the gradient or remember the weights."""
        since = self._step - self.start_step
        if self.keep == 1 or since < 0:
            return
        weights = {
            name: weight
            for name, weight, new in trainable(model)
            if weight.grad is not None and not (new and self.exclude_head)
        }
        if since % self.mask_every == 0 or not self._factors:
            self._factors = self._chosen(weights)
        chosen = self._factors.items()  # those of a state are on the host
        factors = {name: f.to(weights[name].device) for name, f in chosen if name in weights}
        if self.apply_to == "update":
            self._update = PartialUpdate(factors, weights)
            return
        for name, factor in factors.items():
            if (gradient := weights[name].grad) is not None:
                gradient.mul_(factor)

    def _chosen(self, weights: dict[str, nn.Parameter]) -> dict[str, Tensor]:
        """What updates are multiplied with: 0, 1, or the inverse of a weight's probability."""
        if not weights:
            return {}
        gradients = [w.grad for w in weights.values() if w.grad is not None]
        detached = [w.detach() for w in weights.values()]
        values = update_masks.saliencies(detached, gradients, self.saliency)
        salient = dict(zip(weights, values, strict=True))
        ranked = update_masks.over(self.scope, self._ranked, salient)
        return {name: self._factor(ranked[name]) for name in weights}

    def _ranked(self, salient: Tensor) -> Tensor:
        """Masks, or probabilities, by the rank of the saliency."""
        if self.mask == "topk":
            return update_masks.top_fraction(salient, self.keep)
        return update_masks.keep_probabilities(salient, self.keep, self.p_min)

    def _factor(self, ranked: Tensor) -> Tensor:
        if self.mask == "topk":
            return ranked / self.keep if self.rescale == "always" else ranked
        keep = (rng.uniform_like(ranked) < 2 * ranked - 1).to(ranked.dtype)
        return keep if self.rescale == "never" else keep / ranked

    def after_step(self, model: nn.Module) -> None:
        """Put masked weights back."""
        self._step += 1
        if self._divergences:
            self._adapt()
        self._divergences = []
        if self._update is not None:
            self._update.finish()
            self._update = None

    def state_dict(self) -> dict[str, Tensor]:
        """Rates, running mean, counter and mask."""
        state = {
            "rates": torch.tensor(self._rates, dtype=torch.float64),
            "running": torch.tensor(self._running, dtype=torch.float64),
            "step": torch.tensor(self._step),
        }
        kept = self._factors if self.mask_every > 1 else {}
        return state | {f"factor/{name}": factor for name, factor in kept.items()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore them."""
        self._rates, self._running = state["rates"].tolist(), state["running"].item()
        self._step = int(state["step"])
        self._factors = entries_under("factor/", state)
        self._divergences = []
