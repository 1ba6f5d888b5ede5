"""One forward pass of a model at E(x) + delta: its loss, outputs and hidden states.

Shapes, here and everywhere: B batch, T tokens, D width, C classes, L layers, K passes.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import cached_property, partial
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._pytree import tree_map_only

from smoothtune.core.compute_loss import (
    ComputeLoss,
    PassResults,
    Result,
    loss_and_outputs,
    model_loss,
)
from smoothtune.nn import rng
from smoothtune.nn.architecture import pooled_positions, trained_weights, unwrap
from smoothtune.nn.causal_lm import NextTokenLoss
from smoothtune.nn.dropout import Rate, SharedMasks, dropout_rates, evaluating, unchanged_weights
from smoothtune.nn.hooks import INSTEAD, WEIGHT_SIDE, Point, PointReached, depth, tapped, width_at
from smoothtune.nn.model_facts import SPANS, Side, has_labels, tokens_and_mask, with_decoder_inputs

Batch = Mapping[str, Any]
Dropout = Literal["independent", "shared", "off"]


def device_of(batch: Batch) -> torch.device:
    """Where the tensors of a batch are.

    Raises:
        ValueError: it holds none.
    """
    for value in batch.values():
        if isinstance(value, Tensor):
            return value.device
    raise ValueError(f"no input of the batch is a tensor: make tensors of {', '.join(batch)}")


class ForwardPass(PassResults):
    """One evaluation of the model at E(x) + delta.

    `run()` computes it, once; `loss`, `outputs`, `logits` and `hidden_states` are there from then
    on. `clean.at(delta)` computes f(x + delta) on the same batch; where it needs no clean outputs,
    the clean pass need not run. Differentiate with respect to `clean.delta(point)`, a leaf that is
    zero in the clean pass: that works for frozen embeddings, too.

    Args:
        model: as the loop holds it, DDP and other wrappers included.
        batch: model inputs by name. Perturbing needs `input_ids` (B, T), or (B, choices, T), whose
            sequences then count as B * choices examples wherever a shape says B, but in outputs.
        compute_loss: (model, batch) -> scalar loss or None, and outputs; see `ComputeLoss`.
        points: where perturbations may enter; see `smoothtune.nn.hooks`.
        deltas: (B, T, D) perturbation by point; missing points are not perturbed.
        differentiable: give every point a zero leaf, so that gradients with respect to it exist.
        hidden_states: record the hidden states.
        side: of an encoder-decoder, where points and hidden states are; T counts its tokens, on
            both sides the encoder's and then the decoder's.
        labeled: whether the batch has a task loss; None: as the model declares its labels.
        dropout: "independent": the model's own; "off": evaluation mode; "shared", as `at` sets it:
            that of another pass.
        start: state of the generators in which the forward begins; they are left where they were.
            None: the forward draws from them and moves them, as usual.
        shared_masks: keeps dropout masks for passes that share them.
        optimizer: may hold weights of the loss beside the model's.
    """

    def __init__(
        self,
        model: nn.Module,
        batch: Batch,
        *,
        compute_loss: ComputeLoss = model_loss,
        points: Sequence[Point] = ("word",),
        deltas: Mapping[Point, Tensor] | None = None,
        differentiable: bool = False,
        hidden_states: bool = True,
        side: Side = "encoder",
        labeled: bool | None = None,
        dropout: Dropout = "independent",
        start: rng.State | None = None,
        shared_masks: SharedMasks | None = None,
        optimizer: Optimizer | None = None,
    ):
        self.model, self.compute_loss, self.side = model, compute_loss, side
        self.optimizer = optimizer
        labels = batch.get("labels") is not None
        self.batch = with_decoder_inputs(unwrap(model), batch) if labels else batch
        self.points, self.dropout, self.shared_masks = tuple(points), dropout, shared_masks
        self.device, self.deltas = device_of(batch), dict(deltas or {})
        self.start = start  # generator state in which the forward begins; None: the current one
        self.end: rng.State | None = None  # and in which it ended
        self.labeled = has_labels(unwrap(model), batch) if labeled is None else labeled
        self._differentiable, self._records_states = differentiable, hidden_states
        self._values: dict[Point, Tensor] = {}  # at points, without graph
        # set by `at`
        self._rate: Rate | None = None
        self._detach = self._relative = False
        # set by `smoothtune.core.row_subset`
        self._rng_end: rng.State | None = None  # where passes that share its masks end

    @property
    def full(self) -> ForwardPass:
        """The pass over all rows of the batch; itself, unless the term is taken on some of them."""
        return self._full or self

    @property
    def weights(self) -> list[nn.Parameter]:
        """All that is trained, for methods that differentiate at it themselves."""
        return trained_weights(self.model, self.optimizer)

    # --- input -------------------------------------------------------------------------------

    @property
    def input_ids(self) -> Tensor:
        """(B, T) the tokens; models for multiple choice put all their sequences into one batch.

        Raises:
            ValueError: the batch has no `input_ids`, or not what the decoder reads.
        """
        return self._tokens[0]

    @property
    def mask(self) -> Tensor:
        """(B, T) True on real tokens, False on padding."""
        return self._tokens[1]

    @cached_property
    def _tokens(self) -> tuple[Tensor, Tensor]:
        return tokens_and_mask(unwrap(self.model), self.batch, self.side)

    def delta(self, point: Point = "word") -> Tensor:
        """(B, T, D) the perturbation leaf at a point, zero in the clean pass."""
        if point not in self.deltas:
            raise RuntimeError(
                f"no perturbation at point {point!r}: the trait differentiates is False"
            )
        return self.deltas[point]

    def zeros(self, point: Point = "word") -> Tensor:
        """(B, T, D) zero perturbation for a point."""
        width, dtype = width_at(unwrap(self.model), point)
        shape = (*self.input_ids.shape, width)
        return torch.zeros(shape, dtype=dtype, device=self.device)

    def pooled(self, hidden: Tensor) -> Tensor:
        """(B, D) state of the token a head reads, of (B, T, D): see `pooled_positions`.

        Raises:
            ValueError: the head of an encoder-decoder reads none of the encoder's tokens.
        """
        positions = pooled_positions(unwrap(self.model), self.mask)
        return hidden[torch.arange(len(hidden), device=hidden.device), positions]

    # --- running -----------------------------------------------------------------------------

    def run(self) -> Self:
        """Compute the forward, unless it has been; the pass itself.

        Raises:
            RuntimeError: the forward passes a point never or twice, or a perturbation does not fit.
            ValueError: the model has no such point.
        """
        if self._result is not None:
            return self
        if self._differentiable:
            leaves = {point: self.zeros(point).requires_grad_() for point in self.points}
            self.deltas = leaves | self.deltas
        states: list[Tensor] | None = [] if self._records_states else None
        hooks = tapped(
            self.model,
            self.points,
            self.deltas,
            side=self.side,
            detach=self._detach,
            bases=self._values_below(),
            hidden_states=states,
            relative=self._relative,
        )
        with self._conditions(), hooks as taps:
            self._fixed_start()
            # a copy for each pass: some models clamp the positions of answers in place
            spans = {name: self.batch[name].clone() for name in SPANS if name in self.batch}
            loss, outputs = self._loss_and_outputs({**self.batch, **spans})
            self.end = rng.get_state(self.device)
        values = {point: tap.value for point, tap in taps.items() if tap.value is not None}
        self._result = Result(loss, outputs, states, values)
        self._values |= {point: value.detach() for point, value in values.items()}
        return self

    def _loss_and_outputs(self, batch: dict[str, Any]) -> tuple[Any, Any]:
        """A language model's loss, over its whole vocabulary, is computed if it is asked for."""
        if isinstance(self.compute_loss, NextTokenLoss):
            outputs = self.compute_loss.outputs(self.model, batch)
            return partial(self.compute_loss.loss, batch=batch), outputs
        return loss_and_outputs(self.compute_loss(self.model, batch))

    def at(
        self,
        delta: Tensor | Mapping[Point, Tensor] | None = None,
        point: Point = "word",
        *,
        dropout: Dropout = "independent",
        rate: Rate | None = None,
        detach: bool = False,
        relative: bool = False,
        model: nn.Module | None = None,
    ) -> ForwardPass:
        """Another pass on the same batch, at another perturbation, which has run.

        Args:
            delta: (B, T, D), several by point, or None for an unperturbed second pass.
            point: where it enters, if it is one.
            dropout: "independent" masks, the ones "shared" with this pass, or "off".
            rate: dropout rates in [0, 1), one for all or by kind; None: the model's own. See
                `smoothtune.nn.dropout`.
            detach: no gradient reaches the layers below the point.
            relative: delta is in units of each token's root mean square at its point.
            model: another model of the same architecture, such as a teacher.

        Raises:
            RuntimeError: as `run`; or this pass has some rows of a batch, and other random numbers
                are drawn for them than for the whole.
            ValueError: as `run`; or the model has no dropout whose rate could be set.
        """
        shares = dropout == "shared"
        other = copy.copy(self)
        other._result, other._values, other._differentiable = None, {}, False
        other.model, other.dropout = model or self.model, dropout
        other.deltas = {point: delta} if isinstance(delta, Tensor) else dict(delta or {})
        other.start, other.end = (self._fixed_start() if shares else None), None
        other.shared_masks = self.shared_masks if shares else None
        other._rate, other._detach, other._relative, other._clean = rate, detach, relative, self
        other._full = other._rng_end = None
        other.run()
        if shares:  # this pass, should it never run, would have ended there
            self.end = self.end or other.end
            if self._rng_end and not rng.same(self._rng_end, other.end):
                raise RuntimeError(
                    f"{type(unwrap(self.model)).__name__} draws other random numbers than dropout "
                    "for every row, so a pass over some rows cannot share them: leave rows at 1, "
                    "or give the method every=k"
                )
        return other

    def constant(self) -> ForwardPass:
        """This pass, which has run, as a constant; passes `at` a perturbation share no graph."""
        result, constant = self._finished, copy.copy(self)
        loss, outputs, states = tree_map_only(
            Tensor, Tensor.detach, (result.loss, result.outputs, result.hidden_states)
        )
        constant._result = Result(loss, outputs, states, {})
        return constant

    def embeddings(self, point: Point = "word") -> Tensor:
        """(B, T, D) values at a point before the perturbation, without graph.

        Before `run` this runs the model up to the point, with the dropout masks of the run to come.

        Raises:
            RuntimeError: they are no values of the batch's tokens.
        """
        if point not in self._values:
            bare = unwrap(self.model)
            self._fixed_start()
            with (
                torch.no_grad(),
                self._conditions(),
                suppress(PointReached),
                tapped(bare, [point], {}, side=self.side, stop=True) as taps,
            ):
                self.compute_loss(bare, dict(self.batch))
            torch.clear_autocast_cache()  # older torch keeps casts of weights that have no graph
            reached = taps[point].value
            assert reached is not None
            self._values[point] = reached
        value, tokens = self._values[point], self.input_ids.shape
        if value.shape[:-1] != tokens:
            instead = WEIGHT_SIDE if point == "word" else INSTEAD
            raise RuntimeError(
                f"the activation at point {point!r} has shape {tuple(value.shape)}, which does not "
                f"fit a batch of {tuple(tokens)} tokens: {instead}"
            )
        return value

    def _fixed_start(self) -> rng.State:
        """Generator state in which the forward begins; if not set, the current one from now on."""
        if self.start is None:
            self.start = rng.get_state(self.device)
        return self.start

    @contextmanager
    def _conditions(self) -> Iterator[None]:
        """Sets generators, dropout and shared masks for this pass."""
        with ExitStack() as stack:
            if self.start is not None:
                stack.enter_context(rng.replay(self.device, self.start))
            if self.dropout == "off":
                stack.enter_context(evaluating(self.model))
                stack.enter_context(unchanged_weights(self.model))
            if self._rate is not None:
                stack.enter_context(dropout_rates(unwrap(self.model), self._rate))
            if self.shared_masks is not None:
                stack.enter_context(self.shared_masks)
            yield

    def _values_below(self) -> dict[Point, Tensor]:
        """The clean pass's value at the lowest perturbation, if it would be the same here."""
        clean = self._clean
        if clean is None or clean._clean is not None or clean._result is None:
            return {}
        if not self.deltas or self.model is not clean.model:
            return {}
        lowest = min(self.deltas, key=depth)
        same_masks = self.dropout == "shared" and self._rate is None
        if self.side == "both" and depth(lowest) > 0:  # a block that reads the perturbed encoder
            return {}
        values = clean._result.values
        if lowest in values and (lowest == "word" or same_masks):  # no dropout acts before "word"
            return {lowest: values[lowest]}
        return {}
