r"""Jacobian and Hessian regularization of every layer.

Reference: Jukic, Snajder: From Robustness to Improved Generalization and Calibration in Pre-trained
    Language Models, TACL 13 (2025) 264-280 (arXiv 2404.00758). Code: josipjukic/jachess.

Equation:
    $$total = L(f(x), y) + \sum_l \lambda_l (\|J_l\|_F^2 + \sum_{i \in S_l} \|H_{l,i}\|_F^2)$$
    $$J_l = \frac{\partial z_l}{\partial x}, \quad H_{l,i} = \frac{\partial^2 z_{l,i}}{\partial x^2}
    \quad \text{(eq. 4)}$$
    $z_l$ the state of the pooled token after layer $l$, $x$ the word embeddings of the whole
    sequence, $S_l$ output dimensions drawn at random; the weights are
    $$\lambda = c \cdot g(n), \quad n_l = \|J_l\| \quad \text{(eq. 5)}$$
    with $n_l$ of the pre-trained model and $c$ the learning rate.
    normalized: $\lambda_l = c \frac{1/n_l}{\sum_k 1/n_k}$;
    inverse: $\lambda_l = c \frac{n_l}{\sum_k n_k}$;
    softmax: $\lambda = c \cdot softmax(-n / (temperature \cdot \max n))$;
    uniform: $\lambda_l = c / L$; logits: $f(x)$ alone.

Departures:
    * The Hessian term of the code is a constant (it has no graph); here it has a gradient.
    * By default three more forward passes estimate both terms for all layers and dimensions, with
      the same expectation up to O(h^2): E ||J_l u||^2 = ||J_l||^2, E (u^T H w)^2 = ||H||^2.
      `estimator="per_layer"` draws as the paper does.
    * The sum over S_l is the code's mean over dimensions. `hessian_reduction="subset"` is the plain
      sum over k = `hessian_dims` of them, as eq 4 is printed, which grows with k; "sum" takes all.
    * The code averages over tokens, padding among them; `reduction="sum"` is the norm, and
      `"token_mean"` divides by the real tokens. The code cuts off the word embeddings' gradient.
    * g is named, not written, in the sources: the five forms are RECONSTRUCTED. n is that of the
      pre-trained model on the first 32 training rows, in evaluation mode, or what `smoothness`
      gives. A loop of one's own gives the rows to `Objective.calibrate`; else n is that of the
      first batch, with a warning if an update has several.
    * One forward serves all layers; the code runs one per layer, each with dropout masks of its
      own. z_l is the output of a block: before the final norm of decoders, where the code's last
      layer is after it.
    * Tasks without a pooled token (extractive QA, token classification) take one random real token
      (RECONSTRUCTED). Of embedding models the first counts as pooled, or the last of decoders: give
      those that average their tokens, and classifiers that do (ModernBERT, EuroBERT),
      `token="random"`.
    * Dual mode, the penalty alone on unlabeled text: `batches="unlabeled"`, rows without labels.
    * Regression and classification are alike: the penalty does not look at the head.
"""

from typing import Any, Literal

import torch
import torch.distributed as dist
from pydantic import PositiveInt
from torch import Tensor, nn

from smoothtune.core.forward import ForwardPass
from smoothtune.core.predictions import ONE_PREDICTION
from smoothtune.core.regularizer import NonNegative, Positive, method
from smoothtune.core.traits import Traits
from smoothtune.functional.derivative_norms import Probe
from smoothtune.functional.input_derivatives import (
    DifferenceScheme,
    EstimatorName,
    InputDerivatives,
    Reader,
    num_scores,
    scores,
)
from smoothtune.methods.derivative_base import DerivativePenalty
from smoothtune.nn import rng
from smoothtune.nn.architecture import blocks, unwrap
from smoothtune.nn.model_facts import is_encoder_decoder, predicts_tokens

Factors = Literal["normalized", "softmax", "uniform", "inverse", "logits"]

CALIBRATION_PROBES = 10


