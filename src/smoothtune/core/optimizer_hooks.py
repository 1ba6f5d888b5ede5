"""What an objective needs of an optimizer: a call around every update, and none missed."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterable
from typing import Any

from accelerate.optimizer import AcceleratedOptimizer
from torch import nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

from smoothtune.core.regularizer import Penalty, Regularizer


def unwrapped_optimizer(optimizer: Optimizer) -> Optimizer:
    """The optimizer inside the wrapper that `accelerator.prepare` returns.

    Raises:
        TypeError: it is another wrapper, whose updates cannot be seen.
    """
    while isinstance(optimizer, AcceleratedOptimizer):
        optimizer = optimizer.optimizer
    if not hasattr(optimizer, "_optimizer_step_pre_hooks"):
        raise TypeError(
            f"{type(optimizer).__name__} has no hooks of torch.optim.Optimizer: bind the optimizer "
            "that it wraps"
        )
    return optimizer


class OptimizerHooks:
    """Calls `before` and `after` around every update of an optimizer that takes place.

    Gradients are unscaled then. `torch.amp.GradScaler` steps optimizers that unscale for themselves
    (fused ones) with scaled gradients, and after an overflow too, in which case they do nothing.

    Args:
        optimizer: not wrapped.
        regularizers: the methods that act on its updates.
        before: edits the gradients.
        after: reads or corrects the weights.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        regularizers: Iterable[Regularizer],
        before: Callable[[], None],
        after: Callable[[], None],
    ):
        self.optimizer, self.before, self.after = optimizer, before, after
        editing = [r for r in regularizers if r.acts_before]
        self.edits, self.stepping = bool(editing), False
        self.once = [r.name for r in editing if r.acts_after]  # a second call would mislead them
        self.handles = [
            optimizer.register_step_pre_hook(self._pre),
            optimizer.register_step_post_hook(self._post),
        ]

    def remove(self) -> None:
        """Call no longer."""
        for handle in self.handles:
            handle.remove()

    def _pre(self, _: Optimizer, args: Any, kwargs: Any) -> Any:
        self.stepping = True
        if self._overflowed():
            return None
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        if closure is None:
            self._unscale()
            self.before()
            return None
        closure = self._then_edit(closure)
        if len(args) > 1:
            return (args[0], closure, *args[2:]), kwargs
        return args, kwargs | {"closure": closure}

    def _post(self, *_: Any) -> None:
        self.stepping = False
        if not self._overflowed():
            self.after()

    def _overflowed(self) -> bool:
        overflow: Any = getattr(self.optimizer, "found_inf", None)
        return overflow is not None and bool(overflow > 0)

    def _unscale(self) -> None:
        scale: Any = getattr(self.optimizer, "grad_scale", None)
        if scale is None or not self.edits:
            return
        inverse = scale.double().reciprocal().float()
        for group in self.optimizer.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    weight.grad.mul_(inverse.to(weight.grad.device))
        self.optimizer.grad_scale = None  # type: ignore[attr-defined]

    def _then_edit(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        """The closure, and the methods on the gradients that it leaves."""
        calls = 0

        def edited() -> Any:
            nonlocal calls
            calls += 1
            if calls > 1 and self.once:
                raise RuntimeError(
                    f"{type(self.optimizer).__name__} evaluates its closure several times in one "
                    f"update, and {', '.join(self.once)} may act on one gradient only: set "
                    "max_iter=1, or use another optimizer"
                )
            loss = closure()
            self.before()
            return loss

        return edited


_WATCHING: weakref.WeakSet[UpdateWatch] = weakref.WeakSet()


class UpdateWatch:
    """Notices a loop whose updates the methods that need them do not see.

    Args:
        regularizers: methods by name.
    """

    def __init__(self, regularizers: dict[str, Regularizer]):
        self.prepared = [name for name, r in regularizers.items() if _needs_attaching(r)]
        self.acting = [name for name, r in regularizers.items() if needs_updates(r)]
        self.bound: OptimizerHooks | None = None
        self._weights: set[nn.Parameter] | None = None
        self._unseen: str | None = None  # the kind of an optimizer that is not bound
        self._step = 0

    def start(self, model: nn.Module) -> None:
        """Watch the trained weights of a model."""
        self._weights = {weight for weight in model.parameters() if weight.requires_grad}
        if self.acting:
            _see_all_optimizers()
            _WATCHING.add(self)

    def stop(self) -> None:
        """Watch nothing."""
        self._weights = self._unseen = None
        _WATCHING.discard(self)

    def notice(self, optimizer: Optimizer) -> None:
        """An optimizer, of this model or of another, has made an update."""
        if self.bound is not None and (optimizer is self.bound.optimizer or self.bound.stepping):
            return  # or it is one that the bound optimizer wraps
        weights = (weight for group in optimizer.param_groups for weight in group["params"])
        if any(weight in (self._weights or ()) for weight in weights):
            self._unseen = type(optimizer).__name__

    def check(self, step: int) -> None:
        """Say so if methods did not get what they need.

        Args:
            step: number of updates seen; a loop may call the methods without an optimizer's hooks.

        Raises:
            RuntimeError: no model was prepared, or its weights were updated unseen.
        """
        if self._weights is None and self.prepared:
            raise RuntimeError(
                f"{', '.join(self.prepared)} must prepare the model and see its updates: call "
                "objective.bind(model, optimizer) before the loop"
            )
        if self._unseen and (self.bound is not None or step == self._step):
            raise RuntimeError(
                f"{self._unseen} updates the weights, and the objective is not bound to it, so "
                f"{', '.join(self.acting)} cannot act: call objective.bind(model, optimizer) with "
                "the one optimizer of the loop"
            )
        self._step, self._unseen = step, None


@functools.cache
def _see_all_optimizers() -> None:
    """Report every optimizer's updates, from the first call on, once.

    The hook stays: a watch that the garbage collector ends may end inside of an optimizer's step,
    where torch goes through its hooks and none may be removed.
    """
    register_optimizer_step_post_hook(_report)


def _report(optimizer: Optimizer, *_: Any) -> None:
    for watch in list(_WATCHING):
        watch.notice(optimizer)


def _needs_attaching(method: Regularizer) -> bool:
    traits = method.traits
    prepares = traits.reparametrizes or traits.resets_weights or traits.derivative_order > 1
    return prepares or needs_updates(method)


def needs_updates(method: Regularizer) -> bool:
    """Whether a method acts on updates or depends on their number."""
    binds = type(method).bind_optimizer is not Regularizer.bind_optimizer
    counts = isinstance(method, Penalty) and (
        method.every > 1
        or method.max_share is not None
        or bool(method.ramp_start or method.ramp_steps)
    )
    return binds or method.acts_before or method.acts_after or counts
