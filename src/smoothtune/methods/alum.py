"""ALUM: adversarial training for large neural language models.

Reference: Liu, Cheng, He, Chen, Wang, Poon, Gao: Adversarial Training for Large Neural Language
    Models, 2020 (arXiv 2004.08994). Code: namisan/mt-dnn, branch v0.2, alum/.

Equation: total = L(f(x), y) + weight * max_{||delta|| <= epsilon} l_v(f(x + delta), f(x))
    l_v: symmetric KL, squared error for regression; the search is SMART's, without its proximal
    term; a curriculum trains without the second term first. The paper calls weight alpha: 1 in
    fine-tuning, 10 in pre-training.

Departures:
    * Sizes are relative to the embeddings and RECONSTRUCTED, as for `smart`: with the paper's
      1e-5 the term is next to nothing. `scale="absolute"` has its values.
    * The released code blows the noise up to size 1 in place of projecting it; see `smart`.
    * Both KLs carry gradient into both predictions, as in the equation; `detach_targets=True` makes
      the target of each a constant, as in the released code.
    * The share of the curriculum is not stated. `ramp_start` and `ramp_steps` count updates, as the
      length of a run is not known here; by default the weight is full from the first update.
    * The shipped script never turns its adversarial branch on.
    * Dropout masks of all passes are shared; the released code draws new ones.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from smoothtune.core.forward import Dropout, ForwardPass
from smoothtune.core.hooks import Layer, Point
from smoothtune.core.regularizer import STRICT, Positive, Regularizer
from smoothtune.functional.adversarial import Ascent, Norm, Per, Scale, diagnostics, given
from smoothtune.functional.divergences import divergence, symmetric_kl, symmetric_kl_detached

# sigma, eta, epsilon
DEFAULTS = {"relative": (0.01, 2.0, 0.02), "absolute": (1e-5, 1e-3, 1e-5)}


def ramp(updates: int, start: int, steps: int) -> float:
    """Share of the weight in the update after `updates`: 0 before `start`, then rising to 1.

    >>> [ramp(t, start=2, steps=2) for t in range(5)]
    [0.0, 0.0, 0.5, 1.0, 1.0]
    """
    if updates < start:
        return 0.0
    return min(1.0, (updates - start + 1) / steps) if steps else 1.0


@dataclass(config=STRICT, kw_only=True)
class ALUM(Regularizer):
    """Predictions must not change under the worst small perturbation, after a plain start."""

    name: ClassVar[str] = "alum"
    version: ClassVar[int] = 2

    epsilon: Positive | None = None
    """epsilon, radius of the ball. Paper: 1e-5; default 0.02 (relative), 1e-5 (absolute)."""
    sigma: Positive | None = None
    """sigma, deviation of delta_0. Paper: 1e-5; default 0.01 (relative), 1e-5 (absolute)."""
    eta: Positive | None = None
    """eta, step size. Paper: 1e-3; default 2 (relative), 1e-3 (absolute)."""
    num_steps: Annotated[int, Field(ge=1)] = 1
    """K, ascent steps. Paper: 1."""
    ramp_start: Annotated[int, Field(ge=0)] = 0
    """Updates of plain training before the term comes in. Paper: not stated."""
    ramp_steps: Annotated[int, Field(ge=0)] = 0
    """Updates over which the weight then rises linearly. Paper: not stated."""
    norm: Norm = "linf"
    """Norm of the ball. Paper: infinity."""
    per: Per = "example"
    """What norms run over. Paper: not stated; released code: token."""
    scale: Scale = "relative"
    """Whether sizes are multiples of the embedding's norm (rms for linf). Paper: absolute."""
    layer: Layer = "word"
    """Where the perturbation enters, "word" or a block number from 0. Released code: 0."""
    dropout: Dropout = "shared"
    """Dropout masks of the other passes relative to the clean one. Released code: independent."""
    detach_targets: bool = False
    """Targets of both KLs are constants. Released code: yes. Regression is left as it is."""

    def __post_init__(self):
        super().__post_init__()
        sigma, eta, epsilon = given((self.sigma, self.eta, self.epsilon), DEFAULTS[self.scale])
        self._ascent = Ascent.of(self, sigma, eta, epsilon)
        self._updates = 0

    def points(self) -> tuple[Point, ...]:
        """The one point where the perturbation enters."""
        return (self.layer,)

    def attach(self, model: nn.Module) -> None:
        """Begin the curriculum."""
        self._updates = 0

    def loss(self, clean: ForwardPass) -> Tensor | None:
        """The divergence times its ramp; None in the plain part of the curriculum."""
        share = ramp(self._updates, self.ramp_start, self.ramp_steps)
        if not share:
            return None
        clean.run()
        delta, gradient = self._ascent.search(clean, lambda run: divergence(clean, run))
        noisy = clean.at(delta, self.layer, dropout=self.dropout)
        x = clean.embeddings(self.layer)
        self.diagnostics |= diagnostics(delta, gradient, x, clean.mask)
        measure = symmetric_kl_detached if self.detach_targets else symmetric_kl
        return share * divergence(clean, noisy, measure)

    def after_step(self, model: nn.Module) -> None:
        """Go on in the curriculum."""
        self._updates += 1

    def state_dict(self) -> dict[str, Tensor]:
        """Where in the curriculum the run is."""
        return {"updates": torch.tensor(self._updates)}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Take it back."""
        self._updates = int(state["updates"])
