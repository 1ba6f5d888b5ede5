"""Multiple choice: one of several continuations or answers, as in SWAG and RACE."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, final

import numpy as np
import torch
from datasets import Dataset, Value
from datasets import Sequence as ListOf
from torch import Tensor
from transformers import AutoModelForMultipleChoice, PreTrainedTokenizerBase

from smoothtune.data.arrow import numbers
from smoothtune.data.batches import Collator
from smoothtune.data.columns import rows_with_problems, text_problems, typed_columns
from smoothtune.data.tokenizing import MIN_CACHED_ROWS, Encoder, encode_texts
from smoothtune.errors import DataError
from smoothtune.tasks.base import Task
from smoothtune.tasks.class_lookup import whole_number
from smoothtune.tasks.head import Collate
from smoothtune.tasks.reader import Reader
from smoothtune.tasks.text_classification import ClassHead, ClassScorer, class_counts


@dataclass(frozen=True)
class ChoiceReader(Reader):
    """A row holds a sequence for every choice, (C, T).

    Each is the pair (context, choice), or (context, start + " " + choice) with two text columns.
    """

    input_columns = ("contexts", "choices")

    task: MultipleChoice

    @property
    def unlabeled_columns(self) -> tuple[str, ...]:
        """The columns of the source that are read where labels are not."""
        return (*self.task.text_columns, *self.task.choice_columns)

    def check_description(self) -> None:
        """One or two text columns, and the columns of the choices."""
        if len(self.task.text_columns) not in (1, 2) or not self.task.choice_columns:
            raise ValueError(
                "multiple choice needs a text column, at most a second one with the beginning of "
                "every choice, and the choice columns, or one that holds lists of choices"
            )

    def label_names(self, train: Dataset, where: str) -> tuple[str, ...]:
        """The numbers of the choices that the first row has."""
        choices = self._choices(train.select([0]))[0]
        count = len(choices) if isinstance(choices, list) else 0
        if count < 2:
            raise DataError(f"{where}: row 0 has {count} choices, but at least two are needed")
        return tuple(map(str, range(count)))

    def model_label_names(self, config: Any, raw: Dataset, where: str) -> tuple[str, ...]:
        """As many as the first row has choices: the model scores each by itself."""
        return self.label_names(raw, where)

    def labels_are_of(self, split: Dataset, names: Sequence[str]) -> bool:
        """No: choices have no outputs of their own."""
        return False

    def _input_problems(self, split: Dataset) -> list[str]:
        problems = text_problems(split, self.task.text_columns)
        if self.task.label_names is None:  # how many choices a row should have
            return problems
        choices = self._choices(split)
        wrong = (_choices_problem(each, self.task.num_labels) for each in choices)
        columns = ", ".join(self.task.choice_columns)
        return problems + rows_with_problems(split, columns, choices, wrong)

    def _check_rows(self, split: Dataset) -> tuple[np.ndarray, list[str]]:
        """(N,) int64 indices of the correct choices."""
        problems, labels = self._input_problems(split), split[self.task.label_column][:]
        numbers, count = list(map(_number, labels)), self.task.num_labels
        unknown = (
            f"is not the number or the letter of one of {count} choices (0 and A are the first)"
        )
        wrong = ("" if 0 <= number < count else unknown for number in numbers)
        problems += rows_with_problems(split, self.task.label_column, labels, wrong)
        return np.array([] if problems else numbers, np.int64), problems

    def _choices(self, split: Dataset) -> list[list[Any]]:
        """The choices of every row."""
        lists = [split[column][:] for column in self.task.choice_columns]
        return lists[0] if len(lists) == 1 else [list(each) for each in zip(*lists, strict=True)]

    def select(self, raw: Dataset, indices: np.ndarray, labels: np.ndarray | None) -> Dataset:
        """Columns contexts, choices (a list), labels if given, example_id."""
        rows = raw.select_columns([*self.task.text_columns, *self.task.choice_columns])
        rows = rows.select(indices, keep_in_memory=True)
        choices = self._choices(rows)
        for column in self.task.text_columns[1:]:  # the beginning of every choice
            pairs = zip(rows[column][:], choices, strict=True)
            choices = [[f"{start} {choice}" for choice in each] for start, each in pairs]
        return typed_columns(
            contexts=(Value("string"), rows[self.task.text_columns[0]][:]),
            choices=(ListOf(Value("string")), choices),
            **({} if labels is None else {"labels": (Value("int64"), labels[indices])}),
            example_id=(Value("int64"), indices),
        )

    def encoder(self, tokenizer: PreTrainedTokenizerBase, max_seq_length: int) -> Encoder:
        """The tokenizer's columns hold lists of C lists; `length` is that of the longest."""
        count = self.task.num_labels
        return Encoder(
            lambda batch: _encode(batch, tokenizer, max_seq_length, count),
            f"choices {max_seq_length}",
            MIN_CACHED_ROWS // count,
        )

    def label_counts(self, examples: Dataset, rows: Dataset) -> dict[str, float]:
        """Number of rows in which each choice is correct."""
        return class_counts(numbers(rows, "labels"), self.task.known_label_names)


