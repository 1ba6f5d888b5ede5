"""The base class of tasks: from the rows of a source to the metrics of a model's predictions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import numpy as np
from datasets import Dataset
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from smoothtune.data.columns import column_problem, text_problems
from smoothtune.data.label_types import LabelType
from smoothtune.data.missing import Needed, missing_labels
from smoothtune.data.sources import load_splits
from smoothtune.data.tokenizing import Encoder, encoded_rows
from smoothtune.errors import DataError
from smoothtune.tasks.labels import output_names

Collate = Callable[[Sequence[Mapping[str, Any]]], dict[str, Tensor]]
TaskType = Literal[
    "text-classification",
    "multi-label-classification",
    "question-answering",
    "token-classification",
    "multiple-choice",
]
"""Named as on the hub; regression is text classification without classes, and several labels of a
text are a kind of it there."""


@dataclass(frozen=True)
class Task(ABC):
    """A task on a data set; there is a subclass for each type of task.

    *Examples* are raw rows chosen from a split, with the type's own column names and
    ``example_id``, the row in the source. *Rows* are tokenized inputs of the model; an example may
    have several. *Predictions* are an array (N, W), an entry per row. *Example statistics* are an
    array (E, K), an entry per example, from which the metrics follow: examples can be resampled.
    """

    task_type: ClassVar[TaskType]
    """Name of the type."""
    auto_model: ClassVar[Any]
    """transformers' class that loads the model with the head."""
    model_noun: ClassVar[str]
    """What messages call a fine-tuned model."""
    input_columns: ClassVar[tuple[str, ...]]
    """Columns of the examples that the model reads; examples equal in them are duplicates."""
    when_too_long: ClassVar[str] = "cut"
    """What happens to examples of more than `max_seq_length` tokens."""
    label_inputs: ClassVar[tuple[str, ...]] = ("labels",)
    """Inputs of the model that are labels."""
    outputs: ClassVar[tuple[str, ...]] = ("logits",)
    """Names of the model's first outputs after the loss."""
    default_max_seq_length: ClassVar[int] = 128
    """Default of the longest row in tokens."""
    predicts_logits: ClassVar[bool] = False
    """Whether predictions are class logits (N, C) or regression scores (N, 1)."""
    one_sequence: ClassVar[bool] = False
    """Whether an example is one sequence with one prediction, as derivative norms require."""
    unsupported_parts: ClassVar[Mapping[str, str]] = {}
    """Parts of an evaluation that this type does not support, with the reason."""

    name: str
    """Short name, as on the command line."""
    text_columns: tuple[str, ...] = ()
    """One column, or two for a pair of texts; the words of token classification."""
    label_column: str = "label"
    """Column with the gold label."""
    label_names: tuple[str, ...] | None = None
    """Names of class 0, 1, ...; empty for regression and spans; None until `with_labels`."""
    metrics: tuple[str, ...] = ()
    """Metrics under scikit-learn's names, the main one first; default: those of the type, once
    `label_names` is known."""
    hub_id: str | None = None
    """Data set on the hub, ``org/name``."""
    hub_config: str | None = None
    """Configuration of the data set on the hub."""
    validation_split: str = "validation"
    """Split that is evaluated during training."""
    sep: str | None = None
    """What separates columns of CSV and TSV files; None: a comma or a tab, by the suffix."""
    encoding: str | None = None
    """Of CSV and TSV files; None: UTF-8."""
    merge_labels: bool | None = None
    """Whether labels that differ in blanks, case or unseen characters only are one class; None:
    they are an error."""
    label_type: LabelType | None = None
    """What labels are, whatever they look like: text, integer or float; None: as they are stored,
    or look like in CSV."""
    drop_missing: bool | None = None
    """Whether rows without a label or a text are left out; None: they are an error."""

    def __post_init__(self) -> None:
        if self.label_names is not None and not self.metrics:
            object.__setattr__(self, "metrics", self._metrics_for(self.label_names))

    def _metrics_for(self, label_names: tuple[str, ...]) -> tuple[str, ...]:
        """Default metrics of the type."""
        raise NotImplementedError(f"task {self.name!r} has no metrics")

    @property
    def main_metric(self) -> str:
        """The first metric, by which models are compared."""
        return self.metrics[0]

    @property
    def unlabeled_columns(self) -> tuple[str, ...]:
        """The columns of the source that are read where labels are not."""
        return self.text_columns

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of the source that are read."""
        return (*self.unlabeled_columns, self.label_column)

    @property
    def known_label_names(self) -> tuple[str, ...]:
        """`label_names`.

        Raises:
            ValueError: they are not known yet.
        """
        if self.label_names is None:
            raise ValueError(
                f"the labels of task {self.name!r} are not known before its data is read: "
                "call task.with_labels(train_split), or use the task that prepare() returns"
            )
        return self.label_names

    @property
    def num_labels(self) -> int:
        """Number of classes, 1 without classes; raises ValueError before they are known."""
        return len(self.known_label_names) or 1

    @property
    def num_label_statistics(self) -> int:
        """Number of leading columns of the example statistics that do not depend on the model."""
        return 0

    @property
    def regression(self) -> bool:
        """Whether labels are real numbers; raises ValueError before they are known."""
        return False

    # --- from a source to rows of tokens -----------------------------------------------------

    @abstractmethod
    def check_description(self) -> None:
        """Check the columns and labels that a user named.

        Raises:
            ValueError: they do not describe a task of this type.
        """

    @property
    def needed(self) -> Needed:
        """What a row must have; with `drop_missing` rows without it are left out."""
        labels = [name for name in self.columns if name not in self.unlabeled_columns]
        return Needed(self.unlabeled_columns, labels)

    def load_splits(
        self, source: str | Path, *, need_train: bool = True, labeled: bool = True
    ) -> dict[str, Dataset]:
        """Read every split of a source, see `smoothtune.data.sources.load_splits`.

        Args:
            source: file, folder or hub id.
            need_train: raise an error without a train split.
            labeled: whether labels will be read, so that `drop_missing` leaves rows without out.

        Raises:
            DataError: the source cannot be read.
        """
        needed = self.needed if labeled else replace(self.needed, labels=())
        return load_splits(
            source,
            name=self.name,
            label_column=self.label_column,
            hub_id=self.hub_id,
            hub_config=self.hub_config,
            need_train=need_train,
            label_type=self.stored_label_type,
            needed=needed if self.drop_missing else None,
            sep=self.sep,
            encoding=self.encoding,
        )

    @property
    def stored_label_type(self) -> LabelType | None:
        """What the label column is read as."""
        return self.label_type

    def with_labels(self, train: Dataset, source: str = "the data", split: str = "train") -> Self:
        """The task with the `label_names` of its raw train split; unchanged if they are known.

        Args:
            train: the raw train split.
            source: where the data came from, for the error.
            split: name of the split, for the error.

        Raises:
            DataError: columns are missing, or the labels cannot be used; texts and labels that are
                missing are listed, too.
        """
        if self.label_names is not None:
            return self
        where = f"{source}, split {split!r}"
        if problem := column_problem(train, self.columns):
            raise DataError(f"{where}: {problem}")
        try:
            return replace(self, label_names=self._find_label_names(train, where))
        except DataError as error:
            raise DataError("\n".join([str(error), *self.gaps(train, where)])) from error

    def gaps(self, raw: Dataset, where: str) -> list[str]:
        """The problems of a raw split that are seen before its labels are known.

        Args:
            raw: the split.
            where: its source and name, which begin every problem.
        """
        if problem := column_problem(raw, self.columns):
            return [f"{where}: {problem}"]
        found = [*self._input_problems(raw), *missing_labels(raw, self.needed)]
        return [f"{where}: {problem}" for problem in found]

    def _find_label_names(self, train: Dataset, where: str) -> tuple[str, ...]:
        return ()

    def labels_are_of(self, split: Dataset, names: Sequence[str]) -> bool:
        """Whether the labels of raw rows are some of a model's outputs, by name or by number."""
        return False

    def with_model_labels(self, config: Any, raw: Dataset, where: str) -> Self:
        """The task with the labels of a fine-tuned model, for rows without; unchanged if known.

        Args:
            config: the model's.
            raw: rows to predict.
            where: where the rows came from, for the error.

        Raises:
            DataError: columns are missing.
            ModelError: the model's configuration contradicts itself.
        """
        if problem := column_problem(raw, self.unlabeled_columns):
            raise DataError(f"{where}: {problem}")
        if self.label_names is not None:
            return self
        return replace(self, label_names=self._model_label_names(config, raw, where))

    def _model_label_names(self, config: Any, raw: Dataset, where: str) -> tuple[str, ...]:
        return output_names(config)

    def check_inputs(self, raw: Dataset, where: str) -> None:
        """Check raw rows whose labels are not read.

        Raises:
            DataError: missing columns, or else wrong texts, each with its column and first row,
                from 0.
        """
        problem = column_problem(raw, self.unlabeled_columns)
        if problems := [problem] if problem else self._input_problems(raw):
            raise DataError("\n".join(f"{where}: {problem}" for problem in problems))

    def _input_problems(self, split: Dataset) -> list[str]:
        """The problems of what the model reads in a raw split that has all columns."""
        return text_problems(split, self.text_columns)

    def check(self, splits: Mapping[str, Dataset], source: str) -> dict[str, Any]:
        """Check raw splits.

        Args:
            splits: raw splits by name.
            source: where the data came from, for the error.

        Returns:
            The labels of each split, in the form that `select` takes.

        Raises:
            DataError: lists the problems of all splits: missing columns, or else wrong texts and
                labels, each with its column and first row, from 0.
        """
        labels: dict[str, Any] = {}
        problems: list[str] = []
        for name, split in splits.items():
            problem = column_problem(split, self.columns)
            labels[name], wrong = (None, [problem]) if problem else self._check_rows(split)
            problems += [f"{source}, split {name!r}: {problem}" for problem in wrong]
        if problems:
            raise DataError("\n".join(problems))
        return labels

    @abstractmethod
    def _check_rows(self, split: Dataset) -> tuple[Any, list[str]]:
        """The labels of a raw split that has all columns, and the problems of its rows."""

    @abstractmethod
    def select(self, raw: Dataset, indices: np.ndarray, labels: Any) -> Dataset:
        """The examples of the chosen raw rows, in memory; labels are those of `check`, or None."""

    @abstractmethod
    def encoder(
        self, examples: Dataset, tokenizer: PreTrainedTokenizerBase, max_seq_length: int
    ) -> Encoder:
        """How examples of `select` become rows, see `tokenize`."""

    def tokenize(
        self,
        examples: Dataset,
        tokenizer: PreTrainedTokenizerBase,
        max_seq_length: int,
        content: str,
        num_proc: int | None = None,
    ) -> Dataset:
        """Make rows, without padding; those of a large split are cached by `datasets`.

        Args:
            examples: of `select`.
            tokenizer: the model's tokenizer.
            max_seq_length: longest row in tokens, special tokens included.
            content: fingerprint of the examples, part of the key of a cached result.
            num_proc: processes; None: this one, with the threads of the tokenizer.

        Returns:
            The tokenizer's columns, labels if the examples have them, `length` in tokens, `cut`
            (whether a text was truncated), `example_id`, and what the type needs for its metrics.

        Raises:
            DataError: an example does not fit into `max_seq_length`.
            ModelError: the tokenizer cannot be used for this type of task.
            ValueError: the tokenizer has no separator for the two texts of a pair.
        """
        encoder = self.encoder(examples, tokenizer, max_seq_length)
        return encoded_rows(examples, encoder, tokenizer, content, num_proc)

    def tokenize_when_read(
        self,
        examples: Dataset,
        tokenizer: PreTrainedTokenizerBase,
        max_seq_length: int,
        *,
        vocab_size: int | None,
        where: str,
    ) -> Dataset | None:
        """The rows of `tokenize`, made when they are read; None where that is not possible.

        See `smoothtune.data.when_read.rows_when_read`.
        """
        return None

    @abstractmethod
    def label_counts(self, examples: Dataset, rows: Dataset) -> dict[str, float]:
        """Numbers about the labels of a split, by name, for its report."""

    # --- from rows to the model --------------------------------------------------------------

    @abstractmethod
    def collator(self, tokenizer: PreTrainedTokenizerBase) -> Collate:
        """A function from rows to a batch of tensors (B, ...), padded to the longest row."""

    @abstractmethod
    def head(self) -> dict[str, Any]:
        """Fields of the model's configuration that depend on the task."""

    def fit_outputs(self, config: Any) -> tuple[int, ...] | None:
        """The index of the output of every label in a fine-tuned model; None: the same order.

        Raises:
            ValueError: the model has other outputs than the task needs.
        """
        return None

    @abstractmethod
    def loss(self, outputs: Mapping[str, Tensor], batch: Mapping[str, Tensor]) -> Tensor:
        """() mean loss over a batch with labels."""

    # --- from the model to metrics -----------------------------------------------------------

    @abstractmethod
    def predictions(self, outputs: Mapping[str, np.ndarray], rows: Dataset) -> np.ndarray:
        """Predictions (N, W), an entry per row, from the model's outputs on these rows.

        Args:
            outputs: arrays (N, ...) by the model's names; padding, if any, is at the end.
            rows: the rows.
        """

    def prediction_width(self, rows: Dataset) -> int:
        """W of `predictions`."""
        return self.num_labels

    @abstractmethod
    def answers(self, predictions: np.ndarray, rows: Dataset) -> list[Any]:
        """What is predicted for every example, as users read it, in the order of `example_ids`."""

    def example_ids(self, rows: Dataset) -> np.ndarray:
        """(E,) the example of each entry of the example statistics."""
        return np.asarray(rows["example_id"][:])

    @abstractmethod
    def statistic_names(self) -> list[str]:
        """Names of the K columns of the example statistics."""

    @abstractmethod
    def example_statistics(self, predictions: np.ndarray, rows: Dataset) -> np.ndarray:
        """(E, K) statistics from which the metrics of any set of examples follow."""

    @abstractmethod
    def scores(self, statistics: np.ndarray) -> dict[str, float]:
        """Metrics of examples from their statistics (E, K), the main metric first."""

    def detailed_scores(self, statistics: np.ndarray) -> dict[str, float]:
        """`scores`, with further metrics that an evaluation shows."""
        return self.scores(statistics)

    @abstractmethod
    def baseline(self, rows: Dataset) -> float:
        """Main metric of the best constant prediction."""

    def confidence(self, predictions: np.ndarray, rows: Dataset) -> tuple[np.ndarray, np.ndarray]:
        """(E,) probability of the predicted answer, and (E,) whether it is correct, 0 or 1.

        For types whose predictions are not class logits.

        Raises:
            NotImplementedError: there is no such probability, see `unsupported_parts`.
        """
        raise NotImplementedError(f"no calibration of a {self.model_noun}")
