"""The task loss of a trainer, on one batch, as the trainer itself would count it in an update."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from transformers import Trainer

from smoothtune.core.compute_loss import ComputeLoss, Weighed, loss_and_outputs
from smoothtune.core.forward import device_of
from smoothtune.core.packed_rows import unpacked
from smoothtune.nn import rng
from smoothtune.nn.architecture import unwrap
from smoothtune.nn.autocast import autocast_dtype
from smoothtune.nn.causal_lm import next_token_loss, target_mask
from smoothtune.nn.dropout import evaluating
from smoothtune.nn.encoder_decoder import with_decoder_inputs
from smoothtune.nn.model_facts import IGNORED, added_loss, predicts_tokens
from smoothtune.trainer.class_weights import ClassWeightedLoss, LabelWeightedLoss
from smoothtune.trainer.sentence_transformers import EmbeddingLoss, is_embedding_trainer
from smoothtune.trainer.trl import metrics_kept, trl_trainer
from smoothtune.trainer.update_batches import SPARE
from smoothtune.trainer.update_parts import Size, UpdateParts, labels_in, refuse_parts, rows_of

Kind = Literal["next token", "embedding", "stock", "function", "declared", "own"]


class Prepared(NamedTuple):
    """What an objective takes."""

    batch: dict[str, Any]
    compute_loss: ComputeLoss
    row_share: float


class TaskLoss:
    """A trainer's own loss, in the part that a batch has in its update.

    Means whose meaning is known are weighed by what they run over. A `compute_loss` of the user's
    own counts as its trainer would count it: as normalized over the update by `num_items_in_batch`,
    where the Trainer gives it that; as it declares by `loss_is_scaled_for_ga`; else as a mean that
    weighs the same for every batch.
    """

    def __init__(self, trainer: Trainer):
        self.trainer: Any = trainer
        self.compute_loss = trainer.compute_loss
        self.scaled = trainer.loss_is_scaled_for_ga
        smoother = trainer.label_smoother
        self.smoothing = 0.0 if smoother is None else float(smoother.epsilon)
        self.kind: Kind = self._kind()
        self.compared = False  # whether the loss from one forward has been compared
        counted = bool(trainer.model_accepts_loss_kwargs)
        self.takes_count = takes(self.compute_loss, "num_items_in_batch")
        self.takes_outputs = takes(self.compute_loss, "return_outputs")
        self.normalized = self.kind == "own" and counted and self.takes_count
        self.accepts_loss_kwargs = self.kind == "next token" or (
            self.kind == "declared" and counted
        )
        self.is_declared = self.kind in ("stock", "next token") and not self.smoothing
        self.parts = UpdateParts(trainer, self._size, self._is_unlabeled)

    def _kind(self) -> Kind:
        trainer, bare = self.trainer, unwrap(self.trainer.model)
        if is_embedding_trainer(trainer):
            return "embedding"
        function: Any = getattr(self.compute_loss, "__func__", None)
        stock = function is Trainer.compute_loss
        of_trl = getattr(function, "__module__", "").startswith("trl.")  # not of a subclass
        tokens = predicts_tokens(bare) and trainer.compute_loss_func is None
        if self.smoothing:
            tokens &= stock and not added_loss(bare, {})
        if tokens and (stock or of_trl):
            return "next token"
        if self.scaled is not None:
            return "declared"
        if not stock:
            return "own"
        return "stock" if trainer.compute_loss_func is None else "function"

    # --- sizes -------------------------------------------------------------------------------

    def _size(self, batch: Mapping[str, Any]) -> Size:
        if batch.get(SPARE):
            return Size(0, 0)
        if self.kind == "embedding":
            texts = [len(x) for name, x in batch.items() if name.endswith("input_ids")]
            rows = sum(texts) or rows_of(batch)
            return Size(rows, rows)
        if self.kind == "next token":
            batch = self._sequences(batch)
            return Size(rows_of(batch), int(target_mask(batch).sum()))
        weighted = self.trainer.compute_loss_func
        if isinstance(weighted, ClassWeightedLoss) and "labels" in batch:
            return Size(rows_of(batch), weighted.total(batch["labels"]))
        if "labels" in batch and (self.normalized or self.kind == "function"):
            return Size(rows_of(batch), int(self._counted(batch)))
        names = [name for name in self._label_names() if name in batch]
        if hasattr(getattr(self.trainer.model, "config", None), "ctc_loss_reduction"):
            names = []  # a mean over rows, whatever the length of their transcripts
        shifted = bool(self.trainer._loss_shifts_labels)
        return Size(rows_of(batch), labels_in(batch, names, shifted=shifted))

    def _counted(self, batch: Mapping[str, Any]) -> Tensor:
        """() labels of a batch as the Trainer counts them for `num_items_in_batch`."""
        labels: Tensor = batch["labels"]
        if self.trainer._loss_shifts_labels:
            labels = labels[..., 1:]
        return labels.ne(IGNORED).sum()

    def _label_names(self) -> list[str]:
        return list(dict.fromkeys([*(self.trainer.label_names or ()), "labels"]))

    def _sequences(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """A language model's batch with a text in every row, and what its decoder reads."""
        return with_decoder_inputs(unwrap(self.trainer.model), unpacked(batch))

    # --- one batch ---------------------------------------------------------------------------

    def prepare(self, inputs: dict[str, Any], num_items_in_batch: Any) -> Prepared:
        """Model inputs, task loss and share of one batch.

        Args:
            inputs: the batch in training; with `unlabeled`, it has no task loss.
            num_items_in_batch: what the Trainer has counted, for a loss that uses it.
        """
        rows, items = self.parts.shares(inputs)
        inputs.pop(SPARE, None)
        if self.kind == "embedding":
            embedding = EmbeddingLoss(self.trainer, inputs)
            if not self.compared:
                self._compare(embedding, inputs)
            return Prepared(embedding.batch, Weighed(embedding, 1 / rows), rows)
        batch = dict(inputs)
        if self.kind == "next token":
            mean = self.parts.mean_items(batch)
            batch = self._sequences(batch) | {"num_items_in_batch": mean * rows}
            smoothed = partial(next_token_loss, smoothing=self.smoothing)
            return Prepared(batch, smoothed if self.smoothing else next_token_loss, rows)
        if self._is_unlabeled(batch):
            batch["unlabeled"] = True
            return Prepared(batch, without_labels, rows)
        count, share = self._count_and_share(batch, items, num_items_in_batch)
        reward, passes = trl_trainer(self.trainer) == "RewardTrainer", 0

        def loss(model: nn.Module, batch: dict[str, Any]) -> tuple[Tensor | None, Any]:
            nonlocal passes
            passes += 1
            with metrics_kept(self.trainer) if reward and passes > 1 else nullcontext():
                if reward:
                    refuse_parts(batch, inputs, "RewardTrainer")
                value, outputs = loss_and_outputs(self.own(model, batch, True, count))
            if not share:  # no label in this batch: its mean is 0 / 0
                value = zero(model, outputs)
            return value, outputs

        return Prepared(batch, Weighed(loss, share / rows if rows else 0.0), rows)

    def _compare(self, embedding: EmbeddingLoss, inputs: dict[str, Any]) -> None:
        """Once, compare the loss from one forward with the trainer's own, dropout off.

        Raises:
            ValueError: they differ.
        """
        self.compared, model = True, self.trainer.model
        with torch.no_grad(), evaluating(model), rng.isolated(device_of(embedding.batch)):
            ours, _ = embedding(model, embedding.batch)
            own: Any = self.compute_loss(model, dict(inputs))
        assert ours is not None
        rounded = autocast_dtype(model, device_of(embedding.batch)) is not None
        if not torch.isclose(ours.float(), own.float(), rtol=0.05 if rounded else 1e-3, atol=1e-6):
            raise ValueError(
                f"{type(self.trainer.loss).__name__} is {own.item():.6g} in its trainer and "
                f"{ours.item():.6g} from one forward over all columns, as methods need it: use "
                "another loss, such as MultipleNegativesRankingLoss"
            )

    def own(
        self, model: nn.Module, inputs: dict[str, Any], return_outputs: bool, count: Any
    ) -> Any:
        """What the trainer's own `compute_loss` returns; `count` for those who take it.

        The Trainer trains with the loss alone, so a `compute_loss` may know no outputs.
        """
        weighted = isinstance(self.trainer.compute_loss_func, ClassWeightedLoss | LabelWeightedLoss)
        if weighted and not model.training:
            count = None  # by which the Trainer takes it for a share of a sum over all processes
        if self.normalized and count is None and "labels" in inputs:  # in evaluation
            count = self._counted(inputs).clamp(min=1)
        options = {"num_items_in_batch": count} if self.takes_count else {}
        if self.takes_outputs:
            options["return_outputs"] = return_outputs
        found = self.compute_loss(model, inputs, **options)
        if self.kind != "function" or not model.training or count is None:
            return found
        # the Trainer prepares a sum over all processes for the mean that DDP takes
        across = self.trainer.args.average_tokens_across_devices
        loss, outputs = found
        return loss / (self.trainer.accelerator.num_processes if across else 1), outputs

    def _is_unlabeled(self, batch: Mapping[str, Any]) -> bool:
        """Whether a batch is marked so, or a stock loss would fail on it for want of labels."""
        if batch.get("unlabeled"):
            return True
        if self.kind != "stock" or not self.trainer.label_names or self.trainer.can_return_loss:
            return False
        return not batch.get("return_loss") and not any(n in batch for n in self._label_names())

    def _count_and_share(
        self, batch: dict[str, Any], items: float, num_items_in_batch: Any
    ) -> tuple[Any, float]:
        """What to pass as `num_items_in_batch`, and the factor of the loss in its update."""
        if self.kind == "declared":
            batches = self.trainer.current_gradient_accumulation_steps
            return num_items_in_batch, float(batches if self.scaled else 1)
        if self.kind == "stock":
            return None, items
        if "labels" not in batch or not (self.normalized or self.kind == "function"):
            return None, 1.0
        # divided by its own items a loss is the mean of its batch, whether it uses the count or not
        return self._counted(batch).clamp(min=1), items


def without_labels(model: nn.Module, batch: dict[str, Any]) -> tuple[Tensor | None, Any]:
    """No loss, and the outputs."""
    return None, model(**batch)


def zero(model: nn.Module, outputs: Any) -> Tensor:
    """() 0 of a batch without labels, whose gradient of 0 reaches what the model uses."""
    for name in ("logits", "start_logits"):
        if name in outputs:
            return 0 * outputs[name].sum()
    trained = (weight for weight in model.parameters() if weight.requires_grad)
    return torch.stack([0 * weight.flatten()[:1].sum().float() for weight in trained]).sum()


def takes(function: Callable[..., Any], name: str) -> bool:
    """Whether a function can be given an argument by name."""
    parameters = inspect.signature(function).parameters
    return name in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())
