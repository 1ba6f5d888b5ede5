"""The first part of a task: from the raw rows of a source to rows of tokens."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from datasets import Dataset
from transformers import PreTrainedTokenizerBase

from smoothtune.data.columns import column_problem, text_problems
from smoothtune.data.label_types import LabelType
from smoothtune.data.missing import RequiredColumns, missing_labels
from smoothtune.data.tokenizing import Encoder, encoded_rows
from smoothtune.errors import DataError
from smoothtune.tasks.description import TaskDescription
from smoothtune.tasks.head import output_names
from smoothtune.tasks.labels import LabelColumn


@dataclass(frozen=True)
class Reader(ABC):
    """Columns, labels and rows of a task; there is a subclass for each form of data."""

    input_columns: ClassVar[tuple[str, ...]]
    """Columns of the examples that the model reads; examples equal in them are duplicates."""
    when_too_long: ClassVar[str] = "cut"
    """What happens to examples of more than `max_seq_length` tokens."""

    task: TaskDescription

    @property
    def unlabeled_columns(self) -> tuple[str, ...]:
        """The columns of the source that are read where labels are not."""
        return self.task.text_columns

    @property
    def label_columns(self) -> tuple[str, ...]:
        """The columns of the source that hold labels."""
        return (self.task.label_column,)

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of the source that are read."""
        return (*self.unlabeled_columns, *self.label_columns)

    @property
    def required(self) -> RequiredColumns:
        """What a row must have; with `drop_missing` rows without it are left out."""
        markers = self.task.label_type != "text"  # which says that null names a class
        return RequiredColumns(self.unlabeled_columns, self.label_columns, markers=markers)

    @property
    def stored_label_type(self) -> LabelType | None:
        """What the label column is read as."""
        return self.task.label_type

    @abstractmethod
    def check_description(self) -> None:
        """Check the columns and labels that a user named.

        Raises:
            ValueError: they do not describe a task of this type.
        """

    @abstractmethod
    def label_names(self, train: Dataset, where: str) -> tuple[str, ...]:
        """Names of the labels of a raw train split that has all columns.

        Raises:
            DataError: the labels cannot be used; `where` begins the message.
        """

    def model_label_names(self, config: Any, raw: Dataset, where: str) -> tuple[str, ...]:
        """Names of the labels of a fine-tuned model, from its configuration."""
        return output_names(config)

    def labels_are_of(self, split: Dataset, names: Sequence[str]) -> bool:
        """Whether the labels of raw rows are some of a model's outputs, by name or by number."""
        return not column_problem(split, self.columns) and self._labels(split).are_of(names)

    def _labels(self, split: Dataset) -> LabelColumn:
        """The labels of a raw split."""
        return LabelColumn(split, self.task.label_column, self.task.merge_labels)

    def gaps(self, raw: Dataset, where: str) -> list[str]:
        """The problems of a raw split that are seen before its labels are known."""
        problems = [column_problem(raw, self.columns)]
        if not problems[0]:
            problems = [*self._input_problems(raw), *missing_labels(raw, self.required)]
        return [f"{where}: {problem}" for problem in problems]

    def check_inputs(self, raw: Dataset, where: str) -> None:
        """Raise `DataError` with missing columns, or else wrong texts; labels are not read."""
        problem = column_problem(raw, self.unlabeled_columns)
        if problems := [problem] if problem else self._input_problems(raw):
            raise DataError("\n".join(f"{where}: {problem}" for problem in problems))

    def check(self, splits: Mapping[str, Dataset], source: str) -> dict[str, Any]:
        """Check raw splits, by name.

        Returns:
            The labels of each split, in the form that `select` takes: an array (N,) of classes or
            scores, or (N, L) of 0 and 1; lists of classes; None where they stay in their column.

        Raises:
            DataError: lists missing columns, or else wrong texts and labels with their rows.
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

    def _input_problems(self, split: Dataset) -> list[str]:
        """The problems of what the model reads in a raw split that has all columns."""
        return text_problems(split, self.task.text_columns)

    @abstractmethod
    def _check_rows(self, split: Dataset) -> tuple[Any, list[str]]:
        """The labels of a raw split that has all columns, and the problems of its rows."""

    @abstractmethod
    def select(self, raw: Dataset, indices: np.ndarray, labels: Any) -> Dataset:
        """The examples of the chosen raw rows, in memory; labels are those of `check`, or None."""

    @abstractmethod
    def encoder(self, tokenizer: PreTrainedTokenizerBase, max_seq_length: int) -> Encoder:
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
            tokenizer: the model's.
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
        encoder = self.encoder(tokenizer, max_seq_length)
        return encoded_rows(examples, encoder, tokenizer, content, num_proc)

    @abstractmethod
    def label_counts(self, examples: Dataset, rows: Dataset) -> dict[str, float]:
        """Numbers about the labels of a split, by name, for its report."""
