r"""L2-SP: weight decay towards the starting point.

Reference: Li, Grandvalet, Davoine: Explicit Inductive Bias for Transfer Learning with Convolutional
    Networks, ICML 2018 (arXiv 1802.01483).

Equation:
    $$total = L(f(x), y) + \frac{\alpha}{2} \|w_S - w_S^0\|^2 + \frac{\beta}{2} \|w_N\|^2$$
    $w_S$: weights that were pre-trained, $w_S^0$ their values before fine-tuning, $w_N$: the new
    head.

Departures:
    * alpha and beta of the LNSR papers' L2-SP rows are not stated; the defaults are RECONSTRUCTED.
    * The norms are squared, as here and in TNNLS; the NAACL paper prints them without squares.
    * The new head is what lies outside the model's `base_model`.
    * The equation replaces weight decay: train with `weight_decay=0`, transformers' default.
    * The gradient alpha (w - w^0) is computed directly: the same numbers without a graph.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from smoothtune.core.forward import ForwardPass
from smoothtune.core.regularizer import NonNegative, Penalty, method
from smoothtune.core.traits import Between, Traits
from smoothtune.nn.architecture import trainable, trained_weights, unwrap


class HalfSquaredDistance(torch.autograd.Function):
    """1/2 sum_i ||w_i - w_i^0||^2 of two lists of tensors; `anchors` are constants."""

    @staticmethod
    def forward(ctx: Any, count: int, *tensors: Tensor) -> Tensor:
        """Anchors come first, then the weights, `count` of each."""
        ctx.count = count
        ctx.differences = torch._foreach_sub(tensors[count:], tensors[:count])
        norms = torch._foreach_norm(ctx.differences)
        return 0.5 * torch.stack(norms).square().sum()

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> Any:
        """d/dw = w - w^0."""
        gradients = torch._foreach_mul(ctx.differences, upstream[0])
        return (None, *[None] * ctx.count, *gradients)


def half_squared_distance(weights: Sequence[Tensor], anchors: Sequence[Tensor]) -> Tensor:
    """() 1/2 sum_i ||w_i - a_i||^2, differentiable in the weights."""
    return HalfSquaredDistance.apply(len(anchors), *anchors, *weights)


class Pull(NamedTuple):
    """Weights, and where they are pulled to."""

    strength: float
    weights: list[nn.Parameter]
    anchors: list[Tensor]


@method(
    "l2_sp",
    Traits(
        group="start",
        step="1 pass",
        lowers=("weight distance",),
        searched={"alpha": Between(1e-4, 1.0, log=True)},
        weights_only=True,
        whole_weights=True,
    ),
)
class L2SP(Penalty):
    """Weights are pulled towards their pre-trained values, the head towards zero."""

    alpha: NonNegative = 0.01
    """Pull towards the pre-trained weights. LNSR papers: not stated."""
    beta: NonNegative = 0.01
    """Pull of the new head towards zero. LNSR papers: not stated; 0.01 is usual."""

    def __post_init__(self):
        super().__post_init__()
        self._anchors: dict[str, Tensor] = {}
        self._names: dict[nn.Parameter, str] | None = None  # None: not attached
        self._pulls: list[Pull] = []  # of the update before
        self._trained: list[int] = []  # ids of all weights that were trained in it

    def attach(self, model: nn.Module) -> None:
        """Remember the pre-trained weights; a ValueError where there is nothing to pull."""
        trained = list(trainable(model))
        old = [(name, weight) for name, weight, new in trained if not new]
        if not old and not (self.beta and trained):
            raise ValueError(
                f"l2_sp has no weight to pull: {type(model).__name__} trains no pre-trained weight"
                f"{'' if trained else ' and no head'}, and beta={self.beta:g}. Unfreeze some "
                "weights, or leave l2_sp out"
            )
        self._anchors = {name: weight.detach().clone() for name, weight in old}
        # by object: adapters that are put on later change a weight's name
        self._names = {weight: name for name, weight in old}

    def detach(self, model: nn.Module) -> None:
        """Forget them."""
        self._anchors, self._names = {}, None
        self._trained, self._pulls = [], []

    def loss(self, clean: ForwardPass) -> Tensor:
        """alpha/2 ||w_S - w_S^0||^2 + beta/2 ||w_N||^2; a RuntimeError before `attach`."""
        if self._names is None:
            raise RuntimeError("attach l2_sp to the model first: it pulls towards what is there")
        model = unwrap(clean.model)
        trained = list(map(id, trained_weights(model)))
        if self._trained != trained:
            self._trained, self._pulls = trained, self._pulls_of(model, self._names)
        terms = [
            strength * half_squared_distance(weights, anchors)
            for strength, weights, anchors in self._pulls
        ]
        return torch.stack(terms).sum()

    def _pulls_of(self, model: nn.Module, names: dict[nn.Parameter, str]) -> list[Pull]:
        """What is pulled where to."""
        old, head = Pull(self.alpha, [], []), Pull(self.beta, [], [])
        for name, weight, new in trainable(model):
            if new:
                head.weights.append(weight)
                head.anchors.append(torch.zeros_like(weight))
                continue
            name = names.setdefault(weight, name)
            if name not in self._anchors:  # unfrozen since, so it has not moved yet
                self._anchors[name] = weight.detach().clone()
            old.weights.append(weight)
            old.anchors.append(self._anchors[name].to(weight.device))
        pulls = [old, head] if self.beta else [old]
        return [pull for pull in pulls if pull.weights]  # none where the backbone is frozen

    def state_dict(self) -> dict[str, Tensor]:
        """The pre-trained weights, so that a run may resume from a model that has moved."""
        return dict(self._anchors)

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore them; a weight that is not among them was frozen, and is what it was."""
        anchors = self._anchors
        moved = {n: w.to(anchors[n].device) if n in anchors else w for n, w in state.items()}
        self._anchors, self._trained = anchors | moved, []
