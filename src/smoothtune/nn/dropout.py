"""Dropout rates set during a forward, none at all, and masks shared by several forwards."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import TensorWeakRef

from smoothtune.nn.architecture import head_modules, unwrap

DropoutKind = Literal["hidden", "attention", "head"]
Rate = float | Mapping[DropoutKind, float]

# Attributes in which modules of transformers keep a rate that they give to F.dropout.
RATE_ATTRIBUTES = (
    "dropout",
    "dropout_prob",
    "hidden_dropout",
    "activation_dropout",
    "attention_dropout",
    "attn_dropout",
    "attn_pdrop",
    "attn_dropout_p",
    "embedding_dropout",
    "residual_dropout",
    "resid_pdrop",
)
# Dropouts that attention modules apply to what they return, not to attention probabilities.
AROUND_ATTENTION = (
    "resid_dropout",
    "residual_dropout",
    "resid_pdrop",
    "hidden_dropout",
    "out_drop",
    "output_dropout",
    "pos_dropout",
)


def sites(model: nn.Module) -> Iterator[tuple[nn.Module, str, DropoutKind]]:
    """Every dropout rate of an unwrapped model: (module, attribute that holds it, kind).

    "attention" is dropout of attention probabilities, "head" that outside the base model, "hidden"
    all else.
    """
    heads = set(head_modules(model))

    def kind(module: nn.Module, attends: bool, name: str) -> DropoutKind:
        if module in heads:
            return "head"
        return "attention" if attends and name not in AROUND_ATTENTION else "hidden"

    for owner in model.modules():
        # the innermost: what is around it (MPNet, T5) drops out what it returns
        attends = _is_attention(owner) and sum(map(_is_attention, owner.modules())) == 1
        for name, child in owner.named_children():
            if isinstance(child, _DropoutNd):
                yield child, "p", kind(child, attends, name)
        for name in RATE_ATTRIBUTES:
            if isinstance(vars(owner).get(name), int | float):
                yield owner, name, kind(owner, attends, name)


def _is_attention(module: nn.Module) -> bool:
    return type(module).__name__.endswith("Attention")


def has_dropout(model: nn.Module) -> bool:
    """Whether two passes of an unwrapped model in training mode differ by their masks.

    Dropout of adapters does not count: what it acts on is zero at first.
    """
    own = {id(module) for name, module in model.named_modules() if "lora_" not in name}
    return any(id(owner) in own and getattr(owner, name) for owner, name, _ in sites(model))


@contextmanager
def dropout_rates(model: nn.Module, rate: Rate) -> Iterator[None]:
    """Set dropout rates of an unwrapped model in training mode; at the end all are put back.

    Args:
        model: unwrapped.
        rate: in [0, 1): one for all kinds of dropout, or one by kind; other kinds stay.

    Raises:
        ValueError: the model has no dropout of these kinds, or recomputes its blocks in the
            backward pass (activation checkpointing), at its own rates.
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
    changed = [
        (module, name, getattr(module, name), rates[kind])
        for module, name, kind in sites(model)
        if kind in rates
    ]
    if not changed:
        raise ValueError(
            f"{type(model).__name__} has no {' or '.join(rates)} dropout whose rate could be set"
        )
    try:
        for module, name, _, wanted in changed:
            setattr(module, name, wanted)
        yield
    finally:
        for module, name, before, _ in changed:
            setattr(module, name, before)


@contextmanager
def unchanged_weights(model: nn.Module) -> Iterator[None]:
    """Refuses a pass that changes weights in place, which the gradient of another pass needs."""
    before = [(weight, weight._version) for weight in model.parameters()]
    yield
    if any(weight._version != version for weight, version in before):
        raise RuntimeError(
            f"{type(unwrap(model)).__name__} changes its weights in evaluation mode, so a pass in "
            "that mode spoils the gradient: turn that off (RWKV: config.rescale_every=0), or use a "
            "method whose passes keep dropout on"
        )


aten = torch.ops.aten
Key = tuple[bytes, torch.Size, torch.dtype, float]


class Mask(NamedTuple):
    """A dropout mask and what it needs to be used again."""

    scaled: TensorWeakRef  # 0 or 1 / (1 - p), as dropout multiplies with
    version: int  # of that tensor when it was complete
    divisor: Any
    after: Tensor  # state of the generator after the draw


