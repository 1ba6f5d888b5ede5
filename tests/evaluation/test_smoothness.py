"""Derivatives, attenuation and spectrum on networks where they are known."""

import numpy as np
import pytest
import torch

from helpers.linear_network import WIDTH, rotation
from smoothtune.evaluation import derivative_norms, noise_propagation, noise_spectrum
from smoothtune.nn import rng
from smoothtune.testing import fixed_draws, tiny_model


def test_a_rotation_keeps_relative_errors(linear_predictor, rows):
    predictor = linear_predictor([rotation(0, 2.0), rotation(1, 0.5), rotation(2)], batch_size=2)
    curve = noise_propagation(predictor, rows, layers=(0, 2))["attenuation"]
    assert set(curve.series) == {"noise before block 1", "noise before block 3"}
    assert [point.x for point in curve.series["noise before block 3"]] == [2, 3]
    for points in curve.series.values():
        assert [point.y for point in points] == pytest.approx([0.05] * len(points), rel=1e-12)


def test_attenuation_is_the_closed_form_of_a_linear_network(linear_predictor, rows, monkeypatch):
    """With noise along e, the error after W is 0.05 ||x|| ||W e|| / ||W x||."""
    direction = torch.linspace(-1, 1, WIDTH, dtype=torch.float64)
    monkeypatch.setattr(rng, "normal_like", lambda x: direction.expand_as(x))
    squeeze = torch.diag(torch.linspace(0.1, 2, WIDTH, dtype=torch.float64))
    predictor = linear_predictor([squeeze, squeeze], batch_size=2)
    curve = noise_propagation(predictor, rows, layers=(0,), num_samples=1)["attenuation"]
    (points,) = curve.series.values()
    table = predictor.model.embedding.weight.detach().numpy()
    e = (direction / direction.norm()).numpy()
    for power, point in enumerate(points):
        w = np.linalg.matrix_power(squeeze.numpy(), power)
        per_example = [
            np.mean(
                [
                    0.05 * np.linalg.norm(x) * np.linalg.norm(w @ e) / np.linalg.norm(w @ x)
                    for x in table[row]
                ]
            )
            for row in rows["input_ids"]
        ]
        assert point.y == pytest.approx(np.mean(per_example), rel=1e-9)
        half = 1.96 * np.std(per_example, ddof=1) / np.sqrt(5)
        assert point.high - point.y == pytest.approx(half, rel=1e-6, abs=1e-12)
    assert points[0].y == pytest.approx(0.05, rel=1e-12)
    assert curve.numbers["amplification, noise before block 1"] == points[-1].y / 0.05


@pytest.mark.parametrize("measure", [noise_propagation, derivative_norms])
def test_padding_changes_nothing(linear_predictor, rows, measure):
    squeeze = torch.diag(torch.linspace(0.1, 2, WIDTH, dtype=torch.float64))
    found = []
    for batch_size in (1, 5):  # alone there is no padding
        with fixed_draws():
            curves = measure(linear_predictor([squeeze, rotation(1)], batch_size=batch_size), rows)
        found.append([p.y for c in curves.values() for s in c.series.values() for p in s])
    assert found[0] == pytest.approx(found[1], rel=1e-9, abs=1e-6)


def test_a_model_whose_padding_is_zero(linear_predictor, rows):
    """DeBERTa multiplies its embeddings by the mask."""
    found = []
    for batch_size in (1, 5):
        predictor = linear_predictor([rotation(0)], batch_size=batch_size)
        predictor.model = tiny_model("deberta").eval()
        predictor.model.config.pad_token_id = 0
        with fixed_draws():
            curve = noise_propagation(predictor, rows, layers=(0,))["attenuation"]
        found.append([point.y for point in curve.series["noise before block 1"]])
    assert found[1] == pytest.approx(found[0], rel=1e-9)


def test_derivatives_of_a_linear_network(linear_predictor, rows):
    """The Jacobian of z_l in the pooled token is 2 Q_1, then 2 Q_1 Q_2 / 2; no curvature."""
    predictor = linear_predictor([rotation(0, 2.0), rotation(1, 0.5)], batch_size=2)
    curves = derivative_norms(predictor, rows, num_probes=200)
    (points,) = curves["jacobian"].series.values()
    expected = [2 * np.sqrt(WIDTH), np.sqrt(WIDTH)]
    assert [point.x for point in points] == [1, 2]
    assert [point.y for point in points] == pytest.approx(expected, rel=1e-2)
    head = np.linalg.norm(predictor.model.head.weight.detach().numpy())
    assert curves["jacobian"].numbers["logits"] == pytest.approx(head, rel=0.1)
    (bent,) = curves["hessian"].series.values()
    assert max(point.y for point in bent) < 1e-6


def test_derivatives_of_a_quadratic_network(linear_predictor, rows, monkeypatch):
    """z_i = h_i^2 / 2 has the Hessians e_i e_i', of norm 1 each, whatever h is."""
    predictor = linear_predictor([torch.eye(WIDTH, dtype=torch.float64)], batch_size=5)
    monkeypatch.setattr(
        type(predictor.model.layers[0]), "forward", lambda self, hidden: hidden**2 / 2
    )
    curves = derivative_norms(predictor, rows, num_probes=200)
    (points,) = curves["hessian"].series.values()
    assert points[0].y == pytest.approx(np.sqrt(WIDTH), rel=1e-6)
    first = predictor.model.embedding.weight.detach().numpy()[[row[0] for row in rows["input_ids"]]]
    norm = np.sqrt((first**2).sum(1).mean())
    (jacobian,) = curves["jacobian"].series.values()
    assert jacobian[0].y == pytest.approx(norm, rel=1e-3)
    assert jacobian[0].low < norm < jacobian[0].high


def test_spectrum_of_in_manifold_noise_stays_in_the_span(linear_predictor, rows):
    predictor = linear_predictor([rotation(0)], batch_size=5)
    one_token = rows.map(lambda row: {"input_ids": [5] * row["length"]})
    many = one_token.select([0, 1, 2, 3, 4] * 20)
    curve = noise_spectrum(predictor, many, k=3)
    standard, manifold = (
        [point.y for point in curve.series[name]] for name in ("standard", "in-manifold")
    )
    assert len(standard) == WIDTH
    assert sum(standard) == pytest.approx(1)
    assert standard == sorted(standard, reverse=True)
    assert min(standard) > 0.05
    assert sum(manifold[:3]) == pytest.approx(1, abs=1e-9)
    assert curve.numbers["effective rank, in-manifold"] == pytest.approx(3, rel=0.05)
    assert curve.numbers["effective rank, standard"] == pytest.approx(WIDTH, rel=0.05)
