"""Load a source, check and subsample it, and tokenize its splits."""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from datasets import Dataset
from transformers import PreTrainedTokenizerBase

from smoothtune.data.arrow import numbers
from smoothtune.data.columns import fingerprint
from smoothtune.data.locations import source_rows
from smoothtune.data.missing import left_out_message
from smoothtune.data.summary import Report, SplitReport, lengths_of
from smoothtune.data.tokenizing import check_token_ids
from smoothtune.errors import DataError
from smoothtune.tasks.base import Task
from smoothtune.tasks.splits import choose_rows, evaluation_split, sampled


@dataclass(frozen=True)
class Prepared:
    """Data ready for training; the columns of both splits are those of `Reader.tokenize`."""

    task: Task
    """The task, its labels known."""
    train: Dataset
    """Tokenized train split, without padding; no rows where `prepare_evaluation` found none."""
    validation: Dataset
    """Tokenized validation split, without padding."""
    validation_split: str
    """The split of the source that `validation` is taken from."""
    source_rows: np.ndarray
    """By `example_id` of `validation`, the row in the source, with those that were left out."""
    report: Report
    """Rows, label counts, lengths and number of truncated texts of both splits."""
    fingerprint: str
    """sha256, in hex, of the texts, labels and row numbers used, whatever the file format."""


def prepare(
    source: str | Path,
    task: Task,
    tokenizer: PreTrainedTokenizerBase,
    *,
    max_train_samples: int | None = None,
    max_eval_samples: int | None = None,
    max_seq_length: int = 128,
    seed: int = 0,
    vocab_size: int | None = None,
    num_proc: int | None = None,
) -> Prepared:
    """Load, check, subsample and tokenize a data set.

    A source that has a train split only, or train and test, gets a validation split: a random
    tenth of the train split, the same for every `seed`, and the report says so. Rows with
    the same texts as held-out ones are removed from the train split.

    Args:
        source: file, folder or hub id, see `load_splits`.
        task: one of `TASKS`, or what `describe_task` gives.
        tokenizer: the model's tokenizer.
        max_train_samples: train on at most this many examples, drawn at random with `seed`.
        max_eval_samples: evaluate on at most this many examples, the first ones.
        max_seq_length: truncate longer inputs to this many tokens, special tokens included.
        seed: seed of the random choice of train examples.
        vocab_size: rows of the model's embedding matrix, to check token ids against.
        num_proc: processes that tokenize a large data set; None: this one.

    Raises:
        DataError: the source cannot be read or does not fit the task, see `load_splits` and
            `Reader.check`, or a token id is not below `vocab_size`.
        ValueError: a number of samples or the length is not positive, or the tokenizer has no
            separator for the two texts of a pair.
    """
    _check_limits(max_train_samples, max_eval_samples, max_seq_length)
    chosen = _chosen(source, task, max_train_samples, max_eval_samples, seed)
    return _prepared(chosen, tokenizer, max_seq_length, vocab_size, num_proc)


def labeled_splits(source: str | Path, task: Task) -> tuple[dict[str, Dataset], Task]:
    """The raw splits of a source, and the task with the labels of its train split.

    A `DataError` tells what is seen to be wrong in the validation split as well.
    """
    splits = task.load_splits(source)
    try:
        return splits, task.with_labels(splits["train"], str(source))
    except DataError as error:
        others = ({task.validation_split, "validation"} & set(splits)) - {"train"}
        more = [
            problem
            for name in sorted(others)
            for problem in task.rows.gaps(splits[name], f"{source}, split {name!r}")
        ]
        raise DataError("\n".join([str(error), *more])) from error


@dataclass(frozen=True)
class _Chosen:
    """The rows of a source that train and validation use."""

    source: str | Path
    splits: dict[str, Dataset]
    task: Task
    rows: dict[str, tuple[str, np.ndarray]]
    """By role, the split of the source and the numbers of its rows."""
    note: str = ""
    """How the validation split was made, if it is not the source's own."""

    def examples(self) -> dict[str, Dataset]:
        """The examples by their role, checked."""
        names = dict.fromkeys(split for split, _ in self.rows.values())
        raw = {name: self.splits[name] for name in names}
        labels = self.task.rows.check(raw, str(self.source))
        return {
            role: self.task.rows.select(raw[split], indices, labels[split])
            for role, (split, indices) in self.rows.items()
        }


def _chosen(
    source: str | Path,
    task: Task,
    max_train_samples: int | None = None,
    max_eval_samples: int | None = None,
    seed: int = 0,
) -> _Chosen:
    splits, task = labeled_splits(source, task)
    rows, note = choose_rows(splits, task, source, max_train_samples, max_eval_samples, seed)
    return _Chosen(source, splits, task, rows, note)


def checked_splits(source: str | Path, task: Task) -> tuple[dict[str, Dataset], Task]:
    """The splits of `labeled_splits` that a training would use, their rows checked."""
    chosen = _chosen(source, task)
    used = {split: chosen.splits[split] for split, _ in chosen.rows.values()}
    chosen.task.rows.check(used, str(source))
    return used, chosen.task


