"""Neighbors and noise in their span."""

import pytest
import torch
from datasets import Dataset

from helpers.conformance import fed
from helpers.training import Rows
from smoothtune.functional.neighbors import (
    Neighbors,
    audit,
    countable,
    in_manifold,
    nearest,
    token_counts,
)


def brute_force(table, token, k):
    distance = [(sum((table[j] - table[token]) ** 2).item(), j) for j in range(len(table))]
    return [j for d, j in sorted(distance) if d > 0][:k]


def test_neighbors_equal_brute_force():
    table = torch.randn(60, 7)
    found = nearest(torch.arange(60), table, 4, chunk=13)
    assert found.tolist() == [brute_force(table.double(), i, 4) for i in range(60)]


def test_duplicates_and_the_token_itself_are_no_neighbors():
    table = torch.randn(20, 5)
    table[7] = table[3]
    found = nearest(torch.tensor([3, 7]), table, 5)
    assert not {3, 7} & set(found.flatten().tolist())
    assert torch.equal(found[0], found[1])


@pytest.mark.parametrize("scale", [0.03, 1.0, 30.0])  # that of BERT's embeddings is 0.03 to 0.05
@pytest.mark.parametrize("normalize", [True, False])
def test_noise_lies_in_the_span_and_equals_gram_schmidt(normalize, scale):
    table = scale * torch.randn(30, 12, dtype=torch.float64)
    neighbors = Neighbors(table, 4)
    ids = torch.tensor([[3, 9, 3], [0, 1, 2]])
    z = torch.randn(2, 3, 4, dtype=torch.float64)
    with fed(z):
        noise = in_manifold(ids, table, neighbors, normalize)
    for i in range(2):
        for t in range(3):
            basis = []
            for j in neighbors.of(ids[i, t]).tolist():  # classical Gram-Schmidt
                d = table[j] - table[ids[i, t]]
                for b in basis:
                    d = d - (d @ b) / (b @ b) * b
                basis.append(d / d.norm() if normalize else d)
            expected = sum(e * b for e, b in zip(z[i, t], basis, strict=True))
            torch.testing.assert_close(noise[i, t], expected, rtol=1e-4, atol=1e-5)
            space = torch.stack([table[j] - table[ids[i, t]] for j in neighbors.of(ids[i, t])]).T
            fit = space @ torch.linalg.lstsq(space, noise[i, t, :, None]).solution
            assert (noise[i, t] - fit[:, 0]).norm() < 1e-6 * noise[i, t].norm()


def test_orthonormal_noise_is_isotropic_in_the_span():
    torch.manual_seed(0)
    table = torch.randn(30, 12, dtype=torch.float64)
    neighbors = Neighbors(table, 4)
    noise = in_manifold(torch.full((1, 40000), 5), table, neighbors, True)[0]
    spectrum = torch.linalg.svdvals(noise) / 40000**0.5
    torch.testing.assert_close(spectrum[:4], torch.ones(4).double(), rtol=0.03, atol=0)
    assert spectrum[4] < 1e-6


def test_later_changes_of_the_table_do_not_move_neighbors():
    table = torch.randn(20, 4)
    neighbors = Neighbors(table, 3)
    before = nearest(torch.tensor([2]), table, 3)
    table.add_(torch.randn_like(table))
    assert torch.equal(neighbors.of(torch.tensor([2])), before)


def test_more_neighbors_than_tokens_are_refused():
    with pytest.raises(ValueError, match="more than 5 tokens"):
        Neighbors(torch.randn(5, 3), 5)


def test_rows_of_zeros_are_no_neighbors_of_each_other():
    table = torch.tensor([[0.0, 0.0], [0.0, 0.0], [3.0, 0.0], [0.0, 5.0]])
    assert nearest(torch.tensor([0, 1]), table, 2).tolist() == [[2, 3], [2, 3]]


def test_of_no_tokens():
    assert nearest(torch.empty(0, dtype=torch.long), torch.randn(5, 2), 3).shape == (0, 3)


def test_one_neighbor():
    """The noise lies on the line to it, and its length there is that of the draw."""
    table = torch.tensor([[0.0, 0.0], [3.0, 4.0], [9.0, 9.0]], dtype=torch.float64)
    neighbors = Neighbors(table, 1)
    assert neighbors.of(torch.tensor([[0, 2]])).tolist() == [[[1], [1]]]
    with fed(torch.tensor([[[0.5]]], dtype=torch.float64)):
        noise = in_manifold(torch.tensor([[0]]), table, neighbors, True)
    torch.testing.assert_close(noise, torch.tensor([[[0.3, 0.4]]]).double(), rtol=1e-5, atol=0)


