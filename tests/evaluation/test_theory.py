"""Claim 1 of LNSR and the Lipschitz bounds, against slow references in float64."""

import numpy as np
import pytest
import torch
from torch.autograd.functional import jacobian, jvp

from helpers.linear_network import WIDTH, rotation
from smoothtune.evaluation.predictor import Predictor
from smoothtune.evaluation.theory import lipschitz, noise_expansion
from smoothtune.nn import rng
from smoothtune.nn.higher_order import differentiable_attention
from smoothtune.tasks.presets import describe_task
from smoothtune.testing import tiny_model

BILINEAR = rotation(4)


def quadratic(hidden):
    """z_i = x_i + x_i (M x)_i."""
    return hidden + hidden * (hidden @ BILINEAR.T)


@pytest.fixture
def bent(linear_predictor, monkeypatch):
    predictor = linear_predictor([torch.eye(WIDTH, dtype=torch.float64)], batch_size=5)
    layer = type(predictor.model.layers[0])
    monkeypatch.setattr(layer, "forward", lambda self, hidden: quadratic(hidden))
    return predictor


def lines(curve):
    return [np.array([p.y for p in curve.series[name]]) for name in curve.series]


def test_the_expansion_of_a_quadratic_network_is_exact(bent, rows):
    measured, first, second = lines(curve := noise_expansion(bent, rows, sigmas=(0.5, 2.0)))
    assert measured == pytest.approx(second, rel=1e-7)
    assert curve.numbers["measured over second order, sigma 2"] == pytest.approx(1, rel=1e-7)
    assert measured[1] > 1.5 * first[1]
    small, large = measured - first
    assert large / small == pytest.approx(4**4, rel=1e-4)  # sigma^4, and not sigma^2 of eq. 14


def test_its_terms_are_the_norms_of_jacobian_and_hessian(bent, rows):
    """sigma^2 ||J||^2 + sigma^4 / 4 sum_i [(tr H_i)^2 + 2 ||H_i||^2], example by example."""
    sigma = 0.5
    _, first, second = lines(noise_expansion(bent, rows, sigmas=(sigma,), num_probes=300))
    table = bent.model.embedding.weight.detach()
    expected = []
    for row in rows["input_ids"]:
        terms = []
        for x in table[row]:
            size = sigma * x.square().mean().sqrt()
            hessians = [
                torch.autograd.functional.hessian(lambda x, i=i: quadratic(x)[i], x)
                for i in range(WIDTH)
            ]
            bend = sum(h.trace() ** 2 + 2 * h.square().sum() for h in hessians)
            slope = jacobian(quadratic, x).square().sum()
            terms.append((float(size**2 * slope), float(size**4 / 4 * bend)))
        expected.append(np.mean(terms, axis=0))
    first_term, second_term = np.mean(expected, axis=0)
    assert first[0] == pytest.approx(first_term, rel=0.03)
    assert second[0] - first[0] == pytest.approx(second_term, rel=0.15)


@pytest.mark.parametrize("sigma", [1e-3, 1e-2])
def test_on_bert_the_first_order_is_the_limit(tokenizer, rows, monkeypatch, sigma):
    """Along one direction, against derivatives by autograd; the rest falls with sigma^2."""
    model = tiny_model("bert", num_labels=2, dtype=torch.float64).eval()
    model.set_attn_implementation("eager")
    task = describe_task(text_columns="text", label_names=("poor", "fine"))
    row = rows.select([0])
    width = model.config.hidden_size
    generator = torch.Generator().manual_seed(0)
    direction = torch.randn(
        1, len(row[0]["input_ids"]), width, dtype=torch.float64, generator=generator
    )
    monkeypatch.setattr(rng, "normal_like", lambda x: direction)
    curve = noise_expansion(Predictor(model, tokenizer, task), row, sigmas=(sigma,), num_probes=1)
    ids = torch.tensor(row["input_ids"])
    x = model.bert.embeddings(input_ids=ids).detach()

    def states(x):
        found = []
        for layer in model.bert.encoder.layer:
            x = layer(x)
            x = x[0] if isinstance(x, tuple) else x
            found.append(x)
        return torch.stack(found)

    unit = x.square().mean(-1, keepdim=True).sqrt() * direction
    with differentiable_attention():
        _, along = jvp(states, x, unit)
    expected = sigma**2 * along.square().sum((0, 3)).mean(-1)
    measured, first, _ = lines(curve)
    assert first[0] == pytest.approx(float(expected), rel=1e-3)
    assert abs(measured[0] / first[0] - 1) < 500 * sigma**2 + 1e-3


def test_bounds_of_a_linear_network(linear_predictor, rows):
    """Its Lipschitz constant is the spectral norm; the steepest direction reaches it."""
    predictor = linear_predictor([rotation(0, 2.0), rotation(1, 0.5)], batch_size=2)
    found = lipschitz(predictor, rows)
    values = torch.linalg.svdvals(predictor.model.head.weight.detach())
    assert found["spectral norm"] == pytest.approx(float(values[0]), rel=1e-9)
    assert found["Frobenius norm"] == pytest.approx(float(values.norm()), rel=1e-9)
    assert found["moved along the steepest direction"] == pytest.approx(float(values[0]), rel=1e-9)
    assert 0 < found["moved by noise"] < float(values[0])
    assert found["above the bound"] == 0


def test_many_scores_have_no_bounds(linear_predictor, rows, monkeypatch):
    monkeypatch.setattr("smoothtune.evaluation.theory.MAX_OUTPUTS", 1)
    assert lipschitz(linear_predictor([rotation(0)]), rows) == {}
