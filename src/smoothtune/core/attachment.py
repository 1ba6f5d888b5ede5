"""Methods on the model that they are prepared on: all of them or none, one objective at a time."""

from __future__ import annotations

import weakref
from collections.abc import Sequence

from torch import nn

from smoothtune.core.regularizer import Regularizer
from smoothtune.nn.higher_order import HigherDerivatives

_TAKEN: weakref.WeakSet[nn.Module] = weakref.WeakSet()  # models with methods attached
_LATEST: weakref.WeakValueDictionary[int, Attachment] = weakref.WeakValueDictionary()
"""Of every method, by its id, the last one."""


def holds(model: nn.Module, bare: nn.Module) -> bool:
    """Whether a model is another one, or holds it: wrapped, or with adapters put on since."""
    return any(module is bare for module in model.modules())


class Attachment:
    """Methods attached to a model, until `undo`.

    Args:
        model: the unwrapped model.
        regularizers: those that re-initialize weights come first.
        again: the model has had them before, so no weight is re-initialized.

    Raises:
        RuntimeError: other methods are attached to the model.
        ValueError: a method does not support the model, which is left as it was.
    """

    def __init__(self, model: nn.Module, regularizers: Sequence[Regularizer], *, again: bool):
        if model in _TAKEN:
            raise RuntimeError(
                "another objective is attached to this model: pass all methods to one objective, "
                "or call detach() of the other first, or load the model again"
            )
        self.model, self.regularizers = model, list[Regularizer]()
        resetting = [r for r in regularizers if r.traits.resets_weights and not again]
        weights = [(p, p.detach().clone()) for p in model.parameters()] if resetting else []
        try:
            others = [r for r in regularizers if not r.traits.resets_weights]
            for regularizer in [*resetting, *others]:
                regularizer.attach(model)
                self.regularizers.append(regularizer)
            order = max((r.traits.derivative_order for r in regularizers), default=1)
            self.derivatives = HigherDerivatives(model, order)
        except BaseException:
            for regularizer in reversed(self.regularizers):
                regularizer.detach(model)
            for weight, before in weights:
                weight.data.copy_(before)
            raise
        _TAKEN.add(model)
        self.lost_method: str | None = None  # to another objective's model
        for regularizer in self.regularizers:
            if (earlier := _LATEST.get(id(regularizer))) is not None:
                earlier.lost_method = regularizer.name
            _LATEST[id(regularizer)] = self
        self.shapes = [
            (module, leaf, f"{name}.{leaf}".lstrip("."), weight.shape)
            for name, module in model.named_modules()
            for leaf, weight in module._parameters.items()
            if weight is not None
        ]
        self._lost: weakref.finalize | None = None
        if not any(r.traits.reparametrizes for r in regularizers):  # these stay on the model
            self._lost = weakref.finalize(self, _TAKEN.discard, model)

    def check(self, model: nn.Module) -> None:
        """Refuse a model, as the loop holds it, that no longer is as it was attached.

        Raises:
            RuntimeError: it is another model, or a weight has another shape.
        """
        if not holds(model, self.model):
            raise RuntimeError(
                f"this objective is attached to another {type(self.model).__name__} than it is "
                "called with: call it with that model (wrapped or not), or detach() it and bind() "
                "it to this one"
            )
        if all(regularizer.traits.does_nothing for regularizer in self.regularizers):
            return
        for module, leaf, name, before in self.shapes:
            weight = module._parameters.get(leaf)
            if weight is not None and weight.shape != before and weight.is_floating_point():
                raise RuntimeError(
                    f"{name} has the shape {tuple(weight.shape)}, and had {tuple(before)} when the "
                    "methods were attached: change the model, as resize_token_embeddings does, "
                    "before regularize() or bind()"
                )

    def undo(self) -> None:
        """Leave the model as it was found, apart from what training changed."""
        _TAKEN.discard(self.model)
        if self._lost is not None:
            self._lost.detach()
        for regularizer in self.regularizers:
            if _LATEST.get(id(regularizer), self) is self:
                regularizer.detach(self.model)
        self.derivatives.undo()
