"""The texts behind tokenized rows, and rows of other data sets."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from datasets import Dataset
from transformers import PreTrainedTokenizerBase

from smoothtune.data import Prepared, Task, check_splits, load_splits
from smoothtune.data.prepare import fingerprint, select
from smoothtune.data.tokenizing import TEXTS, check_token_ids, tokenize


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
    source: str | Path,
    task: Task,
    tokenizer: PreTrainedTokenizerBase,
    *,
    max_seq_length: int,
    vocab_size: int,
) -> tuple[Dataset, int]:
    """All rows of another data set for the same task; repeated texts count once.

    Args:
        source: file, folder or hub id; its validation split is used, else test, else train.
        task: the task, its labels known. Labels written as names mean the class of that name.
        tokenizer: the model's.
        max_seq_length: cut longer inputs to so many tokens.
        vocab_size: rows of the model's embedding matrix.

    Returns:
        Tokenized rows, and how many repeat an earlier one and were left out.

    Raises:
        DataError: the source cannot be read, or does not fit the task.
    """
    splits = load_splits(source, task)
    order = (task.validation_split, "validation", "test", "train")
    split = next(name for name in order if name in splits)
    labels = check_splits({split: splits[split]}, task, str(source))[split]
    texts = select(splits[split], task, np.arange(len(splits[split])), labels)
    pairs = list(
        zip(*(texts[name][:] for name in TEXTS if name in texts.column_names), strict=True)
    )
    first = sorted(dict(zip(reversed(pairs), range(len(pairs) - 1, -1, -1), strict=True)).values())
    chosen = texts.select(first, keep_in_memory=True)
    rows = tokenize(chosen, tokenizer, max_seq_length, fingerprint(chosen))
    check_token_ids(rows, vocab_size, f"{source}, split {split!r}")
    return rows, len(pairs) - len(first)
