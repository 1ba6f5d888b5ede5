"""Length-grouped batches: every row once, similar lengths together, in an order without a trend."""

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr

from smoothtune.data.batches import LengthGroupedSampler

LENGTHS = np.random.default_rng(0).integers(5, 200, 1003).tolist()


def batches(sampler, size):
    rows = list(sampler)
    return [rows[start : start + size] for start in range(0, len(rows), size)]


@pytest.mark.parametrize("rows", [1, 7, 8, 9, 16, 1000, 1003])
def test_every_row_comes_once(rows):
    assert sorted(LengthGroupedSampler(LENGTHS[:rows], 8, seed=3)) == list(range(rows))


def test_the_rows_of_a_batch_have_similar_lengths():
    ranges = [
        np.ptp([LENGTHS[row] for row in batch])
        for batch in batches(LengthGroupedSampler(LENGTHS, 8, seed=3), 8)
    ]
    assert np.median(ranges) < 0.1 * np.ptp(LENGTHS)


def test_batches_come_in_random_order_and_not_from_long_to_short():
    """Sorted within groups of batches, as transformers' sampler does, the trend is below -0.2."""
    trends = []
    for epoch in range(40):
        sampler = LengthGroupedSampler(LENGTHS[:1000], 8, seed=3)
        sampler.set_epoch(epoch)
        means = [np.mean([LENGTHS[row] for row in batch]) for batch in batches(sampler, 8)][1:]
        trends.append(spearmanr(range(len(means)), means).statistic)
    assert abs(np.mean(trends)) < 4 / np.sqrt(40 * 124)


def test_the_longest_row_comes_in_the_first_batch_and_the_rest_in_the_last():
    found = batches(LengthGroupedSampler(LENGTHS, 8, seed=3), 8)
    assert max(LENGTHS) in [LENGTHS[row] for row in found[0]]
    assert [len(batch) for batch in found] == [8] * 125 + [3]


def test_order_follows_from_seed_and_epoch_alone():
    first, again, other = (LengthGroupedSampler(LENGTHS, 8, seed=seed) for seed in (3, 3, 4))
    order = list(first)
    torch.rand(1)
    assert order == list(first) == list(again) != list(other)
    again.set_epoch(1)
    assert order != list(again)
