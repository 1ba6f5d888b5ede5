"""How smooth a model is: derivatives of its layers, and how noise grows or shrinks through them.

Derivatives are the first and second of every layer's representation in the word embeddings.
Reference: Jukic, Snajder, TACL 13 (2025) 264-280, whose penalty this measures; the estimator,
`derivative_norms.finite_difference_per_layer` of `smoothtune.functional`, needs forward passes
alone and has a bias of O(step^2).
"""

from collections.abc import Sequence

import numpy as np
import torch
from datasets import Dataset
from torch import Tensor

from smoothtune.core.forward import ForwardPass
from smoothtune.core.predictions import masked_mean
from smoothtune.evaluation.predictor import Predictor
from smoothtune.functional.derivative_norms import finite_difference_per_layer
from smoothtune.functional.input_derivatives import InputDerivatives
from smoothtune.functional.noise import NoiseKind, gaussian, number_of_neighbors
from smoothtune.methods.noise import Noise
from smoothtune.nn.architecture import blocks
from smoothtune.report.curves import Curve, CurvePoint

STEP = 0.01
RATIO = 0.05
NUM_VECTORS = 2048
LABELS = {
    "Jacobian": "||dz / dx||, units of z per unit of x",
    "Hessian": "||d2z / dx2||, units of z per unit of x squared",
}
"""z: the state of the token that the head reads; x: the word embeddings."""


def derivative_norms(
    predictor: Predictor, rows: Dataset, *, num_probes: int = 4, step: float = STEP
) -> dict[str, Curve]:
    """Norms of Jacobian and Hessian of the pooled token after each layer.

    Args:
        predictor: the model.
        rows: tokenized examples.
        num_probes: pairs of random directions for every example, four forward passes each.
        step: of the differences, relative to the rms of the word embeddings.

    Returns:
        `jacobian` and `hessian`: the root of the mean over examples of ||dz_l/dx||_F^2, and of
        sum_i ||d^2 z_{l,i}/dx^2||_F^2, against l, with 1.96 standard errors from the spread over
        examples, which holds that of the probes too. `numbers` hold those of the logits.
    """
    derivatives = InputDerivatives("finite_difference", True, num_probes, "rademacher", step)
    derivatives.attach(predictor.model)
    predictor.progress.start("Jacobian and Hessian", predictor.num_batches(rows))
    squares: list[np.ndarray] = []
    with torch.no_grad():
        for number, _, clean in predictor.passes(rows):

            def states(delta: Tensor, clean: ForwardPass = clean) -> list[Tensor]:
                """The pooled token after every block (B, D), and the logits (B, C)."""
                run = clean.at(delta * clean.mask[..., None], dropout="off")
                return [*(run.pooled(hidden) for hidden in run.hidden_states[1:]), run.logits]

            drawn = []
            for probe in range(num_probes):
                with predictor.random_stream("derivatives", clean.batch, probe, number):
                    norms = finite_difference_per_layer(
                        states, clean.zeros(), hessian=True, step=derivatives.absolute_step
                    )
                drawn.append(torch.stack(norms))
            squares.append(torch.stack(drawn).mean(0).cpu().numpy())
    jacobian, hessian = np.concatenate(squares, axis=2)
    return {
        "jacobian": _curve("Jacobian", jacobian, num_probes),
        "hessian": _curve("Hessian", hessian, num_probes),
    }


def _curve(name: str, squares: np.ndarray, num_probes: int) -> Curve:
    """The root mean square over examples, from (L + 1, N); the last row is the logits."""
    *layers, logits = (_root(number, values) for number, values in enumerate(squares, 1))
    bounds = {"logits, low": logits.low or 0, "logits, high": logits.high or 0}
    return Curve(
        f"{name} norm of every layer, {num_probes} probes",  # with more it is another estimate
        "layer (number of the block, from 1)",
        LABELS[name],
        {name: layers},
        band="95 % interval over examples and probes",
        log_y=True,
        numbers={"logits": logits.y} | bounds,
    )


def _root(x: float, squares: np.ndarray) -> CurvePoint:
    """sqrt(mean) with the interval of the mean carried through the root (delta method)."""
    root = float(np.sqrt(squares.mean()))
    if len(squares) < 2 or not root:
        return CurvePoint(x, root, root, root)
    error = float(squares.std(ddof=1)) / len(squares) ** 0.5 / (2 * root)
    return CurvePoint(x, root, max(root - 1.96 * error, 0.0), root + 1.96 * error)


