"""Multiple choice: one of several continuations or answers, as in SWAG and RACE."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from datasets import Dataset, Features, Value
from datasets import Sequence as ListOf
from torch import Tensor
from transformers import (
    AutoModelForMultipleChoice,
    DataCollatorWithPadding,
    PreTrainedTokenizerBase,
)

from smoothtune.data.columns import rows_with_problems, text_problems
from smoothtune.data.summary import SplitReport
from smoothtune.data.tokenizing import LARGE, cached_map
from smoothtune.errors import DataError
from smoothtune.tasks.base import Collate, Description, Task, TokenizeOptions, check_columns
from smoothtune.tasks.labels import report_split
from smoothtune.tasks.text_classification import TextClassification


class MultipleChoice(TextClassification):
    """A row holds a sequence for every choice, (C, T); predictions are logits (N, C).

    A sequence is the pair (context, choice), or (context, start + " " + choice) where there are
    two text columns.
    """

    auto_model = AutoModelForMultipleChoice
    what = "multiple-choice model"
    texts = ("contexts", "choices")
    derivatives = False
    not_for = {
        "corruption": "it is made for examples of one or two texts",
        "smoothness": "its curves are about one sequence, and an example has several",
        "drift": "its curves are about one sequence, and an example has several",
    }

    def describe(self, said: Description) -> Task:
        """One or two text columns, and the columns of the choices."""
        columns = tuple(said.text_columns or ())
        if len(columns) not in (1, 2) or not said.choice_columns:
            raise ValueError(
                "multiple choice needs a text column, at most a second one with the beginning of "
                "every choice, and the choice columns, or one that holds lists of choices"
            )
        return Task(
            said.name,
            columns,
            said.label_column or "label",
            None,
            (),
            task_type="multiple-choice",
            choice_columns=tuple(said.choice_columns),
        )

    def complete(self, task: Task, train: Dataset, source: str) -> Task:
        """Count the choices."""
        where = f"{source}, split 'train'"
        check_columns(train, (*task.text_columns, *task.choice_columns, task.label_column), where)
        count = len(_choices(train.select([0]), task)[0] or ())
        if count < 2:
            raise DataError(f"{where}: row 0 has {count} choices, but at least two are due")
        names = tuple(str(index) for index in range(count))
        return replace(task, label_names=names, metrics=("accuracy",))

    def check(
        self, splits: Mapping[str, Dataset], task: Task, source: str
    ) -> dict[str, np.ndarray]:
        """Check texts, choices and labels; gives the number of the right choice, (N,)."""
        labels, problems = {}, []
        for name, split in splits.items():
            where = f"{source}, split {name!r}"
            columns = (*task.text_columns, *task.choice_columns, task.label_column)
            check_columns(split, columns, where)
            choices, values = _choices(split, task), split[task.label_column][:]
            numbers = [_number(value) for value in values]
            found = [p for c in task.text_columns for p in text_problems(c, split[c][:])]
            wrong = (_choices_problem(each, task.num_labels) for each in choices)
            found += rows_with_problems(", ".join(task.choice_columns), choices, wrong)
            unknown = (_label_problem(number, task.num_labels) for number in numbers)
            found += rows_with_problems(task.label_column, values, unknown)
            problems += [f"{where}: {problem}" for problem in found]
            labels[name] = np.array(numbers)
        if problems:
            raise DataError("\n".join(problems))
        return {name: numbers.astype(np.int64) for name, numbers in labels.items()}

    def select(
        self, raw: Dataset, task: Task, indices: np.ndarray, labels: np.ndarray | None
    ) -> Dataset:
        """Columns contexts, choices (a list), labels, example_id."""
        columns = [*task.text_columns, *task.choice_columns]
        rows = raw.select_columns(columns).select(indices, keep_in_memory=True)
        choices = _choices(rows, task)
        if len(task.text_columns) == 2:
            starts = rows[task.text_columns[1]][:]
            choices = [
                [f"{start} {choice}" for choice in each]
                for start, each in zip(starts, choices, strict=True)
            ]
        types = {
            "contexts": Value("string"),
            "choices": ListOf(Value("string")),
            "labels": Value("int64"),
            "example_id": Value("int64"),
        }
        assert labels is not None
        data = {
            "contexts": rows[task.text_columns[0]][:],
            "choices": choices,
            "labels": labels[indices],
            "example_id": indices,
        }
        return Dataset.from_dict(data, features=Features(types))

    def tokenize(
        self,
        examples: Dataset,
        task: Task,
        tokenizer: PreTrainedTokenizerBase,
        options: TokenizeOptions,
        content: str,
    ) -> Dataset:
        """The tokenizer's columns, lists of C lists; labels, length (of the longest), cut."""

        def encode(batch: Mapping[str, list]) -> dict[str, list]:
            return _encode(batch, tokenizer, options.max_seq_length, task.num_labels)

        encode(examples[:1])
        return cached_map(
            examples,
            encode,
            f"choices {content} {options.max_seq_length}",
            tokenizer,
            large=len(examples) >= LARGE // task.num_labels,
            num_proc=options.num_proc,
            remove_columns=["contexts", "choices"],
        )

    def report(
        self,
        task: Task,
        examples: Dataset,
        rows: Dataset,
        tokenizer: PreTrainedTokenizerBase,
        max_seq_length: int,
    ) -> SplitReport:
        """Counts of the right choice, lengths of the longest, and rows with a choice cut."""
        return report_split(
            task,
            np.asarray(rows["labels"][:]),
            np.asarray(rows["length"][:]),
            source_rows=len(examples),
            truncated=sum(rows["cut"][:]),
        )

    def collator(self, tokenizer: PreTrainedTokenizerBase) -> Collate:
        """Pads all choices of all examples to one length."""
        return _Collator(tokenizer)

    def head(self, task: Task) -> dict[str, Any]:
        """One score for every choice; the loss is that of classes."""
        return {"problem_type": None}

    def fit_outputs(self, config: Any, task: Task) -> None:
        """Nothing to match."""


