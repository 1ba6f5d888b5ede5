"""Long contexts as overlapping windows, with the token positions of the answer.

A window is a row with the question and as much of the context as fits. A token is part of an
answer if it covers any of its characters, so an answer that begins or ends inside a token is
widened to whole tokens. Where a window does not hold the whole answer, its target is the first
special token, as in transformers' question-answering example.
"""

from collections import defaultdict
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from tokenizers import Encoding
from transformers import PreTrainedTokenizerBase

from smoothtune.data.tokenizing import Encoder, check_offsets
from smoothtune.errors import DataError

MIN_CACHED_QUESTIONS = 2_000
"""Number of questions from which tokenizing shows a progress bar and is cached."""


class TokenSpan(NamedTuple):
    """First and last token of an answer, and whether tokens of the window cover all of it."""

    start: int
    end: int
    is_complete: bool


def window_encoder(
    tokenizer: PreTrainedTokenizerBase, max_seq_length: int, doc_stride: int
) -> Encoder:
    """Encodes questions with windows of their contexts, of which two share `doc_stride` tokens.

    From columns question, context, answers (texts), answer_start (characters) and example_id to
    the tokenizer's columns; start_positions and end_positions of the first answer, and
    holds_answer, whether it is in the window; cls_index; context_start, the first token of the
    context; offset_start and offset_end, the characters of each token of the context; length; cut,
    whether the context has other windows; context, in the first window alone, since a long one has
    hundreds; answers and example_id.

    Raises:
        DataError: when encoding, if a question leaves too little room for the context.
        ModelError: the tokenizer gives no offsets, or pads on the left.
    """
    check_offsets(tokenizer, "question-answering")
    return Encoder(
        lambda batch: _encode(batch, tokenizer, doc_stride, max_seq_length),
        f"windows, the context in the first {max_seq_length} {doc_stride}",
        MIN_CACHED_QUESTIONS,
        arrow=True,
    )


def _encode(
    batch: pa.Table, tokenizer: PreTrainedTokenizerBase, doc_stride: int, max_seq_length: int
) -> pa.Table:
    columns = batch.to_pydict()
    source, windows = _windows(columns, tokenizer, doc_stride, max_seq_length)
    is_first = [i == 0 or source[i] != source[i - 1] for i in range(len(source))]
    is_last = [*is_first[1:], True]
    targets = defaultdict[str, list](list)
    for i, window in enumerate(windows):
        first, begins, ends = context_offsets(window)
        cls_index = _cls_index(window, tokenizer)
        texts, starts = columns["answers"][source[i]], columns["answer_start"][source[i]]
        span = TokenSpan(0, 0, False)
        if texts:
            edges = {"at_start": is_first[i], "at_end": is_last[i]}
            span = locate(texts[0], starts[0], begins, ends, **edges)
        targets["start_positions"].append(first + span.start if span.is_complete else cls_index)
        targets["end_positions"].append(first + span.end if span.is_complete else cls_index)
        targets["holds_answer"].append(span.is_complete)
        targets["cls_index"].append(cls_index)
        targets["context_start"].append(first)
        targets["offset_start"].append(begins)
        targets["offset_end"].append(ends)
        targets["length"].append(len(window.ids))
        targets["cut"].append(not (is_first[i] and is_last[i]))
    inputs = {
        name: _arrow([np.array(getattr(window, _FIELDS[name]), np.int32) for window in windows])
        for name in tokenizer.model_input_names
        if name in _FIELDS
    }
    numbers = {name: _arrow(values) for name, values in targets.items()}
    rows = zip(source, is_first, strict=True)
    contexts = {"context": [columns["context"][row] if first else "" for row, first in rows]}
    repeated = {name: batch[name].take(pa.array(source)) for name in ("answers", "example_id")}
    return pa.table(inputs | numbers | contexts | repeated)


