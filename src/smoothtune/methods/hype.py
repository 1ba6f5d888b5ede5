r"""HyPe: noise on the hidden state that enters every block.

Reference: Yuan, Yuan, Tan, Huang, Huang: HyPe: Better Pre-trained Language Model Fine-tuning with
    Hidden Representation Perturbation, ACL 2023 (arXiv 2212.08853). Code: Yuanhy1997/HyPe.

Equation:
    $$total = L(f(x), y)$$
    where block $b$ computes $f_b(h_b + z_b)$,
    $z_b \sim N(0, \sigma^2 I)$ or $U(-\sigma, \sigma)$.

Departures:
    * By default sigma is relative to the root mean square of each token's state: hidden states
      differ by orders of magnitude among models and layers, and with the paper's 1e-5 training is
      plain's. `units="absolute"` is the paper's.
    * The released uniform noise is U(0, sigma), whose mean is not zero: `compat="official"`.
    * The released example switches ordinary dropout off; here the model's own dropout is kept.
    * The released code can perturb the state inside a block, after attention, too; here it cannot.
    * Padding gets no noise. Attention never reads it, so nothing depends on this.
"""

from typing import Literal

from torch import Tensor, nn

from smoothtune.core.forward import ForwardPass
from smoothtune.core.regularizer import Positive, TaskLoss, method
from smoothtune.core.traits import Between, Traits
from smoothtune.functional.adversarial import Units
from smoothtune.functional.noise import relative_norm
from smoothtune.nn import rng
from smoothtune.nn.architecture import blocks, unwrap
from smoothtune.nn.hooks import Point, token_rms
from smoothtune.nn.model_facts import sides_of

DEFAULTS = {"relative": 0.03, "absolute": 1e-5}


@method(
    "hype",
    Traits(
        group="noise",
        step="1 pass",
        lowers=("noise divergence",),
        searched={"sigma": Between(0.01, 1.0, log=True)},
        points=(0,),  # of the blocks, which all get noise, the first is looked at
        needs_labels=True,
    ),
)
class HyPe(TaskLoss):
    """HyPe: the task loss with noise on every hidden state."""

    noise: Literal["normal", "uniform"] = "normal"
    """Distribution of z. Paper: both."""
    units: Units = "relative"
    """What sigma is in: the root mean square of each token's state, or absolute, as in the
    paper."""
    sigma: Positive | None = None
    """Standard deviation, or half width, of z. Paper: 1e-5, absolute; default 0.03 (relative), by
    the rule of results/defaults, 1e-5 (absolute)."""
    compat: Literal["official"] | None = None
    """"official": uniform noise from U(0, sigma)."""

    def __post_init__(self):
        super().__post_init__()
        if self.compat and self.noise != "uniform":
            raise ValueError('compat reproduces the uniform noise of the code: set noise="uniform"')

    def draw(self, like: Tensor) -> Tensor:
        """(B, T, D) noise."""
        sigma = self.sigma or DEFAULTS[self.units]
        if self.noise == "normal":
            return sigma * rng.normal_like(like)
        z = rng.uniform_like(like)
        return sigma * ((z + 1) / 2 if self.compat == "official" else z)

    def refuses(self, model: nn.Module) -> str | None:
        """Both sides together get noise block by block."""
        if len({len(blocks(model, side)) for side in sides_of(model, self.side)}) > 1:
            return "needs as many blocks in the encoder as in the decoder: give one side"
        return None

    def loss(self, clean: ForwardPass) -> Tensor | None:
        """Task loss of the noisy forward; the clean one runs only up to the first block."""
        (first, *_) = sides_of(unwrap(clean.model), self.side)
        count, keep = len(blocks(unwrap(clean.model), first)), clean.mask[..., None]
        noise: dict[Point, Tensor] = {b: self.draw(clean.zeros(b)) * keep for b in range(count)}
        state, relative = clean.embeddings(0), self.units == "relative"
        first_noise = noise[0] * token_rms(state) if relative else noise[0]
        self.diagnostics["delta_ratio"] = relative_norm(first_noise, state, clean.mask)
        return clean.at(noise, dropout="shared", relative=relative).loss
