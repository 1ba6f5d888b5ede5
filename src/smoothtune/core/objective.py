"""Task loss plus the terms of any number of methods: what they do in one update."""

from contextlib import nullcontext
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from smoothtune.core.bound_methods import BoundMethods
from smoothtune.core.compute_loss import (
    NO_LOSS,
    ComputeLoss,
    loss_and_outputs,
    model_loss,
    times,
)
from smoothtune.core.forward import Batch, device_of
from smoothtune.core.loss_sum import Summed
from smoothtune.core.non_finite import non_finite_loss
from smoothtune.core.optimizer_hooks import needs_attaching, needs_updates
from smoothtune.core.packed_rows import one_document_a_row
from smoothtune.core.strength import TASK
from smoothtune.core.support import NO_NORMS, check, plain_problems, refuse
from smoothtune.core.terms import Terms
from smoothtune.nn import rng
from smoothtune.nn.architecture import unwrap
from smoothtune.nn.autocast import autocast_dtype, in_float32, tf32_products
from smoothtune.nn.causal_lm import check_next_token_loss, next_token_loss
from smoothtune.nn.distributed import buffers_copied_once, shards
from smoothtune.nn.environments import Environment, Surroundings, reads_float32
from smoothtune.nn.low_bit import keep_unpacked
from smoothtune.nn.model_facts import has_labels, predicts_tokens, undeclared_labels


