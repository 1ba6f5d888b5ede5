"""Connects methods to a trainer while it trains."""

from __future__ import annotations

import logging
import warnings
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from accelerate.utils import DistributedType, DynamoBackend
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import PretrainedConfig, Trainer, TrainerCallback

from smoothtune.core.attachment import holds
from smoothtune.core.objective import Objective
from smoothtune.core.optimizer_hooks import unwrapped_optimizer
from smoothtune.core.regularizer import CALIBRATION_ROWS
from smoothtune.errors import CheckpointError
from smoothtune.nn import rng
from smoothtune.nn.architecture import unwrap
from smoothtune.nn.compile import compile_blocks, is_compiled_block, uncompile_blocks
from smoothtune.nn.model_facts import declaring
from smoothtune.trainer.begun import begun
from smoothtune.trainer.checkpoints import Checkpoints
from smoothtune.trainer.compatibility import check_trainer
from smoothtune.trainer.finite import check_weights
from smoothtune.trainer.manifest import STATE_FILE
from smoothtune.trainer.model_record import extend_card, write_record
from smoothtune.trainer.run_record import describe_run
from smoothtune.trainer.task_loss import TaskLoss

logger = logging.getLogger(__name__)

_CLASS = object()  # in place of an attribute that the instance has from its class


class Binding(TrainerCallback):
    """Connects an objective to one trainer while it trains: replaces methods of the trainer."""

    def __init__(self, trainer: Trainer, objective: Objective, alternating: Any):
        self.trainer: Any = trainer
        self.objective, self.alternating = objective, alternating
        self.sums: dict[str, Tensor] = {}
        self.counts: dict[str, int] = defaultdict(int)
        self.applied: dict[str, Tensor] = {}  # sums of what terms had up to the last log
        self.resume_from: Path | None = None
        self.kept: dict[str, Tensor] = {}  # state of the methods between two calls of train()
        self.replaced: dict[str, Any] | None = None  # what the trainer had of its own
        self.whole: DynamoBackend | None = None  # what the Trainer would compile the model with
        self.compiled: nn.Module | None = None  # the model whose blocks are compiled here
        self.checkpoints = Checkpoints(trainer, objective)
        self.bind()
        self.original_train = trainer.train
        self.original_save_model = trainer.save_model
        self.original_card = trainer.create_model_card
        self.original_model_init = trainer.call_model_init
        vars(trainer)["train"] = self.train
        vars(trainer)["save_model"] = self.save_model
        vars(trainer)["create_model_card"] = self.create_model_card
        vars(trainer)["call_model_init"] = self.call_model_init
        trainer.add_callback(self)

    # --- connecting --------------------------------------------------------------------------

    def bind(self) -> None:
        """Attach the methods, and take the place of the trainer's methods, on the instance."""
        if self.replaced is not None:
            return
        trainer: Any = self.trainer
        self._compile()
        try:
            self.objective.attach(trainer.model)
        except BaseException:
            self._undo_compile()
            raise
        try:
            if self.kept:
                self.objective.load_state_dict(self.kept)
            if trainer.optimizer is not None:
                self._use(trainer.optimizer)
        except BaseException:
            self.objective.detach()
            self._undo_compile()
            raise
        self.model = unwrap(trainer.model)
        self.task = TaskLoss(trainer)
        self.original_create_optimizer, self.original_log = trainer.create_optimizer, trainer.log
        self.checkpoints.original_save = trainer._save_checkpoint
        self.checkpoints.original_finalize = trainer._finalize_training
        self.checkpoints.original_load_rng_state = trainer._load_rng_state
        self.original_run_epoch = trainer._run_epoch
        self.original_determine_best = trainer._determine_best_metric
        mine = {
            "compute_loss": self.compute_loss,
            "create_optimizer": self.create_optimizer,
            "log": self.log,
            "_save_checkpoint": self.checkpoints.save,
            "_finalize_training": self.checkpoints.finalize,
            "_load_rng_state": self.checkpoints.load_rng_state,
            "_run_epoch": self.run_epoch,
            "_determine_best_metric": self.determine_best,
            "get_batch_samples": self.task.parts.get_batch_samples,
            # the task loss is scaled here, so that the Trainer takes the mean over the batches
            "model_accepts_loss_kwargs": self.task.accepts_loss_kwargs,
            "loss_is_scaled_for_ga": False,
        }
        if self.alternating is not None:
            mine["get_train_dataloader"] = self.alternating
        self.replaced = {name: vars(trainer).get(name, _CLASS) for name in mine}
        vars(trainer).update(mine)

    def _check_model(self) -> None:
        """Refuse a trainer that has another model by now.

        Raises:
            ValueError: what the methods remember is of the first one.
        """
        if not holds(self.trainer.model, self.model):
            raise ValueError(
                "trainer.model is another model than the one that the methods were prepared on: "
                "make a trainer of this model, and pass it to regularize()"
            )

    def unbind(self) -> None:
        """Give model and trainer back as they were."""
        if self.replaced is None:
            return
        for name, value in self.replaced.items():
            if value is _CLASS:
                del vars(self.trainer)[name]
            else:
                setattr(self.trainer, name, value)
        self.replaced = None
        state = self.objective.state_dict()
        self.kept = {key: value.detach().cpu() for key, value in state.items()}
        self.objective.detach()
        self._undo_compile()

    def _compile(self) -> None:
        """With `torch_compile`, compile the blocks, and not the model as the Trainer would."""
        model, plugin = self.trainer.model, self.trainer.accelerator.state.dynamo_plugin
        if self.trainer.args.torch_compile:
            self.whole, plugin.backend = plugin.backend, DynamoBackend.NO
            if not any(map(is_compiled_block, model.modules())):
                self.compiled = compile_blocks(
                    model, backend=self.trainer.args.torch_compile_backend
                )

    def _undo_compile(self) -> None:
        if self.whole is not None:
            self.trainer.accelerator.state.dynamo_plugin.backend, self.whole = self.whole, None
        if self.compiled is not None:
            uncompile_blocks(self.compiled)
            self.compiled = None

    def create_optimizer(self, *args: Any, **kwargs: Any) -> torch.optim.Optimizer:
        """Create the optimizer, or take that which is there, and bind the objective to it."""
        optimizer = self.original_create_optimizer(*args, **kwargs)
        self._use(self.trainer.optimizer or optimizer)
        return optimizer

    def _use(self, optimizer: torch.optim.Optimizer) -> None:
        if unwrapped_optimizer(optimizer) is not self.objective.optimizer:
            self.objective.unbind_optimizer()
            self.objective.bind_optimizer(optimizer)

    @property
    def _is_zero(self) -> bool:
        """Whether DeepSpeed trains, whose updates are counted by the Trainer's."""
        return self.trainer.accelerator.distributed_type == DistributedType.DEEPSPEED

    # --- models of model_init ----------------------------------------------------------------

    def renew(self, trial: Any) -> None:
        """Begin anew, with the methods as they were given: `train` will make a new model.

        Args:
            trial: of a hyperparameter search, which keeps its scores as the trainer's `objective`.
        """
        self.unbind()
        self.kept = {}
        methods = self.objective.regularizers.values()
        self.objective = Objective(*(replace(method) for method in methods))
        self.checkpoints = Checkpoints(self.trainer, self.objective)
        if trial is None:
            self.trainer.objective = self.objective
        elif isinstance(trial, dict):  # Ray and W&B train a copy of the trainer elsewhere
            raise ValueError('hyperparameter_search is verified with Optuna: set backend="optuna"')
        if self.trainer.model is None:  # a search gives it up after every trial
            self.trainer.model = self.original_model_init(trial)

    def call_model_init(self, trial: Any = None) -> nn.Module:
        """Make the model that is trained, and attach the methods to it."""
        self.trainer.model = self.original_model_init(trial)
        self.trainer.optimizer = self.trainer.lr_scheduler = None
        check_trainer(self.objective.regularizers, self.trainer)
        self.bind()
        return self.trainer.model

    # --- a batch -----------------------------------------------------------------------------

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        """The objective in training, the trainer's own loss in evaluation."""
        if not model.training:
            inputs = {key: value for key, value in inputs.items() if key != "example_id"}
            return self.task.own(model, inputs, return_outputs, num_items_in_batch)
        if self._is_zero:  # DeepSpeed's engine would take a search's gradient for that of an update
            model = self.trainer.model
        prepared = self.task.prepare(inputs, num_items_in_batch)
        if self._is_zero and prepared.batch.get("unlabeled"):
            raise ValueError("batches without labels are not verified with ZeRO: use DDP")
        loss = self.objective(
            model,
            prepared.batch,
            prepared.compute_loss,
            row_share=prepared.row_share,
            declared_loss=self.task.is_declared,
        )
        self._count(self.objective.terms, self.task.parts.part_of_kind(inputs))
        return (loss, None) if return_outputs else loss

    # --- logging -----------------------------------------------------------------------------

    def _count(self, terms: dict[str, Tensor], part: float) -> None:
        """Take up the terms of a batch, whose kind is this part of its update's batches."""
        bounded = self.objective.strengths.bounded
        of_updates = {f"{name}/{kind}" for name in bounded for kind in ("share", "bounded")}
        for name, value in terms.items():
            if name != "loss" and name not in of_updates:
                weighed = part if name.startswith("loss/") else 1.0
                self.sums[name] = self.sums.get(name, 0) + weighed * value
                self.counts[name] += 1

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """Add the mean of every term since the last log to the Trainer's training logs."""
        if "loss" in logs and self.sums:
            names = sorted(self.sums)
            means = torch.stack([self.sums[name].float() / self.counts[name] for name in names])
            means = self.trainer.accelerator.reduce(means, reduction="mean")
            logs = {
                **logs,
                **dict(zip(names, means.tolist(), strict=True)),
                **self._applied_since(),
            }
            self.sums.clear()
            self.counts.clear()
        self.original_log(logs, *args, **kwargs)

    def _applied_since(self) -> dict[str, float]:
        """Share of the task's gradient that bounded terms had in the updates since the last log."""
        found: dict[str, float] = {}
        for name, sums in self.objective.strengths.sums.items():
            updates, share, _, bounded = (sums - self.applied.get(name, 0)).tolist()
            if updates:
                found |= {f"{name}/share": share / updates, f"{name}/bounded": bounded / updates}
            self.applied[name] = sums
        return found

    # --- the model ---------------------------------------------------------------------------

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Save the model, and beside it a record of the methods; beside adapters, the config."""
        self.original_save_model(output_dir, _internal_call=_internal_call)
        args, model = self.trainer.args, unwrap(self.trainer.model)
        if args.should_save and not _internal_call:  # checkpoints have a manifest
            folder = Path(output_dir or str(args.output_dir))
            config = getattr(declaring(model), "config", None)
            if hasattr(model, "peft_config") and isinstance(config, PretrainedConfig):
                config.save_pretrained(folder)
            write_record(self.trainer, self.objective, folder)

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        """Create the card, with the methods."""
        self.original_card(*args, **kwargs)
        card = Path(str(self.trainer.args.output_dir), "README.md")
        if self.trainer.is_world_process_zero() and card.exists():
            extend_card(self.trainer, self.objective, card)

    # --- checkpoints -------------------------------------------------------------------------

    def train(self, resume_from_checkpoint: str | bool | None = None, **kwargs: Any) -> Any:
        """Train; a resumed run takes the methods' state from the checkpoint."""
        try:
            if self.trainer.model_init is not None:
                self.renew(trial=kwargs.get("trial"))
            else:
                self._check_model()
                self.bind()
            self.checkpoints.run = describe_run(self.trainer, self.objective)
            self.resume_from, notes = self.checkpoints.choose(resume_from_checkpoint)
            if notes:
                warnings.warn("; ".join(notes), stacklevel=2)
            rows, tokenizer = self.trainer.train_dataset, self.trainer.processing_class
            for regularizer in self.objective.regularizers.values():
                regularizer.read_training_rows(rows, tokenizer)
            checkpoint = str(self.resume_from) if self.resume_from else None
            return self.original_train(resume_from_checkpoint=checkpoint, **kwargs)
        except UnpicklingError as error:
            raise CheckpointError(
                f"{self.resume_from or 'a file'}: optimizer.pt, scheduler.pt or rng_state.pth "
                "holds more than data, which could run code, and was not opened: resume from a "
                "checkpoint of your own"
            ) from error
        finally:
            self.unbind()
            self.sums.clear()
            self.counts.clear()

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Bind the optimizer that is really used; load the methods' state, after the model's."""
        assert self.trainer.optimizer is not None
        if self._is_zero:  # its optimizer takes a step for every group of an update
            self.objective.unbind_optimizer()
        else:
            self._use(self.trainer.optimizer)
        accumulates = args.gradient_accumulation_steps > 1
        self.objective.expect(state.max_steps, accumulates=accumulates)
        if self.resume_from is None:
            return
        self.checkpoints.find_best(self.resume_from.parent)
        try:
            self.objective.load_state_dict(load_file(self.resume_from / STATE_FILE))
        except KeyError as error:
            raise CheckpointError(
                f"{self.resume_from / STATE_FILE} has no entry {error}: resume with the methods of "
                "the interrupted run"
            ) from error
        self.checkpoints.evaluate_if_due(self.resume_from)

    def run_epoch(self, *, epoch: int, train_dataloader: Any, **kwargs: Any) -> None:
        """Take no step after the last one; transformers would, resumed there within an epoch.

        The last one is that of `max_steps`, or the one at which a callback ended the training.
        """
        state, control = self.trainer.state, self.trainer.control
        if state.global_step >= state.max_steps or control.should_training_stop:
            control.should_training_stop = True
        else:
            set_epoch(train_dataloader, epoch)
            self._calibrate(train_dataloader)
            self.original_run_epoch(epoch=epoch, train_dataloader=train_dataloader, **kwargs)

    def _calibrate(self, loader: Any) -> None:
        """Let methods measure the pre-trained model on the first training rows."""
        methods = self.objective.regularizers.values()
        rows: Any = getattr(loader, "dataset", None)  # unlabeled ones come after the others
        if self.objective.step or not any(r.calibrates for r in methods) or not is_map_style(rows):
            return
        count = min(CALIBRATION_ROWS, len(self.trainer.train_dataset))
        # which the Trainer sets for every update, and losses of its subclasses read
        self.trainer.current_gradient_accumulation_steps = 1
        with rng.isolated(self.trainer.model.device):
            batch = loader.collate_fn([rows[i] for i in range(count)])
            inputs = self.trainer._prepare_inputs(batch)
            prepared = self.task.prepare(inputs, None)
            self.objective.calibrate(self.trainer.model, prepared.batch, prepared.compute_loss)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Say which terms were held by their bound nearly always, or changed next to nothing."""
        if self.trainer.is_world_process_zero():
            for remark in self.objective.strengths.remarks():
                logger.warning(remark)

    def determine_best(self, metrics: dict[str, float], **kwargs: Any) -> bool:
        """Whether an evaluation is the best; one from before a term has acted is none.

        Nor is one without metrics, which a signal has cut short.
        """
        methods = self.objective.regularizers.values()
        if not metrics or not begun(methods, self.trainer.state.global_step):
            return False
        found: bool = self.original_determine_best(metrics=metrics, **kwargs)
        return found

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Stop before weights that are not finite are used or saved."""
        if self._is_zero:
            self.objective.before_step()
            self.objective.after_step()
        check_weights(self.trainer.model, state.global_step + 1)


def is_map_style(rows: Any) -> bool:
    """Whether rows have numbers, so that the first can be read without using up a stream."""
    return hasattr(rows, "__getitem__") and hasattr(rows, "__len__") and len(rows) > 0


def set_epoch(loader: Any, epoch: int) -> None:
    """Tell all samplers of a loader the epoch, on which their order depends.

    transformers does not reach those of a process's share of the batches when it skips the first
    ones, so that a run of several processes resumed within an epoch would see another order.
    """
    part: Any = getattr(loader, "batch_sampler", None)
    while part is not None:
        samplers: tuple[Any, Any] = (part, getattr(part, "sampler", None))
        for sampler in samplers:
            if hasattr(sampler, "set_epoch"):
                sampler.set_epoch(epoch)
        part = getattr(part, "batch_sampler", None)
