"""Classification and regression of texts and pairs of texts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, final

import numpy as np
import torch.nn.functional as F
from datasets import Dataset
from torch import Tensor
from transformers import AutoModelForSequenceClassification, PreTrainedTokenizerBase

from smoothtune.data.arrow import numbers
from smoothtune.data.columns import TEXTS, select_texts
from smoothtune.data.label_names import class_names
from smoothtune.data.tokenizing import Encoder, text_encoder
from smoothtune.tasks.base import Task
from smoothtune.tasks.head import Head, ProblemType, label_config, output_names
from smoothtune.tasks.metrics import (
    CLASS_METRICS,
    Measure,
    class_scores,
    correlations,
    roc_auc,
)
from smoothtune.tasks.reader import Reader
from smoothtune.tasks.scorer import Scorer


@dataclass(frozen=True)
class TextReader(Reader):
    """One row for every example; its subclasses read the labels."""

    input_columns = TEXTS

    def check_description(self) -> None:
        """One or two text columns, and other ones for the labels."""
        texts = self.task.text_columns
        if len(texts) not in (1, 2):
            raise ValueError(f"a task reads one text column or two, not {len(texts)}: {texts}")
        if len(set(self.columns)) < len(self.columns):
            names = ", ".join(map(repr, self.columns))
            raise ValueError(f"text and label columns must be different columns: {names}")

    def select(self, raw: Dataset, indices: np.ndarray, labels: np.ndarray | None) -> Dataset:
        """Columns text, for pairs text_pair, labels if given, example_id."""
        return select_texts(raw, self.task.text_columns, indices, labels)

    def encoder(self, tokenizer: PreTrainedTokenizerBase, max_seq_length: int) -> Encoder:
        """Texts or pairs of texts."""
        return text_encoder(tokenizer, max_seq_length)


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

    def _check_rows(self, split: Dataset) -> tuple[np.ndarray, list[str]]:
        """(N,): int64 class ids, or float32 scores."""
        names, column = self.task.known_label_names, self._labels(split)
        labels, wrong = column.class_ids(names) if names else column.scores()
        return labels, self._input_problems(split) + wrong

    def label_counts(self, examples: Dataset, rows: Dataset) -> dict[str, float]:
        """See `class_counts`; minimum, mean and maximum of scores."""
        if self.task.known_label_names:
            return class_counts(numbers(rows, "labels"), self.task.known_label_names)
        labels = numbers(rows, "labels")
        counts = {"min": labels.min(), "mean": labels.mean(), "max": labels.max()}
        return {name: value.item() for name, value in counts.items()}


def class_counts(labels: np.ndarray, names: Sequence[str]) -> dict[str, float]:
    """Number of labels (N,) of every class."""
    counts = np.bincount(labels, minlength=len(names))
    return dict(zip(names, counts.tolist(), strict=True))


@dataclass(frozen=True)
class ClassHead(Head):
    """Predictions are logits (N, C) of which the softmax is taken."""

    problem_type: ClassVar[ProblemType | None] = "single_label_classification"

    def fit_outputs(self, config: Any) -> tuple[int, ...] | None:
        """See `Head.fit_outputs`; a model that gives a row several labels is refused, too."""
        if config.problem_type == "multi_label_classification":
            raise ValueError(
                f"gives a row several labels, and {self.task.task_type} has one: give task_type: "
                "multi-label-classification"
            )
        return super().fit_outputs(config)

    def loss(self, outputs: Mapping[str, Tensor], batch: Mapping[str, Tensor]) -> Tensor:
        """Cross entropy."""
        return F.cross_entropy(outputs["logits"], batch["labels"])


@dataclass(frozen=True)
class ScoreHead(ClassHead):
    """Predictions are scores (N, 1)."""

    problem_type = "regression"

    def config(self) -> dict[str, Any]:
        """One output, and the loss."""
        return label_config(("score",)) | {"problem_type": self.problem_type}

    def loss(self, outputs: Mapping[str, Tensor], batch: Mapping[str, Tensor]) -> Tensor:
        """Squared error."""
        logits = outputs["logits"]
        return F.mse_loss(logits[:, 0], batch["labels"].to(logits.dtype))


@dataclass(frozen=True)
class ClassScorer(Scorer):
    """The statistics of an example are its label and its logits."""

    losses: ClassVar[tuple[str, ...]] = ("brier", "nll")
    measures: ClassVar[Mapping[str, Measure]] = CLASS_METRICS
    """Metrics of the most likely classes, by name."""
    num_label_statistics = 1

    def answers(self, predictions: np.ndarray, rows: Dataset) -> list[Any]:
        """The name of the most likely class."""
        return [self.task.known_label_names[index] for index in predictions.argmax(1)]

    def statistic_names(self) -> list[str]:
        """The label, then the logits."""
        return ["label", *(f"logit_{index}" for index in range(self.task.num_labels))]

    def example_statistics(self, predictions: np.ndarray, rows: Dataset) -> np.ndarray:
        """(N, 1 + C)."""
        logits = np.asarray(predictions).reshape(len(rows), -1)
        return np.column_stack([np.asarray(rows["labels"][:]), logits])

    def scores(self, statistics: np.ndarray) -> dict[str, float]:
        """See `class_scores`."""
        logits, labels = statistics[:, 1:], statistics[:, 0].astype(int)
        measures = {name: self.measures[name] for name in self.task.metrics}
        return class_scores(measures, logits, labels, self.task.num_labels)

    def detailed_scores(self, statistics: np.ndarray) -> dict[str, float]:
        """`scores`, and for two classes `roc_auc`."""
        scores = self.scores(statistics)
        if self.task.num_labels == 2:
            scores["roc_auc"] = roc_auc(statistics[:, 1:], statistics[:, 0])
        return scores

    def baseline(self, rows: Dataset) -> float:
        """Main metric of the most frequent class."""
        counts = np.bincount(numbers(rows, "labels"), minlength=self.task.num_labels)
        logits = np.tile(np.arange(len(counts)) == counts.argmax(), (len(rows), 1))
        return self.score(logits, rows)[self.task.main_metric]


@dataclass(frozen=True)
class ScoreScorer(ClassScorer):
    """The statistics of an example are its gold score and the predicted one."""

    losses = ()

    def answers(self, predictions: np.ndarray, rows: Dataset) -> list[float]:
        """The score."""
        return predictions[:, 0].tolist()

    def scores(self, statistics: np.ndarray) -> dict[str, float]:
        """See `correlations`."""
        return correlations(self.task.metrics, statistics[:, 1:], statistics[:, 0])

    def baseline(self, rows: Dataset) -> float:
        """Main metric of one score for all, of which a correlation is 0."""
        return 0.0


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
