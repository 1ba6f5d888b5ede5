r"""HyPe: noise on the hidden state that enters every block.

Reference: Yuan, Yuan, Tan, Huang, Huang: HyPe: Better Pre-trained Language Model Fine-tuning with
    Hidden Representation Perturbation, ACL 2023 (arXiv 2212.08853). Code: Yuanhy1997/HyPe.

Equation:
    $$total = L(f(x), y)$$
    where block $b$ computes $f_b(h_b + z_b)$,
    $z_b \sim N(0, \sigma^2 I)$ or $U(-\sigma, \sigma)$.

Departures:
    * The released uniform noise is U(0, sigma), whose mean is not zero: `compat="official"`.
    * The released example switches ordinary dropout off; here the model's own dropout is kept.
    * The released code can perturb the state inside a block, after attention, too; here it cannot.
    * Padding gets no noise. Attention never reads it, so nothing depends on this.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from smoothtune.core import rng
from smoothtune.core.architecture import blocks, sides_of, unwrap
from smoothtune.core.forward import ForwardPass
from smoothtune.core.hooks import Point
from smoothtune.core.quantities import Quantity
from smoothtune.core.regularizer import STRICT, Between, Positive, Regularizer
from smoothtune.functional.noise import relative_norm


@dataclass(config=STRICT, kw_only=True)
class HyPe(Regularizer):
    """HyPe: the task loss with noise on every hidden state."""

    name: ClassVar[str] = "hype"
    claims: ClassVar[tuple[Quantity, ...]] = ("noise divergence",)
    replaces_task_loss: ClassVar[bool] = True
    needs_labels: ClassVar[bool] = True
    searched: ClassVar[Mapping[str, Between] | None] = {"sigma": Between(1e-6, 1e-2, log=True)}

    noise: Literal["normal", "uniform"] = "normal"
    """Distribution of z. Paper: both."""
    sigma: Positive = 1e-5
    """Standard deviation, or half width, of z in units of the hidden state. Paper: 1e-5, which
    leaves MiniLM as plain training does; 0.3 lowers its noise divergence by 37 %
    (results/defaults). Hidden states of other models may be of another order of magnitude."""
    compat: Literal["official"] | None = None
    """"official": uniform noise from U(0, sigma)."""

    def points(self) -> tuple[Point, ...]:
        """Of the blocks, which all get noise, the first is looked at."""
        return (0,)

    def draw(self, like: Tensor) -> Tensor:
        """(B, T, D) noise."""
        if self.noise == "normal":
            return self.sigma * rng.normal_like(like)
        z = rng.uniform_like(like)
        return self.sigma * ((z + 1) / 2 if self.compat == "official" else z)

    def refuses(self, model: nn.Module) -> str | None:
        """Both sides together get noise block by block."""
        if len({len(blocks(model, side)) for side in sides_of(model, self.side)}) > 1:
            return "needs as many blocks in the encoder as in the decoder: give one side"
        return None

    def loss(self, clean: ForwardPass) -> Tensor | None:
        """Task loss of the noisy forward; the clean one runs only up to the first block."""
        if not clean.labeled:
            return None
        (first, *_) = sides_of(unwrap(clean.model), self.side)
        count, keep = len(blocks(unwrap(clean.model), first)), clean.mask[..., None]
        noise: dict[Point, Tensor] = {b: self.draw(clean.zeros(b)) * keep for b in range(count)}
        self.diagnostics["delta_ratio"] = relative_norm(noise[0], clean.embeddings(0), clean.mask)
        return clean.at(noise, dropout="shared").loss
