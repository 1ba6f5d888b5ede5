import copy

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from helpers.linear_network import rotation
from smoothtune.evaluation import linear_cka, representation_drift, weight_drift
from smoothtune.testing import tiny_model


@pytest.mark.parametrize("architecture", ["bert", "llama"])
def test_distance_of_scaled_and_turned_weights(architecture):
    base = tiny_model(architecture)
    tuned = copy.deepcopy(base)
    blocks = tuned.bert.encoder.layer if architecture == "bert" else tuned.model.layers
    with torch.no_grad():
        for weight in blocks[0].parameters():
            weight.mul_(1.25)
        for weight in blocks[1].parameters():
            weight.neg_()
    curves = weight_drift(tuned, base)
    cosine, distance = (curves[name].series["weights"] for name in ("cosine", "distance"))
    assert [point.x for point in cosine] == [0, 1, 2]
    assert [point.y for point in cosine] == pytest.approx([1, 1, -1])
    assert [point.y for point in distance] == pytest.approx([0, 0.25, 2])


def test_new_weights_do_not_count():
    base, tuned = tiny_model("bert"), tiny_model("bert")
    changed = "bert.encoder.layer.0.output.dense.weight"
    tuned.get_parameter(changed).data.zero_()
    assert weight_drift(tuned, base)["distance"].series["weights"][1].y > 0.1
    spared = weight_drift(tuned, base, new=[changed])["distance"].series["weights"]
    assert [point.y for point in spared] == [0, 0, 0]


def test_models_without_common_weights_are_refused():
    with pytest.raises(ValueError, match="no weights in common"):
        weight_drift(tiny_model("bert"), tiny_model("llama"))


@given(st.integers(0, 1000), st.integers(3, 30))
def test_cka_is_the_normalized_hsic_of_gram_matrices(seed, count):
    rng = np.random.default_rng(seed)
    x, y = rng.normal(size=(count, 4)), rng.normal(size=(count, 6))
    center = np.eye(count) - 1 / count
    k, m = center @ x @ x.T @ center, center @ y @ y.T @ center
    expected = np.trace(k @ m) / np.sqrt(np.trace(k @ k) * np.trace(m @ m))
    assert linear_cka(x, y) == pytest.approx(expected)
    turn = np.linalg.qr(rng.normal(size=(4, 4))).Q
    assert linear_cka(x, 3 * x @ turn + 1) == pytest.approx(1)


def test_cka_with_a_constant_is_zero():
    assert linear_cka(np.ones((5, 2)), np.arange(10.0).reshape(5, 2)) == 0


def test_representations(linear_predictor, rows):
    predictor = linear_predictor([rotation(0), rotation(1)], batch_size=2)
    same = representation_drift(predictor, copy.deepcopy(predictor.model), rows)
    assert [point.y for point in same.series["pooled token"]] == pytest.approx([1, 1])
    other = copy.deepcopy(predictor.model)
    torch.nn.init.normal_(other.embedding.weight, generator=torch.Generator().manual_seed(9))
    moved = representation_drift(predictor, other, rows).series["pooled token"]
    assert [point.x for point in moved] == [1, 2]
    assert all(point.y < 0.99 for point in moved)
