"""Classification and regression of texts and pairs of texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch.nn.functional as F
from datasets import Dataset, Features, Value
from sklearn.metrics import roc_auc_score
from torch import Tensor
from transformers import AutoModelForSequenceClassification, PreTrainedTokenizerBase

from smoothtune.data.collator import Collator
from smoothtune.data.summary import SplitReport
from smoothtune.data.tokenizing import TEXTS, count_truncated, tokenize
from smoothtune.tasks.base import Collate, Description, Kind, Task, TokenizeOptions
from smoothtune.tasks.labels import check_splits, default_metrics, infer_labels, report_split
from smoothtune.tasks.metrics import compute_metrics, trivial_baseline


class TextClassification(Kind):
    """One row for every example; predictions are logits (N, C), or scores (N, 1)."""

    auto_model: ClassVar[Any] = AutoModelForSequenceClassification
    what = "classifier"
    texts = TEXTS
    predicts_logits = True
    derivatives = True
    gold_columns = 1

    def describe(self, said: Description) -> Task:
        """See `custom_task`."""
        columns = said.text_columns or ()
        return custom_task(columns, said.label_column or "label", name=said.name)

    def complete(self, task: Task, train: Dataset, source: str) -> Task:
        """Find the names of the labels."""
        return infer_labels(task, train, source)

    def check(
        self, splits: Mapping[str, Dataset], task: Task, source: str
    ) -> dict[str, np.ndarray]:
        """See `check_splits`."""
        return check_splits(splits, task, source)

    def select(
        self, raw: Dataset, task: Task, indices: np.ndarray, labels: np.ndarray | None
    ) -> Dataset:
        """Columns text, for pairs text_pair, labels if given, example_id."""
        return select(raw, task, indices, labels)

    def tokenize(
        self,
        examples: Dataset,
        task: Task,
        tokenizer: PreTrainedTokenizerBase,
        options: TokenizeOptions,
        content: str,
    ) -> Dataset:
        """See `smoothtune.data.tokenizing.tokenize`."""
        return tokenize(examples, tokenizer, options.max_seq_length, content, options.num_proc)

    def report(
        self,
        task: Task,
        examples: Dataset,
        rows: Dataset,
        tokenizer: PreTrainedTokenizerBase,
        max_seq_length: int,
    ) -> SplitReport:
        """Counts of labels, lengths, and texts that were cut."""
        return report_split(
            task,
            np.asarray(rows["labels"][:]),
            np.asarray(rows["length"][:]),
            source_rows=len(examples),
            truncated=count_truncated(examples, rows, tokenizer, max_seq_length),
        )

    def collator(self, tokenizer: PreTrainedTokenizerBase) -> Collate:
        """Pads with the tokenizer."""
        return Collator(tokenizer)

    def head(self, task: Task) -> dict[str, Any]:
        """Number and names of the labels, and the loss."""
        labels = dict(enumerate(task.label_names or ())) or {0: "score"}
        return {
            "num_labels": task.num_labels,
            "id2label": labels,
            "label2id": {name: index for index, name in labels.items()},
            "problem_type": "regression" if task.regression else "single_label_classification",
        }

    def fit_outputs(self, config: Any, task: Task) -> tuple[int, ...] | None:
        """By name where the model knows the task's labels, else by number."""
        return matched_outputs(config, task)

    def loss(
        self, task: Task, outputs: Mapping[str, Tensor], batch: Mapping[str, Tensor]
    ) -> Tensor:
        """Cross entropy, or squared error."""
        logits, labels = outputs["logits"], batch["labels"]
        if task.regression:
            return F.mse_loss(logits[:, 0], labels.to(logits.dtype))
        return F.cross_entropy(logits, labels)

    def predictions(
        self, task: Task, outputs: Mapping[str, np.ndarray], rows: Dataset
    ) -> np.ndarray:
        """The logits."""
        return outputs["logits"]

    def evidence_columns(self, task: Task) -> list[str]:
        """The label, then the logits."""
        return ["label", *(f"logit_{index}" for index in range(task.num_labels))]

    def evidence(self, task: Task, predictions: np.ndarray, rows: Dataset) -> np.ndarray:
        """(N, 1 + C)."""
        logits = np.asarray(predictions).reshape(len(rows), -1)
        return np.column_stack([np.asarray(rows["labels"][:]), logits])

    def scores(self, task: Task, evidence: np.ndarray) -> dict[str, float]:
        """See `compute_metrics`."""
        labels = evidence[:, 0] if task.regression else evidence[:, 0].astype(int)
        return compute_metrics(task, evidence[:, 1:], labels)

    def detailed_scores(self, task: Task, evidence: np.ndarray) -> dict[str, float]:
        """`scores`, and for two classes `roc_auc`."""
        auc = {"roc_auc": roc_auc(evidence[:, 1:], evidence[:, 0])} if task.num_labels == 2 else {}
        return self.scores(task, evidence) | auc

    def baseline(self, task: Task, rows: Dataset) -> float:
        """See `trivial_baseline`."""
        return trivial_baseline(task, rows["labels"][:])


