"""Task loss plus the terms of any number of methods."""

from __future__ import annotations

import logging
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from smoothtune.core.bound_methods import BoundMethods
from smoothtune.core.compute_loss import ComputeLoss, model_loss, times
from smoothtune.core.forward import Batch, ForwardPass, device_of
from smoothtune.core.loss_sum import LossSum, Summed
from smoothtune.core.non_finite import non_finite_loss
from smoothtune.core.regularizer import LossTerm, Penalty, TaskLoss
from smoothtune.core.strength import TASK
from smoothtune.core.support import NO_NORMS, check
from smoothtune.core.task_batch import TaskBatch, refuse_undeclared_labels, task_batch
from smoothtune.core.terms import Terms
from smoothtune.nn import rng
from smoothtune.nn.architecture import unwrap
from smoothtune.nn.autocast import autocast_dtype, in_float32, tf32_products
from smoothtune.nn.causal_lm import check_next_token_loss, next_token_loss
from smoothtune.nn.ddp_unused import UnusedWeights
from smoothtune.nn.dropout import SharedMasks
from smoothtune.nn.environments import COMPILED, Environment, reads_float32
from smoothtune.nn.higher_order import differentiable_attention
from smoothtune.nn.low_bit import keep_unpacked

MASKS_FROM = 512  # tokens of a batch, from which on masks are drawn slower than looked up

logger = logging.getLogger(__name__)


