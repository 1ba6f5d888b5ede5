"""Hooks that add a perturbation at a point of a model and record what passes it.

A *point* is ``"word"``, the output of the word-embedding layer, or an integer b, the input of
transformer block b; 0 is what Hugging Face calls ``hidden_states[0]``. At ``"normalized"``, the
input x of the LayerNorm at the end of the embeddings, a perturbation is in units of each token's
standard deviation: LN(x + std(x) delta) = LN((x - mean(x)) / std(x) + delta). Models that do not
normalize their embeddings (pre-norm decoders) have it at the input of block 0. Anywhere else a
perturbation may be relative: in units of the root mean square of each token. `input_ids` are
always kept: models that are given `inputs_embeds` instead pool the wrong token and number positions
wrongly.
Hooks exist during one forward only.

An encoder-decoder has every point on each side. On both sides together, the T tokens of an example
are the encoder's and then the decoder's, so that norms and means run over all of them.
"""

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import product
from typing import Any, Literal

import torch
from pydantic import NonNegativeInt
from torch import Tensor, nn

from smoothtune.nn.architecture import (
    blocks,
    embedding_norm,
    embedding_table,
    stack,
    unwrap,
    word_embeddings,
)
from smoothtune.nn.model_facts import Side, sides_of, transformer

Point = Literal["word", "normalized"] | int
Layer = Literal["word"] | NonNegativeInt  # a point, as a field of a method


WEIGHT_SIDE = "use a weight-side method such as mixout or l2_sp"
INSTEAD = f"{WEIGHT_SIDE}, or one that perturbs the word embeddings alone, such as r3f"


class PointReached(Exception):  # noqa: N818 - it is a signal, not an error
    """Raised on purpose to end a forward at a point."""


def module_at(
    model: nn.Module,
    point: Point,
    side: Side = "encoder",
    layers: nn.ModuleList | None = None,
) -> nn.Module:
    """The module whose output ("word") or input (all other points) is the point.

    Args:
        model: unwrapped.
        point: on this side.
        side: of an encoder-decoder.
        layers: its blocks, if they have been looked up.

    Raises:
        ValueError: the model has fewer blocks.
    """
    if point == "word":
        return word_embeddings(model, side)
    if point == "normalized":
        return embedding_norm(model, side)
    layers = layers or blocks(model, side)
    if point >= len(layers):
        name = type(stack(model, side)).__name__
        raise ValueError(f"there is no block {point}: {name} has {len(layers)}, numbered from 0")
    return layers[point]


def width_at(model: nn.Module, point: Point) -> tuple[int, torch.dtype]:
    """Number of features at a point, and the type a perturbation has there (at least float32)."""
    table, config = embedding_table(model), getattr(transformer(model), "config", None)
    norm = embedding_norm(model) if point == "normalized" else None
    if isinstance(norm, nn.LayerNorm):
        width = norm.normalized_shape[-1]
    else:
        width = table.shape[1] if point == "word" else config.hidden_size  # type: ignore[union-attr]
    return width, torch.promote_types(table.dtype, torch.float32)


def token_std(x: Tensor) -> Tensor:
    """(B, T, 1) standard deviation over the features of each token."""
    return (x.var(-1, correction=0, keepdim=True) + 1e-7).sqrt()


def token_rms(x: Tensor) -> Tensor:
    """(B, T, 1) root mean square over the features of each token."""
    return (x.square().mean(-1, keepdim=True) + 1e-12).sqrt()