def noise_propagation(
    predictor: Predictor,
    rows: Dataset,
    *,
    layers: Sequence[int] | None = None,
    ratio: float = RATIO,
    num_samples: int = 3,
) -> dict[str, Curve]:
    """Error of every hidden state above the layer where noise enters.

    Args:
        predictor: the model.
        rows: tokenized examples.
        layers: b, numbers of the blocks whose input is disturbed; default: the first block, and
            those after a quarter, a half and three quarters of the depth.
        ratio: ||noise|| / ||x|| of every token.
        num_samples: samples of the noise for every example.

    Returns:
        `attenuation`: for each b, ||h_r(x + noise) - h_r(x)|| / ||h_r(x)|| against r; the point
        r = b is `ratio`. `distance`: the same not divided by ||h||. Bands are the mean +- 1.96
        standard errors over examples. `numbers` hold the relative error of the last layer over
        `ratio`.
    """
    depth = len(blocks(predictor.model))
    if layers is None:
        layers = sorted({quarter * depth // 4 for quarter in range(4)})
    predictor.progress.start("noise attenuation", predictor.num_batches(rows))
    errors = {layer: np.empty((2, depth - layer + 1, len(rows))) for layer in layers}
    with torch.no_grad():
        for number, chosen, clean in predictor.passes(rows, points=tuple(layers)):
            clean.run()
            for layer, of_layer in errors.items():
                samples = []
                for sample in range(num_samples):
                    stream = f"attenuation/{layer}"
                    with predictor.random_stream(stream, clean.batch, sample, number):
                        samples.append(_errors(clean, layer, ratio))
                of_layer[:, :, chosen] = torch.stack(samples).mean(0).cpu().numpy()
    x_label, band = "hidden state (0: input of the first block)", "95 % interval over examples"
    relative, absolute = "relative error, ||h' - h|| / ||h||", "distance, ||h' - h||"
    attenuation = Curve("noise attenuation", x_label, relative, {}, band)
    distance = Curve("distance by noise", x_label, absolute, {}, band)
    for layer, of_layer in errors.items():
        name = f"noise before block {layer + 1}"  # as layers are counted, from 1
        for curve, kind in zip((attenuation, distance), of_layer, strict=True):
            curve.series[name] = [_mean(x, values) for x, values in enumerate(kind, layer)]
        amplification = attenuation.series[name][-1].y / ratio
        attenuation.numbers[f"amplification, {name}"] = amplification
    return {"attenuation": attenuation, "distance": distance}


def _errors(clean: ForwardPass, layer: int, ratio: float) -> Tensor:
    """(2, depth - layer + 1, B) error at the point itself, then after every block above.

    First relative, then as it is; means over an example's tokens.
    """
    states, x, mask = clean.hidden_states[layer + 1 :], clean.embeddings(layer), clean.mask
    delta = gaussian(x, mask, ratio)
    noisy = clean.at(delta, layer, dropout="off").hidden_states[layer + 1 :]
    pairs = [(x, delta), *((h, h_ - h) for h, h_ in zip(states, noisy, strict=True))]
    sizes = [[torch.linalg.vector_norm(part, dim=-1) for part in pair] for pair in pairs]
    # DeBERTa's embeddings of padding are 0
    relative = [masked_mean(error / h.masked_fill(~mask, 1.0), mask) for h, error in sizes]
    absolute = [masked_mean(error, mask) for _, error in sizes]
    return torch.stack([torch.stack(relative), torch.stack(absolute)])


def _mean(x: float, values: np.ndarray) -> CurvePoint:
    """Mean over examples with its 95 % interval."""
    mean = float(values.mean())
    half = 1.96 * float(values.std(ddof=1)) / len(values) ** 0.5 if len(values) > 1 else 0.0
    return CurvePoint(x, mean, mean - half, mean + half)


def noise_spectrum(
    predictor: Predictor, rows: Dataset, *, num_vectors: int = NUM_VECTORS, k: int = 10
) -> Curve:
    """Principal components of standard and of in-manifold noise at the word embeddings.

    Args:
        predictor: the model.
        rows: tokenized examples.
        num_vectors: noise vectors, one for every token, at most.
        k: neighbors of in-manifold noise.

    Returns:
        Eigenvalues of the covariance of the vectors, sorted and divided by their sum. `numbers`
        hold the effective rank, exp of the entropy of the shares. Tokens have different neighbors,
        so the rank is far above k.
    """
    k = number_of_neighbors(predictor.model, k)
    predictor.progress.start("spectrum of noise", 2 * predictor.num_batches(rows))
    curve = Curve(
        "spectrum of noise", "principal component (number)", "share of the variance", series={}
    )
    kinds: dict[str, NoiseKind] = {"standard": "standard", "in-manifold": "in_manifold"}
    for name, kind in kinds.items():
        noise = Noise(noise=kind, noise_ratio=RATIO, layer="word", k=k)
        noise.attach(predictor.model)
        vectors = _vectors(predictor, rows, noise, num_vectors)
        noise.detach(predictor.model)
        values = np.linalg.svd(vectors - vectors.mean(0), compute_uv=False) ** 2
        shares = values / values.sum()
        curve.series[name] = [CurvePoint(i, float(share)) for i, share in enumerate(shares, 1)]
        positive = shares[shares > 0]
        rank = float(np.exp(-(positive * np.log(positive)).sum()))
        curve.numbers[f"effective rank, {name}"] = rank
    return curve


def _vectors(predictor: Predictor, rows: Dataset, noise: Noise, num_vectors: int) -> np.ndarray:
    """(N, D) noise vectors of real tokens."""
    vectors: list[np.ndarray] = []
    with torch.no_grad():
        for number, _, clean in predictor.passes(rows, hidden_states=False):
            with predictor.random_stream(f"spectrum/{noise.noise}", clean.batch, number):
                vectors.append(noise.draw(clean)[clean.mask].double().cpu().numpy())
            if sum(map(len, vectors)) >= num_vectors:
                break
    return np.concatenate(vectors)[:num_vectors]
