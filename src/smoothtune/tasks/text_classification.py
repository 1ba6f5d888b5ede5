"""Classification and regression of texts and pairs of texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from datasets import Dataset
from transformers import AutoModelForSequenceClassification

from smoothtune.data.arrow import numbers
from smoothtune.data.label_names import class_names
from smoothtune.tasks.base import Task
from smoothtune.tasks.head import Head, output_names
from smoothtune.tasks.labels import class_ids, holds_labels_of, real_scores
from smoothtune.tasks.scorer import Scorer
from smoothtune.tasks.single_label import ClassHead, ClassScorer, ScoreHead, ScoreScorer
from smoothtune.tasks.texts import TextReader


@dataclass(frozen=True)
class ClassReader(TextReader):
    """Texts with a class, or a score, in one column."""

    def check_description(self) -> None:
        """As `TextReader`, and not just one class."""
        super().check_description()
        names = self.task.label_names
        if names is not None and len(names) == 1:
            raise ValueError(f"one class, {names[0]!r}, cannot be learned: name at least two")

    def label_names(self, train: Dataset, where: str) -> tuple[str, ...]:
        """Names of the classes; none for scores."""
        return class_names(
            train,
            self.task.label_column,
            where,
            merge=self.task.merge_labels,
            label_type=self.task.label_type,
        )

    def model_label_names(self, config: Any, raw: Dataset, where: str) -> tuple[str, ...]:
        """None where the model has one output, a score."""
        scores = config.num_labels == 1 or config.problem_type == "regression"
        return () if scores else output_names(config)

    def labels_are_of(self, split: Dataset, names: Sequence[str]) -> bool:
        """Whether every label is one of a model's."""
        merge = self.task.merge_labels
        return holds_labels_of(split, self.task.label_column, names, merge=merge)

    def _check_rows(self, split: Dataset) -> tuple[np.ndarray, list[str]]:
        """(N,): int64 class ids, or float32 scores."""
        column, names = self.task.label_column, self.task.known_label_names
        if names:
            labels, wrong = class_ids(split, column, names, merge=self.task.merge_labels)
        else:
            labels, wrong = real_scores(split, column)
        return labels, self._input_problems(split) + wrong

    def label_counts(self, examples: Dataset, rows: Dataset) -> dict[str, float]:
        """See `class_counts`; minimum, mean and maximum of scores."""
        if self.task.known_label_names:
            return class_counts(rows, self.task.known_label_names)
        labels = numbers(rows, "labels")
        counts = {"min": labels.min(), "mean": labels.mean(), "max": labels.max()}
        return {name: value.item() for name, value in counts.items()}


def class_counts(rows: Dataset, names: Sequence[str]) -> dict[str, float]:
    """Number of rows of every class."""
    counts = np.bincount(numbers(rows, "labels"), minlength=len(names))
    return dict(zip(names, counts.tolist(), strict=True))


@final
@dataclass(frozen=True)
class TextClassification(Task):
    """A class, or a score, for a text or a pair of texts."""

    task_type = "text-classification"
    reader_class = ClassReader
    head_class = ClassHead
    scorer_class = ClassScorer
    auto_model = AutoModelForSequenceClassification
    model_noun = "classifier"
    one_sequence = True
    label_types = ("text", "integer", "float")
    usual_columns = {"text_columns": ["text"], "label_column": "label"}

    def default_metrics(self, label_names: tuple[str, ...]) -> tuple[str, ...]:
        """Accuracy and F1, or correlations of scores."""
        return ("accuracy", "f1") if label_names else ("pearson", "spearman")

    @property
    def head(self) -> Head:
        """For classes, or for scores."""
        return super().head if self.known_label_names else ScoreHead(self)

    @property
    def scorer(self) -> Scorer:
        """For classes, or for scores."""
        return super().scorer if self.known_label_names else ScoreScorer(self)
