"""Tokenizing texts and pairs of texts, and what can go wrong there."""

import hashlib
from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import datasets
import numpy as np
from datasets import Dataset
from datasets.fingerprint import Hasher
from transformers import PreTrainedTokenizerBase

from smoothtune.data.checks import DataError
from smoothtune.data.sources import progress_bars

LARGE = 20_000
"""Rows from which tokenizing takes long enough for a progress bar and a cached result."""
TEXTS = ("text", "text_pair")
"""Columns of the text, or of the two texts, to tokenize."""


def tokenize(
    texts: Dataset, tokenizer: PreTrainedTokenizerBase, max_seq_length: int, content: str
) -> Dataset:
    """Tokenizes a split without padding; a large one is kept in the cache folder of `datasets`.

    Args:
        texts: column text, for pairs text_pair too, and columns to keep.
        tokenizer: the model's tokenizer.
        max_seq_length: cut to so many tokens, special tokens included.
        content: fingerprint of `texts`, part of the cache's key.

    Returns:
        The tokenizer's columns and `length` in place of the texts.

    Raises:
        ValueError: If the tokenizer has nothing to put between the two texts of a pair.
    """

    def encode(rows: Mapping[str, list[str]]) -> dict[str, Any]:
        encoded = _encode(rows, tokenizer, max_seq_length)
        return encoded | {"length": [len(ids) for ids in encoded["input_ids"]]}

    # A call leaves its settings in the tokenizer: after it, every run hashes the same state.
    encode(texts[:1])
    state = Hasher.hash(tokenizer)
    key = hashlib.sha256(f"{content} {state} {max_seq_length}".encode()).hexdigest()
    large = len(texts) >= LARGE
    with progress_bars(shown=large):
        return texts.map(
            encode,
            batched=True,
            remove_columns=[column for column in TEXTS if column in texts.column_names],
            keep_in_memory=not large,
            cache_file_name=_cache_file(key) if large else None,
            load_from_cache_file=large,
            new_fingerprint=key,
            desc="Tokenizing",
        )


def _encode(
    rows: Mapping[str, list[str]], tokenizer: PreTrainedTokenizerBase, max_seq_length: int | None
) -> dict[str, list[list[int]]]:
    """Tokenizes texts, or pairs of texts, cut to a length where one is given."""
    texts = [list(rows[column]) for column in TEXTS if column in rows]
    specials = tokenizer.num_special_tokens_to_add(pair=True)
    if len(texts) == 2 and specials == tokenizer.num_special_tokens_to_add(pair=False):
        if tokenizer.eos_token is None:
            raise ValueError(
                "the tokenizer puts no separator between the two texts of a pair and has no "
                "eos_token to use instead: set tokenizer.eos_token"
            )
        # In front of the second text, where cutting from the right keeps it.
        texts[1] = [tokenizer.eos_token + text for text in texts[1]]
    encoded = tokenizer(
        *texts, truncation=max_seq_length is not None, max_length=max_seq_length, verbose=False
    )
    return {name: encoded[name] for name in tokenizer.model_input_names if name in encoded}


def _cache_file(key: str) -> str:
    folder = Path(datasets.config.HF_DATASETS_CACHE) / "smoothtune"
    folder.mkdir(parents=True, exist_ok=True)
    return str(folder / f"tokenized-{key}.arrow")


def count_truncated(
    texts: Dataset, tokenized: Dataset, tokenizer: PreTrainedTokenizerBase, max_seq_length: int
) -> int:
    """Counts the examples that were cut; only those that fill the length are tokenized again.

    Args:
        texts: the split before `tokenize`.
        tokenized: the split after it.
        tokenizer: the model's tokenizer.
        max_seq_length: the length they were cut to.

    Returns:
        Number of examples with more tokens than `max_seq_length`.
    """
    full = np.flatnonzero(np.asarray(tokenized["length"][:]) >= max_seq_length)
    if not len(full):
        return 0
    uncut = _encode(texts.select(full, keep_in_memory=True)[:], tokenizer, None)
    return sum(len(ids) > max_seq_length for ids in uncut["input_ids"])


def check_token_ids(tokenized: Dataset, vocab_size: int, where: str) -> None:
    """Checks that the model has an embedding for every token.

    Args:
        tokenized: a split from `tokenize`.
        vocab_size: rows of the model's embedding matrix.
        where: source and split, for the error.

    Raises:
        DataError: If a token id is not below `vocab_size`; it names the row in the source.
    """
    ids = np.fromiter(chain.from_iterable(tokenized["input_ids"][:]), np.int64)
    too_large = np.flatnonzero(ids >= vocab_size)
    if not len(too_large):
        return
    position = too_large[0]
    ends = np.cumsum(tokenized["length"][:])
    row = tokenized["example_id"][int(np.searchsorted(ends, position, side="right"))]
    raise DataError(
        f"{where}, row {row}: token id {ids[position]} is not below the model's vocabulary size "
        f"{vocab_size}: the tokenizer is another model's, or the embeddings need "
        "model.resize_token_embeddings(len(tokenizer))"
    )
