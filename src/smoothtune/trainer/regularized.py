"""The class that `regularize` puts in front of a trainer's own."""

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader
from transformers import PretrainedConfig, Trainer
from transformers.trainer_utils import TrainOutput

from smoothtune.core.non_finite import finite_weights
from smoothtune.core.objective import Objective
from smoothtune.core.terms import all_have_acted
from smoothtune.errors import CheckpointError
from smoothtune.nn.architecture import unwrap
from smoothtune.nn.hf_versions import DIVIDES, undivided
from smoothtune.nn.model_facts import declaring
from smoothtune.trainer.binding import Binding
from smoothtune.trainer.model_record import extend_card, write_record


class Regularized(Trainer):
    """Trains with the methods of an objective, whatever class of trainers comes after it.

    It comes before a user's subclass too, whose `compute_loss` is the task loss then. When no
    methods are attached, as after training, what it does is the trainer's own.
    """

    objective: Objective
    _binding: Binding
    _unlabeled_loader: Callable[[], DataLoader] | None = None

    # --- a training --------------------------------------------------------------------------

    def train(  # type: ignore[override]  # a subclass may take other arguments
        self, resume_from_checkpoint: str | bool | None = None, **kwargs: Any
    ) -> Any:
        """Train; a resumed run takes the methods' state from the checkpoint."""
        binding = self._binding
        try:
            if self.model_init is not None:
                binding.renew(trial=kwargs.get("trial"))
                if self.model is None:  # a search gives it up after every trial
                    self.model = super().call_model_init(kwargs.get("trial"))
            else:
                binding.resume()
            if notes := binding.checkpoints.choose(resume_from_checkpoint):
                warnings.warn("; ".join(notes), stacklevel=2)
            for method in binding.objective.regularizers.values():
                method.read_training_rows(self.train_dataset, self.processing_class)
            checkpoint = binding.checkpoints.resumed_from
            with binding.checkpoints.all_kept():
                resumed = None if checkpoint is None else str(checkpoint)
                output = super().train(resume_from_checkpoint=resumed, **kwargs)
            if isinstance(output, TrainOutput):  # whose metrics `log` has had
                applied = output.metrics.get("train_loss", output.training_loss)
                return output._replace(training_loss=applied)
            return output
        except UnpicklingError as error:
            raise CheckpointError(
                f"{binding.checkpoints.resumed_from or 'a file'}: optimizer.pt, scheduler.pt or "
                "rng_state.pth holds more than data, which could run code, and was not opened: "
                "resume from a checkpoint of your own"
            ) from error
        except Exception:
            binding.objective.checks.read()  # a loss that is not finite may be the reason
            raise
        finally:
            binding.detach()

    def call_model_init(self, trial: Any = None) -> nn.Module:
        """Make the model that is trained, and attach the methods to it."""
        model = super().call_model_init(trial)
        self._binding.adopt(model)
        return model

    def create_optimizer(self, *args: Any, **kwargs: Any) -> torch.optim.Optimizer:
        """Create the optimizer, or take that which is there, and bind the objective to it."""
        optimizer = super().create_optimizer(*args, **kwargs)
        if self._binding.attached:
            self._binding.use(self.optimizer or optimizer)
        return optimizer

    def get_train_dataloader(self) -> DataLoader:
        """The training rows, in turn with unlabeled ones if there are some."""
        if self._binding.attached and self._unlabeled_loader is not None:
            return self._unlabeled_loader()
        return super().get_train_dataloader()

    def _load_best_model(self) -> None:
        self._binding.checkpoints.check_best(Path(str(self.state.best_model_checkpoint)))
        super()._load_best_model()

    # --- an update ---------------------------------------------------------------------------

    def get_batch_samples(
        self, epoch_iterator: Iterator[Any], num_batches: int, device: torch.device
    ) -> tuple[list[Any], Any]:
        """Draw the batches of an update, and count their rows and labels; none after the last."""
        draw = super().get_batch_samples
        if self._binding.over:
            return [], None
        if not self._binding.attached:
            return draw(epoch_iterator, num_batches, device)
        parts = self._binding.task.parts
        return parts.get_batch_samples(draw, epoch_iterator, num_batches, device)

    def _prepare_inputs(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """Without `example_id` in evaluation, which models do not know."""
        prepared = super()._prepare_inputs(inputs)
        if self.model is not None and not self.model.training:
            prepared.pop("example_id", None)
        return prepared

    def compute_loss(
        self, model: nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any
    ) -> Any:
        """The objective in training, the trainer's own loss in evaluation."""
        if self._binding.attached:
            return self._attached_loss(model, inputs, *args, **kwargs)
        return super().compute_loss(model, inputs, *args, **kwargs)

    def _attached_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        binding = self._binding
        if not model.training:
            return binding.task.own(model, inputs, return_outputs, num_items_in_batch)
        if binding.is_zero:  # DeepSpeed's engine would take a search's gradient for an update's
            model = binding.trainer.model
        prepared = binding.task.prepare(inputs, num_items_in_batch)
        if binding.is_zero and prepared.batch.get("unlabeled"):
            raise ValueError("batches without labels are not verified with ZeRO: use DDP")
        loss = binding.objective(
            model,
            prepared.batch,
            prepared.compute_loss,
            row_share=prepared.row_share,
            declared_loss=binding.task.is_declared,
        )
        binding.means.add(binding.objective.terms, *prepared.log_weights)
        if not DIVIDES:
            loss = loss / undivided(self, num_items_in_batch)
        return (loss, None) if return_outputs else loss

    @property
    def own_compute_loss(self) -> Callable[..., Any]:
        """The trainer's own loss."""
        return super().compute_loss

    def _maybe_log_save_evaluate(self, *args: Any, **kwargs: Any) -> None:
        """Before a log, an evaluation, a checkpoint or the end, know whether all is finite.

        In between, weights that are not finite are noticed by the loss of the next update.
        """
        control = self.control
        if self._binding.over:
            return
        acts = control.should_log or control.should_evaluate or control.should_save
        if acts or control.should_training_stop:
            check = finite_weights(self._binding.trainer.model, self.state.global_step)
            if check is not None:
                self._binding.objective.checks.add(*check)
            self._binding.objective.checks.read()
        super()._maybe_log_save_evaluate(*args, **kwargs)

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """Add the mean of every term since the last log to the Trainer's training logs.

        The loss of the whole training, too, is that with bounded terms as they were applied.
        """
        if self._binding.attached and "loss" in logs:
            logs = logs | self._binding.means.read(logs["loss"], self.accelerator)
        if self._binding.attached and "train_runtime" in logs:
            logs["train_loss"] += self._binding.means.read_excess(self.accelerator)
        super().log(logs, *args, **kwargs)

    # --- what is written ---------------------------------------------------------------------

    def _save_checkpoint(self, model: nn.Module, trial: Any = None) -> None:
        """Write a checkpoint that is complete or absent, with the methods' state."""
        self._binding.checkpoints.save(super()._save_checkpoint, model, trial)

    def _load_rng_state(self, checkpoint: str | None) -> None:
        super()._load_rng_state(checkpoint)
        self._binding.checkpoints.restore_draws()

    def _determine_best_metric(self, metrics: dict[str, float], trial: Any) -> bool:
        """Whether an evaluation is the best; one from before a term has acted is none.

        Nor is one without metrics, which a signal has cut short.
        """
        objective = self._binding.objective  # whose updates are those of earlier trainings, too
        acted = all_have_acted(objective.regularizers.values(), objective.step)
        return bool(metrics) and acted and super()._determine_best_metric(metrics, trial)

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Save the model, and beside it a record of the methods; beside adapters, the config."""
        super().save_model(output_dir, _internal_call=_internal_call)
        model = unwrap(self.model)  # type: ignore[arg-type]
        if self.args.should_save and not _internal_call:  # checkpoints have a manifest
            folder = Path(output_dir or str(self.args.output_dir))
            config = getattr(declaring(model), "config", None)
            if hasattr(model, "peft_config") and isinstance(config, PretrainedConfig):
                config.save_pretrained(folder)
            write_record(self._binding, folder)

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        """Create the card, with the methods."""
        super().create_model_card(*args, **kwargs)
        card = Path(str(self.args.output_dir), "README.md")
        if self.is_world_process_zero() and card.exists():
            extend_card(self, self._binding.objective, card)


def put_in_front(trainer: Trainer) -> Callable[[], None]:
    """Make a trainer `Regularized`, before its class and its own attributes; returns the undo."""
    cls, own = type(trainer), vars(trainer)
    methods = {name: own.pop(name) for name in vars(Regularized) if name in own}
    base = type(cls.__name__, (cls,), {name: staticmethod(f) for name, f in methods.items()})
    trainer.__class__ = type(f"Regularized{cls.__name__}", (Regularized, base), {})

    def undo() -> None:
        trainer.__class__ = cls
        own.update(methods)

    return undo
