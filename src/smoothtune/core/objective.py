"""Task loss plus the terms of any number of methods."""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from smoothtune.core.attachment import Attachment
from smoothtune.core.compute_loss import ComputeLoss, model_loss, times
from smoothtune.core.forward import Batch, ForwardPass, device_of
from smoothtune.core.non_finite import Checks, non_finite_loss
from smoothtune.core.optimizer_hooks import (
    OptimizerHooks,
    UpdateWatch,
    unwrapped_optimizer,
)
from smoothtune.core.packed_rows import one_document_a_row
from smoothtune.core.plain_loss import plain_problems
from smoothtune.core.regularizer import Regularizer, entries_under
from smoothtune.core.strength import TASK, Strengths
from smoothtune.core.support import (
    NO_NORMS,
    check,
    computes_wide,
    environments,
    is_compiled,
    refuse,
)
from smoothtune.core.terms import Terms
from smoothtune.nn import rng
from smoothtune.nn.architecture import unwrap
from smoothtune.nn.autocast import autocast_dtype, in_float32
from smoothtune.nn.causal_lm import check_next_token_loss, next_token_loss
from smoothtune.nn.ddp_unused import FullReach
from smoothtune.nn.dropout import SharedMasks
from smoothtune.nn.gradients import reduces_now
from smoothtune.nn.higher_order import differentiable_attention
from smoothtune.nn.low_bit import keep_unpacked
from smoothtune.nn.model_facts import (
    PROBLEM_TYPES,
    declaring,
    has_labels,
    predicts_tokens,
    problem_type,
    undeclared_labels,
)


