from typing import Any

import pytest
from transformers import BatchEncoding

from helpers.hub_server import make_tokenizer
from smoothtune.data.tokenizing import encode_texts

SHORT, LONG = "the cat sat", "a dog ran and the cat sat"


class KeepsNothing:
    """A tokenizer that does not say what it cut off, as those written in Python."""

    def __init__(self) -> None:
        self.tokenizer = make_tokenizer()
        self.model_input_names = self.tokenizer.model_input_names

    def __call__(self, *texts: Any, **options: Any) -> BatchEncoding:
        return BatchEncoding(dict(self.tokenizer(*texts, **options)))


@pytest.mark.parametrize(
    ("texts", "cut"),
    [([[SHORT, LONG, SHORT]], [False, True, False]), ([[SHORT, LONG], ["a", "a"]], [False, True])],
)
def test_texts_that_were_cut_are_marked(texts: list[list[str]], cut: list[bool]) -> None:
    tokenizer: Any = KeepsNothing()
    encoded = encode_texts(texts, tokenizer.tokenizer, 7)
    assert encode_texts(texts, tokenizer, 7) == encoded
    assert encoded["cut"] == cut
    assert encoded["length"] == [len(ids) for ids in encoded["input_ids"]]
