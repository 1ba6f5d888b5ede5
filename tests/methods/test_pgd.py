"""PGD."""

import pytest
import torch

from helpers.adversary import (
    compare,
    embeddings,
    into_l2,
    length,
    predict,
    rms,
    rows,
    setting,
    slope,
)
from helpers.literal import MODELS, cross_entropy, span_batch, squared_error, tiny_span_model
from smoothtune import PGD, Objective
from smoothtune.nn import rng
from smoothtune.testing import tiny_batch


@pytest.mark.parametrize("norm", ["l2", "linf"])
@pytest.mark.parametrize("num_labels", [3, 1])
@pytest.mark.parametrize("architecture", MODELS)
def test_equals_its_equation(architecture, num_labels, norm):
    model, data = setting(architecture, num_labels)
    error = squared_error if num_labels == 1 else cross_entropy

    def expected(model):
        losses = []
        for ids, label in rows(data):
            x = embeddings(model, ids)
            unit = length(x) if norm == "l2" else rms(x)
            delta = 0.2 * unit * rng.uniform_like(x)
            if norm == "l2":
                delta = delta / x.numel() ** 0.5
            for _ in range(2):
                delta.requires_grad_()
                g = slope(error([predict(model, ids, delta)], [label]), delta)
                if norm == "l2":
                    moved = delta.detach() + 0.1 * unit * g / length(g)
                    delta = into_l2(moved, 0.2 * unit)
                else:
                    moved = delta.detach() + 0.1 * unit * torch.sign(g)
                    delta = moved.clamp(-0.2 * unit, 0.2 * unit)
            losses.append(error([predict(model, ids, delta)], [label]))
        return sum(losses) / 4

    method = PGD(norm=norm, epsilon=0.2, step_size=0.1, num_steps=2)
    compare(Objective(method), model, data, expected)


def test_raises_the_loss_of_spans():
    model, data = tiny_span_model(), span_batch(tiny_batch())
    objective = Objective(PGD()).attach(model)
    assert objective(model, data) > model(**data).loss
    assert objective.terms["pgd/cos_gradient"] > 0.3