def test_more_neighbors_than_dimensions():
    """The directions depend on one another, so their products have no inverse of their own."""
    table = torch.randn(12, 3, dtype=torch.float64)
    noise = in_manifold(torch.arange(12)[None], table, Neighbors(table, 8), True)
    assert torch.isfinite(noise).all()


@pytest.mark.parametrize("metric", ["l2", "cosine"])
def test_neighbors_among_candidates_equal_brute_force(metric):
    table = torch.randn(40, 5) * torch.linspace(0.1, 3, 40)[:, None]
    candidates = torch.arange(40) % 3 > 0

    def distance(i, j):
        if metric == "l2":
            return (table[i] - table[j]).norm().item()
        return -(table[i] @ table[j] / table[i].norm() / table[j].norm()).item()

    found = nearest(torch.arange(40), table, 4, candidates=candidates, metric=metric, chunk=7)
    for i in range(40):
        others = [j for j in range(40) if candidates[j] and j != i]
        assert found[i].tolist() == sorted(others, key=lambda j: distance(i, j))[:4]


def test_only_candidates_are_neighbors():
    table, some = torch.randn(30, 4), torch.arange(30) > 10
    others = [Neighbors(table, 3, candidates=some), Neighbors(table, 3, candidates=~some)]
    assert others[0].of(torch.arange(30)).min() > 10
    assert others[1].of(torch.arange(30)).max() <= 10


def test_too_few_candidates_are_refused():
    with pytest.raises(ValueError, match="k=3 .* there are 3: lower k, or min_count"):
        Neighbors(torch.randn(9, 2), 3, candidates=torch.arange(9) < 3)


def test_tokens_are_counted_in_rows_of_any_form():
    expected = [0, 3, 1, 2]
    texts = [[1, 3], [1, 2, 3, 1]]
    rows = [{"input_ids": ids, "labels": 0} for ids in texts]
    padded = [{"input_ids": torch.tensor([[1, 3, 0], [2, 3, 1]])}, {"input_ids": torch.tensor([1])}]
    assert token_counts(rows).tolist() == expected
    assert token_counts(Dataset.from_list(rows)).tolist() == expected
    assert token_counts([{"input_ids": texts}]).tolist() == expected  # multiple choice
    assert token_counts(padded).tolist() == [1, *expected[1:]]


def test_counting_a_loader_leaves_the_draws_of_training():
    loader = torch.utils.data.DataLoader(Rows(20), batch_size=3, shuffle=True)
    torch.manual_seed(4)
    expected = torch.rand(1)
    torch.manual_seed(4)
    assert countable(loader)
    counts = token_counts(loader)
    assert torch.equal(torch.rand(1), expected)
    assert torch.equal(counts, torch.bincount(Rows(20).ids.flatten()))
    assert torch.equal(counts, token_counts(Rows(20)))


def test_what_cannot_be_counted():
    assert not countable(iter([{"input_ids": [1]}]))  # no end is known
    assert not countable([])
    assert not countable([{"text": "a film"}])
    assert not countable([(1, 2)])
    assert not countable(None)


def test_audit():
    """A star: the center is nearest to every tip, and a tip of the longest ray to nothing."""
    table = torch.tensor([[0.0, 0], [3, 0], [0, 4], [-5, 0], [0, -6], [0.1, 0.1]])
    neighbors = Neighbors(table, 1, candidates=torch.arange(6) < 5)
    names = ["center", "east", "north", "west", "south", "unused"]
    rows = dict(audit(neighbors, names.__getitem__, num_examples=3))
    assert rows["candidates"] == "5 of 6 tokens"
    assert rows["most frequent neighbor"] == "center, of 80.0% of 5 tokens"
    assert rows["neighbors of center"] == "east"
    assert rows["neighbors of north"] == "center"
    assert len(rows) == 5
    assert dict(audit(neighbors)) == {
        "candidates": "5 of 6 tokens",
        "most frequent neighbor": "0, of 80.0% of 5 tokens",
    }


def test_autocast_changes_neither_neighbors_nor_noise():
    table = torch.randn(300, 64)
    ids, draws, found = torch.arange(300)[None], torch.randn(1, 300, 4), []
    for enabled in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled), fed(draws):
            neighbors = Neighbors(table, 4)
            found.append((neighbors.of(ids), in_manifold(ids, table, neighbors, True)))
    assert torch.equal(found[0][0], found[1][0])
    assert found[1][1].dtype == torch.float32
    torch.testing.assert_close(found[0][1], found[1][1])
