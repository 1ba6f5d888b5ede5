"""Noise inside the span of a token's nearest neighbors in the word-embedding space.

LNSR (TNNLS 2023), section III-B.2: epsilon = sum_j epsilon_j d_j with epsilon_j ~ N(0, 1), where
d_j is the Gram-Schmidt basis of the differences x_j - x to the k nearest neighbors x_j of token x.

The basis is never formed: with D the differences as columns and D'D = R'R (Cholesky),
Gram-Schmidt's basis is D R^-1, so the noise is D (R^-1 z) for z ~ N(0, I): two small products per
token instead of a QR decomposition.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor

from smoothtune.core import rng
from smoothtune.files import cache_folder, replacing

UNKNOWN = -1


def nearest(ids: Tensor, table: Tensor, k: int, chunk: int = 512) -> Tensor:
    """(N, k) ids of the k nearest other rows of `table` (V, D) for the rows `ids` (N,), exact.

    Euclidean distance; a row at distance 0 (a duplicate) is no direction and is left out too,
    unless there is nothing else.
    """
    squares = table.square().sum(1)
    found = []
    for part in ids.split(chunk):
        distance = squares[part, None] + squares - 2 * table[part] @ table.T
        scale = squares[part, None] + squares
        distance[distance <= 1e-6 * scale] = torch.inf  # itself and its duplicates
        distance[torch.arange(len(part)), part] = torch.inf
        found.append(distance.topk(k, largest=False, sorted=True).indices)
    return torch.cat(found) if found else ids.new_empty(0, k)


class Neighbors:
    """Nearest neighbors in an embedding table: found when first needed, kept on disk.

    The file is named by the hash of the table, so it serves every later run on the same model.
    """

    def __init__(self, table: Tensor, k: int, folder: Path | None = None):
        """Index a (V, D) table as it is now; later changes of it are not seen.

        Raises:
            ValueError: the table has no k other rows.
        """
        if k >= len(table):
            raise ValueError(f"k={k} neighbors need more than {k} tokens; there are {len(table)}")
        self.table = table.detach().float().clone()
        digest = hashlib.sha256(self.table.cpu().numpy().tobytes()).hexdigest()
        self.path = (folder or cache_folder()) / "neighbors" / f"{digest[:32]}-k{k}.safetensors"
        if self.path.exists():
            self.ids = load_file(self.path)["ids"].to(table.device)
        else:
            self.ids = torch.full((len(table), k), UNKNOWN, dtype=torch.int32, device=table.device)
        self._unsaved = 0

    def of(self, ids: Tensor) -> Tensor:
        """(..., k) neighbors of the tokens `ids` (...)."""
        unknown = ids.unique()
        unknown = unknown[self.ids[unknown, 0] == UNKNOWN]
        if len(unknown):
            k = self.ids.shape[1]
            self.ids[unknown] = nearest(unknown, self.table, k).to(self.ids.dtype)
            self._unsaved += len(unknown)
            if self._unsaved >= 1000:
                self.save()
        return self.ids[ids].long()

    def save(self) -> None:
        """Write what has been found, in one atomic step."""
        if not self._unsaved:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(self.path) as partial:
            save_file({"ids": self.ids.cpu()}, partial)
        self._unsaved = 0


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