def layer_factors(n: Tensor, factors: Factors, temperature: float = 1.0) -> Tensor:
    """(L,) lambda_l / c, which sum to 1, from the base smoothness n (L,) (RECONSTRUCTED)."""
    if factors == "normalized":
        return (1 / n) / (1 / n).sum()
    if factors == "inverse":
        return n / n.sum()
    if factors == "softmax":
        return torch.softmax(-n / (temperature * n.max()), 0)
    return torch.full_like(n, 1 / len(n))


@method(
    "jachess",
    Traits(
        group="derivatives",
        step="4 passes",
        lowers=("layer Jacobian", "layer Hessian"),
        points=("word",),
        differentiates=True,
        hidden_states=True,
        version=2,
    ),
)
class JacHess(DerivativePenalty):
    """Small first and second derivatives of every layer's representation in the embeddings."""

    weight: NonNegative | None = None
    """Factor of the term, whose size is c, in place of share. Paper: 1."""
    share: Positive | None = 0.3
    """The term's gradient, as a share of the task's."""
    factors: Factors = "normalized"
    """g: lambda_l from the pre-trained smoothness. Paper: base smoothness best, inverse hurts."""
    c: Positive | None = None
    """Sum of the lambda_l, beside a weight (a share sets their size). Paper: the learning rate (the
    default; 2e-5 without an optimizer)."""
    smoothness: list[Positive] | None = None
    """n_l of the pre-trained model, one for each layer. Default: measured before the first update,
    on 32 training rows."""
    power: Literal[1, 2] = 1
    """n is the norm (1) or its square (2). Paper: not stated."""
    temperature: Positive = 1.0
    """Of the softmax, in units of the largest n. Paper: not stated."""
    hessian_weight: NonNegative = 1.0
    """lambda^H / lambda^J; 0 leaves the Jacobian term. Paper: 1 is best."""
    hessian_reduction: Literal["mean", "subset", "sum"] = "mean"
    """Over output dimensions: mean (code), sum over k of them (eq 4), or sum over all."""
    hessian_dims: PositiveInt = 10
    """k: dimensions drawn by `estimator="per_layer"`; others take all, and scale their sum as
    `hessian_reduction` says. Code: 10."""
    num_probes: PositiveInt = 1
    """Random probes. Code: 10 (Jacobian), 1 (Hessian)."""
    probe: Probe = "rademacher"
    """Distribution of the probes: signs vary least. Code: gaussian; paper: sphere."""
    estimator: EstimatorName | None = None
    """Default: projected without the Hessian, else finite_difference. Paper: per_layer."""
    difference: DifferenceScheme = "forward"
    """Finite differences: forward from the clean pass (3 passes more, or 1 without the Hessian), or
    symmetric (4 or 2), with a tenth of the error in a single draw."""
    reduction: Literal["sum", "token_mean"] = "sum"
    """Over input tokens: the norm, or divided by their number. Code: token_mean, with padding."""
    token: Literal["auto", "pooled", "random"] = "auto"
    """z_l: the token the head reads, or a random one; "auto": random in extractive QA,
    token classification, language models and encoder-decoders."""

    def __post_init__(self):
        super().__post_init__()
        self._c = self.c or 2e-5
        self._norms: Tensor | None = None

    def input_derivatives(self) -> InputDerivatives:
        """Of the layers' states, or the logits."""
        return InputDerivatives(
            self.estimator,
            self.hessian_weight > 0,
            self.num_probes,
            self.probe,
            self.difference_step,
            self.difference,
            self.hessian_dims,
        )

    def refuses(self, model: nn.Module) -> str | None:
        """Logits of many predictions have no common width."""
        if self.factors == "logits" and predicts_tokens(model):
            return f"{ONE_PREDICTION}: leave factors at its default, or use jacobian"
        return super().refuses(model)

    def attach(self, model: nn.Module) -> None:
        """Measure the rms of the embeddings; a ValueError where `smoothness` does not fit."""
        layers = len(blocks(model, self.side))
        if self.smoothness is not None and len(self.smoothness) != layers:
            raise ValueError(
                f"smoothness has {len(self.smoothness)} entries; this model has {layers} layers"
            )
        super().attach(model)
        self._norms = None if self.smoothness is None else torch.tensor(self.smoothness)

    def bind_optimizer(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Take the learning rate as c, beside a weight; a ValueError where there is none."""
        if self.c is not None or self.share is not None:
            return
        rates: list[Any] = [g.get("initial_lr", g.get("lr")) for g in optimizer.param_groups]
        if None in rates:
            raise ValueError(
                f"jachess takes the learning rate as c, and {type(optimizer).__name__} has lr=None "
                "(it finds its own): give c, such as jachess:c=2e-5, or the optimizer an lr"
            )
        self._c = max(map(float, rates))

    @property
    def calibrates(self) -> bool:
        """Until n is known, where it is asked for."""
        return self._norms is None and self.factors not in ("logits", "uniform")

    @torch.no_grad()
    def calibrate(self, clean: ForwardPass) -> None:
        """Measure n_l (eq. 5) on a batch, in evaluation mode; every process has the same."""
        norms = self._derivatives.jacobian_norms(clean, self._reader(clean), CALIBRATION_PROBES)
        if dist.is_available() and dist.is_initialized():
            squares = norms.square()
            dist.all_reduce(squares)
            norms = (squares / dist.get_world_size()).sqrt()
        self._norms = norms

    def loss(self, clean: ForwardPass) -> Tensor:
        """Equation 4."""
        read = self._reader(clean)
        weights = layer_factors(self._smoothness(clean), self.factors, self.temperature)
        estimate = self._derivatives.estimate(clean, read, weights)
        if self.factors == "logits":
            width = num_scores(clean.run()).to(estimate.hessian)
        else:
            width = estimate.hessian.new_full((), clean.hidden_states[-1].shape[-1])
        divisor = clean.mask.sum(1).clamp(min=1) if self.reduction == "token_mean" else 1
        jacobian, hessian = (part / divisor for part in estimate)
        if self.hessian_reduction != "sum":  # estimated is the sum over all dimensions
            mean = self.hessian_reduction == "mean"
            counted = 1.0 if mean else width.clamp(max=self.hessian_dims)
            hessian = counted / width * hessian
        self.diagnostics |= {"jacobian": jacobian.mean(), "hessian": hessian.mean()}
        return self._c * self.clipped(jacobian + self.hessian_weight * hessian).mean()

    def _smoothness(self, clean: ForwardPass) -> Tensor:
        """(L,) n, measured on this batch if it was not before; ones where g does not look at it."""
        if self.factors in ("logits", "uniform"):
            count = 1 if self.factors == "logits" else len(clean.hidden_states) - 1
            return torch.ones(count, device=clean.device)
        if self._norms is None:
            self.calibrate(clean.full)
        assert self._norms is not None
        self._norms = self._norms.to(clean.device)
        return self._norms.clamp(min=torch.finfo(self._norms.dtype).tiny) ** self.power

    def _reader(self, clean: ForwardPass) -> Reader:
        """What reads z_1..z_L, or the logits, of a pass on the same rows."""
        if self.factors == "logits":
            return lambda run: [scores(run)]
        positions = self._positions(clean.run())
        rows = torch.arange(len(positions), device=clean.device)
        return lambda run: [hidden[rows, positions] for hidden in run.hidden_states[1:]]

    def _positions(self, clean: ForwardPass) -> Tensor:
        """(B,) the token of every example whose state is z_l."""
        bare, outputs = unwrap(clean.model), clean.outputs
        several = "start_logits" in outputs or predicts_tokens(bare)
        several |= "logits" in outputs and outputs["logits"].ndim == 3  # of every token
        several |= is_encoder_decoder(bare)  # whose head reads no token of the encoder
        if self.token == "random" or (self.token == "auto" and several):
            draws = rng.uniform_like(clean.mask.float())
            return draws.masked_fill(~clean.mask, -2).argmax(1)
        tokens = torch.arange(clean.mask.shape[1], device=clean.device)
        return clean.pooled(tokens.expand_as(clean.mask)[..., None]).squeeze(-1)

    def state_dict(self) -> dict[str, Tensor]:
        """c, the rms of the embeddings and, once measured, the pre-trained smoothness."""
        state = super().state_dict() | {"c": torch.tensor(self._c, dtype=torch.float64)}
        return state if self._norms is None else state | {"norms": self._norms}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore them."""
        super().load_state_dict(state)
        self._c, self._norms = state["c"].item(), state.get("norms")
