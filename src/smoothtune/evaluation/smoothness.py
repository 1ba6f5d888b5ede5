"""First and second derivatives of every layer's representation in the word embeddings.

Reference: Jukic, Snajder, TACL 13 (2025) 264-280, whose penalty this measures; the estimator,
`smoothtune.functional.derivative_norms.differences`, needs forward passes alone and is unbiased up
to O(step^2).
"""

from __future__ import annotations

import numpy as np
import torch
from datasets import Dataset
from torch import Tensor

from smoothtune.core.forward import Pass, evaluating
from smoothtune.evaluation.curves import Curve, Point
from smoothtune.evaluation.predictions import Predictor
from smoothtune.functional.derivative_norms import differences
from smoothtune.functional.input_derivatives import InputDerivatives

STEP = 0.01


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
    predictor.progress.start("Jacobian and Hessian", predictor.count(rows))
    squares: list[tuple[np.ndarray, np.ndarray]] = []
    with torch.no_grad(), evaluating(predictor.model):
        for number, (_, batch) in enumerate(predictor.batches(rows)):
            clean = predictor.clean(batch)

            def function(delta: Tensor, clean: Pass = clean) -> list[Tensor]:
                return _representations(clean.at(delta * clean.mask[..., None], dropout="off"))

            drawn = []
            for probe in range(num_probes):
                with predictor.draws("derivatives", batch, probe, number):
                    drawn.append(
                        differences(
                            function, clean.zeros(), hessian=True, step=derivatives.absolute_step
                        )
                    )
            first, second = (torch.stack(parts).mean(0) for parts in zip(*drawn, strict=True))
            squares.append((first.cpu().numpy(), second.cpu().numpy()))
    jacobian, hessian = (np.concatenate(parts, axis=1) for parts in zip(*squares, strict=True))
    return {"jacobian": _curve("Jacobian", jacobian), "hessian": _curve("Hessian", hessian)}


def _representations(run: Pass) -> list[Tensor]:
    """The pooled token after every block (B, D), and the logits (B, C)."""
    return [*(run.pooled(hidden) for hidden in run.hidden_states[1:]), run.logits]


def _curve(name: str, squares: np.ndarray) -> Curve:
    """The root mean square over examples, from (L + 1, N); the last row is the logits."""
    *layers, logits = (_root(number, values) for number, values in enumerate(squares, 1))
    return Curve(
        f"{name} norm of every layer",
        "layer (number of the block, from 1)",
        LABELS[name],
        {name: layers},
        band="95 % interval over examples and probes",
        log_y=True,
        numbers={
            "logits": logits.y,
            "logits, low": logits.low or 0,
            "logits, high": logits.high or 0,
        },
    )


def _root(x: float, squares: np.ndarray) -> Point:
    """sqrt(mean) with the interval of the mean carried through the root (delta method)."""
    root = float(np.sqrt(squares.mean()))
    if len(squares) < 2 or not root:
        return Point(x, root, root, root)
    error = float(squares.std(ddof=1)) / len(squares) ** 0.5 / (2 * root)
    return Point(x, root, max(root - 1.96 * error, 0.0), root + 1.96 * error)