class _Collator:
    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self.names = tokenizer.model_input_names
        self.pad = DataCollatorWithPadding(
            tokenizer, pad_to_multiple_of=8 if torch.cuda.is_available() else None
        )

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
        names = [name for name in self.names if name in rows[0]]
        count = len(rows[0]["input_ids"])
        flat = [
            {name: row[name][choice] for name in names} for row in rows for choice in range(count)
        ]
        batch = {name: x.view(len(rows), count, -1) for name, x in self.pad(flat).items()}
        numbers = [name for name in ("labels", "example_id") if name in rows[0]]
        return batch | {name: torch.tensor([row[name] for row in rows]) for name in numbers}


def _encode(
    batch: Mapping[str, list], tokenizer: PreTrainedTokenizerBase, max_seq_length: int, count: int
) -> dict[str, list]:
    contexts = [context for context in batch["contexts"] for _ in range(count)]
    choices = [choice for each in batch["choices"] for choice in each]
    encoded = tokenizer(
        contexts,
        choices,
        truncation=True,
        max_length=max_seq_length,
        verbose=False,
    )
    starts = range(0, len(choices), count)
    columns = {
        name: [encoded[name][start : start + count] for start in starts]
        for name in tokenizer.model_input_names
        if name in encoded
    }
    lengths = [max(map(len, each)) for each in columns["input_ids"]]
    cut = [False] * len(lengths)
    if full := [row for row, length in enumerate(lengths) if length >= max_seq_length]:
        pairs = [
            (contexts[starts[row] + i], choices[starts[row] + i])
            for row in full
            for i in range(count)
        ]
        uncut = tokenizer(pairs, verbose=False)["input_ids"]
        for place, row in enumerate(full):
            ids = uncut[place * count : (place + 1) * count]
            cut[row] = max(map(len, ids)) > max_seq_length
    return columns | {"length": lengths, "cut": cut}


def _choices(split: Dataset, task: Task) -> list[list[Any]]:
    """The choices of every row."""
    columns = [split[column][:] for column in task.choice_columns]
    return columns[0] if len(columns) == 1 else [list(each) for each in zip(*columns, strict=True)]


def _number(label: Any) -> int:
    """0, "0" and "A" are the first choice; -1 is none."""
    if isinstance(label, str) and len(label) == 1 and label.isalpha():
        return ord(label.upper()) - ord("A")
    if isinstance(label, str):
        return int(label) if label.isdecimal() else -1
    return label if isinstance(label, int) and not isinstance(label, bool) else -1


def _label_problem(number: int, count: int) -> str:
    if 0 <= number < count:
        return ""
    return f"is not the number or the letter of one of {count} choices (0 and A are the first)"


def _choices_problem(choices: Any, count: int) -> str:
    if not isinstance(choices, list) or len(choices) != count:
        return f"does not hold {count} choices, as the first row of train does"
    blank = any(not isinstance(choice, str) or not choice.strip() for choice in choices)
    return "holds a choice that is empty or no text" if blank else ""
