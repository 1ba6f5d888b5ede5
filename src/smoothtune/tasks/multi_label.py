"""Several labels, or none, for a text or a pair of texts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np
import torch.nn.functional as F
from datasets import Dataset
from scipy.special import expit
from torch import Tensor
from transformers import AutoModelForSequenceClassification, PreTrainedTokenizerBase

from smoothtune.data.collator import Collator
from smoothtune.data.columns import TEXTS, select_texts
from smoothtune.data.label_types import LabelType
from smoothtune.data.missing import Needed
from smoothtune.data.tokenizing import Encoder, text_encoder
from smoothtune.tasks.base import Collate, Task
from smoothtune.tasks.label_sets import holds_sets_of, label_sets, set_names, yes_or_no
from smoothtune.tasks.labels import label_head, matched_outputs
from smoothtune.tasks.multi_label_metrics import (
    METRICS,
    average_precision,
    best_constant,
    multi_label_scores,
)

PROBLEM = "multi_label_classification"
"""transformers' name of the problem type."""
NO_LABEL = "(no label)"


@final
@dataclass(frozen=True)
class MultiLabelClassification(Task):
    """One row for every example; predictions are logits (N, L), each label a yes or no by itself.

    A label is predicted where its probability, the sigmoid of its logit, is above 0.5.
    """

    task_type = "multi-label-classification"
    auto_model = AutoModelForSequenceClassification
    model_noun = "classifier"
    input_columns = TEXTS
    one_sequence = True

    label_column: str = "labels"
    """Column with the labels of a row: lists, or texts with a separator."""
    label_separator: str | None = None
    """What stands between two labels of a text; None: the column holds lists."""
    label_columns: tuple[str, ...] = ()
    """In place of `label_column`: a column of 0 and 1 for each label, which it names."""

    def __post_init__(self) -> None:
        if self.label_columns and self.label_names is None:
            object.__setattr__(self, "label_names", self.label_columns)
        super().__post_init__()

    def _metrics_for(self, label_names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(METRICS)

    @property
    def num_label_statistics(self) -> int:
        """Number of labels; raises ValueError before they are known."""
        return self.num_labels

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of the source that are read."""
        return (*self.unlabeled_columns, *(self.label_columns or (self.label_column,)))

    def check_description(self) -> None:
        """One or two text columns, and one way to write labels."""
        columns = self.text_columns
        if len(columns) not in (1, 2):
            raise ValueError(f"a task reads one text column or two, not {len(columns)}: {columns}")
        if len(set(self.columns)) < len(self.columns):
            raise ValueError(f"text and label columns must be different ones: {self.columns}")
        if len(self.label_columns) == 1:
            raise ValueError(
                "label_columns names one column; for one question, yes or no, use "
                "text-classification with this label_column"
            )
        if self.label_columns and (self.label_separator or self.merge_labels is not None):
            raise ValueError(
                "label_columns names columns of 0 and 1: leave label_separator and merge_labels out"
            )

    @property
    def needed(self) -> Needed:
        """A blank text is a row without labels, unless every label has a column."""
        return replace(super().needed, blank_labels=not self.label_columns)

    @property
    def stored_label_type(self) -> LabelType | None:
        """Cells of CSV with a separator are the texts that stand there."""
        return self.label_type if self.label_separator is None else "text"

    def _find_label_names(self, train: Dataset, where: str) -> tuple[str, ...]:
        column, separator = self.label_column, self.label_separator
        return set_names(train, column, separator, where, merge=self.merge_labels)

    def labels_are_of(self, split: Dataset, names: Any) -> bool:
        """Whether every label is one of a model's, by name or by number."""
        return holds_sets_of(split, self.label_column, self.label_separator, names)

    def _check_rows(self, split: Dataset) -> tuple[np.ndarray, list[str]]:
        """(N, L) float32, 0 or 1."""
        problems = self._input_problems(split)
        if self.label_columns:
            labels, wrong = yes_or_no(split, self.label_columns)
        else:
            labels, wrong = label_sets(
                split,
                self.label_column,
                self.label_separator,
                self.known_label_names,
                merge=self.merge_labels,
            )
        return labels, problems + wrong

    def select(self, raw: Dataset, indices: np.ndarray, labels: np.ndarray | None) -> Dataset:
        """Columns text, for pairs text_pair, labels (lists of 0 and 1) if given, example_id."""
        return select_texts(raw, self.text_columns, indices, labels)

    def encoder(
        self, examples: Dataset, tokenizer: PreTrainedTokenizerBase, max_seq_length: int
    ) -> Encoder:
        """Texts or pairs of texts."""
        return text_encoder(examples, tokenizer, max_seq_length)

    def label_counts(self, examples: Dataset, rows: Dataset) -> dict[str, float]:
        """Number of rows with each label, and of those with none."""
        gold = self._gold(rows)
        counts = dict(zip(self.known_label_names, gold.sum(0).astype(int).tolist(), strict=True))
        return {NO_LABEL: int((gold.sum(1) == 0).sum())} | counts

    def collator(self, tokenizer: PreTrainedTokenizerBase) -> Collate:
        """Pads with the tokenizer."""
        return Collator(tokenizer)

    def head(self) -> dict[str, Any]:
        """Number and names of the labels, and the loss."""
        return label_head(self.known_label_names) | {"problem_type": PROBLEM}

    def fit_outputs(self, config: Any) -> tuple[int, ...] | None:
        """Matched by name if the model has the task's labels, else in the same order.

        Raises:
            ValueError: the model has other outputs, or chooses one of its labels.
        """
        if config.problem_type not in (None, PROBLEM):
            raise ValueError(
                f"was trained for {config.problem_type}, and this task gives a row several labels"
            )
        return matched_outputs(config, self.name, self.known_label_names)

    def loss(self, outputs: Mapping[str, Tensor], batch: Mapping[str, Tensor]) -> Tensor:
        """Binary cross entropy, a mean over labels and rows, as transformers has it."""
        logits = outputs["logits"]
        return F.binary_cross_entropy_with_logits(logits, batch["labels"].to(logits.dtype))

    def predictions(self, outputs: Mapping[str, np.ndarray], rows: Dataset) -> np.ndarray:
        """The logits."""
        return outputs["logits"]

    def answers(self, predictions: np.ndarray, rows: Dataset) -> list[Any]:
        """The names of the predicted labels, as a list, or as a text where labels are texts."""
        names, separator = self.known_label_names, self.label_separator
        chosen = [
            [name for name, logit in zip(names, row, strict=True) if logit > 0]
            for row in predictions
        ]
        return chosen if separator is None else [separator.join(each) for each in chosen]

    def statistic_names(self) -> list[str]:
        """The labels, then the logits."""
        numbers = range(self.num_labels)
        return [*(f"label_{index}" for index in numbers), *(f"logit_{index}" for index in numbers)]

    def example_statistics(self, predictions: np.ndarray, rows: Dataset) -> np.ndarray:
        """(N, 2 L)."""
        return np.column_stack([self._gold(rows), predictions])

    def scores(self, statistics: np.ndarray) -> dict[str, float]:
        """See `multi_label_scores`."""
        gold, logits = np.split(statistics, 2, axis=1)
        return multi_label_scores(self.metrics, logits, gold)

    def detailed_scores(self, statistics: np.ndarray) -> dict[str, float]:
        """`scores`, and the average precision over all pairs of a row and a label."""
        gold, logits = np.split(statistics, 2, axis=1)
        found = average_precision(logits, gold)
        return self.scores(statistics) | {"average_precision_micro": found}

    def baseline(self, rows: Dataset) -> float:
        """Main metric of the best set of labels for every row."""
        return best_constant(self.main_metric, self._gold(rows))

    def confidence(self, predictions: np.ndarray, rows: Dataset) -> tuple[np.ndarray, np.ndarray]:
        """(N, L) probability of each label, and (N, L) whether the row has it, 0 or 1."""
        return expit(np.asarray(predictions, np.float64)), self._gold(rows)

    def _gold(self, rows: Dataset) -> np.ndarray:
        return np.asarray(rows["labels"][:], np.float64).reshape(len(rows), self.num_labels)
