r"""ALUM: adversarial training for large neural language models.

Reference: Liu, Cheng, He, Chen, Wang, Poon, Gao: Adversarial Training for Large Neural Language
    Models, 2020 (arXiv 2004.08994). Code: namisan/mt-dnn, branch v0.2, alum/.

Equation:
    $$total = L(f(x), y) + weight \cdot \max_{\|\delta\| \le \epsilon} l_v(f(x + \delta), f(x))$$
    $l_v$: symmetric KL, squared error for regression; the search is SMART's, without its proximal
    term; a curriculum trains without the second term first. The paper calls weight $\alpha$: 1 in
    fine-tuning, 10 in pre-training.

Departures:
    * Sizes are relative to the embeddings and RECONSTRUCTED, as for `smart`: with the paper's
      1e-5 the term is next to nothing. `units="absolute"` has its values.
    * The released code scales the noise up to size 1 instead of projecting it, and perturbs the
      input of block 0; see `smart`.
    * Both KLs carry gradient into both predictions, as in the equation; `detach_targets=True` makes
      the target of each a constant, as in the released code.
    * The share of the curriculum is not stated. `ramp_start` and `ramp_steps` count updates, as the
      length of a run is not known here; by default the weight is full from the first update.
    * The released script never runs its adversarial branch.
    * Dropout masks of all passes are shared; the released code draws new ones.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from pydantic import NonNegativeInt
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from smoothtune.core.forward import ForwardPass
from smoothtune.core.quantities import Quantity
from smoothtune.core.regularizer import STRICT, NonNegative, Positive
from smoothtune.functional.divergences import divergence, symmetric_kl, symmetric_kl_detached
from smoothtune.methods.adversarial_base import AdversarialSearch


def ramp(updates: int, start: int, steps: int) -> float:
    """Share of the weight in the update after `updates`: 0 before `start`, then rising to 1.

    >>> [ramp(t, start=2, steps=2) for t in range(5)]
    [0.0, 0.0, 0.5, 1.0, 1.0]
    """
    if updates < start:
        return 0.0
    return min(1.0, (updates - start + 1) / steps) if steps else 1.0


@dataclass(config=STRICT, kw_only=True)
class ALUM(AdversarialSearch):
    """Predictions must not change under the worst small perturbation, after a plain start."""

    name: ClassVar[str] = "alum"
    claims: ClassVar[tuple[Quantity, ...]] = ("worst divergence",)
    version: ClassVar[int] = 2
    compares_passes: ClassVar[bool] = True

    weight: NonNegative | None = None
    """alpha, in place of share. Paper: 1."""
    share: Positive | None = 0.3
    """The term's gradient, as a share of the task's."""
    ramp_start: NonNegativeInt = 0
    """Updates of plain training before the term comes in. Paper: not stated."""
    ramp_steps: NonNegativeInt = 0
    """Updates over which the weight, not a share, then rises linearly. Paper: not stated."""
    detach_targets: bool = False
    """Targets of both KLs are constants. Released code: yes. Regression is left as it is."""

    def __post_init__(self):
        super().__post_init__()
        if self.share is not None and self.ramp_steps:
            raise ValueError(
                "alum with ramp_steps: a share would follow the term and undo its rise: give a "
                "weight, such as weight=1"
            )
        self._updates = 0

    def attach(self, model: nn.Module) -> None:
        """Start the curriculum."""
        self._updates = 0

    def loss(self, clean: ForwardPass) -> Tensor | None:
        """The divergence times its ramp; None in the plain part of the curriculum."""
        share = ramp(self._updates, self.ramp_start, self.ramp_steps)
        if not share:
            return None
        clean.run()
        delta, gradient = self._ascent.search(clean, lambda run: divergence(clean, run))
        measure = symmetric_kl_detached if self.detach_targets else symmetric_kl
        return share * divergence(clean, self.attacked(clean, delta, gradient), measure)

    def after_step(self, model: nn.Module) -> None:
        """Count the update."""
        self._updates += 1

    def state_dict(self) -> dict[str, Tensor]:
        """Where in the curriculum the run is."""
        return {"updates": torch.tensor(self._updates)}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore it."""
        self._updates = int(state["updates"])
