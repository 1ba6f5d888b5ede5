"""Bases of the adversarial methods: where a perturbation enters, its units, SMART's search."""

from pydantic import PositiveInt
from pydantic.dataclasses import dataclass
from torch import Tensor

from smoothtune.core.forward import Dropout, ForwardPass
from smoothtune.core.regularizer import STRICT, LossTerm, Penalty, Positive
from smoothtune.functional.adversarial import (
    Ascent,
    Inner,
    Norm,
    Per,
    Units,
    diagnostics,
    unit,
    with_defaults,
)
from smoothtune.nn import rng
from smoothtune.nn.hooks import Layer, Point

Sizes = tuple[float, float, float]  # sigma, step_size, epsilon
SIZES: dict[Units, Sizes] = {"relative": (0.01, 2.0, 0.02), "absolute": (1e-5, 1e-3, 1e-5)}


@dataclass(config=STRICT, kw_only=True)
class Adversarial(LossTerm):
    """Base of the methods that perturb the embeddings along a gradient."""

    units: Units = "relative"
    """Whether sizes are multiples of the embedding's norm (rms for linf). Papers: absolute."""
    layer: Layer = "word"
    """Where the perturbation enters, "word" or a block number from 0. Papers: word."""
    dropout: Dropout = "shared"
    """Dropout masks of the perturbed passes, relative to the clean one and to one another."""

    def points(self) -> tuple[Point, ...]:
        """Where the perturbation enters."""
        return (self.layer,)

    def unit(self, clean: ForwardPass, norm: Norm = "l2") -> Tensor:
        """() or (B, 1, 1): the unit of sizes of an example."""
        return unit(clean, self.layer, norm, "example", self.units)

    def log(self, clean: ForwardPass, delta: Tensor, gradient: Tensor) -> None:
        """Log the size of a perturbation, and its cosine with the gradient of the last step."""
        x = clean.embeddings(self.layer)
        self.diagnostics |= diagnostics(delta, gradient, x, clean.mask)

    def attacked(self, clean: ForwardPass, delta: Tensor, gradient: Tensor) -> ForwardPass:
        """The pass at a perturbation, whose diagnostics are logged."""
        self.log(clean, delta, gradient)
        return clean.at(delta, self.layer, dropout=self.dropout)


@dataclass(config=STRICT, kw_only=True)
class AdversarialSearch(Adversarial, Penalty):
    """Base of SMART and its successors: ascent from noise inside a ball.

    delta <- Project(delta + step_size g / ||g||) from delta_0 ~ N(0, sigma^2 I), ||delta|| <=
    epsilon.
    """

    epsilon: Positive | None = None
    """epsilon, radius of the ball; default 0.02 (relative), 1e-5 (absolute; SMART's paper)."""
    sigma: Positive | None = None
    """sigma, deviation of delta_0; default 0.01 (relative), 1e-5 (absolute; SMART's paper)."""
    step_size: Positive | None = None
    """eta, step size; default 2 (relative), 1e-3 (absolute; SMART's paper)."""
    num_steps: PositiveInt = 1
    """T or K, ascent steps of a search. Papers and released code: 1."""
    norm: Norm = "linf"
    """p, norm of the ball. Papers and released code: infinity."""
    per: Per = "example"
    """What norms run over. Papers: not stated; released code: token."""

    def __post_init__(self):
        super().__post_init__()
        self._ascent = self.ascent(SIZES[self.units])

    def ascent(self, defaults: Sizes) -> Ascent:
        """The search that the fields describe, with defaults for sizes that are not given."""
        sigma, step_size, epsilon = with_defaults(
            (self.sigma, self.step_size, self.epsilon), defaults
        )
        return Ascent(
            point=self.layer,
            norm=self.norm,
            per=self.per,
            units=self.units,
            sigma=sigma,
            step_size=step_size,
            epsilon=epsilon,
            num_steps=self.num_steps,
            dropout=self.dropout,
        )

    def released_search(
        self, clean: ForwardPass, inner: Inner, step_size: float
    ) -> tuple[Tensor, Tensor]:
        """The released search: noise + step * gradient, divided by each token's largest entry."""
        guard = self._ascent.epsilon  # of the division, and no radius

        def update(delta: Tensor, gradient: Tensor) -> Tensor:
            delta = delta + step_size * gradient
            return delta / (delta.abs().amax(-1, keepdim=True) + guard)

        start = self._ascent.sigma * rng.normal_like(clean.zeros(self.layer))
        return self._ascent.climb(clean, start, inner, update)