def rows_fingerprint(
    source: str | Path,
    task: Task,
    *,
    max_train_samples: int | None = None,
    max_eval_samples: int | None = None,
    seed: int = 0,
) -> str:
    """The fingerprint that `prepare` gives, without tokenizing; the same arguments and errors."""
    chosen = _chosen(source, task, max_train_samples, max_eval_samples, seed)
    return _fingerprint(map(fingerprint, chosen.examples().values()))


def prepare_evaluation(
    source: str | Path,
    task: Task,
    tokenizer: PreTrainedTokenizerBase,
    *,
    model_labels: Sequence[str] = (),
    trained_on: int | None = None,
    max_train_samples: int | None = None,
    max_eval_samples: int | None = None,
    max_seq_length: int = 128,
    seed: int = 0,
    vocab_size: int | None = None,
) -> Prepared:
    """Load, check and tokenize data that a model was not trained on; no row is held out.

    The evaluation set is the validation split, else test, else the only split, whole. Rows of a
    train split beside it are the training rows; without one there are none, nor where it has
    another number of rows than `trained_on`. `model_labels`, the names of the model's outputs, are
    the task's labels where there is no train split and the rows hold some of them, by name or by
    number. The other arguments, the result and the errors are those of `prepare`.

    Raises:
        DataError: also if none of several splits is known to be the one to evaluate on.
    """
    _check_limits(max_train_samples, max_eval_samples, max_seq_length)
    splits = task.load_splits(source, need_train=False)
    name = evaluation_split(splits, task, source)
    rows = {"validation": (name, np.arange(len(splits[name]))[:max_eval_samples])}
    if "train" in splits and name != "train":
        task = task.with_labels(splits["train"], str(source))
        if trained_on in (None, len(splits["train"])):
            train = sampled(np.arange(len(splits["train"])), max_train_samples, seed)
            rows = {"train": ("train", train)} | rows
    else:
        if task.label_names is None and task.rows.labels_are_of(splits[name], model_labels):
            task = replace(task, label_names=tuple(model_labels))
        task = task.with_labels(splits[name], str(source), name)
    chosen = _Chosen(source, splits, task, rows)
    return _prepared(chosen, tokenizer, max_seq_length, vocab_size)


def _check_limits(
    max_train_samples: int | None, max_eval_samples: int | None, max_seq_length: int
) -> None:
    for name, limit in {
        "max_train_samples": max_train_samples,
        "max_eval_samples": max_eval_samples,
        "max_seq_length": max_seq_length,
    }.items():
        if limit is not None and limit < 1:
            raise ValueError(f"{name} must be at least 1, not {limit}")


def _fingerprint(contents: Iterable[str]) -> str:
    return hashlib.sha256("".join(contents).encode()).hexdigest()


def _prepared(
    chosen: _Chosen,
    tokenizer: PreTrainedTokenizerBase,
    max_seq_length: int,
    vocab_size: int | None,
    num_proc: int | None = None,
) -> Prepared:
    """The chosen rows, checked and tokenized."""
    tokenized, reports, contents = {}, {}, []
    for role, examples in chosen.examples().items():
        split = chosen.rows[role][0]
        raw, where = chosen.splits[split], f"{chosen.source}, split {split!r}"
        rows, content = tokenized_examples(
            examples, chosen.task, tokenizer, max_seq_length, vocab_size, where, num_proc
        )
        tokenized[role] = rows
        contents.append(content)
        reports[role] = SplitReport(
            rows=len(examples),
            source_rows=len(raw),
            labels=chosen.task.rows.label_counts(examples, rows),
            lengths=lengths_of(numbers(rows, "length")),
            truncated=len(np.unique(numbers(rows, "example_id")[numbers(rows, "cut")])),
            note=chosen.note if role == "validation" else "",
            left_out=left_out_message(raw) if role == "train" or split != "train" else "",
        )
    validation, validation_split = tokenized["validation"], chosen.rows["validation"][0]
    return Prepared(
        chosen.task,
        train=tokenized.get("train", validation.select(range(0), keep_in_memory=True)),
        validation=validation,
        validation_split=validation_split,
        source_rows=source_rows(chosen.splits[validation_split]),
        report=Report(max_seq_length, reports),
        fingerprint=_fingerprint(contents),
    )


def tokenized_examples(
    examples: Dataset,
    task: Task,
    tokenizer: PreTrainedTokenizerBase,
    max_seq_length: int,
    vocab_size: int | None,
    where: str,
    num_proc: int | None = None,
) -> tuple[Dataset, str]:
    """The rows of examples, their token ids checked, and the fingerprint of the examples."""
    content = fingerprint(examples)
    try:
        rows = task.rows.tokenize(examples, tokenizer, max_seq_length, content, num_proc)
    except DataError as error:
        raise DataError(f"{where}, {error}") from error
    if vocab_size is not None:
        check_token_ids(rows, vocab_size, where)
    return rows, content
