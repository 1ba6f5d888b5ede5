"""Weights replaced by a function of them during training.

The parameter stays where it is, under its name and in its place among the others: optimizers,
averages and state dicts see the model that they know. A copy of the model is whole, and stays so
when the model itself gets its weights back.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Container, Iterable
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

StandIn = Callable[[Tensor, bool], Tensor]
"""(weight, whether its module is in training mode) -> a weight of the same shape"""
_STAND_IN = "_stand_in"


@functools.cache
def _substituting(cls: type[nn.Module]) -> Any:
    """The class of a module of `cls` whose `weight` is what its stand-in makes of the parameter.

    A copy of a module has this class too, so that nothing may be taken from it again.
    """

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
) -> list[Any]:
    """Use `stand_in(weight, training)` instead of `module.weight` in every forward.

    Args:
        module: has a parameter called `weight`.
        stand_in: maps the weight to one of the same shape. Copies of the module share it, unless it
            says otherwise (`__deepcopy__`).
        saves: what a state dict holds: the "trained" parameter or the "effective" weight.

    Returns:
        Handles to give to `restore`.

    Raises:
        ValueError: something else computes this weight already.
    """
    refuse_computed([module], ["weight"])
    vars(module)[_STAND_IN] = stand_in
    module.__class__ = _substituting(type(module))  # type: ignore[arg-type]
    return [module.register_state_dict_post_hook(_save_effective)] if saves == "effective" else []


def computed_weights(module: nn.Module) -> dict[str, str]:
    """Weights that a module computes from others in every forward, each with what computes it.

    That is what pruning and norms of torch do, adapters, and methods that stand in for a weight: to
    write to such a weight changes nothing.
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
    """Refuse modules that compute a weight from others.

    Args:
        modules: each for itself, without what is inside it.
        names: of the weights that are written to; None: all.

    Raises:
        ValueError: there is one: to write to its weight would change nothing, and two that stand in
            for one weight have no common meaning in a checkpoint.
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


def restore(
    module: nn.Module, handles: list[Any], *, keep: Literal["trained", "effective"]
) -> None:
    """Undo `substitute`, keeping the trained parameter or the effective weight."""
    for handle in handles:
        handle.remove()
    if keep == "effective":
        with torch.no_grad():
            effective: Any = module.weight
            trained_weight(module).copy_(effective)
    del vars(module)[_STAND_IN]
    module.__class__ = type(module).__base__  # type: ignore[assignment]


def trained_weight(module: nn.Module) -> nn.Parameter:
    """The parameter behind a substituted weight, of the same shape."""
    weight = module._parameters["weight"]
    assert weight is not None
    return weight
