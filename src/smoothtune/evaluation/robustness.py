"""The main metric under perturbations of the word embeddings: noise, and attacks.

Sizes are relative to the embeddings: 0.1 is a perturbation with a tenth of their norm. Noise adds
sigma * rms(x) * N(0, 1) to every entry, where rms runs over the real tokens of an example (JacHess
eq. 6 with a unit that fits every model); in-manifold noise is that of
`smoothtune.functional.neighbors`. Attacks have the norm ratio * ||x||, of every token and of the
example.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Literal

import numpy as np
import torch
from datasets import Dataset
from torch import Tensor

from smoothtune.core.forward import ForwardPass
from smoothtune.evaluation.disturbance import disturbance_curve
from smoothtune.evaluation.predictor import Predictor
from smoothtune.functional.adversarial import Ascent, gradient_at, normalize, task_loss, unit
from smoothtune.functional.noise import NoiseKind, gaussian, number_of_neighbors
from smoothtune.methods.noise import Noise
from smoothtune.report.curves import Curve

Attack = Literal["fgm", "pgd"]
NOISE = (0.0, 0.1, 0.2, 0.3, 0.5, 1.0)
ATTACKS = (0.0, 0.01, 0.02, 0.05, 0.1)
FURTHER_NOISE = (1.5, 2.0, 3.0, 5.0, 10.0)
"""Levels that follow until the metric has lost 10 points."""
STEP = 2.5  # of epsilon / steps, so that the ball's surface can be reached and left again

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
        further: larger ones, see `disturbance_curve`.
        num_samples: samples for every level above 0.
        k: neighbors of in-manifold noise; fewer where the vocabulary has not so many words.
    """
    k = number_of_neighbors(predictor.model, k)
    title = {"standard": "Gaussian noise", "in_manifold": "in-manifold noise"}[kind]

    def scores(some: Sequence[float]) -> list[list[float]]:
        predictor.progress.start(title, predictor.num_batches(rows))
        predictions = noisy_predictions(predictor, rows, some, kind, num_samples=num_samples, k=k)
        return [[predictor.main_metric(each, rows) for each in samples] for samples in predictions]

    return disturbance_curve(
        scores,
        predictor.task.main_metric,
        f"under {title}",
        x_label=NOISE_LABEL,
        line=title,
        levels=levels,
        further=further,
        num_samples=num_samples,
    )


def noisy_predictions(
    predictor: Predictor,
    rows: Dataset,
    levels: Sequence[float],
    kind: NoiseKind = "standard",
    *,
    num_samples: int = 1,
    k: int = 1,
) -> np.ndarray:
    """(levels, samples, N, W) predictions under noise; every call draws the same samples."""
    noise = Noise(noise=kind, noise_ratio=1.0, layer="word", k=k)
    noise.attach(predictor.model)

    def perturb(clean: ForwardPass, number: int) -> Iterator[Tensor | None]:
        for sample in range(num_samples):
            stream = predictor.random_stream(f"robustness/{kind}", clean.batch, sample, number)
            with torch.no_grad(), stream:
                delta = sample_noise(clean, noise)
            for level in levels:
                yield level * delta if level else None

    predictions = predictor.predict_perturbed(rows, num_samples * len(levels), perturb)
    noise.detach(predictor.model)
    by_sample = predictions.reshape(num_samples, len(levels), *predictions.shape[1:])
    return by_sample.swapaxes(0, 1)


def sample_noise(clean: ForwardPass, noise: Noise) -> Tensor:
    """(B, T, D) noise as large as the embeddings."""
    if noise.noise == "in_manifold":
        return noise.draw(clean)
    rms = unit(clean, "word", "linf", "example", "relative")
    return rms * gaussian(clean.embeddings(), clean.mask, 1.0, "none")


def attack_curve(
    predictor: Predictor,
    rows: Dataset,
    attack: Attack = "fgm",
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
    """

    def scores(some: Sequence[float]) -> list[list[float]]:
        predictor.progress.start(attack.upper(), predictor.num_batches(rows))
        perturb = partial(attacks, predictor, attack=attack, levels=some, num_steps=num_steps)
        predictions = predictor.predict_perturbed(rows, len(some), perturb)
        return [[predictor.main_metric(each, rows)] for each in predictions]

    title = f"{attack.upper()} attack" + ("" if attack == "fgm" else f", {num_steps} steps")
    metric = predictor.task.main_metric
    return disturbance_curve(
        scores, metric, f"under {title}", x_label=ATTACK_LABEL, line=title, levels=levels
    )


def attacks(
    predictor: Predictor,
    clean: ForwardPass,
    number: int = 0,
    *,
    attack: Attack,
    levels: Sequence[float],
    num_steps: int,
) -> Iterator[Tensor]:
    """(B, T, D) the perturbation of each level; arguments as of `attack_curve`, and a `Perturb`."""
    clean = predictor.clean(clean.batch, hidden_states=False, differentiable=True)
    if attack == "fgm":
        gradient = gradient_at(clean, task_loss(clean.run()), "word")
        size = unit(clean, "word", "l2", "example", "relative")
        yield from (level * size * normalize(gradient, "l2", "example") for level in levels)
        return
    for level in levels:
        yield l2_ascent(level, num_steps).search(clean, task_loss)[0] if level else clean.zeros()


def l2_ascent(epsilon: float, num_steps: int, sigma: float = 0.0) -> Ascent:
    """The search for the worst perturbation of an example with epsilon = ||delta|| / ||x||.

    It begins with noise of the size sigma.
    """
    return Ascent(
        point="word",
        norm="l2",
        per="example",
        units="relative",
        sigma=sigma,
        step_size=STEP * epsilon / num_steps,
        epsilon=epsilon,
        num_steps=num_steps,
        dropout="off",
    )
