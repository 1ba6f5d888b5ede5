r"""Child-Tuning: update a part of the network only.

Reference: Xu, Luo, Zhang, Tan, Chang, Huang, Huang: Raise a Child in Large Language Model: Towards
    Effective and Generalizable Fine-tuning, EMNLP 2021 (arXiv 2109.05687).
    Code: alibaba/AliceMind, ChildTuning.

Equation:
    $$w \gets w - lr \cdot optimizer(g \odot M)$$
    F: $M \sim Bernoulli(p) / p$, drawn again in every update;
    D: $M = 1$ for the fraction $p$ of the weights with the largest empirical Fisher information
    $\sum_j g_j^2$ of the pre-trained model, fixed; no factor $1 / p$.

Departures:
    * D: the code spends one epoch before training on the Fisher information. Here the first
      `fisher_steps` updates give it: no weight moves in them, and the last of them is the first
      that trains. Set it to the updates of an epoch to do as the code does.
    * D: g_j is the gradient of a batch, clipped per tensor to norm 1 before it is squared, as in
      the code; the paper writes examples.
    * D masks the weights of the blocks, F all weights, as in the code.
    * Momentum and weight decay still move masked weights, in the code as in ours; with
      `freeze=True` they stay bit for bit.
    * Masked gradients go into Adam's moments, as in the code.
    * D: weights that are unfrozen when the mask is there already have none.
    * D: a weight without any gradient in these updates is never in the mask. Of LoRA, whose B is 0
      at first, that is A: weight decay alone moves it.
"""

from collections.abc import Iterator
from typing import Literal

import torch
from pydantic import PositiveInt
from torch import Tensor, nn

from smoothtune.core.regularizer import Fraction, Regularizer, entries_under, method
from smoothtune.core.traits import Between, Traits
from smoothtune.functional.update_masks import PartialUpdate, over, top_fraction
from smoothtune.nn import rng
from smoothtune.nn.architecture import blocks, trainable
from smoothtune.nn.model_facts import sides_of


def clipped_square(gradient: Tensor) -> Tensor:
    """g^2 of a gradient scaled to a norm of at most 1."""
    return (gradient * (1.0 / gradient.norm().clamp(min=1.0))).square()


@method(
    "child_tuning", Traits(group="updates", step="1 pass", searched={"keep": Between(0.2, 0.95)})
)
class ChildTuning(Regularizer):
    """Every update changes a part of the weights only."""

    mode: Literal["F", "D"] = "F"
    """F: a new random part in every update; D: the part with the largest Fisher information."""
    keep: Fraction = 0.7
    """p, fraction of the weights that are updated. Released script: 0.3, with which 96 updates on
    STS-B end 12 points of Pearson correlation below plain fine-tuning."""
    fisher_steps: PositiveInt = 20
    """D: updates whose gradients give the Fisher information. Paper: those of one epoch."""
    freeze: bool = False
    """Hold masked weights still against momentum and weight decay too. Paper: no."""

    def refuses(self, model: nn.Module) -> str | None:
        """D has nothing to mask where no block trains."""
        if self.mode == "F" or any(p.requires_grad for p in _inside(model)):
            return None
        return "masks the blocks, of which none trains: unfreeze some, or use mode=F"

    def attach(self, model: nn.Module) -> None:
        """Start without a mask."""
        self._fisher: dict[str, Tensor] = {}
        self._masks: dict[str, Tensor] = {}
        self._seen = 0  # updates that have given Fisher information
        self._held: PartialUpdate | None = None

    def detach(self, model: nn.Module) -> None:
        """Forget masks and sums."""
        self.attach(model)

    def before_step(self, model: nn.Module) -> None:
        """Mask the gradients."""
        weights = {name: p for name, p, _ in trainable(model) if p.grad is not None}
        if self.mode == "F":
            masks = self._drawn(weights)
        elif self._ready(model, weights):
            masks = {n: self._masks[n].to(p.device) for n, p in weights.items() if n in self._masks}
            self._masks |= masks  # of a state, which is on the host
        else:
            for weight in weights.values():
                weight.grad = None  # the optimizer passes over it: no step, no decay, no moments
            return
        gradients = [grad for name in masks if (grad := weights[name].grad) is not None]
        if gradients:
            torch._foreach_mul_(gradients, list(masks.values()))
            if self.mode == "F":
                torch._foreach_div_(gradients, self.keep)
        self._held = PartialUpdate(masks, weights) if self.freeze else None

    def _drawn(self, weights: dict[str, nn.Parameter]) -> dict[str, Tensor]:
        """Random masks of all weights, in one draw."""
        if not weights:
            return {}
        sizes, first = [p.numel() for p in weights.values()], next(iter(weights.values()))
        drawn = rng.keep_mask((sum(sizes),), 1 - self.keep, first).split(sizes)
        parts = zip(weights.items(), drawn, strict=True)
        return {name: mask.view_as(p).to(p) for (name, p), mask in parts}

    def _ready(self, model: nn.Module, weights: dict[str, nn.Parameter]) -> bool:
        """Whether there is a mask; else count this update's gradients."""
        if self._masks:
            return True
        inside = {id(p) for p in _inside(model)}
        for name, weight in weights.items():
            if id(weight) in inside and weight.grad is not None:
                square = clipped_square(weight.grad)
                before = self._fisher.get(name, torch.zeros_like(square))
                self._fisher[name] = before.to(square) + square
        self._seen += 1
        if self._seen < self.fisher_steps:
            return False
        self._masks = over("global", lambda values: top_fraction(values, self.keep), self._fisher)
        self._fisher = {}
        return True

    def after_step(self, model: nn.Module) -> None:
        """Put masked weights back."""
        if self._held is not None:
            self._held.finish()
            self._held = None

    def state_dict(self) -> dict[str, Tensor]:
        """The mask, or the sums that will give it."""
        state = {"seen": torch.tensor(self._seen)}
        state |= {f"fisher/{name}": value for name, value in self._fisher.items()}
        return state | {f"mask/{name}": mask for name, mask in self._masks.items()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore them."""
        self._seen = int(state["seen"])
        self._fisher = entries_under("fisher/", state)
        self._masks = entries_under("mask/", state)


def _inside(model: nn.Module) -> Iterator[nn.Parameter]:
    """The weights of the blocks."""
    for side in sides_of(model):
        yield from blocks(model, side).parameters()
