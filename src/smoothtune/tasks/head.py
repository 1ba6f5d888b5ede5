"""The second part of a task: from rows of tokens to a model's loss and predictions."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, ClassVar, Literal

import numpy as np
from datasets import Dataset
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from smoothtune.data.batches import Collator
from smoothtune.data.unseen import spelled_alike
from smoothtune.errors import ModelError
from smoothtune.tasks.class_lookup import is_numbered
from smoothtune.tasks.description import TaskDescription

Collate = Callable[[Sequence[Mapping[str, Any]]], dict[str, Tensor]]
ProblemType = Literal["regression", "single_label_classification", "multi_label_classification"]
"""transformers' names of what logits mean: a score, a softmax, or a sigmoid of each."""


@dataclass(frozen=True)
class Head(ABC):
    """The head of a model: its configuration, batches, loss and predictions."""

    label_inputs: ClassVar[tuple[str, ...]] = ("labels",)
    """Inputs of the model that are labels."""
    outputs: ClassVar[tuple[str, ...]] = ("logits",)
    """Names of the model's first outputs after the loss."""
    problem_type: ClassVar[ProblemType | None] = None
    """What predictions (N, W) are logits of; None: they are no logits of examples."""

    task: TaskDescription

    def config(self) -> dict[str, Any]:
        """Fields of the model's configuration that depend on the task."""
        problem = {} if self.problem_type is None else {"problem_type": self.problem_type}
        return label_config(self.task.known_label_names) | problem

    def fit_outputs(self, config: Any) -> tuple[int, ...] | None:
        """The output of every label in a fine-tuned model, see `matched_outputs`."""
        return matched_outputs(config, self.task.name, self.task.known_label_names)

    def collator(self, tokenizer: PreTrainedTokenizerBase) -> Collate:
        """A function from rows to a batch of tensors (B, ...), padded to the longest row."""
        return Collator(tokenizer, label_columns=self.label_inputs)

    @abstractmethod
    def loss(self, outputs: Mapping[str, Tensor], batch: Mapping[str, Tensor]) -> Tensor:
        """() mean loss over a batch with labels."""

    def num_losses(self, batch: Mapping[str, Tensor]) -> int:
        """How many losses `loss` is the mean of: one for every row."""
        return len(batch["input_ids"])

    def predictions(self, outputs: Mapping[str, np.ndarray], rows: Dataset) -> np.ndarray:
        """Predictions (N, W) from the model's outputs (N, ...) on rows; padding is at the end."""
        return outputs["logits"]

    def prediction_width(self, rows: Dataset) -> int:
        """W of `predictions`."""
        return self.task.num_labels


def label_config(names: Sequence[str]) -> dict[str, Any]:
    """Number and names of the labels as fields of a model's configuration."""
    return {
        "num_labels": len(names),
        "id2label": dict(enumerate(names)),
        "label2id": {name: index for index, name in enumerate(names)},
    }


def output_names(config: Any) -> tuple[str, ...]:
    """Names of a model's outputs, in order.

    Raises:
        ModelError: two outputs have one name, or `label2id` numbers them otherwise than `id2label`.
    """
    names = tuple(str(config.id2label[index]) for index in range(config.num_labels))
    numbers = config.label2id or {}
    if len(set(names)) < len(names) or any(numbers.get(x, i) != i for i, x in enumerate(names)):
        raise ModelError(
            f"id2label and label2id of the model do not agree ({config.id2label}, {numbers}), so "
            "its outputs have no sure names; mend them in its config.json"
        )
    return names


def matched_outputs(config: Any, task: str, names: Sequence[str]) -> tuple[int, ...] | None:
    """Which output of a model belongs to each label of a task; None: the same order.

    Names that differ in blanks or case only are one; regression has none.

    Raises:
        ValueError: the model has another number of outputs, or other names for them that do not
            belong to the labels in their order.
    """
    count, label2id = len(names) or 1, config.label2id or {}
    if config.num_labels != count:
        known, labels = ", ".join(list(label2id)[:20]), ", ".join(names[:20])
        hint = f" (the outputs are {known}, the labels {labels})" if names and known else ""
        raise ValueError(
            f"has {config.num_labels} outputs, but task {task!r} needs {count}{hint}: take rows "
            "whose labels it knows"
        )
    for spelled in (str, spelled_alike):
        numbers = {spelled(name): index for name, index in label2id.items()}
        if len(numbers) == len(label2id) and set(numbers) == set(map(spelled, names)):
            order = tuple(numbers[spelled(name)] for name in names)
            return None if order == tuple(range(count)) else order
    # the outputs may be the labels under other names, unless some stand at another place
    moved = [name for i, name in enumerate(names) if numbers.get(spelled_alike(name), i) != i]
    outputs = sorted(label2id, key=lambda name: label2id[name])
    if moved or (names and not (is_numbered(names) and is_numbered(outputs))):
        raise ValueError(
            f"has the outputs {', '.join(outputs[:20])}, and the labels are "
            f"{', '.join(names[:20])}: write the labels with the names of the outputs, or "
            "as their numbers from 0"
        )
    return None


def taken_in_order(config: Any, names: Sequence[str]) -> str:
    """What to tell where labels have other names than the outputs that fit them; "": nothing.

    Numbers from 0 are the numbers of the outputs, whatever these are called.
    """
    if all(name == str(index) for index, name in enumerate(names)):
        return ""
    known = {index: name for name, index in (config.label2id or {}).items()}
    outputs = [known.get(index, f"output {index}") for index in range(len(names))]
    if {*map(spelled_alike, names)} == {*map(spelled_alike, outputs)}:
        return ""
    pairs = (f"{output} is {name!r}" for output, name in zip(outputs, names, strict=True))
    return (
        "the outputs of the model have other names than the labels, so they are taken in order: "
        f"{', '.join(islice(pairs, 20))}. If that is wrong, write the labels as the numbers of the "
        "outputs from 0, or name the outputs in config.json (id2label)"
    )
