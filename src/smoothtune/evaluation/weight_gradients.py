"""The gradients of the task loss in the weights: sharpness, and spread over the tensors.

References: sharpness: Foret et al., ICLR 2021; components of a gradient: Yang, Ma, EMNLP 2022.
"""

from collections import defaultdict
from collections.abc import Mapping

import numpy as np
import torch
from datasets import Dataset
from torch import Tensor, nn

from smoothtune.evaluation.drift import layer_numbers
from smoothtune.evaluation.predictor import Predictor
from smoothtune.functional.adversarial import task_loss
from smoothtune.methods.sam import moved
from smoothtune.nn.architecture import blocks
from smoothtune.report.curves import Curve, CurvePoint

RHO = 0.05
"""Length of the step whose rise in loss is the sharpness; that of the paper."""


def task_gradient(predictor: Predictor, rows: Dataset) -> tuple[float, dict[str, Tensor]]:
    """The task loss over all rows as one batch, and its gradient in every trained weight, by name.

    Dropout is off.
    """
    weights = {n: w for n, w in predictor.model.named_parameters() if w.requires_grad}
    total, gradients = 0.0, {name: torch.zeros_like(w) for name, w in weights.items()}
    count = 0
    for _, _, clean in predictor.passes(rows, hidden_states=False):
        losses = predictor.task.head.num_losses(clean.batch)
        loss = task_loss(clean.run())
        parts = torch.autograd.grad(loss, list(weights.values()), materialize_grads=True)
        total += losses * float(loss.detach())
        count += losses
        for sum_, part in zip(gradients.values(), parts, strict=True):
            sum_ += losses * part
    return total / count, {name: gradient / count for name, gradient in gradients.items()}


def weight_side(
    predictor: Predictor, rows: Dataset, *, rho: float = RHO
) -> tuple[dict[str, float], dict[str, float]]:
    """Sharpness and spread of the gradients of the task loss in the weights.

    The rows count as one batch. The weights are the same afterwards, bit for bit.

    Returns:
        `sharpness`: L(w + rho g / ||g||) - L(w), as SAM defines it; `gradient spread`: largest over
        median norm of the gradient of a weight tensor, of those that have one. And these norms, by
        name of the tensor.
    """
    predictor.progress.start("gradient in the weights", 2 * predictor.num_batches(rows))
    loss, gradients = task_gradient(predictor, rows)
    norms = torch.stack([g.double().norm() for g in gradients.values()]).cpu()
    length = norms.norm().clamp(min=torch.finfo(torch.float64).tiny)
    weights = [predictor.model.get_parameter(name) for name in gradients]
    step = [float(rho / length) * g for g in gradients.values()]
    above, total = 0.0, 0
    with torch.no_grad(), moved(weights, step):
        for _, _, clean in predictor.passes(rows, hidden_states=False):
            losses = predictor.task.head.num_losses(clean.batch)
            above += losses * float(task_loss(clean.run()))
            total += losses
    used = {n: norm for n, norm in zip(gradients, norms.tolist(), strict=True) if norm > 0}
    spread = max(used.values()) / float(np.median([*used.values()])) if used else 1.0
    return {"sharpness": above / total - loss, "gradient spread": spread}, used


def gradient_spread(model: nn.Module, norms: Mapping[str, float]) -> Curve:
    """The largest gradient norm of a weight tensor in every layer, over the median of all.

    Returns:
        The largest, and the median of the layer, against the layer: 0 for the embeddings, the
        number of the block from 1, and one more for what is above. The largest value of the first
        is the model's gradient spread.
    """
    layer_of = layer_numbers(model)
    layers: dict[int, list[float]] = defaultdict(list)
    middle = float(np.median([*norms.values()]))
    for name, norm in norms.items():
        layers[layer_of.get(name, len(blocks(model)) + 1)].append(norm / middle)
    by_layer = sorted(layers.items())
    largest = [CurvePoint(layer, max(values)) for layer, values in by_layer]
    median = [CurvePoint(layer, float(np.median(values))) for layer, values in by_layer]
    return Curve(
        "gradients of the weight tensors",
        "layer (0: embeddings, then the blocks and what is above)",
        "gradient norm, over the median of all tensors",
        {"largest of the layer": largest, "median of the layer": median},
        log_y=True,
    )
