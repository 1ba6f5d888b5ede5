r"""Layer-wise learning-rate decay.

Reference: Howard, Ruder: Universal Language Model Fine-tuning for Text Classification, ACL 2018
    (arXiv 1801.06146); as in Zhang et al.: Revisiting Few-sample BERT Fine-tuning, ICLR 2021
    (arXiv 2006.05987). Code: asappresearch/revisit-bert-finetuning.

Equation:
    $$lr_l = lr \cdot \xi^{L - l}$$
    $l = 0, \ldots, L-1$: block $l$; $l = -1$: embeddings; $l = L$: all above the blocks (pooler,
    final norm, head).

Departures:
    * Howard and Ruder use xi = 1 / 2.6 with an LSTM; 0.9 to 0.95 is usual for BERT.
    * Encoder-decoders: l counts from the top of either stack, so that both top blocks have the same
      rate; the embeddings lie below the deeper one (RECONSTRUCTED).
    * Parameter groups of the optimizer are split; their other options (weight decay) stay.
    * The new head may have a rate of its own: `head`, 1 in the papers.
"""

import weakref
from typing import Any

import torch
from torch import Tensor, nn

from smoothtune.core.regularizer import Fraction, Positive, Regularizer, method
from smoothtune.core.traits import Between, Traits
from smoothtune.nn.architecture import base_model, blocks, head_modules
from smoothtune.nn.model_facts import sides_of

# ends of names of what stands beside the blocks and reads embeddings alone
BELOW = (
    ("layernorm_embedding", "embeddings_project", "project_in")  # BART, ELECTRA and OPT
    + ("embedding_hidden_mapping_in", "word_embeddings_layernorm")  # RemBERT and BLOOM
    + ("encoder.LayerNorm", "encoder.conv")  # DeBERTa: of relative positions; beside block 0
)


def depths(model: nn.Module) -> dict[nn.Parameter, int]:
    """Depth of every parameter: -1 embeddings, l block l, L what is above the blocks."""
    sides = {side: blocks(model, side) for side in sides_of(model)}
    top = depth_of(model)
    inside = {
        p: level + top - len(layers)
        for layers in sides.values()
        for level, layer in enumerate(layers)
        for p in layer.parameters()
    }
    below: set[nn.Parameter] = set()
    for name, module in base_model(model).named_modules():
        kind = type(module).__name__
        if isinstance(module, nn.Embedding) or "Embeddings" in kind or name.endswith(BELOW):
            below |= set(module.parameters())
    return {p: inside.get(p, -1 if p in below else top) for p in model.parameters()}


def depth_of(model: nn.Module) -> int:
    """L: the number of blocks, in the deeper stack of an encoder-decoder."""
    return max(len(blocks(model, side)) for side in sides_of(model))


def split_group(group: dict[str, Any], factors: dict[nn.Parameter, float]) -> list[dict[str, Any]]:
    """One parameter group as one per learning rate, lowest first."""
    by_factor: dict[float, list[nn.Parameter]] = {}
    for weight in group["params"]:
        by_factor.setdefault(factors[weight], []).append(weight)
    return [
        {**group, "params": weights, "lr": group["lr"] * factor}
        for factor, weights in sorted(by_factor.items())
    ]


@method(
    "llrd",
    Traits(
        group="updates",
        step="1 pass",
        lowers=("weight distance",),
        searched={"decay": Between(0.7, 0.99)},
        whole_weights=True,
        version=3,
    ),
)
class LLRD(Regularizer):
    """Lower layers learn more slowly."""

    decay: Fraction = 0.95
    """xi, factor from one block to the one below; 1: all blocks alike. Usual for BERT: 0.9 to
    0.95."""
    head: Positive = 1.0
    """Factor of the new head's learning rate."""

    def __post_init__(self):
        super().__post_init__()
        self._optimizer: torch.optim.Optimizer | None = None
        # of the optimizer that it was detached from: its own groups, then and as they are split
        self._last: weakref.ref[torch.optim.Optimizer] | None = None
        self._left: list[Any] = []
        self._split: list[dict[str, Any]] = []

    def bind_optimizer(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Split the optimizer's groups; a scheduler has to be made after this.

        An optimizer that it was detached from goes on with the rates that its scheduler had set.

        Raises:
            ValueError: a group has no learning rate of its own, a scheduler exists already, or the
                optimizer holds parameters of another model.
        """
        last = None if self._last is None else self._last()
        if optimizer is last and _contents(optimizer.param_groups) == self._left:
            optimizer.param_groups[:], self._optimizer = self._split, optimizer
            return
        depth, top = depths(model), depth_of(model)
        factors = {weight: self.decay ** (top - level) for weight, level in depth.items()}
        for module in head_modules(model):
            factors |= {
                weight: self.head * factors[weight] for weight in module.parameters(recurse=False)
            }
        for number, group in enumerate(optimizer.param_groups):
            if not isinstance(group.get("lr"), float | int | Tensor):
                raise ValueError(
                    f"llrd: parameter group {number} of {type(optimizer).__name__} has lr="
                    f"{group.get('lr')!r}, which cannot be scaled: give the optimizer an lr"
                )
            if "initial_lr" in group:
                raise ValueError(
                    "llrd: the optimizer has a learning-rate scheduler already, which would undo "
                    "the decay: make the scheduler after binding, or let the Trainer make both"
                )
            if foreign := sum(p not in depth for p in group["params"]):
                raise ValueError(
                    f"llrd: {foreign} parameters of group {number} do not belong to the model: "
                    "make the optimizer from model.parameters()"
                )
        self._optimizer, self._groups = optimizer, list(optimizer.param_groups)
        optimizer.param_groups[:] = [
            part for group in self._groups for part in split_group(group, factors)
        ]

    def detach(self, model: nn.Module) -> None:
        """Give the optimizer its groups back, at the learning rates they had."""
        if self._optimizer is not None:
            self._last, self._split = weakref.ref(self._optimizer), self._optimizer.param_groups[:]
            self._optimizer.param_groups[:] = self._groups
            self._left, self._optimizer = _contents(self._groups), None


def _contents(groups: list[dict[str, Any]]) -> list[Any]:
    """Which parameter groups these are, and what they hold, to compare."""
    return [(id(group), group | {"params": list(map(id, group["params"]))}) for group in groups]
