"""Weights replaced by a function of them during training.

The parameter stays under its name and in its place among the others: optimizers, averages and state
dicts see the model that they know. A copy of the model stays whole when its weights are put back.
"""

import functools
from collections.abc import Callable, Container, Iterable
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.utils.hooks import RemovableHandle

StandIn = Callable[[Tensor, bool], Tensor]
"""(weight, whether its module is in training mode) -> a weight of the same shape"""
_STAND_IN = "_stand_in"


@functools.cache
def _substituting(cls: type[nn.Module]) -> Any:
    """The class of a module of `cls` whose `weight` is what its stand-in makes of the parameter."""

    def weight(module: nn.Module) -> Tensor:
        stand_in: StandIn = vars(module)[_STAND_IN]
        return stand_in(trained_weight(module), module.training)

    def reduced(module: nn.Module) -> tuple[Any, ...]:
        return _unfilled, (cls,), vars(module)

    members = {"weight": property(weight), "__reduce__": reduced}
    return type(f"Substituted{cls.__name__}", (cls,), members)


def _unfilled(cls: type[nn.Module]) -> nn.Module:
    """What copying and pickling fill."""
    subclass = _substituting(cls)  # type: ignore[arg-type]  # mypy: a class has the hash of instances
    module: nn.Module = subclass.__new__(subclass)
    return module


def _save_effective(module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    effective: Any = module.weight
    state[prefix + "weight"] = effective.detach()


def substitute(
    module: nn.Module, stand_in: StandIn, *, saves: Literal["trained", "effective"]
) -> Callable[[], None]:
    """Use `stand_in(weight, training)` instead of `module.weight` in every forward.

    Args:
        module: has a parameter called `weight`.
        stand_in: maps the weight to one of the same shape. Copies of the module share it, unless it
            says otherwise (`__deepcopy__`).
        saves: what a state dict holds, and the module in the end: the "trained" parameter or the
            "effective" weight.

    Returns:
        What undoes it.

    Raises:
        ValueError: something else computes this weight already.
    """
    refuse_computed([module], ["weight"])
    vars(module)[_STAND_IN] = stand_in
    module.__class__ = _substituting(type(module))  # type: ignore[arg-type]
    hook = module.register_state_dict_post_hook(_save_effective) if saves == "effective" else None
    return functools.partial(_restore, module, hook)


@torch.no_grad()
def _restore(module: Any, hook: RemovableHandle | None) -> None:
    if hook is not None:
        hook.remove()
        trained_weight(module).copy_(module.weight)
    del vars(module)[_STAND_IN]
    module.__class__ = type(module).__base__


def computed_weights(module: nn.Module) -> dict[str, str]:
    """Weights that a module computes from others in every forward, each with what computes it.

    Pruning and norms of torch do so, adapters, and methods that stand in for a weight.
    """
    if _STAND_IN in vars(module):
        return {"weight": type(vars(module)[_STAND_IN]).__name__}
    if hasattr(module, "base_layer"):
        return {"weight": f"an adapter ({type(module).__name__})"}
    if parametrize.is_parametrized(module):
        parts: Any = module.parametrizations
        return {name: type(stand_in[0]).__name__ for name, stand_in in parts.items()}
    stored = [*module._parameters, *module._buffers]
    return {
        name: "pruning, or a norm"
        for name, value in vars(module).items()
        if isinstance(value, Tensor) and any(key.startswith(f"{name}_") for key in stored)
    }


def refuse_computed(modules: Iterable[nn.Module], names: Container[str] | None = None) -> None:
    """Refuse modules that compute a weight of these names (None: any) from others.

    Raises:
        ValueError: there is one: to write to its weight would change nothing.
    """
    for module in modules:
        for name, by in computed_weights(module).items():
            if names is not None and name not in names:
                continue
            raise ValueError(
                f"{by} computes the {name} of a {type(module).__name__} already, and a weight "
                "takes one such method: use mixout once; beside r4f leave its `head` off; make "
                "pruning and norms of torch permanent first (prune.remove, remove_weight_norm, "
                "parametrize.remove_parametrizations), and put adapters on afterwards"
            )


def trained_weight(module: nn.Module) -> nn.Parameter:
    """The parameter behind a substituted weight, of the same shape."""
    weight = module._parameters["weight"]
    assert weight is not None
    return weight
