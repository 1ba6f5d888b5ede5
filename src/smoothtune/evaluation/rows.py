"""The texts behind tokenized rows, and rows of other data sets."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from datasets import Dataset
from transformers import PreTrainedTokenizerBase

from smoothtune.data.columns import fingerprint
from smoothtune.data.sources import load_splits
from smoothtune.data.tokenizing import check_token_ids
from smoothtune.errors import DataError
from smoothtune.evaluation.transfer import OtherData
from smoothtune.tasks.base import Task, TokenizeOptions
from smoothtune.tasks.labels import check_splits
from smoothtune.tasks.prepare import Prepared
from smoothtune.tasks.presets import kind_of
from smoothtune.tasks.text_classification import select


def validation_texts(source: str | Path, prepared: Prepared) -> Dataset:
    """The texts and labels of a prepared validation split, in its order.

    Returns:
        Columns text, for pairs text_pair, labels, example_id.
    """
    task, splits = prepared.task, load_splits(source, prepared.task)
    known = [name for name in (task.validation_split, "validation") if name in splits]
    split = known[0] if known else "train"  # where some rows were held out
    labels = check_splits({split: splits[split]}, task, str(source))[split]
    return select(splits[split], task, np.asarray(prepared.validation["example_id"][:]), labels)


def foreign_rows(
    other: OtherData,
    task: Task,
    tokenizer: PreTrainedTokenizerBase,
    *,
    max_seq_length: int,
    vocab_size: int,
) -> tuple[Dataset, int]:
    """All rows of another data set for the same task; repeated texts count once.

    Args:
        other: the data set; its validation split is used, else test, else train, else the only one.
        task: the model's task, its labels known. Labels written as names mean the class of that
            name, unless `other` gives them another meaning.
        tokenizer: the model's.
        max_seq_length: cut longer inputs to so many tokens.
        vocab_size: rows of the model's embedding matrix.

    Returns:
        Tokenized rows, and how many repeat an earlier one and were left out.

    Raises:
        DataError: the source cannot be read, or does not fit the task.
    """
    source, kind, task = other.source, kind_of(task), other.task(task)
    splits = load_splits(source, task, need_train=False)
    order = (task.validation_split, "validation", "test", "train", *splits)
    split = next(name for name in order if name in splits)
    where = f"{source}, split {split!r}"
    raw = other.relabeled(splits[split], task, where)
    labels = kind.check({split: raw}, task, str(source))[split]
    examples = kind.select(raw, task, np.arange(len(raw)), labels)
    texts = [examples[name][:] for name in kind.texts if name in examples.column_names]
    keys = [str(values) for values in zip(*texts, strict=True)]
    first = sorted(dict(zip(reversed(keys), range(len(keys) - 1, -1, -1), strict=True)).values())
    chosen = examples.select(first, keep_in_memory=True)
    options = TokenizeOptions(max_seq_length)
    try:
        rows = kind.tokenize(chosen, task, tokenizer, options, fingerprint(chosen))
    except DataError as error:
        raise DataError(f"{where}, {error}") from error
    check_token_ids(rows, vocab_size, where)
    return rows, len(keys) - len(first)
