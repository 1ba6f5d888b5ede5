"""The model evaluated at E(x) + delta: what every method looks at.

Shapes, here and everywhere: B batch, T tokens, D width, C classes, L layers, K passes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, Literal

import torch
from torch import Tensor, nn

from smoothtune.core import rng
from smoothtune.core.architecture import is_causal, unwrap
from smoothtune.core.dropout import Draws, Rate, dropout_rates
from smoothtune.core.hooks import Point, PointReached, Tap, depth, tapped, width_at

Batch = Mapping[str, Any]
Task = Callable[[nn.Module, dict[str, Any]], tuple[Tensor | None, Any]]
Dropout = Literal["independent", "shared", "off"]

LABELS = ("labels", "start_positions", "end_positions")


def model_task(model: nn.Module, batch: dict[str, Any]) -> tuple[Tensor | None, Any]:
    """The task as Hugging Face models define it: `outputs.loss`, None without labels."""
    outputs = model(**batch)
    return outputs.get("loss"), outputs


def device_of(batch: Batch) -> torch.device:
    """Where the tensors of a batch are."""
    return next(value.device for value in batch.values() if isinstance(value, Tensor))


class ForwardPass:
    """One evaluation of the model at E(x) + delta, run when first looked at.

    `clean.at(delta)` is f(x + delta) on the same batch. Differentiate with respect to
    `clean.delta(point)`, a leaf that is zero in the clean pass: it works for frozen embeddings
    and is what the papers write.

    Args:
        model: as the loop holds it, DDP and other wrappers included.
        batch: model inputs by name; perturbing needs `input_ids` (B, T), or (B, choices, T), whose
            sequences then count as B * choices examples wherever a shape says B, but in outputs.
        task: (model, batch) -> (scalar loss or None, outputs).
        points: where perturbations may enter; see `smoothtune.core.hooks`.
        deltas: (B, T, D) perturbation by point; missing points are not perturbed.
        differentiable: give every point a zero leaf, so that gradients with respect to it exist.
        hidden_states: record the hidden states.
        dropout: "independent" masks, "shared" with the pass this one was made from, or "off".
        rate: dropout rates of the pass, for all dropouts or by kind; None: the model's own.
        detach: cut the graph below the points, so that the layers under them get no gradient.
        start: state of the generators in which the forward begins; they are left where they were.
            Without it the forward draws from them as any forward does.
        origin: the pass this one was made from.
        draws: where passes with shared dropout masks keep them, so that they are drawn once.
    """

    def __init__(
        self,
        model: nn.Module,
        batch: Batch,
        *,
        task: Task = model_task,
        points: Sequence[Point] = ("word",),
        deltas: Mapping[Point, Tensor] | None = None,
        differentiable: bool = False,
        hidden_states: bool = True,
        dropout: Dropout = "independent",
        rate: Rate | None = None,
        detach: bool = False,
        start: rng.State | None = None,
        origin: ForwardPass | None = None,
        draws: Draws | None = None,
    ):
        self.model, self.batch, self.task = model, batch, task
        self.points = tuple(points)
        self.deltas = dict(deltas or {})
        self.dropout, self.rate, self.detach = dropout, rate, detach
        self.device = device_of(batch)
        self.draws = draws
        self.start = start  # generator state in which the forward begins; None: the current one
        self.end: rng.State | None = None  # and in which it ended
        self._origin = origin  # the pass this one was made from
        self._differentiable, self._wants_hidden = differentiable, hidden_states
        self._taps: dict[Point, Tap] = {}
        self._result: tuple[Tensor | None, Any] | None = None
        self._hidden: list[Tensor] = []

    # --- what the forward gave ---------------------------------------------------------------

    @property
    def has_run(self) -> bool:
        """Whether the forward has been computed."""
        return self._result is not None

    @property
    def loss(self) -> Tensor | None:
        """() task loss, a mean over the batch; None without labels."""
        return self._run()[0]

    @property
    def outputs(self) -> Any:
        """What the model returned."""
        return self._run()[1]

    @property
    def logits(self) -> Tensor:
        """(B, C) logits or scores; (B, T, C) for token tasks."""
        return self.outputs["logits"]

    @property
    def hidden_states(self) -> tuple[Tensor, ...]:
        """L+1 tensors (B, T, D): the input of block 0, then the output of every block."""
        self._run()
        if not self._hidden:
            raise RuntimeError("hidden states were not recorded: uses_hidden_states is False")
        return tuple(self._hidden)

    # --- what the input was ------------------------------------------------------------------

    @property
    def input_ids(self) -> Tensor:
        """(B, T) the tokens; models for multiple choice put all their sequences into one batch."""
        return self.batch["input_ids"].flatten(0, -2)

    @property
    def mask(self) -> Tensor:
        """(B, T) True on real tokens, False on padding."""
        mask = self.batch.get("attention_mask")
        ids = self.input_ids
        return torch.ones_like(ids).bool() if mask is None else mask.flatten(0, -2).bool()

    @property
    def labeled(self) -> bool:
        """Whether the batch carries labels."""
        return any(name in self.batch for name in LABELS)

    def embeddings(self, point: Point = "word") -> Tensor:
        """(B, T, D) values at a point before the perturbation, without graph.

        If the pass has not run yet, the model runs only up to the point.
        """
        if point not in self._taps or self._taps[point].seen is None:
            self._run_to(point)
        seen = self._taps[point].seen
        assert seen is not None
        return seen

    def delta(self, point: Point = "word") -> Tensor:
        """(B, T, D) the perturbation leaf at a point, zero in the clean pass."""
        if point not in self.deltas:
            raise RuntimeError(f"no perturbation at point {point!r}: differentiates is False")
        return self.deltas[point]

    def zeros(self, point: Point = "word") -> Tensor:
        """(B, T, D) zero perturbation for a point."""
        width, dtype = width_at(unwrap(self.model), point)
        shape = (*self.input_ids.shape, width)
        return torch.zeros(shape, dtype=dtype, device=self.device)

    def pooled(self, hidden: Tensor) -> Tensor:
        """(B, D) the token a head reads: the last real one in decoders, else the first real one.

        Args:
            hidden: (B, T, D).
        """
        positions = torch.arange(hidden.shape[1], device=hidden.device)
        if is_causal(unwrap(self.model)):
            chosen = (positions * self.mask).argmax(1)
        else:
            chosen = self.mask.int().argmax(1)
        return hidden[torch.arange(len(hidden), device=hidden.device), chosen]

    # --- other passes ------------------------------------------------------------------------

    def at(
        self,
        delta: Tensor | Mapping[Point, Tensor] | None = None,
        point: Point = "word",
        *,
        dropout: Dropout = "independent",
        rate: Rate | None = None,
        detach: bool = False,
    ) -> ForwardPass:
        """The same batch at another perturbation.

        Args:
            delta: (B, T, D), several by point, or None for an unperturbed second pass.
            point: where it enters, if it is one.
            dropout: "independent" masks, the ones "shared" with this pass, or "off".
            rate: dropout rates in [0, 1), one for all or by kind; see `smoothtune.core.dropout`.
            detach: no gradient reaches the layers below the point.
        """
        return ForwardPass(
            self.model,
            self.batch,
            task=self.task,
            points=self.points,
            deltas={point: delta} if isinstance(delta, Tensor) else delta,
            hidden_states=self._wants_hidden,
            dropout=dropout,
            rate=rate,
            detach=detach,
            start=self._first_state() if dropout == "shared" else None,
            origin=self,
            draws=self.draws,
        )

    # --- running -----------------------------------------------------------------------------

    def _first_state(self) -> rng.State:
        if self.start is None:
            self.start = rng.get_state(self.device)
        return self.start

    @contextmanager
    def _conditions(self, start: rng.State | None):
        """Generators and dropout as this pass wants them."""
        with ExitStack() as stack:
            if start is not None:
                stack.enter_context(rng.replay(self.device, start))
            if self.dropout == "off":
                stack.enter_context(evaluating(self.model))
            if self.rate is not None:
                stack.enter_context(dropout_rates(unwrap(self.model), self.rate))
            if self.draws is not None and (self._origin is None or self.dropout == "shared"):
                stack.enter_context(self.draws)
            yield

    def _run(self) -> tuple[Tensor | None, Any]:
        if self._result is None:
            if self._differentiable:
                for point in self.points:
                    self.deltas.setdefault(point, self.zeros(point).requires_grad_())
            hidden = self._hidden if self._wants_hidden else None
            start, self.start = self.start, self._first_state()
            taps = tapped(
                self.model,
                self.points,
                self.deltas,
                detach=self.detach,
                bases=self._bases(),
                hidden_states=hidden,
            )
            with self._conditions(start), taps as self._taps:
                self._result = self.task(self.model, dict(self.batch))
                self.end = rng.get_state(self.device)
            if self._origin is not None and self.dropout == "shared":
                self._origin.end = self._origin.end or self.end
        return self._result

    def _bases(self) -> dict[Point, Tensor]:
        """What the clean pass computed below the lowest perturbation, if it is the same here."""
        clean = self._origin
        if clean is None or clean._origin is not None or not self.deltas:
            return {}
        lowest = min(self.deltas, key=depth)
        tap = clean._taps.get(lowest) if clean.has_run else None
        same_masks = self.dropout == "shared" and self.rate is None
        same = lowest == "word" or same_masks  # no dropout acts before "word"
        return {lowest: tap.value} if tap is not None and tap.value is not None and same else {}

    def _run_to(self, point: Point) -> None:
        bare = unwrap(self.model)
        with (
            torch.no_grad(),
            self._conditions(self._first_state()),
            suppress(PointReached),
            tapped(bare, [point], {}, stop=True) as taps,
        ):
            self._taps = self._taps | taps
            self.task(bare, dict(self.batch))


@contextmanager
def evaluating(model: nn.Module):
    """Evaluation mode for the time of a pass; every module's own mode is restored."""
    training = [module for module in model.modules() if module.training]
    for module in training:
        module.training = False
    try:
        yield
    finally:
        for module in training:
            module.training = True
