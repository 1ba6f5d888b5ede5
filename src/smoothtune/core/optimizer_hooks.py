"""What an objective needs of an optimizer: a call around every update, and none missed."""

import functools
import weakref
from collections.abc import Callable, Iterable
from typing import Any

from accelerate.optimizer import AcceleratedOptimizer
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


WATCHING: weakref.WeakSet[Any] = weakref.WeakSet()
"""Objectives that `notice` the updates of every optimizer."""


@functools.cache
def hook_all_optimizers() -> None:
    """Report every optimizer's updates, from the first call on, once.

    The hook stays: an objective that the garbage collector ends may end inside of an optimizer's
    step, where torch goes through its hooks and none may be removed.
    """
    register_optimizer_step_post_hook(_report)


def _report(optimizer: Optimizer, *_: Any) -> None:
    for objective in list(WATCHING):
        objective.notice(optimizer)


def needs_attaching(method: Regularizer) -> bool:
    """Whether a method has to prepare the model or to see its updates."""
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
