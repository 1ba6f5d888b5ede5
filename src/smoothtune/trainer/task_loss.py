"""The task loss of a trainer, on one batch, as the trainer itself would count it in an update."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from copy import deepcopy
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
from smoothtune.nn.causal_lm import NextTokenLoss, next_token_loss, target_mask
from smoothtune.nn.dropout import evaluating
from smoothtune.nn.hf_versions import declared_scaling, loss_shifts_labels
from smoothtune.nn.model_facts import added_loss, predicts_tokens, with_decoder_inputs
from smoothtune.trainer.sentence_transformers import EmbeddingLoss, class_of, is_embedding_trainer
from smoothtune.trainer.update_batches import (
    PADDING_BATCH,
    Size,
    UpdateParts,
    are_labels,
    counted_labels,
    refuse_parts,
    rows_of,
)
from smoothtune.trainer.weighted_losses import ClassWeightedLoss, WeightedLoss

COUNTS = ("_metrics", "_total_train_tokens", "accum_loss_components")
"""What trainers of TRL and sentence-transformers count for their logs."""
Kind = Literal["next token", "embedding", "stock", "function", "declared", "own"]


class Prepared(NamedTuple):
    """What an objective takes."""

    batch: dict[str, Any]
    compute_loss: ComputeLoss
    row_share: float | Tensor
    log_weights: tuple[float, float]
    """Parts that the batch is of its update's here, and of those that are labeled as it is."""


