"""Classification and regression of texts and pairs of texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from datasets import Dataset
from transformers import AutoModelForSequenceClassification, PreTrainedTokenizerBase

from smoothtune.data.collator import Collator
from smoothtune.data.columns import TEXTS, select_texts
from smoothtune.data.label_names import class_names
from smoothtune.data.tokenizing import Encoder, text_encoder
from smoothtune.data.when_read import rows_when_read
from smoothtune.tasks.base import Collate
from smoothtune.tasks.labels import (
    class_ids,
    holds_labels_of,
    label_head,
    matched_outputs,
    output_names,
    real_scores,
)
from smoothtune.tasks.single_label import SingleLabelTask


@final
@dataclass(frozen=True)
class TextClassification(SingleLabelTask):
    """A class, or a score, for a text or a pair of texts."""

    task_type = "text-classification"
    auto_model = AutoModelForSequenceClassification
    model_noun = "classifier"
    input_columns = TEXTS
    one_sequence = True

    def check_description(self) -> None:
        """One or two text columns, a label column, and not just one class."""
        columns = self.text_columns
        if len(columns) not in (1, 2):
            raise ValueError(f"a task reads one text column or two, not {len(columns)}: {columns}")
        if len(set(self.columns)) < len(self.columns):
            raise ValueError(
                f"text columns {columns} and label column {self.label_column!r} must be different "
                "columns"
            )
        if self.label_names is not None and len(self.label_names) == 1:
            name = self.label_names[0]
            raise ValueError(f"one class, {name!r}, cannot be learned: name at least two")

    def _metrics_for(self, label_names: tuple[str, ...]) -> tuple[str, ...]:
        return ("accuracy", "f1") if label_names else ("pearson", "spearman")

    @property
    def regression(self) -> bool:
        """Whether labels are real numbers; raises ValueError before they are known."""
        return not self.known_label_names

    def _find_label_names(self, train: Dataset, where: str) -> tuple[str, ...]:
        return class_names(
            train,
            self.label_column,
            where,
            merge=self.merge_labels,
            label_type=self.label_type,
        )

    def _model_label_names(self, config: Any, raw: Dataset, where: str) -> tuple[str, ...]:
        """None where the model has one output, a score."""
        scores = config.num_labels == 1 or config.problem_type == "regression"
        return () if scores else output_names(config)

    def labels_are_of(self, split: Dataset, names: Sequence[str]) -> bool:
        """Whether every label is one of a model's."""
        return holds_labels_of(split, self.label_column, names)

    def _check_rows(self, split: Dataset) -> tuple[np.ndarray, list[str]]:
        """(N,): int64 class ids, or float32 scores."""
        problems = self._input_problems(split)
        if self.regression:
            labels, wrong = real_scores(split, self.label_column)
        else:
            labels, wrong = class_ids(
                split, self.label_column, self.known_label_names, merge=self.merge_labels
            )
        return labels, problems + wrong

    def select(self, raw: Dataset, indices: np.ndarray, labels: np.ndarray | None) -> Dataset:
        """Columns text, for pairs text_pair, labels if given, example_id."""
        return select_texts(raw, self.text_columns, indices, labels)

    def encoder(
        self, examples: Dataset, tokenizer: PreTrainedTokenizerBase, max_seq_length: int
    ) -> Encoder:
        """Texts or pairs of texts."""
        return text_encoder(examples, tokenizer, max_seq_length)

    def tokenize_when_read(
        self,
        examples: Dataset,
        tokenizer: PreTrainedTokenizerBase,
        max_seq_length: int,
        *,
        vocab_size: int | None,
        where: str,
    ) -> Dataset | None:
        """See `smoothtune.data.when_read.rows_when_read`."""
        encoder = self.encoder(examples, tokenizer, max_seq_length)
        return rows_when_read(
            examples, encoder, tokenizer, max_seq_length, vocab_size=vocab_size, where=where
        )

    def collator(self, tokenizer: PreTrainedTokenizerBase) -> Collate:
        """Pads with the tokenizer."""
        return Collator(tokenizer)

    def head(self) -> dict[str, Any]:
        """Number and names of the labels, and the loss."""
        loss = "regression" if self.regression else "single_label_classification"
        return label_head(self.known_label_names or ("score",)) | {"problem_type": loss}

    def fit_outputs(self, config: Any) -> tuple[int, ...] | None:
        """Matched by name if the model has the task's labels, else in the same order.

        Raises:
            ValueError: the model has other outputs, or gives a row several labels.
        """
        if config.problem_type == "multi_label_classification":
            raise ValueError(
                "gives a row several labels, and text-classification has one: give task_type: "
                "multi-label-classification"
            )
        return matched_outputs(config, self.name, self.known_label_names)
