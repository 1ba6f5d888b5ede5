import numpy as np
import pytest
import torch

from helpers.linear_network import rotation
from smoothtune.evaluation import attack_curve, noise_curve
from smoothtune.evaluation.robustness import attacks, sample_noise
from smoothtune.functional.noise import relative_norm
from smoothtune.methods.noise import Noise


def accuracy(predictor, rows):
    return float((predictor.predict(rows).argmax(1) == np.array(rows["labels"])).mean())


@pytest.mark.parametrize("kind", ["standard", "in_manifold"])
def test_without_noise_it_is_the_metric_and_noise_moves_it(linear_predictor, rows, kind):
    predictor = linear_predictor([rotation(0)], batch_size=2)
    labels = predictor.predict(rows).argmax(1)  # all right
    right = rows.remove_columns("labels").add_column("labels", labels.tolist())
    curve = noise_curve(predictor, right, kind, levels=(0.0, 1e-6, 3.0), num_samples=4)
    (points,) = curve.series.values()
    assert [point.x for point in points] == [0, 1e-6, 3.0]
    assert [point.y for point in points[:2]] == [1, 1]
    assert points[2].low <= points[2].y <= points[2].high
    assert points[2].low < 1
    again = noise_curve(predictor, right, kind, levels=(0.0, 1e-6, 3.0), num_samples=4)
    assert again == curve
    width = 3.0
    expected = ((1 + 1) / 2 * 1e-6 + (1 + points[2].y) / 2 * (width - 1e-6)) / width
    assert curve.numbers["area"] == pytest.approx(expected)


def test_noise_grows_until_ten_points_are_lost(linear_predictor, rows):
    predictor = linear_predictor([rotation(0)], batch_size=2)
    labels = predictor.predict(rows).argmax(1)
    right = rows.remove_columns("labels").add_column("labels", labels.tolist())
    short = noise_curve(predictor, right, levels=(0.0, 1e-6))
    long = noise_curve(predictor, right, levels=(0.0, 1e-6), further=(1e-5, 5.0, 50.0, 500.0))
    (points,) = long.series.values()
    assert [point.x for point in points] == [0, 1e-6, 1e-5, 5.0]
    assert min(point.y for point in points[:-1]) == 1 > 0.9 >= points[-1].y
    lost = long.numbers.pop("loses 10 points at")
    assert lost == pytest.approx(1e-5 + 0.1 / (1 - points[-1].y) * (5.0 - 1e-5))
    assert long.numbers == short.numbers  # the area is that of the common levels
    (alone,) = noise_curve(predictor, right, levels=(0.0, 5.0)).series.values()
    assert alone[-1] == points[-1]  # the same draws


@pytest.mark.parametrize(("kind", "tolerance"), [("standard", 0.03), ("in_manifold", 1e-6)])
def test_noise_is_as_large_as_the_embeddings(linear_predictor, rows, kind, tolerance):
    predictor = linear_predictor([rotation(0)], batch_size=5)
    noise = Noise(noise=kind, noise_ratio=1.0, layer="word", k=10)
    noise.attach(predictor.model)
    _, batch = next(predictor.batches(rows))
    clean = predictor.clean(batch)
    draws = [sample_noise(clean, noise) for _ in range(100)]
    squares = [relative_norm(draw, clean.embeddings(), clean.mask).item() ** 2 for draw in draws]
    assert np.sqrt(np.mean(squares)) == pytest.approx(1, rel=tolerance)
    assert not any(draw[~clean.mask].any() for draw in draws)
    assert not torch.equal(draws[0], draws[1])


@pytest.mark.parametrize("attack", ["fgm", "pgd"])
def test_attack_of_a_linear_model_goes_along_the_weights(linear_predictor, rows, attack):
    predictor = linear_predictor([rotation(0)], batch_size=5)
    ((_, batch),) = predictor.batches(rows)
    clean = predictor.clean(batch)
    levels = (0.0, 0.2)
    zero, delta = attacks(predictor, clean, attack=attack, levels=levels, num_steps=3)
    assert not zero.any()
    x = clean.embeddings() * clean.mask[..., None]
    norms = delta.flatten(1).norm(dim=1) / x.flatten(1).norm(dim=1)
    torch.testing.assert_close(norms, torch.full_like(norms, 0.2))
    # Only the first token is classified, and the loss grows towards the other class.
    head = predictor.model.head.weight @ predictor.model.layers[0].weight
    direction = (head[0] - head[1]) * (2 * batch["labels"][:, None] - 1)
    cosine = torch.cosine_similarity(delta[:, 0], direction)
    torch.testing.assert_close(cosine, torch.ones_like(cosine))
    assert not delta[:, 1:].any()


@pytest.mark.parametrize("attack", ["fgm", "pgd"])
def test_attacks_hurt_more_the_stronger_they_are(linear_predictor, rows, attack):
    predictor = linear_predictor([rotation(0)], batch_size=2)
    curve = attack_curve(predictor, rows, attack, levels=(0.0, 0.3, 30.0))
    (points,) = curve.series.values()
    assert points[0].y == accuracy(predictor, rows)
    assert points[0].y >= points[1].y >= points[2].y == 0
    assert all(parameter.grad is None for parameter in predictor.model.parameters())
