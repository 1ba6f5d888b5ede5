"""Tokenizing texts and pairs of texts, with a cache, and a check of the token ids."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from itertools import compress
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.compute
from datasets import Dataset
from datasets.fingerprint import Hasher
from transformers import PreTrainedTokenizerBase

from smoothtune.console import progress_bars
from smoothtune.data.cache import cache_with_room
from smoothtune.data.columns import TEXTS
from smoothtune.errors import DataError, ModelError

MIN_CACHED_ROWS = 20_000
"""Number of rows from which tokenizing shows a progress bar and is cached."""
ENCODED_BY = ("smoothtune", "transformers", "tokenizers")
"""Packages of which another version may make other rows."""


@dataclass(frozen=True)
class Encoder:
    """How the examples of a task become rows of tokens."""

    encode: Callable[[Any], Any]
    """From a batch of examples, a mapping of lists, to columns of rows."""
    settings: str
    """All but examples and tokenizer that decides the result; part of the cache's key."""
    min_cached: int
    """Number of examples from which tokenizing shows a progress bar and is cached."""
    arrow: bool = False
    """`encode` takes and returns a `pyarrow.Table`."""


def encoded_rows(
    examples: Dataset,
    encoder: Encoder,
    tokenizer: PreTrainedTokenizerBase,
    content: str,
    num_proc: int | None = None,
) -> Dataset:
    """Encode examples batch by batch; the rows of a large split are cached by `datasets`.

    The tokenizer, which `encoder` uses, `content`, the fingerprint of the examples, and the
    versions of `ENCODED_BY` are parts of the cache's key. `num_proc`: processes; None: this one,
    with the threads of the tokenizer.
    """
    examples = examples.with_format("arrow" if encoder.arrow else None)
    cached = len(examples) >= encoder.min_cached
    state = f"{encoder.settings} {content}"
    if cached:  # else the key names nothing, and hashing a tokenizer takes a second
        encoder.encode(examples[:1])  # changes its settings: all runs hash the same state
        state += f" {Hasher.hash(tokenizer)} {[version(name) for name in ENCODED_BY]}"
    # datasets adds the number of the process, and allows 64 characters
    key = hashlib.sha256(state.encode()).hexdigest()[:40]
    with progress_bars(shown=cached), cache_with_room():
        rows = examples.map(
            encoder.encode,
            batched=True,
            remove_columns=[x for x in examples.column_names if x not in ("labels", "example_id")],
            keep_in_memory=not cached,
            cache_file_name=_cache_file(key) if cached else None,
            load_from_cache_file=cached,
            new_fingerprint=key,
            num_proc=num_proc if cached else None,
            desc="Tokenizing",
        )
    return rows.with_format(None)


def text_encoder(tokenizer: PreTrainedTokenizerBase, max_seq_length: int) -> Encoder:
    """Encodes texts or pairs of texts, see `encode_texts`."""
    return Encoder(
        partial(_encode, tokenizer=tokenizer, max_seq_length=max_seq_length),
        f"texts {max_seq_length}",
        MIN_CACHED_ROWS,
    )


def _encode(
    batch: Mapping[str, list[str]], tokenizer: PreTrainedTokenizerBase, max_seq_length: int
) -> dict[str, list]:
    texts = [list(batch[column]) for column in TEXTS if column in batch]
    specials = tokenizer.num_special_tokens_to_add(pair=True)
    if len(texts) == 2 and specials == tokenizer.num_special_tokens_to_add(pair=False):
        if tokenizer.eos_token is None:
            raise ValueError(
                "the tokenizer puts no separator between the two texts of a pair and has no "
                "eos_token to use instead: set tokenizer.eos_token"
            )
        # In front of the second text, where truncation on the right keeps it.
        texts[1] = [tokenizer.eos_token + text for text in texts[1]]
    return encode_texts(texts, tokenizer, max_seq_length)


def encode_texts(
    texts: Sequence[list[str]], tokenizer: PreTrainedTokenizerBase, max_seq_length: int
) -> dict[str, list]:
    """Tokenize one list of texts, or the first and the second texts of pairs.

    Returns:
        The tokenizer's columns, `length` (tokens, special ones included), and `cut` (whether a text
        was truncated).
    """
    encoded = tokenizer(*texts, truncation=True, max_length=max_seq_length, verbose=False)
    columns = {name: encoded[name] for name in tokenizer.model_input_names if name in encoded}
    lengths = [len(ids) for ids in encoded["input_ids"]]
    if encoded.encodings is not None:
        cut = [bool(encoding.overflowing) for encoding in encoded.encodings]
    else:  # a tokenizer that does not keep what it cuts off
        full = [length >= max_seq_length for length in lengths]
        uncut = (
            tokenizer(*row, verbose=False)["input_ids"]
            for row in compress(zip(*texts, strict=True), full)
        )
        cut = [is_full and len(next(uncut)) > max_seq_length for is_full in full]
    return columns | {"length": lengths, "cut": cut}


def check_offsets(tokenizer: PreTrainedTokenizerBase, task_type: str) -> None:
    """Raise `ModelError` unless tokens have places in the text, and from the left in a batch."""
    if not tokenizer.is_fast or tokenizer.padding_side != "right":
        raise ModelError(
            f"{task_type} needs a tokenizer of the tokenizers library (a fast one) that pads on "
            f"the right, not {type(tokenizer).__name__}, padding_side={tokenizer.padding_side!r}"
        )


def _cache_file(key: str) -> str:
    folder = Path(datasets.config.HF_DATASETS_CACHE) / "smoothtune"
    folder.mkdir(parents=True, exist_ok=True)
    return str(folder / f"tokenized-{key}.arrow")


def check_token_ids(tokenized: Dataset, vocab_size: int, where: str) -> None:
    """Raise `DataError` if a token id is not below the model's `vocab_size`."""
    if _largest(tokenized.data.column("input_ids")) < vocab_size:
        return
    for ids, row in zip(tokenized["input_ids"], tokenized["example_id"], strict=True):
        largest = _largest(pa.array([ids]))
        if largest >= vocab_size:
            raise DataError(
                f"{where}, row {row}: token id {largest} is not below the model's vocabulary size "
                f"{vocab_size}: the tokenizer is another model's, or the embeddings need "
                "model.resize_token_embeddings(len(tokenizer))"
            )


def _largest(ids: pa.Array | pa.ChunkedArray) -> int:
    """The largest number in nested lists."""
    return pa.compute.max(pa.compute.list_flatten(ids, recursive=True)).as_py() or 0