class Objective:
    """The scalar to back-propagate: task loss + sum of weight * term over the methods.

    Use it in a plain loop, or let `SmoothTrainer` / `regularize` do so::

        objective = Objective(LNSR(), Mixout(p=0.7)).bind(model, optimizer, len(loader))
        for batch in loader:
            objective(model, batch).backward()
            optimizer.step(); optimizer.zero_grad()

    Attributes:
        terms: detached parts of the last value: `loss`, `loss/task`, `loss/<method>`, and the
            methods' diagnostics as `<method>/<name>`.
        checks: whether its values are finite, which trainers read one update later.
    """

    def __init__(self, *regularizers: Regularizer):
        """Combine methods; their order does not matter.

        Raises:
            ValueError: two methods both want to replace the task loss, or one is given twice.
        """
        if len({id(r) for r in regularizers}) < len(regularizers):
            raise ValueError("one method is given twice: make two of them, for two terms")
        replacing = [r.name for r in regularizers if r.replaces_task_loss and r.is_on]
        if len(replacing) > 1:
            raise ValueError(
                f"{' and '.join(replacing)} each replace the task loss: use one of them"
            )
        self.regularizers = {name: r for name, r in _named(regularizers) if r.is_on}
        self.seed = torch.initial_seed()
        self.checks = Checks()
        self._attachment: Attachment | None = None
        self._last: weakref.ref[nn.Module] | None = None  # the model it was last attached to
        self._hooks: OptimizerHooks | None = None
        self._measurable = True  # whether gradient norms can be taken aside
        self._narrow = False  # whether frozen weights in few bits are read as float32
        self._sharded = False  # by FSDP2
        self._begin()

    def _begin(self) -> None:
        """As if no model had been seen."""
        self.terms: dict[str, Tensor] = {}
        self.calls = 0
        self.strengths = Strengths(self.regularizers)
        self._methods = Terms(self.regularizers, self.strengths)
        self._watch, self._reach = UpdateWatch(self.regularizers), FullReach()
        self._checked: set[tuple[int, Any]] = set()
        self._compared = False  # whether the task loss has been compared with the model's own

    # --- connecting --------------------------------------------------------------------------

    def attach(self, model: nn.Module) -> Self:
        """Prepare every method on the pre-trained model.

        On the model that it was attached to last it goes on, and no weight is re-initialized again;
        on another one it begins anew.

        Raises:
            RuntimeError: it is attached already, or another objective is attached to the model.
            ValueError: a method does not support this model; the message says what to change.
        """
        if self._attachment is not None:
            raise RuntimeError("this objective is attached already: call detach() first")
        check(self.regularizers, model)
        bare, methods = unwrap(model), list(self.regularizers.values())
        keep_unpacked(bare)
        again = self._last is not None and self._last() is bare
        self._attachment = Attachment(bare, methods, again=again)
        if self._last is not None and not again:
            self._begin()
        self._last, self.seed = weakref.ref(bare), torch.initial_seed()
        self._watch.start(bare)
        return self

    def bind_optimizer(self, optimizer: torch.optim.Optimizer) -> Self:
        """Call `before_step` and `after_step` around every update of the optimizer.

        Optimizer hooks see unscaled, reduced gradients, once per update, in any loop; they are
        skipped with the update when a gradient scaler finds an overflow. With `step(closure)` the
        gradients are those that the closure leaves.

        Args:
            optimizer: as the loop holds it, prepared by accelerate or not.

        Raises:
            RuntimeError: the objective is bound to an optimizer already.
        """
        optimizer = unwrapped_optimizer(optimizer)
        if self._hooks is not None:
            raise RuntimeError(
                "this objective is bound to an optimizer already, whose updates it counts: use one "
                "optimizer with several parameter groups"
            )
        for regularizer in self.regularizers.values():
            regularizer.bind_optimizer(self.model, optimizer)
        methods = self.regularizers.values()
        self._hooks = OptimizerHooks(optimizer, methods, self.before_step, self.after_step)
        self._watch.bound = self._hooks
        return self

    def bind(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        num_training_steps: int | None = None,
    ) -> Self:
        """`attach` and `bind_optimizer`: all that a plain loop needs.

        Args:
            model: as for `attach`.
            optimizer: as for `bind_optimizer`.
            num_training_steps: updates of the run, for fields that are a fraction of it.
        """
        self.attach(model)
        self.expect(num_training_steps)
        try:
            return self.bind_optimizer(optimizer)
        except BaseException:
            self.detach()
            raise

    def expect(self, num_training_steps: int | None, *, accumulates: bool = True) -> None:
        """Tell the methods of the run.

        Args:
            num_training_steps: its updates, if they are known.
            accumulates: whether an update may have several batches; if not, less memory is needed.
        """
        self.strengths.update.keeps = accumulates
        for regularizer in self.regularizers.values():
            regularizer.num_training_steps = num_training_steps

    def unbind_optimizer(self) -> None:
        """Act no longer on the updates of the optimizer, so that another one may be bound."""
        if self._hooks is not None:
            self._hooks.remove()
            self._hooks = self._watch.bound = None

    @property
    def optimizer(self) -> torch.optim.Optimizer | None:
        """The optimizer it is bound to, without wrappers."""
        return None if self._hooks is None else self._hooks.optimizer

    def detach(self) -> None:
        """Leave model and optimizer as they were found."""
        self.unbind_optimizer()
        if self._attachment is not None:
            self._watch.stop()
            self._attachment.undo()
            self._attachment = None

    @property
    def step(self) -> int:
        """Number of updates seen."""
        return self.strengths.step

    @step.setter
    def step(self, step: int) -> None:
        self.strengths.step = step

    # --- an update ---------------------------------------------------------------------------

    def __call__(
        self,
        model: nn.Module,
        batch: Batch,
        compute_loss: ComputeLoss | None = None,
        *,
        row_share: float | Tensor = 1.0,
        declared_loss: bool | None = None,
    ) -> Tensor:
        """The objective on one batch.

        Args:
            model: as the loop holds it (wrapped or not), in training mode.
            batch: model inputs; `example_id`, if there, names the rows in errors. `unlabeled`, if
                there and True, says that the batch has no task loss.
            compute_loss: (model, batch) -> (scalar mean loss, outputs); unless given, the model's
                own loss, which `next_token_loss` computes for language models.
            row_share: rows of this batch, divided by the mean number of rows of the batches that
                one update is made from (accumulation steps times processes). With it, batches of
                unequal size give the gradient of all their rows together.
            declared_loss: whether `compute_loss`, where it is given, computes the mean loss that
                the model declares, as methods need that compute the task's loss themselves.

        Returns:
            () the value to back-propagate; 0, which moves no weight, of an unlabeled batch whose
            terms do not act yet.

        Raises:
            NonFiniteLoss: a term is NaN or infinite; with late `checks`, one of the update before.
            RuntimeError: methods lack a model to act on, its updates, or have another by now; or
                `model` is another one than they are attached to.
            ValueError: the batch has neither labels nor a method that works without, or FSDP2 has
                sharded the model; or the model computes another loss than it declares.
        """
        self._watch.check(self.step)
        if self._attachment is not None:
            self._attachment.check(model)
        self.calls += 1
        batch = dict(batch)
        self._check_once(model, device_of(batch))
        example_ids, unlabeled = batch.pop("example_id", None), batch.pop("unlabeled", False)
        bare = unwrap(model)
        given = compute_loss not in (None, next_token_loss)
        labeled = not unlabeled and (given or has_labels(bare, batch))
        if self._sharded and not labeled:
            raise ValueError("batches without labels are not verified with FSDP2: use DDP")
        batch = one_document_a_row(batch, bare, self.regularizers, own_loss=given)
        if compute_loss in (None, next_token_loss):
            ours = bool(self.regularizers) and predicts_tokens(bare)  # else plain, bit for bit
            compute_loss = next_token_loss if ours else model_loss
        if labeled:
            declared, methods = bool(declared_loss) or not given, self.regularizers.values()
            refuse(plain_problems(methods, bare, batch, declared=declared))
        self._check_task_loss(model, batch, compute_loss, labeled)
        clean = self._clean_pass(model, batch, compute_loss, labeled)
        dtype = autocast_dtype(model, clean.device)
        rounds = dtype is not None or self._narrow
        exact = not rounds or self._methods.need_float32(dtype, labeled, narrow=self._narrow)
        with in_float32(model, clean.device) if rounds and exact else nullcontext():
            losses = self._losses(clean, labeled)
        if not losses and self._methods.wait():
            self._record(torch.zeros((), device=clean.device), {})
            if isinstance(model, DistributedDataParallel):
                clean.run()
            return self._reach.nothing(model)
        if not losses:
            raise ValueError(
                "the batch has no labels and no method gives a loss without them in update "
                f"{self.step + 1}: leave out such batches, or give a method with "
                'batches="unlabeled" or "both" and every=1'
            )
        losses = {name: times(row_share, losses[name]) for name in sorted(losses)}
        in_half = dtype == torch.float16 and not exact  # whose gradients vanish before a scaler
        total = self._total(model, losses, apart=self._measurable and not in_half)
        parts = {name: self.terms[f"loss/{name}"] for name in losses}
        error = partial(non_finite_loss, bare, parts, example_ids, self.step + 1)
        self.checks.add(total.detach().isfinite(), error)
        return self._reach.complete(model, total, labeled)

    def calibrate(
        self, model: nn.Module, batch: Batch, compute_loss: ComputeLoss | None = None
    ) -> None:
        """Let methods measure the pre-trained model, as JacHess does, before the first update.

        Trainers do so on the first 32 rows of the training data. In a loop of your own call it
        where an update has several batches or processes, with the same rows in each: what is not
        measured by then is measured on the first batch.

        Args:
            model: as the loop holds it.
            batch: model inputs; labels are not needed.
            compute_loss: as of a call.
        """
        device, bare = device_of(batch), unwrap(model)
        for name, regularizer in self.regularizers.items():
            if not regularizer.calibrates:
                continue
            clean = ForwardPass(
                bare,
                {key: value for key, value in batch.items() if key != "example_id"},
                compute_loss=compute_loss or model_loss,
                points=regularizer.points(),
                side=regularizer.side,
                dropout="off",
            )
            with in_float32(model, device), rng.stream(device, self.seed, f"{name}/calibrate", 0):
                regularizer.calibrate(clean)

    def before_step(self) -> None:
        """Let the methods edit the gradients; just before an update."""
        self._reach.forget()
        self.strengths.finish()
        device = next(self.model.parameters()).device
        for name, regularizer in self.regularizers.items():
            with rng.stream(device, self.seed, f"{name}/gradients", self.step, every_process=True):
                regularizer.before_step(self.model)

    def after_step(self) -> None:
        """Let the methods read or correct the new weights; just after an update."""
        self.step += 1
        for regularizer in self.regularizers.values():
            regularizer.after_step(self.model)

    # --- state -------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Tensor]:
        """Tensors by name, all that a resumed run needs beside model and optimizer."""
        strengths = self.strengths.state_dict()
        # a seed has 64 bits, and below 0 it is counted from 2^64; an entry has 63 and a sign
        seed = self.seed - (self.seed >> 63 << 64)
        counters = {"seed": seed, "step": self.step, "calls": self.calls}
        if self._attachment is not None:
            counters["problem_type"] = PROBLEM_TYPES.index(problem_type(self.model))
        state = {key: torch.tensor(value) for key, value in counters.items()}
        state |= {f"strength.{key}": value for key, value in strengths.items()}
        for name, regularizer in self.regularizers.items():
            state |= {f"{name}/{key}": value for key, value in regularizer.state_dict().items()}
        return state

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore what `state_dict` returned.

        Raises:
            ValueError: the state was written with other methods, or other fields of them.
        """
        methods = {key.split("/")[0] for key in state if "/" in key}
        if unknown := methods - set(self.regularizers):
            raise ValueError(
                f"the saved state belongs to {sorted(unknown)}, but this objective has "
                f"{sorted(self.regularizers)}: resume with the methods of the interrupted run"
            )
        self.seed, self.step, self.calls = (int(state[key]) for key in ("seed", "step", "calls"))
        self.seed %= 2**64
        self.strengths.load_state_dict(entries_under("strength.", state))
        told = PROBLEM_TYPES[int(state.get("problem_type", 0))]
        if self._attachment is not None and told and problem_type(self.model) is None:
            declaring(self.model).config.problem_type = told  # type: ignore[union-attr]
        for name, regularizer in self.regularizers.items():
            try:
                regularizer.load_state_dict(entries_under(f"{name}/", state))
            except KeyError as error:
                raise ValueError(
                    f"the saved state lacks {error} of {name}: it was written with other fields of "
                    "it, or by another version; resume with those of the interrupted run"
                ) from error

    # --- inside ------------------------------------------------------------------------------

    def _check_once(self, model: nn.Module, device: torch.device) -> None:
        """Check support whenever the loop uses another wrapper or another precision."""
        precision = autocast_dtype(model, device)
        if (id(model), precision) not in self._checked:
            check(self.regularizers, model, device)
            keep_unpacked(model)
            found = environments(model, device)
            self._measurable = not found & NO_NORMS
            self._narrow = computes_wide(found)
            self._sharded = "FSDP2" in found
            self._checked.add((id(model), precision))

    def _check_task_loss(
        self, model: nn.Module, batch: dict[str, Any], compute_loss: ComputeLoss, labeled: bool
    ) -> None:
        """Compare, once, a loss that is computed in the model's place with the model's own."""
        if labeled and compute_loss is next_token_loss and not self._compared:
            check_next_token_loss(unwrap(model), batch)
            self._compared = True
        compares = not labeled and self._methods.compare_passes(labeled)
        if compares and undeclared_labels(unwrap(model)):
            raise ValueError(
                "whether examples have one label or several is not known before a batch with "
                'labels has come: set model.config.problem_type = "single_label_classification" '
                '(or "multi_label_classification")'
            )

    def _clean_pass(
        self, model: nn.Module, batch: dict[str, Any], compute_loss: ComputeLoss, labeled: bool
    ) -> ForwardPass:
        methods = self.regularizers.values()
        points = {point: None for r in methods for point in r.points()}
        return ForwardPass(
            model,
            batch,
            compute_loss=compute_loss,
            points=tuple(points),
            differentiable=any(r.differentiates for r in methods),
            hidden_states=any(r.uses_hidden_states for r in methods),
            side=next((r.side for r in methods if r.points()), "encoder"),
            labeled=labeled,
            start=rng.get_state(device_of(batch)),
            shared_masks=self._shared_masks(model, device_of(batch)),
            optimizer=self.optimizer,
        )

    def _losses(self, clean: ForwardPass, labeled: bool) -> dict[str, Tensor]:
        """The task's loss () and the methods', without factors, by name."""
        order = max((r.derivative_order for r in self.regularizers.values()), default=1)
        with differentiable_attention(order):
            losses = dict(self._methods.losses(clean, self.seed, self.calls))
            replaced = any(self.regularizers[name].replaces_task_loss for name in losses)
            if labeled and not replaced:
                loss = clean.run().loss
                assert loss is not None
                losses[TASK] = loss
        if clean.end is not None:  # the global generators continue as in plain training
            rng.set_state(clean.device, clean.end)
        return losses

    def _shared_masks(self, model: nn.Module, device: torch.device) -> SharedMasks | None:
        """None on accelerators, where drawing a mask costs less than looking it up."""
        passes = any(regularizer.has_loss for regularizer in self.regularizers.values())
        return SharedMasks() if passes and device.type == "cpu" and not is_compiled(model) else None

    def _total(self, model: nn.Module, losses: dict[str, Tensor], *, apart: bool) -> Tensor:
        """() the sum of all losses times what they are multiplied with; recorded in `terms`.

        Args:
            model: as the loop holds it.
            losses: () by name, without factors.
            apart: whether they may be differentiated here, one by one.
        """
        strengths, bare = self.strengths, unwrap(model)
        device = next(iter(losses.values())).device
        apart &= torch.is_grad_enabled() and any(loss.requires_grad for loss in losses.values())
        if strengths.holds() or strengths.bounded.keys() & losses.keys():
            return self._held_total(model, losses) if apart else self._value(losses)
        weighed = {name: strengths.factor(name) * loss for name, loss in losses.items()}
        total = torch.stack(list(weighed.values())).sum()
        self._record(total, weighed)
        looked = strengths.looked_at(losses) if apart else set()
        if looked and math.isfinite(total.item()):
            with torch.autocast(device.type, enabled=False):  # as in any backward pass
                return strengths.compare(bare, total, losses, looked, self.optimizer)
        return total

    def _held_total(self, model: nn.Module, losses: dict[str, Tensor]) -> Tensor:
        """`_total` where terms are held by a bound."""
        device = next(iter(losses.values())).device
        scaled = autocast_dtype(model, device) == torch.float16
        with torch.autocast(device.type, enabled=False):
            held = self.strengths.hold(
                unwrap(model),
                losses,
                self.optimizer,
                mean=reduces_now(model),
                skips=scaled,
            )
        self._record(held.loss, held.weighed)
        for name, weight in held.weights.items():
            self.terms |= {f"{name}/weight": weight, f"{name}/share": held.shares[name]}
            self.terms[f"{name}/bounded"] = held.bounded.to(weight)
        return held.loss

    def _value(self, losses: dict[str, Tensor]) -> Tensor:
        """`_total` without gradients."""
        weighed = {name: self.strengths.usual(name) * loss for name, loss in losses.items()}
        total = torch.stack(list(weighed.values())).sum()
        self._record(total, weighed)
        return total

    def _record(self, total: Tensor, losses: dict[str, Tensor]) -> None:
        parts = {"loss": total} | {f"loss/{name}": value for name, value in losses.items()}
        for name, regularizer in self.regularizers.items():
            parts |= {f"{name}/{key}": value for key, value in regularizer.diagnostics.items()}
        self.terms = {key: value.detach() for key, value in parts.items()}

    @property
    def model(self) -> nn.Module:
        """The unwrapped model the objective is attached to."""
        if self._attachment is None:
            raise RuntimeError("attach the objective to a model first: objective.bind(model, ...)")
        return self._attachment.model


def _named(regularizers: tuple[Regularizer, ...]) -> Iterator[tuple[str, Regularizer]]:
    """Methods by name, sorted; the second of the same name is called name_2."""
    seen: dict[str, int] = {}
    for regularizer in sorted(regularizers, key=lambda r: r.name):
        count = seen[regularizer.name] = seen.get(regularizer.name, 0) + 1
        yield (regularizer.name if count == 1 else f"{regularizer.name}_{count}"), regularizer
