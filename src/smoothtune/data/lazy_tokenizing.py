"""Rows that are tokenized when they are read, where training reads few of many.

The order of the batches depends on the length of every row. A tokenizer that splits texts at blanks
before anything else gives a text as many tokens as its words have together, and there are far fewer
different words than rows. Whether it does so is checked on some rows, by tokenizing them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset
from transformers import PreTrainedTokenizerBase

from smoothtune.data.arrow import stored_column
from smoothtune.data.columns import TEXTS
from smoothtune.data.tokenizing import MIN_CACHED_ROWS, Encoder, check_ids

CHECKED = 1000
"""Rows drawn at random, and as many of the longest ones, that are tokenized to check lengths."""
TOGETHER = 50_000
"""Rows whose different words are looked up together."""
FEW = 0.1
"""Share of the rows that training reads at most, if they are tokenized when they are read."""


@dataclass(frozen=True)
class Tokenize:
    """From examples with their stored lengths to rows, as `encoded_rows` gives them."""

    encoder: Encoder
    vocab_size: int | None
    """Rows of the model's embedding matrix, to check token ids against."""
    where: str
    """Source and split, for the error."""

    def __call__(self, examples: Mapping[str, list[Any]]) -> dict[str, list[Any]]:
        """Tokenize some examples.

        Raises:
            DataError: a token id is not below `vocab_size`.
        """
        encoded = self.encoder.encode(examples)
        if self.vocab_size is not None:
            rows = zip(encoded["input_ids"], examples["example_id"], strict=True)
            for ids, row in rows:
                check_ids(max(ids, default=0), self.vocab_size, f"{self.where}, row {row}")
        kept = {name: values for name, values in examples.items() if name not in TEXTS}
        return kept | encoded


def should_tokenize_lazily(rows_read: int | None, rows: int) -> bool:
    """Whether tokenizing all rows would be most of the work."""
    return rows_read is not None and rows >= MIN_CACHED_ROWS and rows_read <= FEW * rows


def lazily_tokenized(
    examples: Dataset,
    encoder: Encoder,
    tokenizer: PreTrainedTokenizerBase,
    max_seq_length: int,
    *,
    vocab_size: int | None,
    where: str,
) -> Dataset | None:
    """Rows that are tokenized when they are read; None if their lengths are not known before.

    Args:
        examples: columns text, for pairs text_pair too, example_id, and labels if there are any.
        encoder: of `text_encoder`.
        tokenizer: the one that `encoder` uses.
        max_seq_length: the one of `encoder`.
        vocab_size: rows of the model's embedding matrix, to check token ids against; None: do not.
        where: source and split, for the error.

    Returns:
        As `encoded_rows`. Its stored columns, see `smoothtune.data.arrow.numbers`, are those
        without tokens: length, cut, example_id and labels.
    """
    if not tokenizer.is_fast:
        return None
    columns = [name for name in TEXTS if name in examples.column_names]
    words = WordCounts(tokenizer)
    totals = np.full(len(examples), tokenizer.num_special_tokens_to_add(pair=len(columns) == 2))
    for name in columns:
        totals += words.of_texts(stored_column(examples, name))
    lengths, cut = np.minimum(totals, max_seq_length), totals > max_seq_length
    drawn = np.random.default_rng(0).integers(len(totals), size=CHECKED)
    checked = np.union1d(drawn, np.argsort(totals)[-CHECKED:])
    found = encoder.encode(examples.select(checked, keep_in_memory=True)[:])
    same = np.array_equal(found["length"], lengths[checked])
    if not same or not np.array_equal(found["cut"], cut[checked]):
        return None
    rows = examples.add_column("length", lengths).add_column("cut", cut)
    return rows.with_transform(Tokenize(encoder, vocab_size, where))


class WordCounts:
    """Numbers of tokens of texts, from those of the words between their blanks."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        """Count the tokens that this tokenizer makes."""
        self.tokenizer = tokenizer
        self.known: dict[str, int] = {}

    def of_texts(self, texts: pa.ChunkedArray) -> np.ndarray:
        """(N,) int64 tokens of every text, special ones not counted."""
        parts = (texts.slice(start, TOGETHER) for start in range(0, len(texts), TOGETHER))
        return np.concatenate([self._of_chunk(part.combine_chunks()) for part in parts])

    def _of_chunk(self, texts: pa.Array) -> np.ndarray:
        words = pc.split_pattern(texts, " ")
        first = pc.list_element(words, 0)
        starts = words.offsets.to_numpy().astype(np.int64)
        before = np.concatenate([[0], self._of_words(words.flatten(), " ").cumsum()])
        total = before[starts[1:] - starts[0]] - before[starts[:-1] - starts[0]]
        return total - self._of_words(first, " ") + self._of_words(first, "")

    def _of_words(self, words: pa.Array, blank: str) -> np.ndarray:
        """(M,) int64 tokens of words that follow a blank, or begin a text."""
        encoded = words.dictionary_encode()
        different = [blank + word for word in encoded.dictionary.to_pylist()]
        new = [word for word in different if word not in self.known]
        self.known.update(zip(new, self._tokenized(new), strict=True))
        counts = np.array([self.known[word] for word in different], dtype=np.int64)
        return counts[encoded.indices.to_numpy()]

    def _tokenized(self, texts: Sequence[str]) -> list[int]:
        if not texts:
            return []
        ids = self.tokenizer(list(texts), add_special_tokens=False, verbose=False)["input_ids"]
        return [len(each) for each in ids]