@dataclass(frozen=True)
class ChoiceHead(ClassHead):
    """The model has one output, the score of a choice; predictions are logits (N, C)."""

    def config(self) -> dict[str, Any]:
        """No problem type: transformers' models for choices know their loss."""
        return {"problem_type": None}

    def fit_outputs(self, config: Any) -> None:
        """Choices have no outputs of their own."""

    def collator(self, tokenizer: PreTrainedTokenizerBase) -> Collate:
        """Pads all choices of all examples to one length."""
        return partial(_collate, tokenizer)


@dataclass(frozen=True)
class ChoiceScorer(ClassScorer):
    """As `ClassScorer`; a choice is named by its number."""

    def answers(self, predictions: np.ndarray, rows: Dataset) -> list[int]:
        """The number of the most likely choice, from 0."""
        return predictions.argmax(1).tolist()


@final
@dataclass(frozen=True)
class MultipleChoice(Task):
    """One of several continuations or answers is correct."""

    task_type = "multiple-choice"
    reader_class = ChoiceReader
    head_class = ChoiceHead
    scorer_class = ChoiceScorer
    auto_model = AutoModelForMultipleChoice
    model_noun = "multiple-choice model"
    peft_type = None
    hub_task = None
    usual_columns = {"text_columns": ["question"], "choice_columns": ["choice1", "choice2"]}
    unsupported_parts = {
        "corruption": "only defined for examples of one or two texts",
        "substitution": "only defined for examples of one or two texts",
        "smoothness": "only defined for one sequence per example, and an example has several",
        "drift": "only defined for one sequence per example, and an example has several",
    }

    choice_columns: tuple[str, ...] = ()
    """Columns with the choices, or one column with lists of them."""

    def default_metrics(self, label_names: tuple[str, ...]) -> tuple[str, ...]:
        """Accuracy."""
        return ("accuracy",)


def _collate(
    tokenizer: PreTrainedTokenizerBase, rows: Sequence[Mapping[str, Any]]
) -> dict[str, Tensor]:
    names = [name for name in tokenizer.model_input_names if name in rows[0]]
    count = len(rows[0]["input_ids"])
    flat = [{name: row[name][choice] for name in names} for row in rows for choice in range(count)]
    padded = Collator(tokenizer)(flat)
    batch = {name: tokens.view(len(rows), count, -1) for name, tokens in padded.items()}
    numbers = [name for name in ("labels", "example_id") if name in rows[0]]
    return batch | {name: torch.tensor([row[name] for row in rows]) for name in numbers}


def _encode(
    batch: Mapping[str, list], tokenizer: PreTrainedTokenizerBase, max_seq_length: int, count: int
) -> dict[str, list]:
    contexts = [context for context in batch["contexts"] for _ in range(count)]
    choices = [choice for each in batch["choices"] for choice in each]
    flat = encode_texts([contexts, choices], tokenizer, max_seq_length)
    starts = range(0, len(choices), count)
    rows = {name: [x[start : start + count] for start in starts] for name, x in flat.items()}
    return rows | {"length": [*map(max, rows["length"])], "cut": [*map(any, rows["cut"])]}


def _number(label: Any) -> int:
    """Index of a choice: 0, "0" and "A" are the first; -1 for anything else."""
    if isinstance(label, str) and len(label) == 1 and label.isalpha():
        return ord(label.upper()) - ord("A")
    number = whole_number(label)
    return -1 if number is None else number


def _choices_problem(choices: Any, count: int) -> str:
    if not isinstance(choices, list) or len(choices) != count:
        return f"does not hold {count} choices, as the first row does"
    blank = any(not isinstance(choice, str) or not choice.strip() for choice in choices)
    return "holds a choice that is empty or no text" if blank else ""
