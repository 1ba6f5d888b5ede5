"""Dropout rates of a model, changed for the time of a forward."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Literal

from torch import nn
from torch.nn.modules.dropout import _DropoutNd

from smoothtune.weights import head_modules

DropoutKind = Literal["hidden", "attention", "head"]
Rate = float | Mapping[DropoutKind, float]

# Rates that transformers models keep as a number and hand to a dropout function.
NUMBERS = (
    "dropout",
    "dropout_prob",
    "hidden_dropout",
    "activation_dropout",
    "attention_dropout",
    "attn_dropout",
    "attn_pdrop",
)
# Dropouts that attention modules apply to what they return, not to attention probabilities.
AROUND_ATTENTION = ("resid_dropout", "out_drop", "output_dropout", "pos_dropout")


def sites(model: nn.Module) -> Iterator[tuple[nn.Module, str, DropoutKind]]:
    """Every dropout rate of an unwrapped model: (module, attribute that holds it, kind).

    "attention" is dropout of attention probabilities, "head" that outside the base model, "hidden"
    all else.
    """
    heads = set(head_modules(model))

    def kind(module: nn.Module, attention: bool) -> DropoutKind:
        return "head" if module in heads else "attention" if attention else "hidden"

    for owner in model.modules():
        attends = type(owner).__name__.endswith("Attention")
        for name, child in owner.named_children():
            if isinstance(child, _DropoutNd):
                yield child, "p", kind(child, attends and name not in AROUND_ATTENTION)
        for name in NUMBERS:
            if isinstance(vars(owner).get(name), int | float):
                yield owner, name, kind(owner, attends)


@contextmanager
def dropout_rates(model: nn.Module, rate: Rate) -> Iterator[None]:
    """Set dropout rates; every rate is put back at the end, also after an exception.

    Args:
        model: an unwrapped model; rates act in training mode only.
        rate: in [0, 1): one for all kinds of dropout, or one by kind; other kinds stay.

    Raises:
        ValueError: the model has no dropout of these kinds, or recomputes its blocks in the
            backward pass (activation checkpointing), when the rates are no longer these.
    """
    rates: Mapping[DropoutKind, float] = (
        rate if isinstance(rate, Mapping) else {"hidden": rate, "attention": rate, "head": rate}
    )
    if any(getattr(module, "gradient_checkpointing", False) for module in model.modules()):
        raise ValueError(
            "passes at other dropout rates do not work with activation checkpointing, which would "
            "recompute them at the model's own rates: call activation_checkpointing_disable(), or "
            "keep the model's rates"
        )
    found = [
        (module, name, getattr(module, name), rates[kind])
        for module, name, kind in sites(model)
        if kind in rates
    ]
    if not found:
        raise ValueError(
            f"{type(model).__name__} has no {' or '.join(rates)} dropout whose rate could be set"
        )
    try:
        for module, name, _, wanted in found:
            setattr(module, name, wanted)
        yield
    finally:
        for module, name, before, _ in found:
            setattr(module, name, before)