def matched_outputs(config: Any, task: Task) -> tuple[int, ...] | None:
    """Which output of a model belongs to each label of a task; None: the same order.

    Raises:
        ValueError: the model has another number of outputs.
    """
    if config.num_labels != task.num_labels:
        raise ValueError(
            f"has {config.num_labels} outputs, but task {task.name!r} needs {task.num_labels}"
        )
    names, label2id = task.label_names or (), config.label2id
    if label2id is None or set(label2id) != set(names):
        return None
    order = tuple(label2id[name] for name in names)
    return None if order == tuple(range(len(order))) else order


def roc_auc(logits: np.ndarray, labels: np.ndarray) -> float:
    """Chance that an example of class 1 is scored above one of class 0; 0.5 with one class alone.

    Args:
        logits: (N, 2).
        labels: (N,).
    """
    if len(np.unique(labels)) < 2:
        return 0.5
    return float(roc_auc_score(labels, logits[:, 1] - logits[:, 0]))


def select(
    raw: Dataset, task: Task, indices: np.ndarray, labels: np.ndarray | None = None
) -> Dataset:
    """The chosen rows, in memory: text, for pairs text_pair, labels if given, example_id."""
    texts = raw.select_columns(list(task.text_columns)).select(indices, keep_in_memory=True)
    names = TEXTS[: len(task.text_columns)]
    columns = zip(names, task.text_columns, strict=True)
    features = {name: Value("string") for name in names}
    data = {name: texts[column][:] for name, column in columns}
    if labels is not None:
        features["labels"] = Value("float32" if task.regression else "int64")
        data["labels"] = labels[indices]
    features["example_id"] = Value("int64")
    return Dataset.from_dict(data | {"example_id": indices}, features=Features(features))


def custom_task(
    text_columns: str | Sequence[str],
    label_column: str = "label",
    *,
    name: str = "custom",
    label_names: Sequence[str] | None = None,
    hub_id: str | None = None,
    hub_config: str | None = None,
    validation_split: str = "validation",
) -> Task:
    """Describes a data set that is not one of `TASKS`.

    Args:
        text_columns: one column name, or two for a pair of texts.
        label_column: column with the label.
        name: name of the task in results and reports.
        label_names: names of the classes in the order of their ids; empty for regression; None to
            read them from the data: text and integers are classes, real numbers are regression.
        hub_id: data set on the hub, ``org/name``.
        hub_config: configuration of the data set on the hub.
        validation_split: split to evaluate on.

    Returns:
        The task.

    Raises:
        ValueError: If there are not one or two text columns, if one of them is the label column,
            or if there is one class only.
    """
    columns = (text_columns,) if isinstance(text_columns, str) else tuple(text_columns)
    if len(columns) not in (1, 2):
        raise ValueError(f"a task reads one text column or two, not {len(columns)}: {columns}")
    if label_column in columns or len(set(columns)) < len(columns):
        raise ValueError(
            f"text columns {columns} and label column {label_column!r} must be different columns"
        )
    names = None if label_names is None else tuple(label_names)
    if names is not None and len(names) == 1:
        raise ValueError(f"one class, {names[0]!r}, is nothing to learn: name at least two")
    return Task(
        name=name,
        text_columns=columns,
        label_column=label_column,
        label_names=names,
        metrics=() if names is None else default_metrics(names),
        hub_id=hub_id,
        hub_config=hub_config,
        validation_split=validation_split,
    )
