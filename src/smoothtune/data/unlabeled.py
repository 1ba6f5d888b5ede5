"""Texts without labels, for methods that need none."""

from pathlib import Path

import numpy as np
from datasets import Dataset
from transformers import PreTrainedTokenizerBase

from smoothtune.data.checks import check_texts
from smoothtune.data.prepare import fingerprint, select
from smoothtune.data.sources import load_splits
from smoothtune.data.tasks import Task
from smoothtune.data.tokenizing import check_token_ids, tokenize


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
    """Loads, checks, subsamples and tokenizes the train split of a source; labels are not read.

    Args:
        source: file, folder or hub id, see `load_splits`.
        task: its text columns are used.
        tokenizer: the model's tokenizer.
        max_samples: use at most so many rows, drawn at random with `seed`.
        max_seq_length: cut longer inputs to so many tokens, special tokens included.
        seed: seed of the random choice.
        vocab_size: rows of the model's embedding matrix, to check token ids against.

    Returns:
        The tokenizer's columns, length and example_id (row in the source); and the sha256, in hex,
        of the texts used.

    Raises:
        DataError: If the source cannot be read, lacks a text column, or has rows without text.
    """
    raw = load_splits(source, task)["train"]
    check_texts(raw, task, f"{source}, split 'train'")
    rows = np.arange(len(raw))
    if max_samples is not None and max_samples < len(rows):
        rows = np.random.default_rng(seed).permutation(rows)[:max_samples]
    texts = select(raw, task, rows)
    content = fingerprint(texts)
    tokenized = tokenize(texts, tokenizer, max_seq_length, content)
    if vocab_size is not None:
        check_token_ids(tokenized, vocab_size, f"{source}, split 'train'")
    return tokenized, content
