"""What the papers prove, measured on a trained model: their expansion of noise, and their bounds.

Noise stability (Hua et al., TNNLS 2023, Claim 1) for outputs f and noise e ~ N(0, sigma^2 I):

    E ||f(x + e) - f(x)||^2 ~ sigma^2 ||J||^2 + sigma^4 / 4 sum_i [(tr H_i)^2 + 2 ||H_i||^2].

Equation 14 prints sigma^2 before the second term, and equation 18 has only the entries of H beside
the diagonal, once. The expansion is exact for quadratic f. Otherwise sigma^4 has one more term,
<J, d tr(H) / dx>, of the third derivative, which the claim has not.

Lipschitz bounds (Hua et al., NAACL 2021, equations 7 to 10; Jukic, Snajder, TACL 2025, section
3.1): near x, ||f(x + d) - f(x)|| <= ||J||_2 ||d|| <= ||J||_F ||d||.
"""

from collections.abc import Sequence

import numpy as np
import torch
from datasets import Dataset
from torch import Tensor

from smoothtune.core.forward import ForwardPass
from smoothtune.core.predictions import masked_mean
from smoothtune.evaluation.predictor import Predictor
from smoothtune.functional.input_derivatives import scores
from smoothtune.nn import rng
from smoothtune.report.curves import Curve, CurvePoint

STEP = 0.01
"""Of the differences that estimate derivatives, in the units of sigma."""
SIGMAS = (0.02, 0.05, 0.1, 0.2)
RATIO = 0.05
"""||d|| / ||x|| at which bounds are tried."""
MAX_OUTPUTS = 16
"""Scores of an example that are differentiated one by one."""


def noise_expansion(
    predictor: Predictor, rows: Dataset, *, sigmas: Sequence[float] = SIGMAS, num_probes: int = 2
) -> Curve:
    """The noise stability term of LNSR beside its expansion, for growing noise.

    Noise enters at the input of the first block. The squared distance of the hidden states is a sum
    over blocks and features, and a mean over an example's tokens and over examples: what LNSR adds
    to the loss with a weight of 1. Both sides are taken along the same directions, and both signs
    of each: they differ by what the expansion leaves out, and not by chance.

    Args:
        predictor: the model.
        rows: tokenized examples.
        sigmas: deviations of the noise, relative to the rms of each token's state.
        num_probes: directions for every example, with 2 + 2 S forward passes each.

    Returns:
        The lines `measured`, `first order` (the Jacobian term) and `second order` (with the Hessian
        term), against sigma. `numbers` hold the ratio of `measured` to both at every sigma.
    """
    predictor.progress.start("expansion of noise", predictor.num_batches(rows))
    total = np.zeros((3, len(sigmas)))
    with torch.no_grad():
        for number, _, clean in predictor.passes(rows, points=(0,)):
            clean.run()
            for probe in range(num_probes):
                with predictor.random_stream("expansion", clean.batch, probe, number):
                    direction = rng.normal_like(clean.embeddings(0))
                jacobian, curvature, moved = _expansion(clean, direction, sigmas)
                square = np.square(sigmas)
                first = square * float(jacobian.sum())
                second = first + square**2 / 4 * float(curvature.sum())
                total += np.stack((moved.sum(1).cpu(), first, second)) / num_probes
    lines = dict(zip(("measured", "first order", "second order"), total / len(rows), strict=True))
    numbers = {
        f"measured over {order}, sigma {sigma:g}": float(measured / expected)
        for order in ("first order", "second order")
        for sigma, measured, expected in zip(sigmas, lines["measured"], lines[order], strict=True)
    }
    return Curve(
        "noise stability and its expansion",
        "sigma, relative to the first hidden state",
        "squared distance, sum over blocks",
        {
            name: [CurvePoint(x, float(y)) for x, y in zip(sigmas, line, strict=True)]
            for name, line in lines.items()
        },
        log_y=True,
        numbers=numbers,
    )


