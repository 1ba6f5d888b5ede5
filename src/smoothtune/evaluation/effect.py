"""What methods are about, measured on a trained model: see `smoothtune.core.quantities`.

All models are measured alike, whatever they were trained with: the worst perturbation is sought by
one search, so that no method is judged by its own attack alone. Sizes in the word embeddings are
relative to them. Divergences and derivatives of predictions also fall where a model predicts
smaller logits, which is no smoothness: beside what the papers claim stand numbers that do not
depend on that scale.

References: noise stability: Hua et al., TNNLS 2023; sharpness: Foret et al., ICLR 2021; symmetric
KL under the worst perturbation: Jiang et al., ACL 2020; all as in `smoothtune.methods`.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import torch
from datasets import Dataset
from torch import Tensor, nn

from smoothtune.core.forward import Batch, ForwardPass
from smoothtune.core.predictions import heads
from smoothtune.evaluation.predictor import Predictor
from smoothtune.evaluation.robustness import l2_ascent
from smoothtune.evaluation.smoothness import derivative_norms, noise_propagation
from smoothtune.evaluation.weight_gradients import gradient_spread, weight_side
from smoothtune.functional.adversarial import gradient_at, task_loss
from smoothtune.functional.divergences import divergence
from smoothtune.functional.noise import gaussian
from smoothtune.nn.dropout import sites
from smoothtune.report.curves import Curve

EPSILON, NUM_STEPS = 0.05, 5
"""Of the worst perturbation: ||delta|| / ||x|| of an example, and steps of the search."""
START = 0.01  # size of the noise that the search starts from
NOISE_RATIO = 0.1
"""||noise|| / ||x|| of every token."""
NUM_SAMPLES = 3
"""Of the noise; passes with dropout are one more, each compared with the next."""
NUM_PROBES = 2
"""Pairs of random directions for each example's derivatives."""


def prediction_divergences(
    predictor: Predictor,
    rows: Dataset,
    *,
    epsilon: float = EPSILON,
    num_steps: int = NUM_STEPS,
    noise_ratio: float = NOISE_RATIO,
) -> dict[str, float]:
    """How far predictions move: symmetric KL, the squared difference for regression.

    Returns:
        `worst divergence`, `noise divergence`, and with dropout in the model `dropout divergence`;
        `changed predictions`, the share of classes that the worst perturbation changes.
    """
    drops = any(getattr(module, name) > 0 for module, name, _ in sites(predictor.model))
    predictor.progress.start("divergences", predictor.num_batches(rows))
    batch_values: list[dict[str, float]] = []
    counts: list[int] = []
    for number, indices, clean in predictor.passes(rows, hidden_states=False):
        with torch.no_grad():
            clean.run()
        with predictor.random_stream("effect/worst", clean.batch, number):
            delta = worst_perturbation(clean, epsilon, num_steps)
        with torch.no_grad():
            worst = clean.at(delta, dropout="off")
            values = {"worst divergence": float(divergence(clean, worst))} | _changed(clean, worst)
            draws = []
            for sample in range(NUM_SAMPLES):
                with predictor.random_stream("effect/noise", clean.batch, sample, number):
                    noise = gaussian(clean.embeddings(), clean.mask, noise_ratio)
                draws.append(float(divergence(clean, clean.at(noise, dropout="off"))))
            values["noise divergence"] = float(np.mean(draws))
            if drops:
                passes = _dropout_passes(predictor, clean.batch, NUM_SAMPLES + 1, number)
                distances = [float(divergence(p, q)) for p, q in pairwise(passes)]
                values["dropout divergence"] = float(np.mean(distances))
        batch_values.append(values)
        counts.append(len(indices))
    return {
        name: float(np.average([values[name] for values in batch_values], weights=counts))
        for name in batch_values[0]
    }


def worst_perturbation(clean: ForwardPass, epsilon: float, num_steps: int) -> Tensor:
    """(B, T, D) the perturbation of the word embeddings that moves the prediction most.

    Its size is at most `epsilon`, relative to the embeddings of an example.
    """
    if not epsilon:
        return clean.zeros()
    ascent = l2_ascent(epsilon, num_steps, min(START, epsilon))
    return ascent.search(clean, lambda run: divergence(clean, run))[0]


def _changed(clean: ForwardPass, other: ForwardPass) -> dict[str, float]:
    """Share of examples whose predicted class is another, where there is one class each."""
    (p, *more), (q, *_) = heads(clean), heads(other)
    if more or p.regression or p.logits.shape[1] != 1:
        return {}
    changed = p.logits.argmax(-1) != q.logits.argmax(-1)
    return {"changed predictions": float(changed.float().mean())}


