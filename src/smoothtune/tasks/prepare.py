"""Load a source, check and subsample it, and tokenize its splits."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from datasets import Dataset
from transformers import PreTrainedTokenizerBase

from smoothtune.data.arrow import numbers
from smoothtune.data.columns import column_problem, fingerprint
from smoothtune.data.locations import source_rows
from smoothtune.data.missing import left_out_message
from smoothtune.data.summary import Report, SplitReport, lengths_of
from smoothtune.data.tokenizing import check_token_ids
from smoothtune.errors import DataError
from smoothtune.tasks.base import Task
from smoothtune.tasks.splits import choose_rows, evaluation_split, sampled


@dataclass(frozen=True)
class Prepared:
    """Data ready for training.

    Both splits have the columns input_ids, attention_mask, token_type_ids where the tokenizer
    gives them, labels (int64 class ids or float32 scores), length (number of tokens), cut (whether
    a text was truncated) and example_id (row in the source's split, from 0). Other types of tasks
    have other labels, and question answering has a row for every window of a context, see their
    `tokenize`.
    """

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
        max_train_samples: train on at most this many examples, drawn at random with `seed`; a
            smaller sample is a part of a larger one.
        max_eval_samples: evaluate on at most this many examples, the first ones.
        max_seq_length: truncate longer inputs to this many tokens, special tokens included.
        seed: seed of the random choice of train examples.
        vocab_size: rows of the model's embedding matrix, to check token ids against.
        num_proc: processes that tokenize a large data set; None: this one, with the threads of the
            tokenizer.

    Returns:
        The tokenized splits, with the task, a report and a fingerprint.

    Raises:
        DataError: the source cannot be read or does not fit the task, see `load_splits` and
            `Reader.check`, or a token id is not below `vocab_size`.
        ValueError: a number of samples or the length is not positive, or the tokenizer has no
            separator for the two texts of a pair.
    """
    _check_limits(max_train_samples, max_eval_samples, max_seq_length)
    splits, task = labeled_splits(source, task)
    selection, note = choose_rows(splits, task, source, max_train_samples, max_eval_samples, seed)
    return _prepared(
        splits,
        task,
        source,
        selection,
        note,
        tokenizer,
        max_seq_length,
        vocab_size,
        num_proc=num_proc,
    )


def labeled_splits(source: str | Path, task: Task) -> tuple[dict[str, Dataset], Task]:
    """The raw splits of a source, and the task with the labels of its train split.

    Raises:
        DataError: as `prepare`; with what is seen to be wrong in the validation split as well.
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


def checked_splits(source: str | Path, task: Task) -> tuple[dict[str, Dataset], Task]:
    """`labeled_splits`, with the rows checked that a training would use.

    Raises:
        DataError: as `prepare`.
    """
    splits, task = labeled_splits(source, task)
    selection, _ = choose_rows(splits, task, source, None, None, 0)
    task.rows.check({split: splits[split] for split, _ in selection.values()}, str(source))
    return splits, task


def rows_fingerprint(
    source: str | Path,
    task: Task,
    *,
    max_train_samples: int | None = None,
    max_eval_samples: int | None = None,
    seed: int = 0,
) -> str:
    """The fingerprint that `prepare` gives, without tokenizing; the same arguments and errors."""
    splits, task = labeled_splits(source, task)
    selection, _ = choose_rows(splits, task, source, max_train_samples, max_eval_samples, seed)
    return _fingerprint(map(fingerprint, _examples(splits, task, source, selection).values()))


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
    train split beside it are the training rows; without one there are none.

    Args:
        source: file, folder or hub id, see `load_splits`.
        task: as `prepare`.
        tokenizer: the model's tokenizer.
        model_labels: names of the model's outputs, in order. They are the task's labels where there
            is no train split and the rows hold some of them, by name or by number.
        trained_on: number of rows that the model was trained on, if it is known. A train split of
            another number holds others, so there are no training rows.
        max_train_samples: as `prepare`.
        max_eval_samples: as `prepare`.
        max_seq_length: as `prepare`.
        seed: as `prepare`.
        vocab_size: as `prepare`.

    Returns:
        As `prepare`; `train` may have no rows.

    Raises:
        DataError: as `prepare`, or there are several splits and none is known to be the one to
            evaluate on.
        ValueError: as `prepare`.
    """
    _check_limits(max_train_samples, max_eval_samples, max_seq_length)
    splits = task.load_splits(source, need_train=False)
    name = evaluation_split(splits, task, source)
    selection = {"validation": (name, np.arange(len(splits[name]))[:max_eval_samples])}
    if "train" in splits and name != "train":
        task = task.with_labels(splits["train"], str(source))
        if trained_on in (None, len(splits["train"])):
            train = sampled(np.arange(len(splits["train"])), max_train_samples, seed)
            selection = {"train": ("train", train)} | selection
    else:
        if _is_labeled_as(splits[name], task, model_labels):
            task = replace(task, label_names=tuple(model_labels))
        task = task.with_labels(splits[name], str(source), name)
    return _prepared(splits, task, source, selection, "", tokenizer, max_seq_length, vocab_size)


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


def _examples(
    splits: Mapping[str, Dataset],
    task: Task,
    source: str | Path,
    selection: Mapping[str, tuple[str, np.ndarray]],
) -> dict[str, Dataset]:
    """The chosen rows of the splits by their role, checked."""
    raw = {name: splits[name] for name in dict.fromkeys(split for split, _ in selection.values())}
    labels = task.rows.check(raw, str(source))
    return {
        role: task.rows.select(raw[split], indices, labels[split])
        for role, (split, indices) in selection.items()
    }


def _fingerprint(contents: Iterable[str]) -> str:
    digest = hashlib.sha256()
    for content in contents:
        digest.update(content.encode())
    return digest.hexdigest()


def _prepared(
    splits: Mapping[str, Dataset],
    task: Task,
    source: str | Path,
    selection: Mapping[str, tuple[str, np.ndarray]],
    note: str,
    tokenizer: PreTrainedTokenizerBase,
    max_seq_length: int,
    vocab_size: int | None,
    num_proc: int | None = None,
) -> Prepared:
    """The chosen rows of the splits, checked and tokenized; `note` says how they were made."""
    tokenized, reports, contents = {}, {}, []
    for role, examples in _examples(splits, task, source, selection).items():
        split = selection[role][0]
        where = f"{source}, split {split!r}"
        contents.append(fingerprint(examples))
        rows = tokenized[role] = tokenized_examples(
            examples, task, tokenizer, max_seq_length, contents[-1], vocab_size, where, num_proc
        )
        reports[role] = SplitReport(
            rows=len(examples),
            source_rows=len(splits[split]),
            labels=task.rows.label_counts(examples, rows),
            lengths=lengths_of(numbers(rows, "length")),
            truncated=len(np.unique(numbers(rows, "example_id")[numbers(rows, "cut")])),
            note=note if role == "validation" else "",
            left_out=left_out_message(splits[split]) if role == "train" or split != "train" else "",
        )
    validation = tokenized["validation"]
    return Prepared(
        task,
        train=tokenized.get("train", validation.select(range(0), keep_in_memory=True)),
        validation=validation,
        validation_split=selection["validation"][0],
        source_rows=source_rows(splits[selection["validation"][0]]),
        report=Report(max_seq_length, reports),
        fingerprint=_fingerprint(contents),
    )


def tokenized_examples(
    examples: Dataset,
    task: Task,
    tokenizer: PreTrainedTokenizerBase,
    max_seq_length: int,
    content: str,
    vocab_size: int | None,
    where: str,
    num_proc: int | None = None,
) -> Dataset:
    """The rows of examples, their token ids checked."""
    try:
        rows = task.rows.tokenize(examples, tokenizer, max_seq_length, content, num_proc)
    except DataError as error:
        raise DataError(f"{where}, {error}") from error
    if vocab_size is not None:
        check_token_ids(rows, vocab_size, where)
    return rows


def _is_labeled_as(split: Dataset, task: Task, names: Sequence[str]) -> bool:
    """Whether the labels of a task are not known, and those of the rows are some of a model's."""
    if task.label_names is not None or column_problem(split, task.rows.columns):
        return False
    return task.rows.labels_are_of(split, names)
