r"""SiFT: scale-invariant fine-tuning.

Reference: He, Liu, Gao, Chen: DeBERTa: Decoding-enhanced BERT with Disentangled Attention,
    ICLR 2021 (arXiv 2006.03654), section on SiFT. Code: microsoft/DeBERTa, DeBERTa/sift.

Equation:
    $$total = L(f(x), y) + weight \cdot R$$
    $$R = \max_{\|\delta\| \le \epsilon} l(f(n(x) + \delta), f(x))$$
    $$n(x) = (x - mean(x)) / std(x)$$
    for every token, the input of the embeddings' LayerNorm before its own weights;
    $l$: symmetric KL, squared error for regression. Released recipes have weight 5 (MNLI) and 3
    (extra small models).

Departures:
    * Step and radius are RECONSTRUCTED in units of the normalized embedding, whose rms is 1. The
      released step 1e-4 is 1 % of its initial noise 1e-2 and nothing is projected, so its
      perturbation is noise: cosine 0.004 with the gradient.
    * The perturbation std(x) delta is added to x, which is the same after the LayerNorm; models
      that do not normalize their embeddings (pre-norm decoders) get it at the input of block 0.
      The released code inserts a second LayerNorm, also for evaluation.
    * The released outer loss is the sum of two cross entropies with constant targets. That is a
      symmetric KL plus both entropies, never 0, with about half the gradient. None of it goes into
      the embeddings through the perturbed pass. `compat="deberta"` reproduces it, its search and
      its sizes.
    * With one score the released loss is identically 0; here regression has the squared error, also
      with `compat`.
    * Dropout masks of both passes are shared; the released code draws new ones.
    * With a bound the clean prediction is a constant, see `r3f`.
    * The report on SiFT (YashBit/MLLU-Class-Project) perturbs the output of that LayerNorm, after
      its weights: `place="output"`, in units of each token's rms there. The report's unit is the
      deviation over the whole sequence.
"""

from typing import Literal

from pydantic import PositiveInt
from torch import Tensor, nn

from smoothtune.core.forward import Dropout, ForwardPass
from smoothtune.core.predictions import no_compat
from smoothtune.core.regularizer import NonNegative, Penalty, Positive, method
from smoothtune.core.traits import Traits
from smoothtune.functional.adversarial import Ascent, Inner, Norm, Per, diagnostics, with_defaults
from smoothtune.functional.divergences import check_released, divergence, symmetric_kl
from smoothtune.nn import rng
from smoothtune.nn.hooks import Point, token_std

# sigma, step_size, epsilon
DEFAULTS = {"paper": (0.01, 2.0, 0.02), "deberta": (0.01, 1e-4, float("inf"))}
POINTS: dict[str, Point] = {"normalized": "normalized", "output": 0}


def both_cross_entropies(p: Tensor, q: Tensor) -> Tensor:
    """DeBERTa's loss: cross entropies of q from p and p from q, targets constant; shape (...)."""
    log_p, log_q = p.log_softmax(-1), q.log_softmax(-1)
    return -(log_p.exp().detach() * log_q + log_q.exp().detach() * log_p).sum(-1)


@method(
    "sift",
    Traits(
        group="worst case",
        step="2 passes, 1 search",
        lowers=("worst divergence",),
        small_difference=True,
        products="tf32",
    ),
)
class SiFT(Penalty):
    """Predictions must not change under the worst small perturbation of normalized embeddings."""

    weight: NonNegative | None = None
    """Factor of R, in place of share. Released recipes: 5."""
    share: Positive | None = 0.3
    """The term's gradient, as a share of the task's."""
    sigma: Positive | None = None
    """sigma, deviation of the first noise. Released code: 0.01; default 0.01."""
    step_size: Positive | None = None
    """eta, step size. Released code: 1e-4; default 2, with `compat` 1e-4."""
    epsilon: Positive | None = None
    """epsilon, radius of the ball. Released code: none; default 0.02, with `compat` none."""
    num_steps: PositiveInt = 1
    """Ascent steps. Released code: 1."""
    norm: Norm = "linf"
    """Norm of the ball. Released code: normalizes by infinity."""
    per: Per = "token"
    """What norms run over. Released code: token."""
    place: Literal["normalized", "output"] = "normalized"
    """Where the perturbation enters: before the weights of the embeddings' LayerNorm, or at its
    output, the input of block 0. Released code: normalized; the report on SiFT: output."""
    dropout: Dropout = "shared"
    """Dropout masks of the other passes relative to the clean one. Released code: independent."""
    compat: Literal["deberta"] | None = None
    """"deberta": number and gradient of the released code."""

    def __post_init__(self):
        super().__post_init__()
        if self.compat and self.place != "normalized":
            raise ValueError("compat reproduces code with place: normalized; leave one of them out")
        self._point = POINTS[self.place]
        sizes = (self.sigma, self.step_size, self.epsilon)
        sigma, step_size, epsilon = with_defaults(sizes, DEFAULTS[self.compat or "paper"])
        self._ascent = Ascent(
            point=self._point,
            norm=self.norm,
            per=self.per,
            units="absolute" if self.place == "normalized" else "relative",
            sigma=sigma,
            step_size=step_size,
            epsilon=epsilon,
            num_steps=self.num_steps,
            dropout=self.dropout,
        )

    def refuses(self, model: nn.Module) -> str | None:
        """The released code compares the class scores of one prediction."""
        return no_compat(model, self.compat)

    def points(self) -> tuple[Point, ...]:
        """Where the perturbation enters."""
        return (self._point,)

    def loss(self, clean: ForwardPass) -> Tensor:
        """R at the perturbation; a ValueError with `compat` on a task unknown to that code."""
        measure, search = symmetric_kl, self._ascent.search
        clean = self.clean_target(clean.run())
        if self.compat:
            check_released(self.name, self.compat, clean)
            measure, search = both_cross_entropies, self.deberta_search
        delta, gradient = search(clean, lambda run: divergence(clean, run, measure))
        detach = self.compat is not None
        noisy = clean.at(delta, self._point, dropout=self.dropout, detach=detach)
        x = clean.embeddings(self._point)
        if self.place == "normalized":
            x = (x - x.mean(-1, keepdim=True)) / token_std(x)
        self.diagnostics |= diagnostics(delta, gradient, x, clean.mask)
        return divergence(clean, noisy, measure)

    def deberta_search(self, clean: ForwardPass, inner: Inner) -> tuple[Tensor, Tensor]:
        """The released search: noise cut off at two deviations, each token's largest step alike."""
        sigma, step_size = self._ascent.sigma, self._ascent.step_size

        def update(delta: Tensor, gradient: Tensor) -> Tensor:
            return delta + step_size * gradient / (1e-6 + gradient.abs().amax(-1, keepdim=True))

        start = (sigma * rng.normal_like(clean.zeros(self._point))).clamp(-2 * sigma, 2 * sigma)
        return self._ascent.climb(clean, start, inner, update)
