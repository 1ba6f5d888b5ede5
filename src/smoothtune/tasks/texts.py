"""Rows of one text, or of a pair of texts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from datasets import Dataset
from transformers import PreTrainedTokenizerBase

from smoothtune.data.columns import TEXTS, select_texts
from smoothtune.data.tokenizing import Encoder, text_encoder
from smoothtune.tasks.reader import Reader


@dataclass(frozen=True)
class TextReader(Reader):
    """One row for every example; its subclasses read the labels."""

    input_columns = TEXTS

    def check_description(self) -> None:
        """One or two text columns, and other ones for the labels."""
        texts = self.task.text_columns
        if len(texts) not in (1, 2):
            raise ValueError(f"a task reads one text column or two, not {len(texts)}: {texts}")
        if len(set(self.columns)) < len(self.columns):
            names = ", ".join(map(repr, self.columns))
            raise ValueError(f"text and label columns must be different columns: {names}")

    def select(self, raw: Dataset, indices: np.ndarray, labels: np.ndarray | None) -> Dataset:
        """Columns text, for pairs text_pair, labels if given, example_id."""
        return select_texts(raw, self.task.text_columns, indices, labels)

    def encoder(
        self, examples: Dataset, tokenizer: PreTrainedTokenizerBase, max_seq_length: int
    ) -> Encoder:
        """Texts or pairs of texts."""
        return text_encoder(examples, tokenizer, max_seq_length)