def _expansion(
    clean: ForwardPass, direction: Tensor, sigmas: Sequence[float]
) -> tuple[Tensor, Tensor, Tensor]:
    """Both sides of Claim 1 along one direction u, sums over the blocks.

    Returns:
        (B,) ||J u||^2; (B,) ||u' H u||^2, whose expectation is (tr H)^2 + 2 ||H||^2 for
        u ~ N(0, I); (S, B) ||f(x + sigma u) - f(x)||^2, a mean over u and -u, for each sigma.
    """
    x, mask, center = clean.embeddings(0), clean.mask, clean.hidden_states[1:]
    unit = x.square().mean(-1, keepdim=True).sqrt() * mask[..., None]

    def moved(size: float) -> list[Tensor]:
        """f(x + size u) - f(x) of every block."""
        noisy = clean.at(size * unit * direction, 0, dropout="off").hidden_states[1:]
        return [h_ - h for h_, h in zip(noisy, center, strict=True)]

    def squares(states: list[Tensor]) -> Tensor:
        return torch.stack([masked_mean(h.double().square().sum(-1), mask) for h in states]).sum(0)

    pairs = list(zip(moved(STEP), moved(-STEP), strict=True))
    jacobian = squares([(up - down) / (2 * STEP) for up, down in pairs])
    curvature = squares([(up + down) / STEP**2 for up, down in pairs])
    distances = [(squares(moved(s)) + squares(moved(-s))) / 2 for s in sigmas]
    return jacobian, curvature, torch.stack(distances)


def lipschitz(predictor: Predictor, rows: Dataset, *, ratio: float = RATIO) -> dict[str, float]:
    """Bounds on how far predictions move, and how far they do, per unit of the word embeddings.

    Args:
        predictor: the model.
        rows: tokenized examples, with one sequence and at most `MAX_OUTPUTS` scores each.
        ratio: size of the perturbation, ||d|| / ||x|| of an example.

    Returns:
        Means over examples of `spectral norm` and `Frobenius norm` of the Jacobian of the scores;
        of ||f(x + d) - f(x)|| / ||d|| for d along the largest singular vector, the larger of both
        signs (`moved along the steepest direction`), and for a random d (`moved by noise`). And the
        share of examples where the first of these is above the Frobenius norm (`above the bound`).
        Empty with more scores.
    """
    predictor.progress.start("Lipschitz bounds", predictor.num_batches(rows))
    batches: list[np.ndarray] = []
    for number, _, clean in predictor.passes(rows, hidden_states=False, differentiable=True):
        if scores(clean.run()).shape[1] > MAX_OUTPUTS:
            return {}
        rows_of = _jacobian(clean)
        values, left = torch.linalg.eigh(rows_of @ rows_of.mT)
        spectral, frobenius = values[:, -1].clamp(min=0).sqrt(), values.sum(1).sqrt()
        steepest = (left[..., -1, None] * rows_of).sum(1)
        with predictor.random_stream("lipschitz", clean.batch, number), torch.no_grad():
            noise = rng.normal_like(clean.embeddings()) * clean.mask[..., None]
            quotients = [
                _quotient(clean, direction, ratio)
                for direction in (steepest, -steepest, noise.double().flatten(1))
            ]
        along = torch.maximum(*quotients[:2])
        above = (along > frobenius).double()
        columns = [spectral, frobenius, along, quotients[2], above]
        batches.append(torch.stack(columns).cpu().numpy())
    names = ["spectral norm", "Frobenius norm", "moved along the steepest direction"]
    names += ["moved by noise", "above the bound"]
    means = np.concatenate(batches, axis=1).mean(1)
    return dict(zip(names, means.tolist(), strict=True))


def _jacobian(clean: ForwardPass) -> Tensor:
    """(B, C, T * D) derivatives of the scores in the word embeddings, zero on padding."""
    leaf = clean.delta()
    parts = [
        torch.autograd.grad(score.sum(), leaf, retain_graph=True)[0] * clean.mask[..., None]
        for score in scores(clean).unbind(1)
    ]
    return torch.stack([part.double().flatten(1) for part in parts], 1)


def _quotient(clean: ForwardPass, direction: Tensor, ratio: float) -> Tensor:
    """(B,) ||f(x + d) - f(x)|| / ||d|| for d along a direction (B, T * D)."""
    x = clean.embeddings().double() * clean.mask[..., None]
    size = ratio * x.flatten(1).norm(dim=1)
    delta = direction / direction.norm(dim=1, keepdim=True).clamp(min=1e-300) * size[:, None]
    moved = clean.at(delta.view_as(x).to(clean.zeros()), dropout="off")
    return (scores(moved) - scores(clean)).double().norm(dim=1) / size
