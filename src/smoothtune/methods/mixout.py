r"""Mixout: dropout towards the pre-trained weights.

Reference: Lee, Cho, Kang: Mixout: Effective Regularization to Finetune Large-scale Pretrained
    Language Models, ICLR 2020 (arXiv 1909.11299). Code: bloodwass/mixout.

Equation:
    in every training forward each linear layer uses
    $$\tilde{W} = \frac{(1 - M) \odot W_0 + M \odot W - p W_0}{1 - p}$$
    $$= W_0 + \frac{M \odot (W - W_0)}{1 - p}$$
    $M \sim Bernoulli(1 - p)$, $W_0$ the pre-trained weight; $E \tilde{W} = W$.
    $p = 1$ gives $W_0$.

Departures:
    * The mask is drawn once per input neuron and shared by all outputs, as in the code and the
      paper's figure; `mask="element"` draws one per weight.
    * The released backward lacks the factor 1 / (1 - p) of its forward: its gradient is (1 - p)
      times too small. Here it is exact; `compat="official"` reproduces the released one.
    * The new head has no pre-trained weight, so it is left alone; the released example mixes it
      towards its random start (`head=True`).
    * Biases, LayerNorm and embeddings are not mixed, as in the code. GPT-2's Conv1D, which the code
      misses, is. Models whose matrices are in no linear layer, such as XLNet's attention and the
      experts of Mixtral, are refused.
    * The released example switches ordinary dropout off; here the model's own dropout is kept.
"""

from collections.abc import Callable
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn

from smoothtune.core.regularizer import Probability, Regularizer, method
from smoothtune.core.traits import Between, Traits
from smoothtune.functional.parametrizations import computed_weights, refuse_computed, substitute
from smoothtune.nn import rng
from smoothtune.nn.architecture import linear_layers
from smoothtune.nn.low_bit import is_quantized


def stacked_matrices(model: nn.Module) -> list[str]:
    """Names of trained weights that hold several matrices, of heads or experts, as one tensor."""
    return [
        f"{name}.{leaf}"
        for name, module in model.named_modules()
        if not isinstance(module, nn.modules.conv._ConvNd)
        for leaf, weight in module._parameters.items()
        if weight is not None and weight.requires_grad and weight.squeeze().ndim > 2
    ]


class OfficialMix(torch.autograd.Function):
    """The released code: exact forward, backward without 1 / (1 - p)."""

    @staticmethod
    def forward(ctx: Any, w: Tensor, pretrained: Tensor, keep: Tensor, p: float) -> Tensor:
        """W_0 + M (W - W_0) / (1 - p)."""
        ctx.save_for_backward(keep)
        return torch.addcmul(pretrained, w - pretrained, keep / (1 - p))

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> Any:
        """G o M."""
        return upstream[0] * ctx.saved_tensors[0], None, None, None


class Mix:
    """W -> W_0 + M o (W - W_0) / (1 - p) in training mode, W otherwise.

    A weight that is frozen is left alone; W_0 is what it was when it is first trained.
    """

    def __init__(self, p: float, mask_shape: tuple[int, ...], official: bool):
        self.p, self.mask_shape, self.official = p, mask_shape, official
        self.pretrained: Tensor | None = None
        self.acts = True

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """A copy of the model, as SMART's teacher is one, mixes alike, and for as long."""
        return self

    def see(self, weight: Tensor) -> None:
        """Take the weight as the pre-trained one, unless it is frozen or there is one."""
        if self.pretrained is None and weight.requires_grad:
            self.pretrained = weight.detach().clone()

    def __call__(self, weight: Tensor, training: bool) -> Tensor:
        """Draw a mask and mix."""
        if not training or not self.acts:
            return weight
        self.see(weight)
        if self.pretrained is None:
            return weight
        self.pretrained = pretrained = self.pretrained.to(weight.device)
        if self.p == 1:
            return pretrained
        keep = rng.keep_mask(self.mask_shape, self.p, weight)
        if self.official:
            return OfficialMix.apply(weight, pretrained, keep, self.p)
        return torch.addcmul(pretrained, weight - pretrained, keep / (1 - self.p))