@dataclass(eq=False)
class Tap:
    """Adds `delta` to the activation at one point and records it as it was before.

    `base`, if given, is that value as another pass has computed it: using it again spares a second
    backward through everything below the point, the word-embedding matrix above all.

    On both sides of an encoder-decoder it is passed once on each, with that side's tokens.
    """

    point: Point
    delta: Tensor | None
    base: Tensor | None
    detach: bool
    stop: bool
    passes: int = 1
    relative: bool = False
    _parts: list[Tensor] = field(default_factory=list, init=False)

    @property
    def value(self) -> Tensor | None:
        """(B, T, D) the activation before the perturbation; None before all passes."""
        if len(self._parts) < self.passes:
            return None
        return self._parts[0] if self.passes == 1 else torch.cat(self._parts, 1)

    def _part(self, whole: Tensor, x: Tensor) -> Tensor:
        """What belongs to the pass at hand, whose activation is x."""
        if self.passes == 1:
            return whole
        start = sum(part.shape[1] for part in self._parts)
        return whole[:, start : start + x.shape[1]]

    @property
    def instead(self) -> str:
        """What to use where the point cannot be reached."""
        return WEIGHT_SIDE if self.point == "word" else INSTEAD

    def pass_through(self, x: Tensor) -> Tensor:
        """Return x + delta."""
        if not isinstance(x, Tensor):
            raise RuntimeError(
                f"the activation at point {self.point!r} is a {type(x).__name__}, not a tensor: "
                f"{self.instead}"
            )
        if len(self._parts) == self.passes:
            raise RuntimeError(
                f"point {self.point!r} was passed twice in one forward. Losses that run the model "
                f"several times are not supported by this method: {WEIGHT_SIDE}"
            )
        delta = None if self.delta is None else self._part(self.delta, x)
        base = x if self.base is None else self._part(self.base, x)
        self._parts.append(base)
        if self.stop and len(self._parts) == self.passes:
            raise PointReached
        x = base.detach() if self.detach else base
        if delta is None:
            return x
        if delta.shape != x.shape:
            raise RuntimeError(
                f"a perturbation of shape {tuple(delta.shape)} does not fit the activation at "
                f"point {self.point!r}, {tuple(x.shape)}: {self.instead}"
            )
        if self.point == "normalized":
            return x + token_std(x) * delta.to(x.dtype)
        if self.relative:
            return x + token_rms(x) * delta.to(x.dtype)
        return x + delta.to(x.dtype)

    def after(self, module: nn.Module, args: tuple, output: Tensor) -> Tensor:
        """Forward hook of the word embeddings."""
        return self.pass_through(output)

    def before(self, module: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
        """Forward pre-hook of a block, whose first argument is the hidden state."""
        if args:
            return (self.pass_through(args[0]), *args[1:]), kwargs
        name = _named_state(module, kwargs)
        return args, kwargs | {name: self.pass_through(kwargs[name])}


@contextmanager
def tapped(
    model: nn.Module,
    points: Sequence[Point],
    deltas: Mapping[Point, Tensor],
    *,
    side: Side = "encoder",
    detach: bool = False,
    bases: Mapping[Point, Tensor] | None = None,
    hidden_states: list[Tensor] | None = None,
    stop: bool = False,
    relative: bool = False,
) -> Iterator[dict[Point, Tap]]:
    """Hook the model for one forward.

    Args:
        model: as the loop holds it, wrappers included.
        points: where to record, and perhaps perturb.
        deltas: (B, T, D) perturbations by point.
        side: of an encoder-decoder, where points and hidden states are.
        detach: cut the graph below the points.
        bases: (B, T, D) values by point, from another pass, used in place of this one's.
        hidden_states: list to fill with the L+1 states (B, T, D): input of block 0, block outputs.
        stop: end the forward with `PointReached` at the first point.
        relative: the perturbations are in units of each token's root mean square.

    Yields:
        The taps by point; `value` is the activation before the perturbation.

    Raises:
        RuntimeError: a point or a block was passed never or twice.
    """
    bare = unwrap(model)
    recorded = None if hidden_states is None else blocks(bare, side)
    sides = sides_of(bare, side)
    bases = bases or {}
    taps = {
        point: Tap(point, deltas.get(point), bases.get(point), detach, stop, len(sides), relative)
        for point in {*points, *deltas}
    }
    # hooks, for the time of the forward
    with ExitStack() as hooks:
        for tap, one in product(taps.values(), sides):
            for handle in _hook(tap, bare, one, recorded):
                hooks.enter_context(handle)
        if recorded is not None and hidden_states is not None:
            for handle in _record(recorded, hidden_states):
                hooks.enter_context(handle)
        yield taps
    # what it has passed
    for point, tap in taps.items():
        if len(tap._parts) < tap.passes:
            raise RuntimeError(
                f"the forward never passed point {point!r}: give the batch `input_ids`; if it has "
                f"them, {type(bare).__name__} does not call the module that is hooked there, so "
                f"{tap.instead}"
            )
    if recorded is None or hidden_states is None:
        return
    if len(hidden_states) != len(recorded) + 1:
        raise RuntimeError(
            f"{len(hidden_states)} hidden states were recorded in one forward of "
            f"{type(bare).__name__} with {len(recorded)} blocks, and every block is to be called "
            f"once: {INSTEAD}"
        )


def _hook(tap: Tap, model: nn.Module, side: Side, layers: nn.ModuleList | None) -> Iterator:
    module = module_at(model, tap.point, side, layers)
    if tap.point != "word":
        yield module.register_forward_pre_hook(tap.before, with_kwargs=True)
        return
    within = stack(model, side)
    if within is model:
        yield module.register_forward_hook(tap.after)
        return
    # the stacks of an encoder-decoder may call one module: it acts while its own stack runs
    running: list[bool] = []

    def after(*call: Any) -> Tensor | None:
        return tap.after(*call) if running else None

    yield within.register_forward_pre_hook(lambda *_: running.append(True))
    yield module.register_forward_hook(after)
    yield within.register_forward_hook(lambda *_: running.clear())


def depth(point: Point) -> int:
    """Order of the points from the bottom up."""
    return {"word": -2, "normalized": -1}[point] if isinstance(point, str) else point


def _record(layers: nn.ModuleList, states: list[Tensor]) -> Iterator:
    def first(module: nn.Module, args: tuple, kwargs: dict) -> None:
        states.append(args[0] if args else kwargs[_named_state(module, kwargs)])

    def each(module: nn.Module, args: tuple, output: Tensor | tuple | list) -> None:
        states.append(output if isinstance(output, Tensor) else output[0])

    yield layers[0].register_forward_pre_hook(first, with_kwargs=True)
    for layer in layers:
        yield layer.register_forward_hook(each)


def _named_state(block: nn.Module, kwargs: dict) -> str:
    """Name under which a block that is called with named arguments only is given its input."""
    name = next(iter(inspect.signature(block.forward).parameters))
    if name not in kwargs:
        raise RuntimeError(
            f"{type(block).__name__} is called without its first argument, {name}: {INSTEAD}"
        )
    return name