_FIELDS = {"input_ids": "ids", "token_type_ids": "type_ids", "attention_mask": "attention_mask"}


def _windows(
    columns: dict[str, list], tokenizer: PreTrainedTokenizerBase, doc_stride: int, length: int
) -> tuple[list[int], list[Encoding]]:
    """The row of each window, and the windows, equal to those from calling the tokenizer.

    A context that many questions share is tokenized once and cut into windows for each of them.
    """
    backend = tokenizer.backend_tokenizer
    contexts = list(dict.fromkeys(columns["context"]))
    backend.no_padding()
    backend.no_truncation()
    questions = [text.lstrip() for text in columns["question"]]
    encoded = backend.encode_batch(questions, add_special_tokens=False)
    room = length - doc_stride - tokenizer.num_special_tokens_to_add(pair=True)
    for row, question in zip(columns["example_id"], encoded, strict=True):
        if len(question.ids) >= room:
            raise DataError(
                f"row {row}: the question has {len(question.ids)} tokens, so windows of "
                f"max_seq_length {length} leave the context no more than doc_stride {doc_stride}; "
                "raise max_seq_length or lower doc_stride"
            )
    # As second texts of pairs, so that all windows get the right token types.
    seconds = [("", context) for context in contexts]
    tokens = backend.encode_batch(seconds, add_special_tokens=False)
    tokens_of = dict(zip(contexts, tokens, strict=True))
    backend.enable_truncation(length, stride=doc_stride, strategy="only_second")
    source, windows = [], []
    for row, (question, context) in enumerate(zip(encoded, columns["context"], strict=True)):
        first = backend.post_process(question, tokens_of[context])
        parts = [first, *first.overflowing]
        source += [row] * len(parts)
        windows += parts
    return source, windows


def _arrow(values: list) -> pa.Array:
    if not isinstance(values[0], np.ndarray):
        return pa.array(values)
    ends = np.cumsum([0, *map(len, values)])
    return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), pa.array(np.concatenate(values)))


def context_offsets(window: Encoding) -> tuple[int, np.ndarray, np.ndarray]:
    """The first token of the context; (n,) the first character of each of its tokens; (n,) ends."""
    sequences = window.sequence_ids
    if 1 not in sequences:
        return len(sequences), *np.empty((2, 0), np.int32)
    first = sequences.index(1)
    count = sequences.count(1)
    offsets = np.array(window.offsets[first : first + count], np.int32)
    return first, offsets[:, 0].copy(), offsets[:, 1].copy()


def locate(
    text: str,
    start: int,
    begins: np.ndarray,
    ends: np.ndarray,
    *,
    at_start: bool = True,
    at_end: bool = True,
) -> TokenSpan:
    """The fewest tokens that cover an answer, without spaces at its ends.

    Args:
        text: the answer.
        start: its first character in the context.
        begins: (n,) first character of each token of the window's part of the context.
        ends: (n,) the character after the last one of each token.
        at_start: whether the window begins where the context does.
        at_end: whether it ends where the context does.

    >>> locate("ow", 3, np.array([0, 2, 5]), np.array([1, 5, 6]))  # inside "low"
    TokenSpan(start=1, end=1, is_complete=True)
    """
    begin = start + len(text) - len(text.lstrip())
    end = start + len(text.rstrip())
    first = int(np.searchsorted(ends, begin, side="right"))
    last = int(np.searchsorted(begins, end, side="left")) - 1
    # Characters without a token, such as spaces, may precede the first and follow the last token.
    is_complete = first <= last and (at_start or begin >= begins[0]) and (at_end or end <= ends[-1])
    return TokenSpan(first, last, bool(is_complete))


def _cls_index(window: Encoding, tokenizer: PreTrainedTokenizerBase) -> int:
    """Position of the no-answer token: the tokenizer's cls token, else 0."""
    cls = tokenizer.cls_token_id
    return window.ids.index(cls) if cls is not None and cls in window.ids else 0