def _dropout_passes(
    predictor: Predictor, batch: Batch, count: int, number: int
) -> list[ForwardPass]:
    """Passes with the dropout of training, each with masks of its own."""
    model, passes = predictor.model, []
    with _training(model):
        for index in range(count):
            run = ForwardPass(
                model, batch, compute_loss=predictor.compute_loss, hidden_states=False
            )
            with predictor.random_stream("effect/dropout", batch, index, number):
                passes.append(run.run())
    return passes


@contextmanager
def _training(model: nn.Module) -> Iterator[None]:
    """Training mode for a while; every module's own mode is restored."""
    before = [module for module in model.modules() if not module.training]
    model.train()
    try:
        yield
    finally:
        for module in before:
            module.training = False


def loss_gradient_norm(predictor: Predictor, rows: Dataset) -> float:
    """Root mean square over examples of ||dL/dx||, x the word embeddings of an example.

    N examples count as one batch, and L is N times its loss.
    """
    predictor.progress.start("gradient in the input", predictor.num_batches(rows))
    squares, count = list[np.ndarray](), 0
    for _, indices, clean in predictor.passes(rows, hidden_states=False, differentiable=True):
        losses = predictor.task.head.num_losses(clean.batch)
        gradient = losses / len(indices) * gradient_at(clean, task_loss(clean.run()), "word")
        squares.append(gradient.double().flatten(1).square().sum(1).cpu().numpy())
        count += losses
    return float(np.sqrt(np.concatenate(squares).mean())) * len(rows) / count


def prediction_scale(predictor: Predictor, rows: Dataset) -> float:
    """Root mean square norm of the predictions less their mean: over classes, or over examples.

    A model whose logits are all half as large has half the Jacobian; their ratio is the same.
    """
    with torch.no_grad():
        passes = predictor.passes(rows, hidden_states=False)
        logits = torch.cat([clean.run().logits.double() for _, _, clean in passes])
    dim = 1 if predictor.task.head.problem_type == "single_label_classification" else 0
    return float((logits - logits.mean(dim, keepdim=True)).square().sum(1).mean().sqrt())


@dataclass
class Measurements:
    """The measurements on one model, by name."""

    values: dict[str, float] = field(default_factory=dict)
    supplementary: dict[str, float] = field(default_factory=dict)
    """Numbers that help to read them."""
    curves: dict[str, Curve] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    """Why a quantity is not there."""


DERIVATIVES = ("layer Jacobian", "layer Hessian", "logit Jacobian", "logit Hessian")
INPUT_SIDE = ("noise sensitivity", "loss gradient")
WEIGHT_SIDE = ("sharpness", "gradient spread")


def measure(predictor: Predictor, rows: Dataset) -> Measurements:
    """All quantities that need the model alone."""
    result, task = Measurements(prediction_divergences(predictor, rows)), predictor.task
    trained = any(weight.requires_grad for weight in predictor.model.parameters())
    weights, gradients = weight_side(predictor, rows) if trained else ({}, {})
    result.values |= weights
    if not trained:
        result.missing |= dict.fromkeys(WEIGHT_SIDE, "no weight is trained: adapters are merged")
    if "changed predictions" in result.values:
        changed = result.values.pop("changed predictions")
        result.supplementary["changed by the worst perturbation"] = changed
    if "dropout divergence" not in result.values:
        result.missing["dropout divergence"] = "the model has no dropout"
    if reason := task.unsupported_parts.get("smoothness"):
        result.missing |= dict.fromkeys((*INPUT_SIDE, *DERIVATIVES), reason)
        return result
    if gradients:
        result.curves["gradient_spread"] = gradient_spread(predictor.model, gradients)
    curve = noise_propagation(predictor, rows, layers=(0,))["attenuation"]
    result.curves["noise_sensitivity"] = curve
    result.values["noise sensitivity"] = float(np.mean(_heights(curve)[1:]))
    result.values["loss gradient"] = loss_gradient_norm(predictor, rows)
    if task.one_sequence:
        _add_derivatives(result, predictor, rows)
    else:
        reason = "an example has several predictions, or several sequences"
        result.missing |= dict.fromkeys(DERIVATIVES, reason)
    return result


def _add_derivatives(result: Measurements, predictor: Predictor, rows: Dataset) -> None:
    curves = derivative_norms(predictor, rows, num_probes=NUM_PROBES)
    result.curves |= curves
    scale = prediction_scale(predictor, rows)
    for name, curve in curves.items():
        title, logits = name.capitalize(), curve.numbers["logits"]
        squares = [height**2 for height in _heights(curve)]
        result.values[f"layer {title}"] = float(np.sqrt(np.mean(squares)))
        result.values[f"logit {title}"] = logits
        if scale:
            result.supplementary[f"logit {title}, relative to the logits"] = logits / scale


def _heights(curve: Curve) -> list[float]:
    (points,) = curve.series.values()
    return [point.y for point in points]
