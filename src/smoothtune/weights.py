"""Which weights are pre-trained, and how one weight stands in for another during training."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from torch import Tensor, nn
from torch.nn.utils import parametrize
from transformers.pytorch_utils import Conv1D

from smoothtune.next_token import is_next_token_model


def base_model(model: nn.Module) -> nn.Module:
    """The pre-trained part of a model: without its new head, or all of it if it has none."""
    if is_next_token_model(model):
        return model
    if hasattr(model, "peft_config"):  # whose own `model` is the whole of it, head included
        model = model.get_base_model()  # type: ignore[operator]
    return getattr(model, getattr(model, "base_model_prefix", ""), model)


def head_modules(model: nn.Module) -> list[nn.Module]:
    """Modules outside the pre-trained part."""
    inside = set(base_model(model).modules()) | {model}
    return [module for module in model.modules() if module not in inside]


def trainable(model: nn.Module) -> Iterator[tuple[str, nn.Parameter, bool]]:
    """(name, parameter, whether it belongs to the new head) of everything that is trained."""
    inside = {id(parameter) for parameter in base_model(model).parameters()}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            yield name, parameter, id(parameter) not in inside


def linear_layers(model: nn.Module, *, head: bool) -> list[nn.Module]:
    """Trained linear layers (nn.Linear, and GPT-2's Conv1D), with or without those of the head."""
    new = set(head_modules(model))
    return [
        module
        for module in model.modules()
        if isinstance(module, nn.Linear | Conv1D)
        and module.weight.requires_grad
        and (head or module not in new)
    ]


def substitute(
    module: nn.Module, stand_in: nn.Module, *, saves: Literal["trained", "effective"]
) -> list[Any]:
    """Let `stand_in(weight)` take the place of `module.weight` in every forward.

    The nn.Parameter stays the same object, so optimizers made before go on working, and the keys of
    state dicts stay those of the plain model.

    Args:
        module: has a parameter called `weight`.
        stand_in: maps the weight to one of the same shape.
        saves: what a state dict holds: the "trained" parameter or the "effective" weight.

    Returns:
        Handles to give to `restore`.
    """
    parametrize.register_parametrization(module, "weight", stand_in, unsafe=True)
    inner = "parametrizations.weight.original"

    def on_save(module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
        trained = state.pop(prefix + inner)
        effective: Any = module.weight
        state[prefix + "weight"] = trained if saves == "trained" else effective.detach()

    def on_load(module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
        if prefix + "weight" in state:
            state[prefix + inner] = state.pop(prefix + "weight")

    return [
        module.register_state_dict_post_hook(on_save),
        module.register_load_state_dict_pre_hook(on_load),
    ]


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
    """The parameter behind a substituted weight."""
    return module.get_parameter("parametrizations.weight.original")
