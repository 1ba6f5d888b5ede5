"""The main metric under perturbations of the word embeddings: noise, and attacks.

Sizes are relative to the embeddings: 0.1 is a perturbation with a tenth of their norm. Noise adds
sigma * rms(x) * N(0, 1) to every entry, where rms runs over the real tokens of an example (JacHess
eq. 6 with a unit that fits every model); in-manifold noise is that of
`smoothtune.functional.neighbors`. Attacks have the norm ratio * ||x||, of every token and of the
example.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from datasets import Dataset
from torch import Tensor

from smoothtune.core.forward import ForwardPass
from smoothtune.evaluation.predictor import Predictor
from smoothtune.functional.adversarial import Ascent, normalize, task_loss, unit
from smoothtune.functional.adversarial import gradient_at as loss_gradient
from smoothtune.functional.noise import EmbeddingNoise, NoiseKind, gaussian, number_of_neighbors
from smoothtune.nn.dropout import evaluating
from smoothtune.report.curves import LOST, ROUNDING, Curve, CurvePoint, mean_and_range, metric_curve

NOISE = (0.0, 0.1, 0.2, 0.3, 0.5, 1.0)
ATTACKS = (0.0, 0.01, 0.02, 0.05, 0.1)
FURTHER_NOISE = (1.5, 2.0, 3.0, 5.0, 10.0)
"""Levels that follow until the metric has lost 10 points."""
PGD_STEP = 2.5  # of epsilon / steps, so that the ball's surface can be reached and left again

NOISE_LABEL = "noise relative to the embeddings, ||delta|| / ||x||"
ATTACK_LABEL = "attack strength, ||delta|| / ||x||"


def noise_curve(
    predictor: Predictor,
    rows: Dataset,
    kind: NoiseKind = "standard",
    *,
    levels: Sequence[float] = NOISE,
    further: Sequence[float] = (),
    num_samples: int = 3,
    k: int = 10,
) -> Curve:
    """Main metric against noise; all levels scale the same samples.

    Args:
        predictor: the model.
        rows: tokenized examples with labels.
        kind: "standard": Gaussian; "in_manifold": in the span of the nearest neighbors.
        levels: sizes relative to the embeddings, rising from 0.
        further: larger ones, each measured while the metric has not lost 10 points (0.1).
        num_samples: samples for every level above 0.
        k: neighbors of in-manifold noise; fewer where the vocabulary has not so many words.

    Returns:
        Mean over the samples, with the least and greatest, the `area` under it over `levels`, and
        the noise at which 10 points are lost.
    """
    k = number_of_neighbors(predictor.model, k)
    noise = EmbeddingNoise(kind, 1.0, "word", k, True, "token")
    noise.attach(predictor.model)
    title = {"standard": "Gaussian noise", "in_manifold": "in-manifold noise"}[kind]
    points = _noisy(predictor, rows, noise, levels, num_samples, title)
    for level in further:
        if points[-1].y <= points[0].y - LOST + ROUNDING:
            break
        points += _noisy(predictor, rows, noise, [level], num_samples, f"{title} of {level:g}")
    noise.detach()
    metric, band = predictor.task.metrics[0], f"range of {num_samples} samples"
    return metric_curve(
        metric, f"under {title}", NOISE_LABEL, title, points, band, num_common=len(levels)
    )


def _noisy(
    predictor: Predictor,
    rows: Dataset,
    noise: EmbeddingNoise,
    levels: Sequence[float],
    num_samples: int,
    title: str,
) -> list[CurvePoint]:
    """The metric at each level; every call draws the same samples."""
    predictor.progress.start(title, predictor.num_batches(rows))
    predictions = _noisy_predictions(predictor, rows, noise, levels, num_samples)
    return [
        mean_and_range(level, [predictor.main_metric(each, rows) for each in samples])
        for level, samples in zip(levels, predictions, strict=True)
    ]


def noisy_predictions(predictor: Predictor, rows: Dataset, level: float) -> np.ndarray:
    """(N, W) predictions under Gaussian noise: the first sample of `noise_curve`.

    Args:
        predictor: the model.
        rows: tokenized examples with labels.
        level: size relative to the embeddings.
    """
    noise = EmbeddingNoise("standard", 1.0, "word", 1, True, "token")
    noise.attach(predictor.model)
    predictor.progress.start("sentences under noise", predictor.num_batches(rows))
    found = _noisy_predictions(predictor, rows, noise, [level], 1)
    noise.detach()
    return found[0, 0]


def _noisy_predictions(
    predictor: Predictor,
    rows: Dataset,
    noise: EmbeddingNoise,
    levels: Sequence[float],
    num_samples: int,
) -> np.ndarray:
    """(levels, samples, N, W)."""
    predictions = np.tile(predictor.blank(rows), (len(levels), num_samples, 1, 1))
    with torch.no_grad(), evaluating(predictor.model):
        for number, (chosen, batch) in enumerate(predictor.batches(rows)):
            clean = predictor.clean(batch, hidden_states=False)
            for sample in range(num_samples):
                with predictor.random_stream(f"robustness/{noise.kind}", batch, sample, number):
                    delta = sample_noise(clean, noise)
                for index, level in enumerate(levels):
                    run = clean.at(level * delta, dropout="off") if level else clean.run()
                    predictor.fill(predictions[index, sample], run, rows, chosen)
    return predictions


def sample_noise(clean: ForwardPass, noise: EmbeddingNoise) -> Tensor:
    """(B, T, D) noise as large as the embeddings."""
    if noise.kind == "in_manifold":
        return noise.draw(clean)
    rms = unit(clean, "word", "linf", "example", "relative")
    return rms * gaussian(clean.embeddings(), clean.mask, 1.0, "none")


def attack_curve(
    predictor: Predictor,
    rows: Dataset,
    attack: Literal["fgm", "pgd"] = "fgm",
    *,
    levels: Sequence[float] = ATTACKS,
    num_steps: int = 3,
) -> Curve:
    """Main metric against the strength of an attack that maximizes the task loss.

    Args:
        predictor: the model.
        rows: tokenized examples with labels.
        attack: "fgm": one step along the normalized gradient (Miyato, Dai, Goodfellow 2017);
            "pgd": several steps, projected onto the l2 ball (Madry et al. 2018).
        levels: epsilon / ||x|| of an example, rising from 0.
        num_steps: steps of pgd, 2.5 epsilon / num_steps long.

    Returns:
        The metric at every level, and the `area` under it.
    """
    predictions = np.tile(predictor.blank(rows), (len(levels), 1, 1))
    predictor.progress.start(attack.upper(), predictor.num_batches(rows))
    with evaluating(predictor.model):
        for chosen, batch in predictor.batches(rows):
            for index, delta in enumerate(
                attack_perturbations(predictor, batch, attack, levels, num_steps)
            ):
                run = predictor.clean(batch, hidden_states=False)
                with torch.no_grad():
                    predictor.fill(predictions[index], run.at(delta, dropout="off"), rows, chosen)
    points = [
        CurvePoint(level, predictor.main_metric(each, rows))
        for level, each in zip(levels, predictions, strict=True)
    ]
    title = f"{attack.upper()} attack" + ("" if attack == "fgm" else f", {num_steps} steps")
    metric = predictor.task.metrics[0]
    return metric_curve(metric, f"under {title}", ATTACK_LABEL, title, points)


def attack_perturbations(
    predictor: Predictor, batch: dict[str, Tensor], attack: str, levels: Sequence[float], steps: int
) -> list[Tensor]:
    """(B, T, D) perturbation of each level."""
    clean = predictor.clean(batch, hidden_states=False, differentiable=True)
    if attack == "pgd":
        return [
            Ascent(
                point="word",
                norm="l2",
                per="example",
                units="relative",
                sigma=0.0,
                step_size=PGD_STEP * level / steps,
                epsilon=level,
                num_steps=steps,
                dropout="off",
            ).search(clean, task_loss)[0]
            if level
            else clean.zeros()
            for level in levels
        ]
    gradient = loss_gradient(clean, task_loss(clean.run()), "word")
    size = unit(clean, "word", "l2", "example", "relative")
    return [level * size * normalize(gradient, "l2", "example") for level in levels]
