"""What becomes of noise on its way up, and what noise looks like.

Reference: Hua et al., NAACL 2021, figure 1, and IEEE TNNLS 2023, figures 6 and 7. The papers do not
say what the norm runs over: here it is taken of every token, and the mean over an example's real
tokens, then over examples. Hidden states are the outputs of the blocks, before a final norm.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from datasets import Dataset
from torch import Tensor

from smoothtune.core.architecture import blocks, embedding_table
from smoothtune.core.forward import Batch, evaluating
from smoothtune.core.predictions import masked_mean
from smoothtune.evaluation.curves import Curve, Point
from smoothtune.evaluation.predictions import Predictor
from smoothtune.functional.noise import EmbeddingNoise, NoiseKind, gaussian

RATIO = 0.05
NUM_VECTORS = 2048


def noise_attenuation(
    predictor: Predictor,
    rows: Dataset,
    *,
    layers: Sequence[int] | None = None,
    ratio: float = RATIO,
    num_draws: int = 3,
) -> Curve:
    """Relative error of every hidden state above the layer where noise enters.

    Args:
        predictor: the model.
        rows: tokenized examples.
        layers: b, numbers of the blocks whose input is disturbed; default: the first block, and
            those after a quarter, a half and three quarters of the depth.
        ratio: ||noise|| / ||x|| of every token.
        num_draws: draws of the noise for every example.

    Returns:
        For each b, ||h_r(x + noise) - h_r(x)|| / ||h_r(x)|| against r; the point r = b is `ratio`.
        Bands are the mean +- 1.96 standard errors over examples. `numbers` hold the error of the
        last layer over `ratio`.
    """
    depth = len(blocks(predictor.model))
    if layers is None:
        layers = sorted({quarter * depth // 4 for quarter in range(4)})
    predictor.progress.start("noise attenuation", len(layers) * predictor.count(rows))
    series, numbers = {}, {}
    for layer in layers:
        errors = np.empty((depth - layer + 1, len(rows)))
        with torch.no_grad(), evaluating(predictor.model):
            for number, (chosen, batch) in enumerate(predictor.batches(rows)):
                drawn = [
                    _errors(predictor, batch, layer, ratio, (draw, number))
                    for draw in range(num_draws)
                ]
                errors[:, chosen] = torch.stack(drawn).mean(0).cpu().numpy()
        name = f"noise before block {layer}"
        series[name] = [_mean(layer + above, values) for above, values in enumerate(errors)]
        numbers[f"amplification, {name}"] = series[name][-1].y / ratio
    return Curve(
        "noise on its way up",
        "hidden state (0: input of the first block)",
        "relative error, ||h' - h|| / ||h||",
        series,
        band="95 % interval over examples",
        numbers=numbers,
    )


def _errors(
    predictor: Predictor, batch: Batch, layer: int, ratio: float, counters: tuple[int, int]
) -> Tensor:
    """(depth - layer + 1, B) relative error at the point itself, then after every block above."""
    clean = predictor.clean(batch, points=(layer,))
    states = clean.hidden_states[layer + 1 :]
    x, mask = clean.embeddings(layer), clean.mask
    with predictor.draws(f"attenuation/{layer}", batch, *counters):
        delta = gaussian(x, mask, ratio)
    noisy = clean.at(delta, layer, dropout="off").hidden_states[layer + 1 :]
    norm = torch.linalg.vector_norm
    pairs = [(x, delta), *((h, h_ - h) for h, h_ in zip(states, noisy, strict=True))]
    return torch.stack(
        [masked_mean(norm(error, dim=-1) / norm(h, dim=-1), mask) for h, error in pairs]
    )


def _mean(x: float, values: np.ndarray) -> Point:
    """Mean over examples with its 95 % interval."""
    mean = float(values.mean())
    half = 1.96 * float(values.std(ddof=1)) / len(values) ** 0.5 if len(values) > 1 else 0.0
    return Point(x, mean, mean - half, mean + half)


def noise_spectrum(
    predictor: Predictor, rows: Dataset, *, num_vectors: int = NUM_VECTORS, k: int = 10
) -> Curve:
    """Principal components of standard and of in-manifold noise at the word embeddings.

    Args:
        predictor: the model.
        rows: tokenized examples.
        num_vectors: noise vectors, one for every token, at most.
        k: neighbours of in-manifold noise.

    Returns:
        Eigenvalues of the covariance of the vectors, sorted and divided by their sum. `numbers`
        hold the effective rank, exp of the entropy of the shares. Tokens have different neighbours,
        so the rank is far above k.
    """
    k = min(k, len(embedding_table(predictor.model)) - 1)
    predictor.progress.start("spectrum of noise", 2 * predictor.count(rows))
    kinds: dict[str, NoiseKind] = {"standard": "standard", "in-manifold": "in_manifold"}
    series, numbers = {}, {}
    for name, kind in kinds.items():
        noise = EmbeddingNoise(kind, RATIO, "word", k, True, "token")
        noise.attach(predictor.model)
        vectors = _vectors(predictor, rows, noise, num_vectors)
        noise.detach()
        values = np.linalg.svd(vectors - vectors.mean(0), compute_uv=False) ** 2
        shares = values / values.sum()
        series[name] = [Point(index, float(share)) for index, share in enumerate(shares, 1)]
        positive = shares[shares > 0]
        rank = float(np.exp(-(positive * np.log(positive)).sum()))
        numbers[f"effective rank, {name}"] = rank
    return Curve(
        "spectrum of noise",
        "principal component (number)",
        "share of the variance",
        series,
        numbers=numbers,
    )


def _vectors(
    predictor: Predictor, rows: Dataset, noise: EmbeddingNoise, num_vectors: int
) -> np.ndarray:
    """(N, D) noise vectors of real tokens."""
    found: list[np.ndarray] = []
    with torch.no_grad(), evaluating(predictor.model):
        for number, (_, batch) in enumerate(predictor.batches(rows)):
            clean = predictor.clean(batch, hidden_states=False)
            with predictor.draws(f"spectrum/{noise.kind}", batch, number):
                found.append(noise.draw(clean)[clean.mask].double().cpu().numpy())
            if sum(map(len, found)) >= num_vectors:
                break
    return np.concatenate(found)[:num_vectors]
