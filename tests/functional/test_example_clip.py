"""The bound on one example against its recursion, written out."""

import math

import pytest
import torch

from smoothtune.functional.example_clip import ExampleClip

UPDATES = [  # of batches of values
    [[2.0, 8.0], [4.0]],
    [[1.0, 1e6, 3.0]],
    [[5.0], [40.0, 0.0]],
    [[6.0, 2.0, 1.0, 70.0]],
]


def literal(updates, multiple):
    """The factors of every batch, and the means after every update."""
    mean, factors, means = None, [], []
    for t, batches in enumerate(updates, 1):
        for batch in batches:
            bounds = [multiple * mean / v if mean and v else math.inf for v in batch]
            factors.append(
                [min(1.0, b) if mean and v else 0.0 for b, v in zip(bounds, batch, strict=True)]
            )
        values = [v for batch in batches for v in batch if v > 0]
        if mean is None:
            mean = math.prod(values) ** (1 / len(values))
        else:
            now = sum(min(v, multiple * mean) for v in values) / len(values)
            mean = mean + max(0.1, 1 / t) * (now - mean)
        means.append(mean)
    return factors, means


@pytest.mark.parametrize("multiple", [1.5, 10.0])
def test_the_recursion(multiple):
    clip, factors, means = ExampleClip(multiple), [], []
    for batches in UPDATES * 4:
        for batch in batches:
            factors.append(clip.factors(torch.tensor(batch, dtype=torch.float64)).tolist())
        clip.finish(torch.device("cpu"))
        means.append(clip.mean.item())
    expected, expected_means = literal(UPDATES * 4, multiple)
    for one, other in zip(factors, expected, strict=True):
        assert one == pytest.approx(other)
    assert means == pytest.approx(expected_means)


def test_one_value_moves_the_mean_little_and_many_fast():
    clip = ExampleClip(10.0)
    for _ in range(20):
        clip.factors(torch.ones(8))
        clip.finish(torch.device("cpu"))
    clip.factors(torch.tensor([1.0] * 7 + [1e9]))
    clip.finish(torch.device("cpu"))
    assert 1 < clip.mean < 1.2
    for _ in range(10):
        clip.factors(torch.full((8,), 1000.0))
        clip.finish(torch.device("cpu"))
    assert clip.mean > 300


def test_updates_without_values_leave_the_mean():
    clip = ExampleClip(2.0)
    clip.factors(torch.tensor([3.0, 0.0]))
    clip.finish(torch.device("cpu"))
    clip.finish(torch.device("cpu"))
    clip.factors(torch.zeros(2))
    clip.finish(torch.device("cpu"))
    assert (clip.mean.item(), clip.count.item()) == (pytest.approx(3.0), 1)


def test_state_round_trip():
    clip, other = ExampleClip(3.0), ExampleClip(3.0)
    for values in ([1.0, 2.0], [5.0, 100.0]):
        clip.factors(torch.tensor(values))
        clip.finish(torch.device("cpu"))
    other.load_state_dict(clip.state_dict())
    for one in (clip, other):
        one.factors(torch.tensor([7.0, 50.0]))
        one.finish(torch.device("cpu"))
    assert other.mean == clip.mean
    assert other.count == 3


def test_a_value_that_is_not_finite_stays_so():
    clip = ExampleClip(3.0)
    clip.factors(torch.ones(2))
    clip.finish(torch.device("cpu"))
    values = torch.tensor([1.0, math.inf, math.nan])
    assert (clip.factors(values) * values).isfinite().tolist() == [True, False, False]
