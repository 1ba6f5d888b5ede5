"""Regularized training with Hugging Face's Trainer or any subclass of it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import Trainer, TrainerCallback
from transformers.trainer_utils import get_last_checkpoint

from smoothtune.core.architecture import is_causal_lm, unwrap
from smoothtune.core.causal_lm import causal_lm_loss
from smoothtune.core.forward import ComputeLoss
from smoothtune.core.objective import Objective
from smoothtune.core.regularizer import Regularizer
from smoothtune.trainer.compatibility import check_trainer
from smoothtune.trainer.sentence_transformers import EmbeddingLoss, is_embedding_trainer
from smoothtune.trainer.trl import trl_trainer, unpacked
from smoothtune.trainer.unlabeled import Alternate, alternating_loader

T = TypeVar("T", bound=Trainer)

STATE_FILE = "smoothtune.safetensors"


def regularize(
    trainer: T,
    *regularizers: Regularizer,
    unlabeled_dataset: Any = None,
    alternate: Alternate = "step",
) -> T:
    """Add regularizers to an existing trainer; the only line to add to a training script.

    ::

        trainer = regularize(trainer, LNSR(), L2SP())

    The trainer's own `compute_loss` stays the task loss, whatever subclass it is. Loss and penalty
    are means over the batch and weigh the same under gradient accumulation and on several
    processes (transformers alone mis-scales models whose loss ignores `num_items_in_batch`). In
    causal language models a mean runs over the label tokens of the whole update.

    Subclasses of other libraries: TRL's SFTTrainer, with packed batches unpacked, and
    sentence-transformers' SentenceTransformerTrainer, whose loss gets its columns from one forward.

    Args:
        trainer: any `transformers.Trainer`, before `train()`, on the pre-trained model.
        regularizers: methods to add; order does not matter.
        unlabeled_dataset: map-style dataset of more rows like `train_dataset`'s; their labels, if
            any, are not used. Its batches have no task loss, only the terms of the methods.
        alternate: unlabeled updates come after every labeled one ("step") or after all of an
            epoch's labeled ones ("epoch"); there are as many of them. `max_steps`, epochs and the
            learning-rate schedule count both.

    Returns:
        The same trainer. Its `objective` holds the methods.

    Raises:
        ValueError: methods, model and trainer are not a supported combination; the message says
            what to change.
    """
    if hasattr(trainer, "objective"):
        raise ValueError("this trainer is regularized already: pass all methods in one call")
    objective = Objective(*regularizers)
    check_trainer(objective.regularizers, trainer)
    objective.attach(trainer.model)  # type: ignore[arg-type]
    setattr(trainer, "objective", objective)  # noqa: B010 - mypy knows no such attribute
    _Binding(trainer, objective)
    if unlabeled_dataset is not None:
        loader = partial(alternating_loader, trainer, unlabeled_dataset, alternate)
        trainer.get_train_dataloader = loader  # type: ignore[method-assign]
    return trainer


class SmoothTrainer(Trainer):
    """A `transformers.Trainer` with regularizers.

    Takes all arguments of `Trainer`; `regularizers`, a sequence of methods; `unlabeled_dataset` and
    `alternate`. See `regularize`.
    """

    def __init__(
        self,
        *args: Any,
        regularizers: Sequence[Regularizer] = (),
        unlabeled_dataset: Any = None,
        alternate: Alternate = "step",
        **kwargs: Any,
    ):
        super().__init__(*args, **kwargs)
        regularize(self, *regularizers, unlabeled_dataset=unlabeled_dataset, alternate=alternate)


class _Binding(TrainerCallback):
    """Connects an objective to one trainer: replaces methods of it, and is a callback of it."""

    def __init__(self, trainer: Trainer, objective: Objective):
        self.trainer, self.objective = trainer, objective
        self.original_compute_loss = trainer.compute_loss
        self.original_create_optimizer = trainer.create_optimizer
        self.original_train, self.original_log = trainer.train, trainer.log
        for name in ("compute_loss", "create_optimizer", "train", "log"):
            setattr(trainer, name, getattr(self, name))  # on the instance: any subclass works
        # Per-batch means, averaged over micro-batches and processes, are exact for every head:
        # keep the Trainer from scaling by the number of items, which some heads ignore. In
        # language models batches are weighted by label tokens, which the Trainer counts.
        model: Any = trainer.model
        self.next_token = is_causal_lm(unwrap(model)) and _has_stock_loss(trainer)
        trainer.model_accepts_loss_kwargs = self.next_token
        trainer.loss_is_scaled_for_ga = False
        trainer.add_callback(self)
        self.sums: dict[str, Tensor] = {}
        self.counts: dict[str, int] = defaultdict(int)
        self.resume_from: Path | None = None
        if trainer.optimizer is not None:
            objective.bind_optimizer(trainer.optimizer)

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
            return self.original_compute_loss(model, inputs, return_outputs=return_outputs)
        batch, compute_loss = self.batch_and_loss(inputs, num_items_in_batch)
        loss = self.objective(model, batch, compute_loss)
        self._count(self.objective.terms)
        return (loss, None) if return_outputs else loss

    def batch_and_loss(
        self, inputs: dict[str, Any], num_items_in_batch: Tensor | int | None
    ) -> tuple[dict[str, Any], ComputeLoss]:
        """Model inputs and task loss for the objective, depending on the trainer's library."""
        if is_embedding_trainer(self.trainer):
            embedding = EmbeddingLoss(self.trainer, inputs)
            return embedding.batch, embedding
        if not self.next_token:
            return inputs, self.task_loss
        inputs = unpacked(inputs)
        if num_items_in_batch is not None:  # of all batches of the update, on all processes
            args = self.trainer.args
            processes = args.world_size if args.average_tokens_across_devices else 1
            batches = self.trainer.current_gradient_accumulation_steps * processes
            inputs["num_items_in_batch"] = num_items_in_batch / batches
        return inputs, causal_lm_loss

    def task_loss(self, model: nn.Module, batch: dict[str, Any]) -> tuple[Tensor | None, Any]:
        """The trainer's own loss on one batch, None for a batch without labels; and the outputs."""
        if not any(name in batch for name in self.trainer.label_names):
            return None, model(**batch)
        loss, outputs = self.original_compute_loss(model, batch, return_outputs=True)
        return loss, outputs

    def create_optimizer(self, *args: Any, **kwargs: Any) -> torch.optim.Optimizer:
        """Create the optimizer and bind the objective to it."""
        before = self.trainer.optimizer
        optimizer = self.original_create_optimizer(*args, **kwargs)
        if optimizer is not before:
            self.objective.bind_optimizer(optimizer)
        return optimizer

    # --- logging -----------------------------------------------------------------------------

    def _count(self, terms: dict[str, Tensor]) -> None:
        for name, value in terms.items():
            if name != "loss":
                self.sums[name] = self.sums.get(name, 0) + value
                self.counts[name] += 1

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """Add the mean of every term since the last log to the Trainer's training logs."""
        if "loss" in logs and self.sums:
            names = sorted(self.sums)
            means = torch.stack([self.sums[name].float() / self.counts[name] for name in names])
            means = self.trainer.accelerator.reduce(means, reduction="mean")
            logs = {**logs, **dict(zip(names, means.tolist(), strict=True))}
            self.sums.clear()
            self.counts.clear()
        self.original_log(logs, *args, **kwargs)

    # --- checkpoints -------------------------------------------------------------------------

    def train(self, resume_from_checkpoint: str | bool | None = None, **kwargs: Any) -> Any:
        """Train; a resumed run takes the methods' state from the checkpoint."""
        folder, checkpoint = self.trainer.args.output_dir, resume_from_checkpoint
        if checkpoint is True:
            checkpoint = get_last_checkpoint(folder)
        if checkpoint is None and resume_from_checkpoint:
            raise ValueError(f"there is no checkpoint in {folder} to resume from")
        self.resume_from = Path(checkpoint) if checkpoint else None
        rows, tokenizer = self.trainer.train_dataset, self.trainer.processing_class
        for regularizer in self.objective.regularizers.values():
            regularizer.read_training_rows(rows, tokenizer)
        return self.original_train(resume_from_checkpoint=checkpoint or None, **kwargs)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Load the methods' state, after the model's."""
        if self.resume_from is None:
            return
        file = self.resume_from / STATE_FILE
        if not file.exists():
            raise FileNotFoundError(
                f"{file} is missing: the checkpoint was not written by a regularized trainer, so "
                "the run cannot be resumed exactly"
            )
        self.objective.load_state_dict(load_file(file))

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Write the methods' state beside the model's."""
        folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        if args.should_save and folder.exists():
            tensors = {
                key: t.detach().cpu().contiguous() for key, t in self.objective.state_dict().items()
            }
            save_file(tensors, folder / STATE_FILE)


def _has_stock_loss(trainer: Trainer) -> bool:
    """Whether the loss of a language model is the mean cross entropy of its label tokens."""
    if trainer.label_smoother is not None or trainer.compute_loss_func is not None:
        return False
    return type(trainer).compute_loss is Trainer.compute_loss or trl_trainer(trainer) is not None