class TrainerLoss:
    """A trainer's own loss, in the part that a batch has in its update.

    Means whose meaning is known are weighed by what they run over. A `compute_loss` of the user's
    own counts as its trainer would count it: as normalized over the update by `num_items_in_batch`,
    where the Trainer gives it that; as it declares by `loss_is_scaled_for_ga`; else as a mean that
    weighs the same for every batch.
    """

    def __init__(self, trainer: Any):
        self.trainer = trainer
        self.compute_loss: Callable[..., Any] = trainer.own_compute_loss
        self.scaled = declared_scaling(trainer)
        smoother = trainer.label_smoother
        self.smoothing = 0.0 if smoother is None else float(smoother.epsilon)
        self.kind: Kind = self._kind()
        self.compared = False  # whether the loss from one forward has been compared
        counted = bool(trainer.model_accepts_loss_kwargs)
        self.takes_count = takes(self.compute_loss, "num_items_in_batch")
        self.takes_outputs = takes(self.compute_loss, "return_outputs")
        self.normalized = self.kind == "own" and counted and self.takes_count
        declares_count = self.kind == "declared" and counted
        self.accepts_loss_kwargs = self.kind == "next token" or declares_count
        self.is_declared = self.kind in ("stock", "next token") and not self.smoothing
        self.label_names = list(dict.fromkeys([*(trainer.label_names or ()), "labels"]))
        self._weighs = isinstance(trainer.compute_loss_func, WeightedLoss)
        self._are_labels = partial(are_labels, shifted=loss_shifts_labels(trainer))
        self._rewards = class_of(trainer, "trl") == "RewardTrainer"
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
        if batch.get(PADDING_BATCH):
            return Size(0, 0)
        if self.kind == "embedding":
            texts = [len(x) for name, x in batch.items() if name.endswith("input_ids")]
            rows = sum(texts) or rows_of(batch)
            return Size(rows, rows)
        if self.kind == "next token":
            batch = self._sequences(batch)
            return Size(rows_of(batch), target_mask(batch).sum())
        rows, name = rows_of(batch), self._counted_labels(batch)
        return Size(rows, rows if name is None else self._count(batch[name]))

    def _count(self, labels: Tensor) -> Tensor:
        """() how many labels count, or what they weigh."""
        if isinstance(self.trainer.compute_loss_func, ClassWeightedLoss):
            return self.trainer.compute_loss_func.total(labels)
        return self._are_labels(labels).sum()

    def _counted_labels(self, batch: Mapping[str, Any]) -> str | None:
        """The tensor over whose labels the loss is a mean, by name; None if that is over rows."""
        if self._takes_count(batch):
            return "labels"
        if hasattr(getattr(self.trainer.model, "config", None), "ctc_loss_reduction"):
            return None  # a mean over rows, whatever the length of their transcripts
        return counted_labels(batch, self.label_names)

    def _takes_count(self, batch: Mapping[str, Any]) -> bool:
        """Whether the loss is normalized by the number of labels that it is given."""
        return "labels" in batch and (self.normalized or self.kind == "function")

    def _num_items(self, batch: Mapping[str, Any]) -> Tensor:
        """() what the Trainer would give for `num_items_in_batch`, at least 1."""
        return self._are_labels(batch["labels"]).sum().clamp(min=1)

    def _sequences(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """A language model's batch with a text in every row, and what its decoder reads."""
        return with_decoder_inputs(unwrap(self.trainer.model), unpacked(batch))

    # --- one batch ---------------------------------------------------------------------------

    def prepare(self, inputs: dict[str, Any], num_items_in_batch: Any) -> Prepared:
        """Model inputs, task loss and share of one batch in training."""
        unlabeled = self._is_unlabeled(inputs)
        rows, items = self.parts.shares(inputs, unlabeled)
        weights = self.parts.log_weights(unlabeled)
        padding = bool(inputs.pop(PADDING_BATCH, False))
        if self.kind == "embedding":
            embedding = EmbeddingLoss(self.trainer, inputs)
            if not self.compared:
                self._compare(inputs)
            return Prepared(embedding.batch, Weighed(embedding, 1 / rows), rows, weights)
        batch = dict(inputs)
        if self.kind == "next token":
            mean = self.parts.mean_items(batch, unlabeled)
            items = torch.as_tensor(mean * rows).float()
            batch = self._sequences(batch) | {"num_items_in_batch": items}
            smoothed = NextTokenLoss(self.smoothing)
            return Prepared(batch, smoothed if self.smoothing else next_token_loss, rows, weights)
        if unlabeled:
            batch["unlabeled"] = True
            return Prepared(batch, without_labels, rows, weights)
        count, share = self._count_and_share(batch, items, num_items_in_batch)
        finite, passes = self._made_finite(batch), 0

        def loss(model: nn.Module, batch: dict[str, Any]) -> tuple[Tensor | None, Any]:
            nonlocal passes
            passes += 1
            again = self._rewards and passes > 1
            with _counts_dropped(self.trainer) if again else nullcontext():
                if self._rewards:
                    refuse_parts(batch, inputs, "RewardTrainer")
                value, outputs = loss_and_outputs(self.own(model, finite(batch), True, count))
            return zero(model, outputs) if padding else value, outputs

        if not padding and not (isinstance(rows, float) and rows == 1):
            share = share / rows
        return Prepared(batch, Weighed(loss, 1.0 if padding else share), rows, weights)

    def _made_finite(self, batch: Mapping[str, Any]) -> Callable[[dict[str, Any]], dict[str, Any]]:
        """Gives a batch without any label some: its mean would be 0 / 0, and it weighs nothing."""
        name = self._counted_labels(batch)
        by_labels = self.kind == "stock" or self._takes_count(batch)
        dtype = torch.float if name is None else batch[name].dtype
        if name is None or not by_labels or dtype.is_floating_point or not dtype.is_signed:
            return dict
        some = self._count(batch[name]) > 0

        def finite(batch: dict[str, Any]) -> dict[str, Any]:  # perhaps some of the rows
            return batch | {name: torch.where(some, batch[name], batch[name].clamp(min=0))}

        return finite

    def _compare(self, inputs: dict[str, Any]) -> None:
        """Once, refuse a loss that is another from one forward than the trainer's, dropout off."""
        self.compared, model = True, self.trainer.model
        embedding = EmbeddingLoss(self.trainer, inputs)
        device = device_of(embedding.batch)
        with (
            torch.no_grad(),
            evaluating(model),
            rng.isolated(device),
            _counts_dropped(self.trainer),
        ):
            loss, _ = embedding(model, embedding.batch)
            own: Any = self.compute_loss(model, dict(inputs))
        assert loss is not None
        rounded = autocast_dtype(model, device) is not None
        if not torch.isclose(loss.float(), own.float(), rtol=0.05 if rounded else 1e-3, atol=1e-6):
            raise ValueError(
                f"{type(self.trainer.loss).__name__} is {own.item():.6g} in its trainer and "
                f"{loss.item():.6g} from one forward over all columns, as methods need it: use "
                "another loss, such as MultipleNegativesRankingLoss"
            )

    def own(
        self, model: nn.Module, inputs: dict[str, Any], return_outputs: bool, count: Any
    ) -> Any:
        """What the trainer's own `compute_loss` returns; `count` for those who take it.

        The Trainer trains with the loss alone, so a `compute_loss` may know no outputs.
        """
        if self._weighs and not model.training:
            count = None  # by which the Trainer takes it for a share of a sum over all processes
        if self.normalized and count is None and "labels" in inputs:  # in evaluation
            count = self._num_items(inputs)
        options = {"num_items_in_batch": count} if self.takes_count else {}
        if self.takes_outputs:
            options["return_outputs"] = return_outputs
        result = self.compute_loss(model, inputs, **options)
        if self.kind != "function" or not model.training or count is None:
            return result
        # the Trainer prepares a sum over all processes for the mean that DDP takes
        across = self.trainer.args.average_tokens_across_devices
        loss, outputs = result
        return loss / (self.trainer.accelerator.num_processes if across else 1), outputs

    def _is_unlabeled(self, batch: Mapping[str, Any]) -> bool:
        """Whether a batch is marked so, or a stock loss would fail on it for want of labels."""
        if batch.get("unlabeled"):
            return True
        if self.kind != "stock" or not self.trainer.label_names or self.trainer.can_return_loss:
            return False
        return not batch.get("return_loss") and not any(n in batch for n in self.label_names)

    def _count_and_share(
        self, batch: dict[str, Any], items: float | Tensor, num_items_in_batch: Any
    ) -> tuple[Any, float | Tensor]:
        """What to pass as `num_items_in_batch`, and the factor of the loss in its update."""
        if self.kind == "declared":
            batches = self.trainer.current_gradient_accumulation_steps
            return num_items_in_batch, float(batches if self.scaled else 1)
        if self.kind == "stock":
            return None, items
        if not self._takes_count(batch):
            return None, 1.0
        # divided by its own items a loss is the mean of its batch, whether it uses the count or not
        return self._num_items(batch), items


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


@contextmanager
def _counts_dropped(trainer: Any) -> Iterator[None]:
    """Leave out of a trainer's logs what it counts within, of reward models and embeddings."""
    own = {name: value for name, value in vars(trainer).items() if name in COUNTS}
    vars(trainer).update(deepcopy(own))
    try:
        yield
    finally:
        vars(trainer).update(own)


def takes(function: Callable[..., Any], name: str) -> bool:
    """Whether a function can be given an argument by name."""
    parameters = inspect.signature(function).parameters
    return name in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())
