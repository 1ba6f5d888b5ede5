import pickle
from typing import Any

import numpy as np
import pytest
from datasets import Dataset
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from helpers.hub_server import WORDS, make_tokenizer
from smoothtune.data import lazy_tokenizing
from smoothtune.data.arrow import numbers
from smoothtune.data.columns import fingerprint, select_texts
from smoothtune.data.lazy_tokenizing import lazily_tokenized, should_tokenize_lazily
from smoothtune.data.tokenizing import encoded_rows, text_encoder
from smoothtune.errors import DataError

TEXTS = [
    "the cat",
    " the  cat sat on the mat .",
    "a",
    "cats   ran ",
    "the dog-dog sat.",
    " ",
    "\tran",
]
LABELS = np.arange(7)


def byte_level() -> PreTrainedTokenizerFast:
    """As GPT-2's: words hold the blank in front of them."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("t", "h"), ("th", "e"), ("Ġ", "the"), ("Ġ", "c"), ("Ġc", "at"), ("a", "t")]
    vocabulary = {token: number for number, token in enumerate([*letters, *map("".join, merges)])}
    level = Tokenizer(models.BPE(vocabulary, merges))
    level.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    level.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=level, eos_token="Ġthe")


def across_blanks() -> PreTrainedTokenizerFast:
    """Two words that stand together are one token."""
    words = {word: number for number, word in enumerate(["[UNK]", *WORDS, "the_cat"])}
    level = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    level.normalizer = normalizers.Replace("the cat", "the_cat")
    level.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=level, unk_token="[UNK]")


def prepared(
    tokenizer: PreTrainedTokenizerBase, *, pair: bool = False, **options: Any
) -> tuple[Dataset | None, Dataset]:
    """Rows made when they are read, and all at once."""
    raw = Dataset.from_dict({"text": TEXTS, "other": TEXTS[::-1]})
    examples = select_texts(raw, ["text", "other"] if pair else ["text"], LABELS[::-1], LABELS)
    encoder = text_encoder(examples, tokenizer, 8)
    given = {"vocab_size": None, "where": "rows.csv"} | options
    found = lazily_tokenized(examples, encoder, tokenizer, 8, **given)
    return found, encoded_rows(examples, encoder, tokenizer, fingerprint(examples))


@pytest.mark.parametrize("pair", [False, True])
def test_rows_are_those_of_tokenizing_at_once(pair: bool) -> None:
    found, expected = prepared(make_tokenizer(), pair=pair)
    assert found is not None
    assert [found[row] for row in range(7)] == expected.to_list()
    assert found.__getitems__([5, 0]) == [expected[5], expected[0]]
    for name in ("length", "cut", "labels", "example_id"):
        assert numbers(found, name).tolist() == expected[name][:]


def test_blanks_that_belong_to_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lazy_tokenizing, "CHECKED", 1)  # it does not depend on what is checked
    found, expected = prepared(byte_level())
    assert found is not None
    assert list(found) == expected.to_list()


def test_tokens_of_several_words_are_tokenized_at_once() -> None:
    assert prepared(across_blanks())[0] is None


def test_no_rows_are_tokenized_before_they_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lazy_tokenizing, "CHECKED", 1)
    tokenizer, calls = make_tokenizer(), []
    raw = Dataset.from_dict({"text": [f"the cat {'sat ' * (row % 3)}" for row in range(500)]})
    examples = select_texts(raw, ["text"], np.arange(500))
    plain = type(tokenizer).__call__

    def counted(self: Any, texts: list[str], **options: Any) -> Any:
        calls.extend(texts)
        return plain(self, texts, **options)

    monkeypatch.setattr(type(tokenizer), "__call__", counted)
    encoder = text_encoder(examples, tokenizer, 8)
    rows = lazily_tokenized(examples, encoder, tokenizer, 8, vocab_size=None, where="")
    assert rows is not None
    assert len(calls) < 10
    assert len(rows[[7, 9]]["input_ids"]) == 2
    assert len(calls) < 12


def test_tokens_of_another_model_are_refused_when_they_are_read() -> None:
    found, _ = prepared(make_tokenizer(), vocab_size=7)
    assert found is not None
    with pytest.raises(DataError, match="rows.csv, row 6: token id 10 is not below"):
        found[0]
    assert found[4]["input_ids"] == [2, 6, 3]


def test_rows_can_be_sent_to_other_processes() -> None:
    found, expected = prepared(make_tokenizer())
    assert pickle.loads(pickle.dumps(found))[1] == expected[1]


@pytest.mark.parametrize(
    ("rows_read", "rows", "few"),
    [(None, 10**6, False), (2000, 20_000, True), (2001, 20_000, False), (1, 19_999, False)],
)
def test_few_of_many(rows_read: int | None, rows: int, few: bool) -> None:
    assert should_tokenize_lazily(rows_read, rows) == few
