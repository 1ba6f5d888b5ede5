"""Length-grouped batches whose order depends on seed and epoch alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch.utils.data import Sampler
from transformers.trainer_pt_utils import get_length_grouped_indices


class LengthGroupedSampler(Sampler[int]):
    """Row numbers in batches of similar length, the batches in random order.

    The batch with the longest row comes first, so that out-of-memory errors show at once; an
    incomplete batch comes last. transformers' sampler of the same name differs in two ways: its
    batches run from long to short, so that training ends on the shortest rows; and it draws from
    the global generator, so that a run resumed within an epoch sees another order than the
    interrupted one, and so that a method that draws random numbers changes the order.
    """

    def __init__(self, lengths: Sequence[int], batch_size: int, seed: int) -> None:
        """Group rows by length.

        Args:
            lengths: number of tokens of each row, (N,).
            batch_size: examples of one update.
            seed: decides the order, together with the epoch.
        """
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