class SharedMasks(TorchDispatchMode):
    """While entered on a CPU, passes that replay a generator state share the masks drawn from it.

    A dropout whose generator state, shape, type and probability have been seen takes the mask that
    was drawn then, and the generator goes to the state after that draw, so numbers do not change.

    Dropout is `bernoulli_` on a fresh tensor and, as the next operation on any tensor, `div_` of
    it; any other call draws as usual. Masks are referenced weakly: they live as long as a graph
    needs them for its backward. Passes over some rows of the batch take their rows of these masks,
    and draw again what is one number for all rows, as the layerdrop of BART.
    """

    def __init__(self) -> None:
        super().__init__()
        self._masks: dict[Key, Mask] = {}
        self._rows: Tensor | None = None  # of the sequences, if these passes have not all
        self._others = 0  # draws that are no known masks
        self._drawn: tuple[Tensor, Key] | None = None  # waits for its div_
        self._reused: tuple[Tensor, Tensor, Any] | None = None  # likewise: tensor, mask, divisor

    def are_by_row(self, count: int) -> bool:
        """Whether masks alone were drawn, all of them with `count` rows, one for each sequence."""
        return not self._others and all(shape[:1] == (count,) for _, shape, _, _ in self._masks)

    def of_rows(self, rows: Tensor) -> SharedMasks:
        """The same masks for passes over some of the sequences, whose numbers are (n,) `rows`."""
        part = SharedMasks()
        part._masks, part._rows = self._masks, rows
        return part

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run an operation of a forward."""
        drawn, self._drawn = self._drawn, None
        reused, self._reused = self._reused, None
        divides = func is aten.div_.Scalar and not kwargs
        if reused is not None:
            tensor, scaled, divisor = reused
            if divides and args[0] is tensor and args[1] == divisor:
                return tensor
            # this bernoulli_ was no dropout: return its draws, in memory of their own
            aten.set_.source_Tensor(tensor, scaled.mul(divisor).round_())
        if func is aten.bernoulli_.float and not kwargs and type(args[0]) is Tensor:
            return self._bernoulli(*args)
        before = torch.get_rng_state() if torch.Tag.nondeterministic_seeded in func.tags else None
        result = func(*args, **(kwargs or {}))
        one_number = isinstance(result, Tensor) and result.ndim == 0
        if before is not None and not one_number and not torch.equal(before, torch.get_rng_state()):
            self._count_other()
        if drawn is not None and divides and args[0] is drawn[0]:
            version = args[0]._version + 1  # div_ is counted once this has returned
            state = torch.get_rng_state()
            self._masks[drawn[1]] = Mask(TensorWeakRef(args[0]), version, args[1], state)
            self._others -= 1
        return result

    def _bernoulli(self, tensor: Tensor, p: float = 0.5) -> Tensor:
        if tensor.device.type != "cpu" or not tensor.is_contiguous() or tensor.is_inference():
            self._count_other()
            return tensor.bernoulli_(p)
        if self._rows is not None:
            return self._of_rows(tensor, p, self._rows)
        key = (torch.get_rng_state().numpy().tobytes(), tensor.shape, tensor.dtype, p)
        mask = self._masks.get(key)
        scaled = None if mask is None else mask.scaled()
        if mask is None or scaled is None or scaled._version != mask.version:
            self._drawn = (tensor, key)
            self._count_other()  # until its div_
            return tensor.bernoulli_(p)
        return self._reuse(tensor, scaled, mask)

    def _reuse(self, tensor: Tensor, scaled: Tensor, mask: Mask) -> Tensor:
        """A tensor that was to be drawn, with a known mask in its memory."""
        torch.set_rng_state(mask.after)
        self._reused = (tensor, scaled, mask.divisor)
        return aten.set_.source_Tensor(tensor, scaled)

    def _count_other(self) -> None:
        self._others += 1
        if self._rows is not None:
            raise RuntimeError(
                "the model draws other random numbers than dropout masks, which a pass over some "
                "rows cannot share: leave rows at 1, or give the method every=k"
            )

    def _of_rows(self, tensor: Tensor, p: float, rows: Tensor) -> Tensor:
        """Rows of the mask that all rows have; drawn again, for all, if no graph holds it."""
        key = (torch.get_rng_state().numpy().tobytes(), tensor.dtype, p)
        shape = next((s for state, s, *rest in self._masks if (state, *rest) == key), None)
        if shape is None or tensor.shape not in (shape, (len(rows), *shape[1:])):
            raise RuntimeError(
                f"a dropout mask of shape {tuple(tensor.shape)} has none to be {len(rows)} rows of "
                "in the pass over the whole batch: leave rows at 1, or give the method every=k"
            )
        mask = self._masks[key[0], shape, *key[1:]]
        scaled = mask.scaled()
        if scaled is None or scaled._version != mask.version:
            scaled = tensor.new_empty(shape).bernoulli_(p).div_(mask.divisor)
        return self._reuse(tensor, scaled if tensor.shape == shape else scaled[rows], mask)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode for the time of a pass; every module's own mode is restored."""
    training = [module for module in model.modules() if module.training]
    for module in training:
        module.training = False
    try:
        yield
    finally:
        for module in training:
            module.training = True
