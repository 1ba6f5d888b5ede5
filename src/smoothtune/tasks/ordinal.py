"""Ordinal classes: ratings and grades, where a near miss is better than a far one."""

from dataclasses import dataclass
from typing import final

import numpy as np
from datasets import ClassLabel, Dataset
from sklearn.metrics import cohen_kappa_score, mean_absolute_error
from transformers import AutoModelForSequenceClassification

from smoothtune.data.arrow import distinct, stored_column
from smoothtune.data.label_names import is_missing
from smoothtune.data.label_types import LabelType
from smoothtune.errors import DataError
from smoothtune.tasks.base import Task
from smoothtune.tasks.metrics import CLASS_METRICS
from smoothtune.tasks.text_classification import ClassHead, ClassReader, ClassScorer

MOST_CLASSES = 100


@dataclass(frozen=True)
class OrdinalReader(ClassReader):
    """Texts with a whole number in one column, or the hub's class labels in their order."""

    @property
    def stored_label_type(self) -> LabelType:
        """Ratings of CSV, and those that are stored as 3.0, are whole numbers."""
        return "integer"

    def label_names(self, train: Dataset, where: str) -> tuple[str, ...]:
        """All whole numbers from the least to the greatest; those without rows are classes, too."""
        column = self.task.label_column
        feature = train.features[column]
        if isinstance(feature, ClassLabel):
            return tuple(feature.names)
        labels = [x for x in distinct(stored_column(train, column))[0] if not is_missing(x)]
        where = f"{where}, column {column!r}"
        if not labels or any(type(label) is not int for label in labels):
            shown = ", ".join(map(repr, labels[:10])) or "none"
            raise DataError(f"{where}: ordinal classes are whole numbers, found {shown}")
        least, greatest = min(labels), max(labels)
        if not 0 < greatest - least < MOST_CLASSES:
            raise DataError(
                f"{where}: ratings from {least} to {greatest} are no ordinal classes, of which "
                f"there are 2 to {MOST_CLASSES}; for scores use text-classification"
            )
        return tuple(map(str, range(least, greatest + 1)))


def _quadratic_weighted_kappa(gold: np.ndarray, classes: np.ndarray, num_classes: int) -> float:
    """Cohen's kappa with quadratic weights, -1 to 1; 0 where all gold and predicted are one."""
    if len(np.union1d(gold, classes)) == 1:
        return 0.0
    labels = np.arange(num_classes)
    return float(cohen_kappa_score(gold, classes, labels=labels, weights="quadratic"))


@dataclass(frozen=True)
class OrdinalScorer(ClassScorer):
    """As `ClassScorer`; the metrics count how far off a class is."""

    losses = ("mean_absolute_error", *ClassScorer.losses)
    measures = {
        "quadratic_weighted_kappa": _quadratic_weighted_kappa,
        "mean_absolute_error": lambda gold, classes, _: mean_absolute_error(gold, classes),
        "accuracy": CLASS_METRICS["accuracy"],
    }


@final
@dataclass(frozen=True)
class OrdinalClassification(Task):
    """One of several ordered classes for a text or a pair of texts.

    The loss is the cross entropy of the classes, as in text classification; their order counts in
    the metrics.
    """

    task_type = "ordinal-classification"
    reader_class = OrdinalReader
    head_class = ClassHead
    scorer_class = OrdinalScorer
    auto_model = AutoModelForSequenceClassification
    model_noun = "classifier"
    one_sequence = True
    usual_columns = {"text_columns": ["text"], "label_column": "label"}

    def default_metrics(self, label_names: tuple[str, ...]) -> tuple[str, ...]:
        """Cohen's kappa with quadratic weights, mean absolute error in classes, and accuracy."""
        return tuple(OrdinalScorer.measures)
