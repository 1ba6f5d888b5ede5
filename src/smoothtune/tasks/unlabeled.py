"""Rows whose labels are not read: for terms on unlabeled batches, and for predictions."""

from pathlib import Path

import numpy as np
from datasets import Dataset
from transformers import PreTrainedTokenizerBase

from smoothtune.tasks.base import Task
from smoothtune.tasks.prepare import tokenized_examples
from smoothtune.tasks.splits import sampled


def prepare_unlabeled(
    source: str | Path,
    task: Task,
    tokenizer: PreTrainedTokenizerBase,
    *,
    max_samples: int | None = None,
    max_seq_length: int = 128,
    seed: int = 0,
    vocab_size: int | None = None,
) -> tuple[Dataset, str]:
    """Load, check, subsample and tokenize the train split of a source; labels are not read.

    At most `max_samples` rows are drawn at random with `seed`; see `prepare` for the arguments and
    errors, and `unlabeled_rows` for the result.
    """
    raw = task.load_splits(source, labeled=False)["train"]
    rows = sampled(np.arange(len(raw)), max_samples, seed)
    return unlabeled_rows(
        raw,
        task,
        tokenizer,
        f"{source}, split 'train'",
        rows=rows,
        max_seq_length=max_seq_length,
        vocab_size=vocab_size,
    )


def unlabeled_rows(
    raw: Dataset,
    task: Task,
    tokenizer: PreTrainedTokenizerBase,
    where: str,
    *,
    rows: np.ndarray | None = None,
    max_seq_length: int = 128,
    vocab_size: int | None = None,
) -> tuple[Dataset, str]:
    """Check and tokenize raw rows, those of the numbers `rows` (E,) or all; labels are not read.

    The task's labels are known, see `Task.with_model_labels`; text classification needs none.

    Returns:
        Rows as of `Reader.tokenize`, and the sha256, in hex, of the inputs used.

    Raises:
        DataError: a column is missing, or a row cannot be used; `where` begins the message.
    """
    task.rows.check_inputs(raw, where)
    inputs = raw.select_columns(list(task.rows.unlabeled_columns))
    examples = task.rows.select(inputs, np.arange(len(raw)) if rows is None else rows, None)
    return tokenized_examples(examples, task, tokenizer, max_seq_length, vocab_size, where)