class TaskBatch(NamedTuple):
    """A batch of one update."""

    inputs: dict[str, Any]
    """Of the model."""
    compute_loss: ComputeLoss
    labeled: bool
    """Whether it has a task loss."""
    example_ids: Tensor | None
    """(B,) names of the rows, in errors."""


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
        optimizer: that it is bound to, without wrappers; None: none.
    """

    def _begin(self) -> None:
        super()._begin()
        self.terms: dict[str, Tensor] = {}
        self._terms = Terms(self.regularizers, self.strengths)
        self._compared = False  # whether the task loss has been compared with the model's own

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
        self._check_binding()
        self.calls += 1
        device = device_of(batch)
        dtype = autocast_dtype(model, device)
        around = self._surroundings(model, dtype, device)
        task = self._task_batch(model, batch, compute_loss, around, declared_loss=declared_loss)
        exact = self._terms.need_float32(dtype, task.labeled, low_bit=around.low_bit)
        narrow = exact and dtype is not None and device.type == "cuda"
        narrow = narrow and self._terms.tolerate_tf32(task.labeled)
        with tf32_products() if narrow else nullcontext():
            # the losses, in float32 where 16 bits would spoil them
            with in_float32(model, device) if exact else nullcontext():
                losses = self._losses(model, task, around.where)
            if not losses:
                return self._without_losses(model, task, around.where)
            # their sum
            scaled = dtype == torch.float16
            summed = self._sum(
                model,
                {name: times(row_share, losses[name]) for name in sorted(losses)},
                self.optimizer,
                units=around.units,
                apart=(exact or not scaled) and not around.where & NO_NORMS,
                scaled=scaled,
            )
        self._record(summed)
        self._check_finite(model, summed, task.example_ids)
        if not task.labeled and "DDP" in around.where:
            return self._unused.zero_gradients(model, summed.loss)
        self._unused.weights = set()  # this batch reaches all that the model uses
        return summed.loss

    # --- inside ------------------------------------------------------------------------------

    def _check_binding(self) -> None:
        """Say so if methods did not get the model or the updates that they need."""
        if self._attachment is None:
            unprepared = [name for name, r in self.regularizers.items() if needs_attaching(r)]
            if unprepared:
                raise RuntimeError(
                    f"{', '.join(unprepared)} must prepare the model and see its updates: call "
                    "objective.bind(model, optimizer) before the loop"
                )
        # a loop may call before_step and after_step itself
        if self._unseen and (self._hooks is not None or self.strengths.step == self._last_step):
            acting = [name for name, r in self.regularizers.items() if needs_updates(r)]
            raise RuntimeError(
                f"{self._unseen} updates the weights, and the objective is not bound to it, so "
                f"{', '.join(acting)} cannot act: call objective.bind(model, optimizer) with the "
                "one optimizer of the loop"
            )
        self._last_step, self._unseen = self.strengths.step, None

    def _surroundings(
        self, model: nn.Module, dtype: torch.dtype | None, device: torch.device
    ) -> Surroundings:
        """What is around a model as the loop holds it, looked up once in each precision."""
        if self._attachment is not None and self._attachment.lost_method is not None:
            raise RuntimeError(
                f"another objective has attached this {self._attachment.lost_method} to its model "
                "since, and a method remembers one model at a time: make one for each objective"
            )
        seen = self._around.setdefault(model, {})
        if dtype not in seen:
            if self._attachment is not None:
                self._attachment.check(model)
            where = check(self.regularizers, model, device)
            keep_unpacked(model)
            seen[dtype] = Surroundings(where, reads_float32(where), shards(unwrap(model)))
        return seen[dtype]

    def _task_batch(
        self,
        model: nn.Module,
        batch: Batch,
        compute_loss: ComputeLoss | None,
        around: Surroundings,
        *,
        declared_loss: bool | None,
    ) -> TaskBatch:
        """Take a batch apart, and choose what computes its task loss; arguments of a call.

        Raises:
            ValueError: a method would act over several documents, or needs the plain task loss and
                does not have it; or the losses would be others than the methods take them for.
        """
        inputs, bare = dict(batch), unwrap(model)
        example_ids, unlabeled = inputs.pop("example_id", None), inputs.pop("unlabeled", False)
        own = compute_loss is not None and compute_loss is not next_token_loss  # of the loop
        labeled = not unlabeled and (own or has_labels(bare, inputs))
        if "position_ids" in inputs:
            inputs = one_document_a_row(inputs, bare, self.regularizers, own_loss=own)
        if compute_loss is None or not own:
            by_token = bool(self.regularizers) and predicts_tokens(bare)  # else plain, bit for bit
            compute_loss = next_token_loss if by_token else model_loss
        if labeled and self._terms.plain_loss:
            declared = bool(declared_loss) or not own
            refuse(plain_problems(self.regularizers.values(), bare, inputs, declared=declared))
        if labeled and compute_loss is next_token_loss and not self._compared:
            check_next_token_loss(bare, inputs)
            self._compared = True
        if not labeled and "FSDP2" in around.where:
            raise ValueError("batches without labels are not verified with FSDP2: use DDP")
        if not labeled and undeclared_labels(bare) and self._terms.compare_unlabeled():
            raise ValueError(
                "whether examples have one label or several is not known before a batch with "
                'labels has come: set model.config.problem_type = "single_label_classification" '
                '(or "multi_label_classification")'
            )
        return TaskBatch(inputs, compute_loss, labeled, example_ids)

    def _losses(
        self, model: nn.Module, task: TaskBatch, where: set[Environment]
    ) -> dict[str, Tensor]:
        """The task's loss () and the methods', without factors, by name."""
        if not self._terms.methods and task.labeled:  # nothing is to be perturbed
            loss, _ = loss_and_outputs(task.compute_loss(model, task.inputs))
            if loss is None:
                raise ValueError(NO_LOSS)
            return {TASK: loss}
        clean = self._terms.clean_pass(
            model, task.inputs, task.compute_loss, task.labeled, where, self.optimizer
        )
        with buffers_copied_once(model) if "DDP" in where else nullcontext():
            losses = self._terms.losses(clean, self.seed, self.calls)
        if clean.end is not None:  # the global generators continue as in plain training
            rng.set_state(clean.device, clean.end)
        return losses

    def _without_losses(self, model: nn.Module, task: TaskBatch, where: set[Environment]) -> Tensor:
        """() 0 of a batch without labels whose terms do not act yet.

        Raises:
            ValueError: none of them ever would.
        """
        if not self._terms.has_waiting():
            raise ValueError(
                "the batch has no labels and no method gives a loss without them in update "
                f"{self.strengths.step + 1}: leave out such batches, or give a method with "
                'batches="unlabeled" or "both" and every=1'
            )
        device = device_of(task.inputs)
        self._record(Summed(torch.zeros((), device=device), {}, {}))
        if "DDP" in where:
            with rng.isolated(device):
                task.compute_loss(model, task.inputs)
        return self._unused.zero_loss(model)

    def _record(self, summed: Summed) -> None:
        """Keep the parts of a value, and the methods' diagnostics, for who logs them."""
        self.terms = {"loss": summed.loss.detach()}
        self.terms |= {f"loss/{name}": value.detach() for name, value in summed.weighed.items()}
        for name, regularizer in self.regularizers.items():
            self.terms |= {f"{name}/{key}": v for key, v in regularizer.diagnostics.items()}
        self.terms |= summed.strengths

    def _check_finite(self, model: nn.Module, summed: Summed, example_ids: Tensor | None) -> None:
        """Now, or as `checks` will, an update later."""
        parts = {name: self.terms[f"loss/{name}"] for name in summed.weighed}
        update = self.strengths.step + 1
        error = partial(non_finite_loss, unwrap(model), parts, example_ids, update)
        self.checks.add(self.terms["loss"].isfinite(), error)
