"""The trainer of sentence-transformers, with all texts of a batch in one forward.

Its losses call the model once per column of texts, while methods need a single forward that they
can repeat with a perturbation. So the columns are stacked into one batch for the model, and the
loss gets a substitute for the model that returns the precomputed embeddings of each column.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import Trainer

from smoothtune.core.packed_rows import uses_passes
from smoothtune.core.regularizer import Regularizer
from smoothtune.nn.architecture import unwrap
from smoothtune.trainer.update_batches import refuse_parts

TEXT = ("input_ids", "attention_mask", "token_type_ids")
Column = dict[str, Any]


def class_of(trainer: Trainer, library: str) -> str | None:
    """Name of the library's class that a trainer is or inherits from; None for other trainers."""
    mro = type(trainer).__mro__
    names = (cls.__name__ for cls in mro if cls.__module__.startswith(f"{library}."))
    return next((name for name in names if not name.startswith("_")), None)


def is_embedding_trainer(trainer: Trainer) -> bool:
    """Whether a trainer is a SentenceTransformerTrainer, which trains embedding models."""
    return any(cls.__name__ == "SentenceTransformerTrainer" for cls in type(trainer).__mro__)


def sentence_transformers_problems(
    regularizers: Mapping[str, Regularizer], trainer: Trainer
) -> list[str]:
    """Why methods, but those of weights alone, do not support one of its trainers."""
    if is_embedding_trainer(trainer):
        try:
            import_module("sentence_transformers.base.losses.merged_forward")
        except ImportError:
            return ["this trainer needs sentence-transformers 6.2 or newer: upgrade it"]
        tokenizer = getattr(unwrap(trainer.model), "tokenizer", None)  # type: ignore[arg-type]
        if getattr(tokenizer, "padding_side", "right") == "left":
            return ['texts are padded on the left: set tokenizer.padding_side = "right"']
        return []
    of_library = class_of(trainer, "sentence_transformers")
    acting = [name for name, each in regularizers.items() if uses_passes(each)]
    if not of_library or not acting:
        return []
    return [
        f"{', '.join(acting)} with sentence-transformers' {of_library}: its losses tokenize the "
        "texts themselves, or read other outputs than an embedding: that is not verified. Use a "
        "weight-side method such as mixout or l2_sp, SentenceTransformerTrainer "
        "for embeddings, AutoModelForSequenceClassification with transformers' Trainer for scores "
        "(with num_labels=1, problem_type='multi_label_classification' and labels of shape (B, 1) "
        "it has BinaryCrossEntropyLoss; by default, the squared error)"
    ]


def stacked(columns: list[Column]) -> dict[str, Tensor]:
    """Model inputs (number of columns * B, max T_c) of columns (B, T_c), padded on the right.

    Raises:
        ValueError: a column holds other tensors.
    """
    for column in columns:
        if other := sorted({key for key, x in column.items() if isinstance(x, Tensor)} - {*TEXT}):
            raise ValueError(f"{', '.join(other)}: only texts are verified, without prompt lengths")
    longest = max(column["input_ids"].shape[1] for column in columns)
    return {
        name: torch.cat([F.pad(c[name], (0, longest - c[name].shape[1])) for c in columns])
        for name in TEXT
        if name in columns[0]
    }


class EmbeddingLoss:
    """The trainer's loss over one batch, from one forward over the texts of all its columns."""

    def __init__(self, trainer: Any, inputs: dict[str, Any]):
        """Take a batch apart as the trainer's `compute_loss` does."""
        inputs = dict(inputs)
        self.loss = trainer.loss
        if isinstance(self.loss, dict):
            self.loss = self.loss[inputs.pop("dataset_name")]
        self.trainer = trainer
        self.columns, self.labels = trainer.collect_features(inputs)
        self.batch = stacked(self.columns)
        # marks the batch as labeled
        self.batch["labels"] = torch.zeros_like(self.batch["input_ids"][:, 0])
        self.tracked = False

    def __call__(self, model: nn.Module, batch: dict[str, Any]) -> tuple[Tensor | None, Any]:
        """Embed all texts once; scalar loss, and the outputs with `sentence_embedding` (N, D)."""
        refuse_parts(batch, self.batch, "SentenceTransformerTrainer")
        outputs = dict(model({name: batch[name] for name in TEXT if name in batch}))
        embedded = Embedded(unwrap(model), self.columns, outputs)
        from sentence_transformers.base.losses.merged_forward import column_merging_disabled

        with _substituted(self.loss, embedded), column_merging_disabled():
            loss = self.loss(self.columns, self.labels)
        if embedded.calls != len(self.columns):
            raise ValueError(_NOT_ONCE.format(type(self.loss).__name__))
        if isinstance(loss, dict):
            if not self.tracked:  # later passes are perturbed
                self.trainer.track_loss_components(loss)
                self.tracked = True
            loss = torch.stack(list(loss.values())).sum()
        return loss, outputs


_NOT_ONCE = (
    "{} does not call the model exactly once for every column of texts, as methods need it: use a "
    "loss that does, such as MultipleNegativesRankingLoss without its cached form"
)


class Embedded(nn.Module):
    """Returns a model's precomputed outputs column by column; other attributes are the model's."""

    def __init__(self, model: nn.Module, columns: list[Column], outputs: dict[str, Any]):
        super().__init__()
        self.__dict__["embedder"] = model  # no submodule: nothing may be moved or trained here
        self.columns, self.outputs, self.calls = columns, outputs, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["embedder"], name)

    def forward(self, column: Column, **options: Any) -> dict[str, Any]:
        """The outputs of the texts of one column."""
        if self.calls >= len(self.columns) or column is not self.columns[self.calls]:
            raise ValueError(_NOT_ONCE.format("the loss"))
        size, length = column["input_ids"].shape
        rows = slice(self.calls * size, (self.calls + 1) * size)
        self.calls += 1
        outputs = {k: x[rows] for k, x in self.outputs.items() if isinstance(x, Tensor)}
        if "token_embeddings" in outputs:
            outputs["token_embeddings"] = outputs["token_embeddings"][:, :length]
        return {**column, **outputs, "attention_mask": column["attention_mask"]}


@contextmanager
def _substituted(loss: nn.Module, embedded: Embedded) -> Iterator[None]:
    """Put `embedded` wherever the loss, or a loss within it, holds the model."""
    models = {
        module: held
        for module in loss.modules()
        if (held := module._modules.get("model")) is not None
        and hasattr(unwrap(held), "transformers_model")  # a teacher model keeps its place
    }
    for module in models:
        module._modules["model"] = embedded
    try:
        yield
    finally:
        for module, model in models.items():
            module._modules["model"] = model
