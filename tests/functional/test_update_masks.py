"""Masks over parameters."""

from fractions import Fraction
from math import ceil

import pytest
import torch

from smoothtune.functional.update_masks import (
    PartialUpdate,
    keep_probabilities,
    over,
    saliencies,
    top_fraction,
)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("taylor", [3 * torch.finfo(torch.float64).max ** 0.75, 0.0, 1.0, 0.0]),
        ("grad", [3.0, 0.0, 0.5, 0.0]),
        ("fisher", [9.0, 0.0, 0.25, 0.0]),
    ],
)
def test_saliencies(kind, expected):
    """|w g|, |g| and g^2; a weight at 0 with a gradient comes first by |w g|."""
    weights, gradients = ([0.0, 0.0, -2.0, 1.0], [-3.0, 0.0, 0.5, 0.0])
    tensors = [torch.tensor(x, dtype=torch.float64) for x in (weights, gradients)]
    (found,) = saliencies(tensors[:1], tensors[1:], kind)
    assert found.tolist() == expected


@pytest.mark.parametrize("n", [1, 2, 7, 10, 30, 101])
@pytest.mark.parametrize("keep", ["0.1", "0.3", "0.5", "0.9", "1"])
def test_keeps_exactly_the_fraction(n, keep):
    saliency = torch.rand(n)
    mask = top_fraction(saliency, float(keep))
    assert mask.sum() == ceil(Fraction(keep) * n)
    assert mask.all() or saliency[mask].min() >= saliency[~mask].max()


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("values", [[1.0] * 10, [1.0] * 6 + [0.0] * 4, [2.0, 1.0, 0.0, 2, 2] * 2])
def test_keeps_exactly_the_fraction_of_equal_values(values, dtype):
    found = top_fraction(torch.tensor(values, dtype=dtype), 0.4)
    first = [i for i, value in enumerate(values) if value == max(values)][:4]
    assert found.nonzero().flatten().tolist() == first


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_largest_of_different_values(dtype):
    values = torch.tensor([5.0, 1.0, 4.0, 2.0, 6.0, 3.0], dtype=dtype)
    assert top_fraction(values, 0.5).tolist() == [True, False, True, False, True, False]
    values = torch.tensor(
        [1.0, 3.0, 1.0, 2.0, 1.0, 1.0]
    )  # two above the threshold, one of four at it
    assert top_fraction(values, 0.5).tolist() == [True, True, False, True, False, False]


def test_zero_is_never_salient():
    values = torch.tensor([0.0, 2.0, 0.0, 0.0, 1.0])
    assert top_fraction(values, 0.8).tolist() == [False, True, False, False, True]
    assert top_fraction(values, 1).all()


def test_global_scope_ranks_all_tensors_together():
    values = {"a": torch.tensor([[4.0, 1.0]]), "b": torch.tensor([3.0, 2.0])}
    masks = over("global", lambda v: top_fraction(v, 0.5), values)
    assert masks["a"].tolist() == [[True, False]]
    assert masks["b"].tolist() == [True, False]
    values["b"] += 3
    assert not over("global", lambda v: top_fraction(v, 0.5), values)["a"].any()
    assert over("per_tensor", lambda v: top_fraction(v, 0.5), values)["a"].any()


def test_probabilities_follow_the_rank_and_have_the_wanted_mean():
    saliency = torch.rand(2000, dtype=torch.float64)
    p = keep_probabilities(saliency, keep=0.3, floor=0.1)
    assert p.mean().item() == pytest.approx(0.3, abs=1e-3)
    assert p.min() >= 0.1
    assert p.max() <= 1
    assert torch.equal(p.flatten().argsort(), saliency.flatten().argsort())
    assert torch.equal(keep_probabilities(saliency, keep=1.0, floor=0.1), torch.ones_like(p))


def test_part_of_an_update():
    before = torch.tensor([0.1, 0.2, 0.3, 0.7])
    after = torch.tensor([1.3, 1.1, 0.9, -0.7])
    weights = {"w": before.clone(), "untouched": torch.zeros(2)}
    update = PartialUpdate({"w": torch.tensor([0.0, 1.0, 0.5, 2.0])}, weights)
    weights["w"].copy_(after)
    update.finish()
    assert weights["w"][0] == before[0]
    assert weights["w"][1] == after[1]
    torch.testing.assert_close(weights["w"][2:], torch.tensor([0.6, -2.1]))


def test_part_of_an_update_by_a_mask():
    before, after = torch.tensor([0.1, -0.2]), torch.tensor([1.3, 1.1])
    weights = {"w": torch.nn.Parameter(before.clone())}
    update = PartialUpdate({"w": torch.tensor([False, True])}, weights)
    weights["w"].data.copy_(after)
    update.finish()
    assert weights["w"].tolist() == [before[0], after[1]]