class Objective(BoundMethods):
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

    def _begin(self) -> None:
        super()._begin()
        self.terms: dict[str, Tensor] = {}
        self._terms = Terms(self.regularizers, self.strengths)
        self._sum = LossSum(self.strengths)
        self._unused = UnusedWeights()
        self._checked: set[tuple[int, Any]] = set()
        self._where: set[Environment] = set()  # what was around the model when it was checked
        self._compared = False  # whether the task loss has been compared with the model's own
        self._measured: dict[str, int] = {}  # by a method on its own batch, in which update

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
        device = device_of(batch)
        self._check_once(model, device)
        task = task_batch(
            model, batch, compute_loss, self.regularizers, declared_loss=declared_loss
        )
        self._check_task(model, task)
        # the losses, in float32 where 16 bits would spoil them
        clean = self._clean_pass(model, task.inputs, task.compute_loss, task.labeled)
        dtype, low_bit = autocast_dtype(model, device), reads_float32(self._where)
        rounds = dtype is not None or low_bit
        exact = not rounds or self._terms.need_float32(dtype, task.labeled, low_bit=low_bit)
        narrow = dtype is not None and exact and device.type == "cuda"
        narrow = narrow and self._terms.tolerate_tf32(task.labeled)
        products = tf32_products if narrow else nullcontext
        with in_float32(model, device) if rounds and exact else nullcontext(), products():
            losses = self._losses(clean, task.labeled)
        if not losses:
            return self._without_losses(model, clean)
        # their sum
        losses = {name: times(row_share, losses[name]) for name in sorted(losses)}
        in_half = dtype == torch.float16 and not exact  # whose gradients vanish before a scaler
        apart = not in_half and not self._where & NO_NORMS
        with products():
            summed = self._sum(model, losses, self.optimizer, apart=apart)
        self._record(summed)
        parts = {name: self.terms[f"loss/{name}"] for name in losses}
        error = partial(non_finite_loss, unwrap(model), parts, task.example_ids, self.step + 1)
        self.checks.add(summed.loss.detach().isfinite(), error)
        return self._unused.zero_gradients(model, summed.loss, task.labeled)

    def calibrate(
        self, model: nn.Module, batch: Batch, compute_loss: ComputeLoss | None = None
    ) -> None:
        """Let methods measure the pre-trained model, as JacHess does, before the first update.

        Trainers do so on the first 32 rows of the training data. In a loop of your own call it
        where an update has several batches or processes, with the same rows in each: what is not
        measured by then is measured on the first batch, with a warning if there are more.

        Args:
            model: as the loop holds it.
            batch: model inputs; labels are not needed.
            compute_loss: as of a call.
        """
        device, bare = device_of(batch), unwrap(model)
        for name, regularizer in self.regularizers.items():
            if not (isinstance(regularizer, LossTerm) and regularizer.calibrates):
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
        self._unused.forget()
        super().before_step()

    # --- inside ------------------------------------------------------------------------------

    def _check_once(self, model: nn.Module, device: torch.device) -> None:
        """Check support whenever the loop uses another wrapper or another precision."""
        precision = autocast_dtype(model, device)
        if (id(model), precision) not in self._checked:
            self._where = check(self.regularizers, model, device)
            keep_unpacked(model)
            self._checked.add((id(model), precision))

    def _check_task(self, model: nn.Module, task: TaskBatch) -> None:
        """Refuse batches whose losses would be others than the methods take them for."""
        if not task.labeled and "FSDP2" in self._where:
            raise ValueError("batches without labels are not verified with FSDP2: use DDP")
        if task.labeled and task.compute_loss is next_token_loss and not self._compared:
            check_next_token_loss(unwrap(model), task.inputs)
            self._compared = True
        if not task.labeled and self._terms.compare_predictions(labeled=False):
            refuse_undeclared_labels(model)

    def _clean_pass(
        self, model: nn.Module, batch: dict[str, Any], compute_loss: ComputeLoss, labeled: bool
    ) -> ForwardPass:
        """The pass that all methods share, which has not run."""
        methods = self.regularizers.values()
        points = {point: None for r in methods for point in r.points()}
        sides = [r.side for r in methods if isinstance(r, LossTerm) and r.points()]
        return ForwardPass(
            model,
            batch,
            compute_loss=compute_loss,
            points=tuple(points),
            differentiable=any(r.traits.differentiates for r in methods),
            hidden_states=any(r.traits.hidden_states for r in methods),
            side=sides[0] if sides else "encoder",
            labeled=labeled,
            start=rng.get_state(device_of(batch)),
            shared_masks=self._shared_masks(batch),
            optimizer=self.optimizer,
        )

    def _losses(self, clean: ForwardPass, labeled: bool) -> dict[str, Tensor]:
        """The task's loss () and the methods', without factors, by name."""
        methods = self.regularizers
        self._warn_of_one_batch()
        to_measure = [name for name, method in methods.items() if method.calibrates]
        order = max((method.traits.derivative_order for method in methods.values()), default=1)
        with differentiable_attention(order):
            losses = dict(self._terms.losses(clean, self.seed, self.calls))
            replaced = any(isinstance(methods[name], TaskLoss) for name in losses)
            if labeled and not replaced:
                loss = clean.run().loss
                assert loss is not None
                losses[TASK] = loss
        if clean.end is not None:  # the global generators continue as in plain training
            rng.set_state(clean.device, clean.end)
        self._measured = {name: self.step for name in to_measure if not methods[name].calibrates}
        return losses

    def _warn_of_one_batch(self) -> None:
        """Say so where an update has several batches, and a method has measured on the first."""
        if names := [name for name, step in self._measured.items() if step == self.step]:
            logger.warning(
                "%s measured the model on the first of several batches of an update: call "
                "objective.calibrate(model, batch) before, with rows of the training data",
                ", ".join(names),
            )

    def _without_losses(self, model: nn.Module, clean: ForwardPass) -> Tensor:
        """() 0 of a batch without labels whose terms do not act yet.

        Raises:
            ValueError: none of them ever would.
        """
        if not self._terms.has_waiting():
            raise ValueError(
                "the batch has no labels and no method gives a loss without them in update "
                f"{self.step + 1}: leave out such batches, or give a method with "
                'batches="unlabeled" or "both" and every=1'
            )
        self._record(Summed(torch.zeros((), device=clean.device), {}, {}))
        if isinstance(model, DistributedDataParallel):
            clean.run()
        return self._unused.zero_loss(model)

    def _shared_masks(self, batch: Batch) -> SharedMasks | None:
        """None where no pass shares masks, or to draw one costs less than to look it up.

        So it is on accelerators, and in small batches. Passes over some rows have no other masks.
        """
        terms = [r for r in self.regularizers.values() if isinstance(r, LossTerm)]
        sharing = [term for term in terms if term.shares_masks]
        if not sharing or device_of(batch).type != "cpu" or self._where & COMPILED:
            return None
        parts = any(isinstance(term, Penalty) and term.rows < 1 for term in sharing)
        return SharedMasks() if parts or batch["input_ids"].numel() >= MASKS_FROM else None

    def _record(self, summed: Summed) -> None:
        """Keep the parts of a value, and the methods' diagnostics, for who logs them."""
        parts = {"loss": summed.loss} | {f"loss/{n}": value for n, value in summed.weighed.items()}
        for name, regularizer in self.regularizers.items():
            parts |= {f"{name}/{key}": value for key, value in regularizer.diagnostics.items()}
        parts |= summed.strengths
        self.terms = {key: value.detach() for key, value in parts.items()}
