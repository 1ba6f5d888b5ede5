"""Several labels, or none, for a text or a pair of texts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np
import torch.nn.functional as F
from datasets import Dataset
from torch import Tensor
from transformers import AutoModelForSequenceClassification

from smoothtune.data.arrow import stored_column
from smoothtune.data.label_types import LabelType
from smoothtune.data.missing import RequiredColumns
from smoothtune.errors import DataError
from smoothtune.tasks.base import Task
from smoothtune.tasks.head import Head
from smoothtune.tasks.labels import FORMS, LabelColumn
from smoothtune.tasks.metrics import (
    LABEL_METRICS,
    average_precision,
    best_label_set,
    label_scores,
)
from smoothtune.tasks.scorer import Scorer
from smoothtune.tasks.text_classification import TextReader

NO_LABEL = "(no label)"


@dataclass(frozen=True)
class SetReader(TextReader):
    """Texts with labels in lists, in texts with a separator, or in a column of 0 and 1 for each."""

    task: MultiLabelClassification

    @property
    def label_columns(self) -> tuple[str, ...]:
        """The columns of the source that hold labels."""
        return self.task.label_columns or super().label_columns

    @property
    def required(self) -> RequiredColumns:
        """A blank text is a row without labels, unless every label has a column."""
        return replace(super().required, blank_labels=not self.task.label_columns)

    @property
    def stored_label_type(self) -> LabelType | None:
        """Cells of CSV with a separator are the texts that stand there."""
        return self.task.label_type if self.task.label_separator is None else "text"

    def check_description(self) -> None:
        """As `TextReader`, and one way to write labels."""
        super().check_description()
        columns, task = self.task.label_columns, self.task
        if len(columns) == 1:
            raise ValueError(
                "label_columns names one column; for one question, yes or no, use "
                "text-classification with this label_column"
            )
        if columns and (task.label_separator or task.merge_labels is not None):
            raise ValueError(
                "label_columns names columns of 0 and 1: leave label_separator and merge_labels out"
            )

    def _labels(self, split: Dataset) -> LabelColumn:
        return replace(super()._labels(split), separator=self.task.label_separator)

    def label_names(self, train: Dataset, where: str) -> tuple[str, ...]:
        """Names of the labels that a row of the split has."""
        column, labels = f"{where}, column {self.task.label_column!r}", self._labels(train)
        if not any(isinstance(row, list) for row in labels.lists()):
            raise DataError(f"{column}: holds no lists of labels; {FORMS}")
        names = labels.names_in_lists(where)
        if len(names) == 1:
            raise DataError(
                f"{column}: every label is {names[0]!r}; for one question, yes or no, use "
                "text-classification"
            )
        return names

    def _check_rows(self, split: Dataset) -> tuple[np.ndarray, list[str]]:
        """(N, L) float32, 0 or 1."""
        problems = self._input_problems(split)
        if not self.task.label_columns:
            labels, wrong = self._labels(split).sets(self.task.known_label_names)
            return labels, problems + wrong
        answers = [LabelColumn(split, column).answers() for column in self.task.label_columns]
        problems += [problem for _, wrong in answers for problem in wrong]
        return np.column_stack([labels for labels, _ in answers]), problems

    def label_counts(self, examples: Dataset, rows: Dataset) -> dict[str, float]:
        """Number of rows with each label, and of those with none."""
        gold = gold_labels(rows, self.task.num_labels)
        counts = gold.sum(0).astype(int).tolist()
        with_label = dict(zip(self.task.known_label_names, counts, strict=True))
        return {NO_LABEL: int((gold.sum(1) == 0).sum())} | with_label


@dataclass(frozen=True)
class LabelsHead(Head):
    """Predictions are logits (N, L), each label a yes or no by itself."""

    problem_type = "multi_label_classification"

    def fit_outputs(self, config: Any) -> tuple[int, ...] | None:
        """See `Head.fit_outputs`; a model that chooses one of its labels is refused, too."""
        if config.problem_type not in (None, self.problem_type):
            raise ValueError(
                f"was trained for {config.problem_type}, and this task gives a row several labels"
            )
        return super().fit_outputs(config)

    def loss(self, outputs: Mapping[str, Tensor], batch: Mapping[str, Tensor]) -> Tensor:
        """Binary cross entropy, a mean over labels and rows, as transformers has it."""
        logits = outputs["logits"]
        return F.binary_cross_entropy_with_logits(logits, batch["labels"].to(logits.dtype))


@dataclass(frozen=True)
class LabelsScorer(Scorer):
    """The statistics of an example are its labels and its logits.

    A label is predicted where its probability, the sigmoid of its logit, is above 0.5.
    """

    losses = ("brier", "nll")

    task: MultiLabelClassification

    @property
    def num_label_statistics(self) -> int:
        """Number of labels."""
        return self.task.num_labels

    def answers(self, predictions: np.ndarray, rows: Dataset) -> list[Any]:
        """The names of the predicted labels, as a list, or as a text where labels are texts."""
        names, separator = np.array(self.task.known_label_names), self.task.label_separator
        label_lists = [names[row > 0].tolist() for row in predictions]
        return label_lists if separator is None else list(map(separator.join, label_lists))

    def statistic_names(self) -> list[str]:
        """The labels, then the logits."""
        numbers = range(self.task.num_labels)
        return [*(f"label_{index}" for index in numbers), *(f"logit_{index}" for index in numbers)]

    def example_statistics(self, predictions: np.ndarray, rows: Dataset) -> np.ndarray:
        """(N, 2 L)."""
        return np.column_stack([gold_labels(rows, self.task.num_labels), predictions])

    def scores(self, statistics: np.ndarray) -> dict[str, float]:
        """See `label_scores`."""
        gold, logits = np.split(statistics, 2, axis=1)
        return label_scores(self.task.metrics, logits, gold)

    def detailed_scores(self, statistics: np.ndarray) -> dict[str, float]:
        """`scores`, and the average precision over all pairs of a row and a label."""
        gold, logits = np.split(statistics, 2, axis=1)
        micro = average_precision(logits, gold)
        return self.scores(statistics) | {"average_precision_micro": micro}

    def baseline(self, rows: Dataset) -> float:
        """Main metric of the best set of labels for every row."""
        return best_label_set(self.task.main_metric, gold_labels(rows, self.task.num_labels))


def gold_labels(rows: Dataset, num_labels: int) -> np.ndarray:
    """(N, L), 1 where a row has a label, else 0."""
    stored = stored_column(rows, "labels").combine_chunks().flatten().to_numpy()
    return stored.astype(np.float64).reshape(len(rows), num_labels)


@final
@dataclass(frozen=True)
class MultiLabelClassification(Task):
    """Any number of labels for a text or a pair of texts."""

    task_type = "multi-label-classification"
    reader_class = SetReader
    head_class = LabelsHead
    scorer_class = LabelsScorer
    auto_model = AutoModelForSequenceClassification
    model_noun = "classifier"
    one_sequence = True
    label_types = ("text",)
    usual_columns = {"text_columns": ["text"], "label_column": "labels"}

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

    def default_metrics(self, label_names: tuple[str, ...]) -> tuple[str, ...]:
        """F1 over all pairs of row and label, mean F1 of labels, and accuracy of whole rows."""
        return tuple(LABEL_METRICS)
