"""What a kind of task has to say, so that training and evaluation can work with it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
from datasets import Dataset
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from smoothtune.data.columns import missing_columns
from smoothtune.data.summary import SplitReport
from smoothtune.errors import DataError

Collate = Callable[[Sequence[Mapping[str, Any]]], dict[str, Tensor]]


class TokenizeOptions(NamedTuple):
    """How examples become rows of tokens."""

    max_seq_length: int
    """Longest row in tokens, special tokens included."""
    num_proc: int | None = None
    """Processes; None: this one, with the threads of the tokenizer."""


class Kind(ABC):
    """One kind of task: from raw rows to the model's inputs, and from its outputs to metrics.

    *Examples* are chosen raw rows under names of the kind's own, with ``example_id``, the row in
    the source. *Rows* are what the model runs on; an example may have several. *Predictions* are
    an array with one entry for every row. *Evidence* is an array with one entry for every example
    from which the metrics follow, so that examples can be resampled.
    """

    auto_model: ClassVar[Any]
    """transformers' class that loads the model with the head."""
    what: ClassVar[str]
    """A fine-tuned model of this kind, in words."""
    label_inputs: ClassVar[tuple[str, ...]] = ("labels",)
    """Inputs of the model that are labels."""
    outputs: ClassVar[tuple[str, ...]] = ("logits",)
    """The model's first outputs after the loss."""
    max_seq_length: ClassVar[int] = 128
    """Default."""
    texts: ClassVar[tuple[str, ...]]
    """Columns of the examples that the model reads; where they repeat, the example does."""
    predicts_logits: ClassVar[bool] = False
    """Whether predictions are logits over classes, or scores, (N, C)."""
    derivatives: ClassVar[bool] = False
    """Whether norms of derivatives of an example's one prediction can be shown."""
    gold_columns: ClassVar[int] = 0
    """So many first columns of the evidence do not depend on the model."""
    not_for: ClassVar[Mapping[str, str]] = {}
    """Parts of an evaluation that have no meaning here, with the reason."""

    @abstractmethod
    def describe(self, said: Description) -> Task:
        """The task that a description means.

        Raises:
            ValueError: it does not describe a task of this kind.
        """

    def complete(self, task: Task, train: Dataset, source: str) -> Task:
        """Fill in what the raw train split says about the task."""
        return task

    @abstractmethod
    def check(self, splits: Mapping[str, Dataset], task: Task, source: str) -> dict[str, Any]:
        """Check raw splits.

        Returns:
            By split whatever `select` needs to know about its labels.

        Raises:
            DataError: with everything that is wrong, each with split, row and column.
        """

    @abstractmethod
    def select(self, raw: Dataset, task: Task, indices: np.ndarray, labels: Any) -> Dataset:
        """The examples of the chosen raw rows, in memory."""

    @abstractmethod
    def tokenize(
        self,
        examples: Dataset,
        task: Task,
        tokenizer: PreTrainedTokenizerBase,
        options: TokenizeOptions,
        content: str,
    ) -> Dataset:
        """Make rows, without padding, with `length`.

        Args:
            examples: of `select`.
            task: the task.
            tokenizer: the model's tokenizer.
            options: length and processes.
            content: fingerprint of the examples, part of the key of a cached result.
        """

    @abstractmethod
    def report(
        self,
        task: Task,
        examples: Dataset,
        rows: Dataset,
        tokenizer: PreTrainedTokenizerBase,
        max_seq_length: int,
    ) -> SplitReport:
        """Numbers of a split; the caller knows `source_rows` and `note`."""

    @abstractmethod
    def collator(self, tokenizer: PreTrainedTokenizerBase) -> Collate:
        """What makes a batch of rows, each tensor (B, ...), padded to the longest."""

    @abstractmethod
    def head(self, task: Task) -> dict[str, Any]:
        """Fields of the model's configuration that the task decides."""

    # --- what a model says -------------------------------------------------------------------

    @abstractmethod
    def fit_outputs(self, config: Any, task: Task) -> tuple[int, ...] | None:
        """The output number of every label in a fine-tuned model; None: the same order.

        Raises:
            ValueError: the model has other outputs than the task needs.
        """

    @abstractmethod
    def loss(self, task: Task, outputs: Mapping[str, Tensor], batch: Mapping[str, Tensor]) -> Any:
        """() mean loss over a batch with labels."""

    @abstractmethod
    def predictions(
        self, task: Task, outputs: Mapping[str, np.ndarray], rows: Dataset
    ) -> np.ndarray:
        """An entry for every row, (N, W), from the model's outputs on these rows.

        Args:
            task: the task.
            outputs: arrays (N, ...) by the model's names; padding, if any, is at the end.
            rows: the rows.
        """

    def width(self, task: Task, rows: Dataset) -> int:
        """W of `predictions`."""
        return task.num_labels

    # --- metrics -----------------------------------------------------------------------------

    def example_ids(self, rows: Dataset) -> np.ndarray:
        """(E,) the example of each entry of the evidence."""
        return np.asarray(rows["example_id"][:])

    @abstractmethod
    def evidence_columns(self, task: Task) -> list[str]:
        """Names of the K columns."""

    @abstractmethod
    def evidence(self, task: Task, predictions: np.ndarray, rows: Dataset) -> np.ndarray:
        """(E, K) what the metrics of any set of examples follow from."""

    @abstractmethod
    def scores(self, task: Task, evidence: np.ndarray) -> dict[str, float]:
        """Metrics of the examples, the task's headline first."""

    def detailed_scores(self, task: Task, evidence: np.ndarray) -> dict[str, float]:
        """`scores`, with more that an evaluation shows."""
        return self.scores(task, evidence)

    @abstractmethod
    def baseline(self, task: Task, rows: Dataset) -> float:
        """Headline metric of the best answer that does not look at the input."""

    def confidence(
        self, task: Task, predictions: np.ndarray, rows: Dataset
    ) -> tuple[np.ndarray, np.ndarray]:
        """(E,) probability of the answer given, and (E,) whether it is right.

        For kinds whose predictions are no logits over classes.

        Raises:
            NotImplementedError: this kind has no such probability; `not_for` keeps callers away.
        """
        raise NotImplementedError(f"no calibration of a {self.what}: name it in `not_for`")