@method(
    "mixout",
    Traits(
        group="start",
        step="1 pass",
        lowers=("weight distance",),
        searched={"p": Between(0.05, 0.9)},
        reparametrizes=True,
        random_weights=True,
    ),
)
class Mixout(Regularizer):
    """Weights are swapped at random for their pre-trained values."""

    p: Probability = 0.3
    """Probability of the pre-trained weight. Paper: 0.7-0.9 on BERT-large; on MiniLM, 500 examples
    of STS-B, the noise of 0.7 costs 15 points of Pearson correlation, that of 0.3 one."""
    mask: Literal["input", "element"] = "input"
    """One draw per input neuron (released code) or per weight."""
    head: bool = False
    """Mix the new head towards its random start too. Released example: yes."""
    compat: Literal["official"] | None = None
    """"official": the released backward, (1 - p) times too small."""

    def __post_init__(self):
        super().__post_init__()
        self._mixes: list[Mix] = []
        self._undo: list[Callable[[], None]] = []

    def attach(self, model: nn.Module) -> None:
        """Use the mixed weight in place of every linear weight that is trained, now or later.

        Raises:
            ValueError: the model trains no linear layer, something else computes its weight, or
                the model trains matrices that are in no linear layer.
        """
        if stacked := stacked_matrices(model):
            raise ValueError(
                f"{type(model).__name__} trains matrices that are in no linear layer, which mixout "
                f"would leave out: {len(stacked)} tensors, the first is {stacked[0]}. Leave mixout "
                "out, or freeze them"
            )
        trained = linear_layers(model, head=self.head)
        if not trained:
            raise ValueError(
                f"{type(model).__name__} trains no linear layer that mixout could mix: unfreeze "
                "some, or leave mixout out"
            )
        refuse_computed(trained, ["weight"])
        layers = [
            layer
            for layer in linear_layers(model, head=self.head, frozen=True)
            if "weight" not in computed_weights(layer)
            and not is_quantized(layer.get_parameter("weight"))
        ]
        self._mixes = [self._mix(layer) for layer in layers]
        pairs = zip(layers, self._mixes, strict=True)
        self._undo = [substitute(layer, mix, saves="trained") for layer, mix in pairs]

    def _mix(self, layer: nn.Module) -> Mix:
        weight = layer.get_parameter("weight")
        rows, columns = weight.shape
        shape = (1, columns) if isinstance(layer, nn.Linear) else (rows, 1)  # Conv1D is (in, out)
        if self.mask == "element":
            shape = (rows, columns)
        mix = Mix(self.p, shape, self.compat == "official")
        mix.see(weight)
        return mix

    def detach(self, model: nn.Module) -> None:
        """Give the layers their trained weights back, and those of copies too."""
        for mix in self._mixes:
            mix.acts = False
        for undo in self._undo:
            undo()
        self._mixes, self._undo = [], []

    def state_dict(self) -> dict[str, Tensor]:
        """The pre-trained weights, so that a run may resume from a model that has moved."""
        mixed = {str(i): mix.pretrained for i, mix in enumerate(self._mixes)}
        return {name: weight for name, weight in mixed.items() if weight is not None}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore them; a ValueError where a layer is trained that was frozen at the time."""
        missing = self.state_dict().keys() - state.keys()
        if missing or state.keys() - {str(i) for i in range(len(self._mixes))}:
            raise ValueError(
                f"the state of mixout has {len(state)} pre-trained layers, and the model trains "
                f"{len(self.state_dict())}: freeze what was frozen then, or begin again with "
                "another trainer"
            )
        for name, weight in state.items():
            self._mixes[int(name)].pretrained = weight.clone()
