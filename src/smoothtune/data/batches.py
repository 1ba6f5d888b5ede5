"""Batches of tokenized examples: which rows, and how they are padded."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch.utils.data import Sampler
from transformers import (
    DataCollatorForTokenClassification,
    DataCollatorWithPadding,
    PreTrainedTokenizerBase,
)
from transformers.trainer_pt_utils import get_length_grouped_indices


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
        """Make a batch: token columns (B, T); labels (B,), or (B, T); `example_id` (B,)."""
        columns = (*self.tokenizer.model_input_names, *self.label_columns, "example_id")
        rows = [{key: row[key] for key in columns if key in row} for row in examples]
        pad = self.padding(self.tokenizer, pad_to_multiple_of=self.pad_to_multiple_of)
        return dict(pad(rows))


class LengthGroupedSampler(Sampler[int]):
    """Row numbers in batches of similar length, the batches in random order.

    The batch with the longest row comes first, so that out-of-memory errors show at once; an
    incomplete batch comes last. transformers' sampler of the same name ends training
    on the shortest rows; and it draws from the global generator, so that the order changes where a
    run is resumed within an epoch, or a method draws random numbers.
    """

    def __init__(self, lengths: Sequence[int], batch_size: int, seed: int) -> None:
        """Group rows by their `lengths` in tokens; `seed` and the epoch decide the order."""
        self.lengths, self.batch_size, self.seed = list(lengths), batch_size, seed
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Called by the training loop before each epoch, counted from 0."""
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.lengths)

    def __iter__(self) -> Iterator[int]:
        seed = np.random.SeedSequence([self.seed, self.epoch]).generate_state(1).item()
        generator = torch.Generator().manual_seed(seed)
        rows = get_length_grouped_indices(self.lengths, self.batch_size, generator=generator)
        full = len(rows) // self.batch_size
        shuffled = torch.randperm(full, generator=generator).tolist()
        for batch in [*sorted(shuffled, key=lambda number: number != 0), full]:
            yield from rows[batch * self.batch_size : (batch + 1) * self.batch_size]