def check_columns(dataset: Dataset, wanted: Sequence[str], where: str) -> None:
    """Raise DataError where a raw split has no rows or lacks a column."""
    if not len(dataset):
        raise DataError(f"{where}: has no rows")
    if missing := [column for column in wanted if column not in dataset.column_names]:
        raise DataError(f"{where}: {missing_columns(missing, dataset)}")


TaskType = Literal[
    "text-classification", "question-answering", "token-classification", "multiple-choice"
]
"""Kinds of tasks, under the hub's names; regression is text classification without classes."""


@dataclass(frozen=True)
class Spans:
    """How question answering cuts long contexts and reads answers, under run_qa's names."""

    doc_stride: int = 128
    """Tokens that two windows of one context share."""
    n_best_size: int = 20
    """Starts, and ends, of highest score that are combined."""
    max_answer_length: int = 30
    """Longest answer in tokens."""
    version_2_with_negative: bool = False
    """Whether questions may have no answer, as in SQuAD 2.0."""
    null_score_diff_threshold: float = 0.0
    """No answer is given where its score is above the best answer's by more than this."""


@dataclass(frozen=True)
class Task:
    """A task; `label_names` decides between text classification and regression."""

    name: str
    """Short name, as on the command line."""
    text_columns: tuple[str, ...]
    """One column, or two for a pair of texts; the words of token classification."""
    label_column: str
    """Column with the gold label."""
    label_names: tuple[str, ...] | None
    """Name of class 0, 1, ...; empty for regression; None until `infer_labels` saw the data."""
    metrics: tuple[str, ...]
    """Metrics under scikit-learn's names; the first is the headline. Empty with `label_names`
    None."""
    hub_id: str | None = None
    """Data set on the hub, ``org/name``."""
    hub_config: str | None = None
    """Configuration of the data set on the hub."""
    validation_split: str = "validation"
    """Split that is evaluated during training."""
    task_type: TaskType = "text-classification"
    """Kind of the task, which decides how rows are read and which head the model gets."""
    choice_columns: tuple[str, ...] = ()
    """Columns with the choices of multiple choice, or one column with lists of them."""
    spans: Spans = Spans()
    """For question answering."""

    @property
    def regression(self) -> bool:
        """Whether labels are real numbers.

        Raises:
            ValueError: If the kind of the labels is not known yet.
        """
        return not self._known_label_names and self.task_type == "text-classification"

    @property
    def num_labels(self) -> int:
        """Size of the model's output: the number of classes, 1 for regression.

        Raises:
            ValueError: If the kind of the labels is not known yet.
        """
        return len(self._known_label_names) or 1

    @property
    def _known_label_names(self) -> tuple[str, ...]:
        if self.label_names is None:
            raise ValueError(
                f"the labels of task {self.name!r} are not known before its data is read: "
                "call infer_labels(task, train_split), or use the task that prepare() returns"
            )
        return self.label_names


class Description(NamedTuple):
    """What a user says about a data set; None: not said."""

    name: str
    text_columns: Sequence[str] | None = None
    label_column: str | None = None
    choice_columns: Sequence[str] | None = None
    spans: Mapping[str, Any] = {}
    """Fields of `Spans`."""


SPAN_FIELDS = (
    "doc_stride",
    "n_best_size",
    "max_answer_length",
    "version_2_with_negative",
    "null_score_diff_threshold",
)
