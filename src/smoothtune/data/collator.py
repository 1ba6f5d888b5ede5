"""Batches of tokenized examples."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import (
    DataCollatorForTokenClassification,
    DataCollatorWithPadding,
    PreTrainedTokenizerBase,
)


@dataclass
class Collator:
    """Batches examples, padded to the longest on the tokenizer's `padding_side`.

    The batch holds the tokenizer's columns, labels and `example_id`, each a tensor (B, ...).
    The tokenizer needs a pad token; for a decoder without one set
    ``tokenizer.pad_token = tokenizer.eos_token`` and ``model.config.pad_token_id`` alike.
    """

    tokenizer: PreTrainedTokenizerBase
    """Tokenizer that pads."""
    pad_to_multiple_of: int | None = field(
        default_factory=lambda: 8 if torch.cuda.is_available() else None
    )
    """Round the length up to a multiple; default 8 with CUDA (for tensor cores), else None."""
    label_columns: tuple[str, ...] = ("labels",)
    """Columns with labels."""
    padding: type[DataCollatorWithPadding | DataCollatorForTokenClassification] = (
        DataCollatorWithPadding
    )
    """transformers' collator to pad with; that for token classification also pads the labels."""

    def __call__(self, examples: Sequence[Mapping[str, Any]]) -> dict[str, torch.Tensor]:
        """Make a batch.

        Args:
            examples: rows of a tokenized split.

        Returns:
            Tensor by column: token columns (B, T); labels (B,), or (B, T) with one per token;
            `example_id` (B,) if the rows have it.
        """
        kept = (*self.tokenizer.model_input_names, *self.label_columns, "example_id")
        rows = [{key: row[key] for key in kept if key in row} for row in examples]
        pad = self.padding(self.tokenizer, pad_to_multiple_of=self.pad_to_multiple_of)
        return dict(pad(rows))
