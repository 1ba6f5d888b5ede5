"""How far fine-tuning has moved a model from the pre-trained one.

Reference: linear CKA of Kornblith, Norouzi, Lee, Hinton: Similarity of Neural Network
Representations Revisited, ICML 2019.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

import numpy as np
import torch
from datasets import Dataset
from torch import Tensor, nn

from smoothtune.evaluation.predictor import Predictor
from smoothtune.nn.architecture import base_model, blocks, word_embeddings
from smoothtune.report.curves import Curve, CurvePoint

Pair = tuple[Tensor, Tensor]
LAYER = "layer (0: embeddings, then the blocks)"


def weight_drift(
    model: nn.Module, base: nn.Module, *, new: Collection[str] = ()
) -> dict[str, Curve]:
    """Cosine and relative distance of each layer's weights to the pre-trained ones.

    Args:
        model: fine-tuned.
        base: pre-trained, of the same architecture.
        new: names of weights that the pre-trained model does not have, as its head.

    Returns:
        `cosine`: cos(w, w0), and `distance`: ||w - w0|| / ||w0||, of all weights of a layer
        together. Weights above the blocks are not shown.

    Raises:
        ValueError: the models have no weights of the same names and shapes in common.
    """
    layer_of = layer_numbers(model)
    weights = {name: w for name, w in model.named_parameters() if name in layer_of}
    layers: dict[int, list[Pair]] = defaultdict(list)
    for name, pair in shared_weights(weights, base, new).items():
        layers[layer_of[name]].append(pair)
    cosines, distances = [], []
    for number, pairs in sorted(layers.items()):
        dot = float(sum((w * w0).sum() for w, w0 in pairs))
        square, base_square = _squares(w for w, _ in pairs), _squares(w0 for _, w0 in pairs)
        moved = _squares(w - w0 for w, w0 in pairs)
        cosines.append(CurvePoint(number, dot / (square * base_square) ** 0.5))
        distances.append(CurvePoint(number, (moved / base_square) ** 0.5))
    cosine, distance = "cosine to the pre-trained weights", "||w - w0|| / ||w0||"
    return {
        "cosine": Curve("cosine of the weights", LAYER, cosine, {"weights": cosines}),
        "distance": Curve("distance of the weights", LAYER, distance, {"weights": distances}),
    }


def weight_distance(
    model: nn.Module, base: nn.Module, *, new: Collection[str] = ()
) -> dict[str, float]:
    """Distance of the pre-trained part of a model from where it started; see `weight_drift`.

    Returns:
        `weight distance`: ||w - w0|| / ||w0||; `absolute`: ||w - w0||.
    """
    inside = {id(weight) for weight in base_model(model).parameters()}
    weights = {name: w for name, w in model.named_parameters() if id(w) in inside}
    pairs = shared_weights(weights, base, new).values()
    moved = _squares(w - w0 for w, w0 in pairs) ** 0.5
    size = _squares(w0 for _, w0 in pairs) ** 0.5
    return {"weight distance": moved / size, "absolute": moved}


def _squares(tensors: Iterable[Tensor]) -> float:
    return float(sum(tensor.square().sum() for tensor in tensors))


def shared_weights(
    weights: Mapping[str, nn.Parameter], base: nn.Module, new: Collection[str]
) -> dict[str, Pair]:
    """Each of the weights and the pre-trained one, by name, in float64.

    Raises:
        ValueError: there are none of the same name and shape.
    """
    before = dict(base.named_parameters())
    pairs = {
        name: (weight.detach().double(), before[name].detach().double())
        for name, weight in weights.items()
        if name in before and name not in new and before[name].shape == weight.shape
    }
    if not pairs:
        raise ValueError(
            "the two models have no weights in common: name the model that this one was made from"
        )
    return pairs


def layer_numbers(model: nn.Module) -> dict[str, int]:
    """The layer of every weight of the embeddings (0) and of the blocks (from 1), by its name."""
    word = word_embeddings(model)
    parts = next(m for m in model.modules() if word in m.children())
    holds_blocks = any(isinstance(m, nn.ModuleList) for m in parts.modules())
    owners = [word if holds_blocks else parts, *blocks(model)]
    layer_of = {id(w): number for number, owner in enumerate(owners) for w in owner.parameters()}
    return {name: layer_of[id(w)] for name, w in model.named_parameters() if id(w) in layer_of}


def linear_cka(x: np.ndarray, y: np.ndarray) -> float:
    """||Y'X||_F^2 / (||X'X||_F ||Y'Y||_F) of centered columns, in [0, 1]; 1: equal up to rotation.

    Args:
        x: (N, D) representations of N examples.
        y: (N, E) of the same examples.

    Returns:
        The similarity; 0 if one of them is constant.
    """
    x, y = x - x.mean(0), y - y.mean(0)
    scale = np.linalg.norm(x.T @ x) * np.linalg.norm(y.T @ y)
    return float(np.linalg.norm(y.T @ x) ** 2 / scale) if scale else 0.0


def representation_drift(predictor: Predictor, base: nn.Module, rows: Dataset) -> Curve:
    """Linear CKA of the pooled token after every layer, fine-tuned against pre-trained.

    Args:
        predictor: the fine-tuned model.
        base: pre-trained, on the same device.
        rows: tokenized examples; with fewer than the width of the model CKA is biased upwards.

    Returns:
        CKA against the layer.
    """
    predictor.progress.start("representations", 2 * predictor.num_batches(rows))
    tuned = _pooled(predictor, rows)
    before = _pooled(replace(predictor, model=base), rows)
    points = [
        CurvePoint(layer, linear_cka(x, y))
        for layer, (x, y) in enumerate(zip(tuned, before, strict=True), 1)
    ]
    return Curve(
        "similarity of the representations",
        "layer (number of the block, from 1)",
        "linear CKA to the pre-trained model",
        {"pooled token": points},
    )


def _pooled(predictor: Predictor, rows: Dataset) -> np.ndarray:
    """(L, N, D)."""
    layers: list[np.ndarray] = []
    order: list[np.ndarray] = []
    with torch.no_grad():
        for _, indices, clean in predictor.passes(rows):
            states = torch.stack([clean.pooled(h) for h in clean.run().hidden_states[1:]])
            layers.append(states.double().cpu().numpy())
            order.append(indices)
    pooled = np.concatenate(layers, axis=1)
    ordered = np.empty_like(pooled)
    ordered[:, np.concatenate(order)] = pooled
    return ordered
