"""Noise inside the span of a token's nearest neighbors in the word-embedding space.

LNSR (TNNLS 2023), section III-B.2: epsilon = sum_j epsilon_j d_j with epsilon_j ~ N(0, 1), where
d_j is the Gram-Schmidt basis of the differences x_j - x to the k nearest neighbors x_j of token x.

The basis is never formed: with D the differences as columns and D'D = R'R (Cholesky),
Gram-Schmidt's basis is D R^-1, so the noise is D (R^-1 z) for z ~ N(0, I): two small products per
token instead of a QR decomposition.

Unused tokens, [MASK] or [SEP] lie in the middle of the space, near to everything, so only tokens of
the training texts are candidates.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain, islice
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from smoothtune.nn import rng

UNKNOWN = -1
ROWS = 1000  # whose tokens are counted at a time

Metric = Literal["l2", "cosine"]


def countable(rows: Any) -> bool:
    """Whether rows, or batches of them, are finite in number and hold `input_ids`."""
    if not hasattr(rows, "__len__") or not len(rows):
        return False
    with rng.isolated(torch.device("cpu")):  # loaders draw
        first = next(_items(rows))
    return isinstance(first, Mapping) and "input_ids" in first


def token_counts(rows: Any) -> Tensor:
    """(n,) how often every token occurs in the rows, n one more than the largest id.

    Args:
        rows: a data set, a sequence or a loader; each item holds `input_ids` of any depth.
    """
    if "input_ids" in (getattr(rows, "column_names", None) or ()):
        rows = rows.select_columns("input_ids").iter(ROWS)  # batches, and no other column
    total = torch.zeros(0, dtype=torch.long)
    with rng.isolated(torch.device("cpu")):
        items = (torch.tensor(list(_flat(row["input_ids"]))) for row in _items(rows))
        while part := list(islice(items, ROWS)):
            counts = torch.bincount(torch.cat(part).long(), minlength=len(total))
            counts[: len(total)] += total
            total = counts
    return total


def _items(rows: Any) -> Iterator[Any]:
    if hasattr(rows, "__iter__"):
        return iter(rows)
    return (rows[i] for i in range(len(rows)))  # torch's data sets need not end by themselves


def _flat(ids: Any) -> Iterable[int]:
    if isinstance(ids, Tensor):
        return ids.flatten().tolist()
    return chain.from_iterable(map(_flat, ids)) if len(ids) and hasattr(ids[0], "__len__") else ids


def nearest(
    ids: Tensor,
    table: Tensor,
    k: int,
    *,
    candidates: Tensor | None = None,
    metric: Metric = "l2",
    chunk: int = 512,
) -> Tensor:
    """(N, k) ids of the k nearest other rows of `table` (V, D) for the rows `ids` (N,), exact.

    A row at distance 0 (a duplicate; for the cosine, a multiple) is no direction and is left out
    too, unless there is nothing else.

    Args:
        ids: (N,).
        table: (V, D).
        k: fewer than there are candidates.
        candidates: (V,) True for rows that may be neighbors; None: all.
        metric: Euclidean distance, or the angle.
        chunk: rows at a time.
    """
    if metric == "cosine":  # the distance on the unit sphere has the same order
        table = F.normalize(table, dim=1)
    pool = torch.arange(len(table), device=table.device)
    pool = pool if candidates is None else pool[candidates]
    others = table[pool]
    squares = others.square().sum(1)
    neighbor_ids = []
    for part in ids.split(chunk):
        scale = table[part].square().sum(1, keepdim=True) + squares
        with torch.autocast(table.device.type, enabled=False):  # 16 bits would not be exact
            distance = scale - 2 * table[part] @ others.T
        distance[distance <= 1e-6 * scale] = torch.inf  # itself and its duplicates
        distance[part[:, None] == pool] = torch.inf
        neighbor_ids.append(pool[distance.topk(k, largest=False, sorted=True).indices])
    return torch.cat(neighbor_ids) if neighbor_ids else ids.new_empty(0, k)


class Neighbors:
    """Nearest neighbors in an embedding table, each found when first needed.

    Args:
        table: (V, D) as it is now; later changes of it are not seen.
        k: neighbors of a token.
        candidates: (V,) True for tokens that may be neighbors; None: all.
        metric: as in `nearest`.

    Raises:
        ValueError: there are no k other candidates.
    """

    def __init__(
        self, table: Tensor, k: int, *, candidates: Tensor | None = None, metric: Metric = "l2"
    ):
        count = len(table) if candidates is None else int(candidates.sum())
        if k >= count:
            raise ValueError(
                f"k={k} neighbors need more than {k} tokens; there are {count}"
                + ("" if candidates is None else ": lower k, or min_count, or give more texts")
            )
        self.table, self.metric = table.detach().float().clone(), metric
        every = torch.ones(len(table), dtype=torch.bool)
        self.candidates = (every if candidates is None else candidates).to(table.device)
        self._ids = torch.full((len(table), k), UNKNOWN, device=table.device)

    def of(self, ids: Tensor) -> Tensor:
        """(..., k) neighbors of the tokens `ids` (...)."""
        unknown = ids.unique()
        unknown = unknown[self._ids[unknown, 0] == UNKNOWN]
        if len(unknown):
            k = self._ids.shape[1]
            self._ids[unknown] = nearest(
                unknown, self.table, k, candidates=self.candidates, metric=self.metric
            )
        return self._ids[ids]


def audit(
    neighbors: Neighbors,
    decode: Callable[[int], str] | None = None,
    *,
    num_tokens: int = 500,
    num_examples: int = 5,
) -> list[tuple[str, str]]:
    """What the neighbors are, as rows of a table with two columns.

    How many tokens may be neighbors; which one is a neighbor of the most candidates, and of which
    share of them, k / V if all were alike; and the neighbors of a few.

    Args:
        neighbors: of a model.
        decode: id -> token; None: ids, and no examples.
        num_tokens: candidates looked at, at most, at even distances in the vocabulary.
        num_examples: tokens whose neighbors are written out.
    """
    size = len(neighbors.table)
    pool = neighbors.candidates.nonzero().flatten()
    sample = pool[:: -(-len(pool) // num_tokens)]
    neighbor_ids = neighbors.of(sample)
    times = torch.bincount(neighbor_ids.flatten(), minlength=size)
    hub, share = int(times.argmax()), times.max().item() / len(sample)
    name = str if decode is None else decode
    rows = [
        ("candidates", f"{len(pool):,} of {size:,} tokens"),
        ("most frequent neighbor", f"{name(hub)}, of {share:.1%} of {len(sample):,} tokens"),
    ]
    if decode is not None:
        shown = range(0, len(sample), -(-len(sample) // num_examples))
        rows += [
            (f"neighbors of {name(int(sample[i]))}", ", ".join(map(name, neighbor_ids[i].tolist())))
            for i in shown
        ]
    return rows


def in_manifold(ids: Tensor, table: Tensor, neighbors: Neighbors, normalize: bool) -> Tensor:
    """(B, T, D) draws in the span of x_j - x over the neighbors j of every token.

    Args:
        ids: (B, T) token ids.
        table: (V, D) the embedding matrix as it is now.
        neighbors: which rows are neighbors.
        normalize: basis vectors of length 1, so that the draw is isotropic in the span; otherwise
            orthogonal only, as printed, which favors near neighbors' directions by their length.
    """
    tokens, where = ids.unique(return_inverse=True)
    wide = table.detach().to(torch.promote_types(table.dtype, torch.float32))
    directions = wide[neighbors.of(tokens)] - wide[tokens][:, None]  # (U, k, D)
    with torch.autocast(table.device.type, enabled=False):  # rounded, it need have no Cholesky root
        gram = directions @ directions.mT
    jitter = 1e-6 * gram.diagonal(dim1=1, dim2=2).mean(1).clamp(min=1e-12)
    eye = torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
    lower = torch.linalg.cholesky(gram + jitter[:, None, None] * eye)[where]  # (B, T, k, k)
    z = rng.normal_like(lower[..., 0])[..., None]
    if not normalize:
        z = z * lower.diagonal(dim1=-2, dim2=-1)[..., None]
    y = torch.linalg.solve_triangular(lower.mT, z, upper=True).flatten(0, 1).squeeze(-1)
    # sum_j y_j (x_j - x), without a (B, T, k, D) tensor
    bags = neighbors.of(ids).flatten(0, 1)  # (B T, k)
    mixed = F.embedding_bag(bags, wide, per_sample_weights=y, mode="sum")
    return (mixed - y.sum(1, keepdim=True) * wide[ids.flatten()]).unflatten(0, ids.shape)
