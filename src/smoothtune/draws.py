"""Dropout masks that are drawn once and used by every pass that shares them.

On a CPU a fifth of a training forward of MiniLM at 16 x 128 tokens is spent drawing dropout masks.
A pass replayed from the same generator state draws the very same ones, so they can be looked up.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import TensorWeakRef

aten = torch.ops.aten
Key = tuple[bytes, torch.Size, torch.dtype, float]


class Mask(NamedTuple):
    """What one dropout has drawn."""

    scaled: TensorWeakRef  # 0 or 1 / (1 - p), as dropout multiplies with
    version: int  # of that tensor when it was complete
    divisor: Any
    after: Tensor  # state of the generator after the draw


class Draws(TorchDispatchMode):
    """While this is entered, dropout on a CPU looks its masks up before it draws them.

    A draw is known by the state of the generator before it, its shape, type and probability, so a
    mask that is found is the one that would have been drawn, and the generator is left where
    drawing would have left it. Dropout is `bernoulli_` on a fresh tensor and, as the next operation
    on any tensor, `div_` of it; whatever is not exactly this is drawn as ever and not remembered.
    Masks live as long as a graph needs them for its backward, and no longer.
    """

    def __init__(self) -> None:
        super().__init__()
        self._masks: dict[Key, Mask] = {}
        self._drawn: tuple[Tensor, Key] | None = None  # waits for its div_
        self._found: tuple[Tensor, Tensor, Any] | None = None  # likewise: tensor, mask, divisor

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run an operation of a forward."""
        drawn, self._drawn = self._drawn, None
        found, self._found = self._found, None
        divides = func is aten.div_.Scalar and not kwargs
        if found is not None:
            tensor, scaled, divisor = found
            if divides and args[0] is tensor and args[1] == divisor:
                return tensor
            # a bernoulli_ of somebody else: give the draw, in memory of its own
            aten.set_.source_Tensor(tensor, scaled.mul(divisor).round_())
        if func is aten.bernoulli_.float and not kwargs and type(args[0]) is Tensor:
            return self._bernoulli(*args)
        result = func(*args, **(kwargs or {}))
        if drawn is not None and divides and args[0] is drawn[0]:
            version = args[0]._version + 1  # div_ is counted once this has returned
            state = torch.get_rng_state()
            self._masks[drawn[1]] = Mask(TensorWeakRef(args[0]), version, args[1], state)
        return result

    def _bernoulli(self, tensor: Tensor, p: float = 0.5) -> Tensor:
        if tensor.device.type != "cpu" or not tensor.is_contiguous() or tensor.is_inference():
            return tensor.bernoulli_(p)
        key = (torch.get_rng_state().numpy().tobytes(), tensor.shape, tensor.dtype, p)
        mask = self._masks.get(key)
        scaled = None if mask is None else mask.scaled()
        if mask is None or scaled is None or scaled._version != mask.version:
            self._drawn = (tensor, key)
            return tensor.bernoulli_(p)
        torch.set_rng_state(mask.after)
        self._found = (tensor, scaled, mask.divisor)
        return aten.set_.source_Tensor(tensor, scaled)
