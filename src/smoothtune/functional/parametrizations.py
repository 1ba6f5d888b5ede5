"""Weights replaced by a function of them during training, as `torch.nn.utils.parametrize` does."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

from torch import Tensor, nn
from torch.nn.utils import parametrize


def substitute(
    module: nn.Module, stand_in: nn.Module, *, saves: Literal["trained", "effective"]
) -> list[Any]:
    """Use `stand_in(weight)` instead of `module.weight` in every forward.

    The nn.Parameter stays the same object, so optimizers made before go on working, and the keys of
    state dicts stay those of the plain model.

    Args:
        module: has a parameter called `weight`.
        stand_in: maps the weight to one of the same shape.
        saves: what a state dict holds: the "trained" parameter or the "effective" weight.

    Returns:
        Handles to give to `restore`.

    Raises:
        ValueError: another module stands in for this weight already.
    """
    refuse_substituted([module])
    parametrize.register_parametrization(module, "weight", stand_in, unsafe=True)
    inner = "parametrizations.weight.original"

    def on_save(module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
        trained = state.pop(prefix + inner)
        if saves == "effective":  # only then: to compute it may take a draw from the training
            effective: Any = module.weight
            trained = effective.detach()
        state[prefix + "weight"] = trained

    def on_load(module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
        if prefix + "weight" in state:
            state[prefix + inner] = state.pop(prefix + "weight")

    return [
        module.register_state_dict_post_hook(on_save),
        module.register_load_state_dict_pre_hook(on_load),
    ]


def refuse_substituted(modules: Iterable[nn.Module]) -> None:
    """Refuse weights that another method has put something in the place of.

    Raises:
        ValueError: there is one: two have no common meaning in a checkpoint.
    """
    for module in modules:
        if parametrize.is_parametrized(module, "weight"):
            parametrized: Any = module
            (stand_in, *_) = parametrized.parametrizations.weight
            raise ValueError(
                f"{type(stand_in).__name__} stands in for the weight of a {type(module).__name__} "
                f"of shape {tuple(parametrized.weight.shape)} already, and a weight takes one such "
                "method: use mixout once; beside r4f, or spectral or weight norm of your own, "
                "leave its `head` off"
            )


def restore(
    module: nn.Module, handles: list[Any], *, keep: Literal["trained", "effective"]
) -> None:
    """Undo `substitute`, keeping the trained parameter or the effective weight."""
    for handle in handles:
        handle.remove()
    parametrize.remove_parametrizations(module, "weight", leave_parametrized=keep == "effective")
    for name, parameter in list(module.named_parameters(recurse=False)):
        if name != "weight":  # the weight came back last; optimizers count on the order
            delattr(module, name)
            module.register_parameter(name, parameter)


def trained_weight(module: nn.Module) -> Tensor:
    """The parameter behind a substituted weight, of the same shape."""
    return module.get_parameter("parametrizations.weight.original")
