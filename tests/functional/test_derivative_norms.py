"""Estimators of Jacobian and Hessian norms against the exact values."""

import math

import pytest
import torch
from torch import nn
from torch.autograd.functional import hessian, jacobian
from torch.func import functional_call

from helpers.conformance import fed
from smoothtune.functional.derivative_norms import (
    _indices,
    directional,
    exact,
    finite_difference,
    finite_difference_per_layer,
    per_layer,
    probe_like,
    projected,
)
from smoothtune.nn.higher_order import CompositeLayerNorm

DOUBLE = torch.float64
WEIGHTS = torch.tensor([0.7, 1.9], dtype=DOUBLE)


class Toy(nn.Module):
    """Two layers of two and three outputs on an input of 2 x 2 numbers, LayerNorm included."""

    def __init__(self, norm=CompositeLayerNorm):
        super().__init__()
        torch.manual_seed(2)
        self.first = nn.Linear(4, 2, dtype=DOUBLE)
        self.norm = norm(3, dtype=DOUBLE)
        self.second = nn.Linear(2, 3, dtype=DOUBLE)

    def forward(self, x):
        one = torch.tanh(self.first(x.flatten(1)))
        return [one, torch.sin(2 * self.norm(self.second(one)))]


def point(copies):
    generator = torch.Generator().manual_seed(4)
    return torch.randn(1, 2, 2, dtype=DOUBLE, generator=generator).repeat(copies, 1, 1)


def true_norms(model, x):
    """Weighted squared norms at one point, one output at a time."""
    slopes = curvature = 0.0
    for layer, weight in enumerate(WEIGHTS.tolist()):
        for i in range(model(x)[layer].shape[1]):

            def output(one, layer=layer, i=i):
                return model(one[None])[layer][0, i]

            slopes += weight * jacobian(output, x[0]).square().sum().item()
            curvature += weight * hessian(output, x[0]).square().sum().item()
    return slopes, curvature


def estimate(name, model, x, **settings):
    settings = {"hessian": True} | settings
    if name == "finite_difference":
        return finite_difference(lambda d: model(x + d), x, WEIGHTS, **{"step": 1e-4} | settings)
    if name == "forward_difference":
        return finite_difference(
            lambda d: model(x + d), x, WEIGHTS, center=model(x), **{"step": 1e-3} | settings
        )
    leaf = torch.zeros_like(x, requires_grad=True)
    function = {"projected": projected, "per_layer": per_layer, "directional": directional}
    return function[name](model(x + leaf), leaf, WEIGHTS, **settings)


DIFFERENCES = ["finite_difference", "forward_difference"]
ESTIMATORS = ["per_layer", "projected", "directional", *DIFFERENCES]


def test_exact_equals_torch():
    model, x = Toy(), point(1)
    leaf = torch.zeros_like(x, requires_grad=True)
    found = exact(model(x + leaf), leaf, WEIGHTS, hessian=True)
    expected = true_norms(model, x)
    assert found.jacobian.item() == pytest.approx(expected[0], rel=1e-10)
    assert found.hessian.item() == pytest.approx(expected[1], rel=1e-10)


@pytest.mark.parametrize(
    ("name", "probe"),
    [  # of layers by themselves, which take long, fast tests have signs alone
        pytest.param(name, probe, marks=pytest.mark.slow if number and name == "per_layer" else ())
        for name in ESTIMATORS
        for number, probe in enumerate(["rademacher", "gaussian", "sphere"])
    ],
)
def test_unbiased_at_three_standard_errors(name, probe):
    model, x = Toy(), point(50 if name == "per_layer" else 20_000)
    settings = {"dims": 40} if name == "per_layer" else {}
    rounds = 25 if name == "per_layer" else 1  # one draw of dimensions serves the whole batch
    runs = [estimate(name, model, x, probe=probe, **settings) for _ in range(rounds)]
    for parts, expected in zip(zip(*runs, strict=True), true_norms(model, x), strict=True):
        draws = torch.stack(parts).mean(1) if rounds > 1 else parts[0]
        error = (draws.std() / math.sqrt(len(draws))).item()
        assert abs(draws.mean().item() - expected) < 3 * error + 1e-6 * expected


@pytest.mark.parametrize("name", ESTIMATORS)
def test_gradient_is_unbiased(name):
    """The mean gradient of many draws equals the gradient of the exact norms."""
    model, copies = Toy(), 4_000
    weight = model.first.weight
    leaf = torch.zeros_like(point(1), requires_grad=True)
    parts = exact(model(point(1) + leaf), leaf, WEIGHTS, hessian=True)
    expected = torch.autograd.grad(sum(part.sum() for part in parts), weight)[0]
    draws = []
    for _ in range(20):
        size = copies if name != "per_layer" else 50
        settings = {"dims": 20} if name == "per_layer" else {}
        found = estimate(name, model, point(size), **settings)
        draws.append(torch.autograd.grad(sum(part.mean() for part in found), weight)[0])
    mean, error = torch.stack(draws).mean(0), torch.stack(draws).std(0) / math.sqrt(20)
    assert ((mean - expected).abs() < 4 * error + 1e-5 * expected.abs()).all()
    assert torch.linalg.vector_norm(expected) > 1


@pytest.mark.parametrize("hessian", [False, True])
@pytest.mark.parametrize("name", ["exact", *ESTIMATORS])
def test_parameter_gradient_equals_finite_differences(name, hessian):
    model, x = Toy(), point(2)
    weights = list(model.parameters())
    directions = [torch.randn_like(weight) for weight in weights]

    def value():
        torch.manual_seed(6)  # the same probes
        if name == "exact":
            leaf = torch.zeros_like(x, requires_grad=True)
            parts = exact(model(x + leaf), leaf, WEIGHTS, hessian=hessian)
        else:
            step = {"step": 0.01} if name in DIFFERENCES else {}
            parts = estimate(name, model, x, hessian=hessian, **step)
        return parts.hessian.sum() if hessian else parts.jacobian.sum()

    gradients = torch.autograd.grad(value(), weights, allow_unused=True)
    slope = sum((g * d).sum() for g, d in zip(gradients, directions, strict=True) if g is not None)
    moved, h = [], 1e-5
    for sign in (1, -1):
        with torch.no_grad():
            for weight, d in zip(weights, directions, strict=True):
                weight.add_(sign * h * d)
        moved.append(value().item())
        with torch.no_grad():
            for weight, d in zip(weights, directions, strict=True):
                weight.sub_(sign * h * d)
    assert slope.item() == pytest.approx((moved[0] - moved[1]) / (2 * h), rel=1e-6)


def test_stock_layer_norm_is_wrong_at_third_order():
    """Why the composite exists: same value, another gradient. Fails when PyTorch mends it."""
    gradients = []
    for norm in (nn.LayerNorm, CompositeLayerNorm):
        model, x = Toy(norm), point(1)
        leaf = torch.zeros_like(x, requires_grad=True)
        found = exact(model(x + leaf), leaf, WEIGHTS, hessian=True).hessian.sum()
        assert found.item() == pytest.approx(true_norms(Toy(), x)[1], rel=1e-9)
        gradients.append(torch.autograd.grad(found, model.first.weight)[0])
    assert torch.linalg.vector_norm(gradients[0] - gradients[1]) > 0.01 * gradients[1].norm()


def quadratic(x, a, matrices):
    """z_k = a_k . x + 1/2 x^T A_k x."""
    flat = x.flatten(1)
    return flat @ a.T + 0.5 * torch.einsum("bi,kij,bj->bk", flat, matrices, flat)


def test_finite_difference_is_exact_on_quadratics():
    """One probe of any step gives what the derivatives give: (u^T A w)^2 and the mean of two."""
    a, half = torch.randn(3, 4, dtype=DOUBLE), torch.randn(3, 4, 4, dtype=DOUBLE)
    matrices, x = half + half.mT, torch.randn(1, 2, 2, dtype=DOUBLE)
    u, w = (torch.randn(1, 2, 2, dtype=DOUBLE) for _ in range(2))
    with fed(u, w):
        found = finite_difference_per_layer(
            lambda d: [quadratic(x + d, a, matrices)], x, hessian=True, step=0.5, probe="gaussian"
        )
    rows = a + torch.einsum("kij,j->ki", matrices, x.flatten())
    jacobian = ((rows @ u.flatten()).square() + (rows @ w.flatten()).square()).sum() / 2
    mixed = torch.einsum("i,kij,j->k", u.flatten(), matrices, w.flatten()).square().sum()
    assert found.jacobian.item() == pytest.approx(jacobian.item(), rel=1e-10)
    assert found.hessian.item() == pytest.approx(mixed.item(), rel=1e-10)


def test_forward_difference_of_opposite_probes_errs_by_the_square_of_the_step():
    """One draw errs by O(h), its mean with the opposite one by O(h^2)."""
    model, x = Toy(), point(1)
    u, w = (torch.randn(1, 2, 2, dtype=DOUBLE) for _ in range(2))

    def draw(step, sign, center):
        with fed(sign * u, sign * w):
            found = finite_difference_per_layer(
                lambda d: model(x + d), x, hessian=True, step=step, probe="gaussian", center=center
            )
        return torch.cat([part.flatten() for part in found])

    truth = draw(1e-4, 1, None)
    single, mean = [], []
    for step in (0.02, 0.01):
        draws = draw(step, 1, model(x)), draw(step, -1, model(x))
        single.append((draws[0] - truth).norm().item())
        mean.append(((draws[0] + draws[1]) / 2 - truth).norm().item())
    assert single[0] / single[1] == pytest.approx(2, rel=0.2)
    assert mean[0] / mean[1] == pytest.approx(4, rel=0.2)


def test_linear_map_has_no_curvature():
    x = torch.zeros(3, 4, dtype=DOUBLE, requires_grad=True)
    weight = torch.randn(2, 4, dtype=DOUBLE)
    found = exact([x @ weight.T], x, torch.ones(1, dtype=DOUBLE), hessian=True)
    torch.testing.assert_close(found.jacobian, weight.square().sum().expand(3))
    assert found.hessian.abs().max() == 0


@pytest.mark.parametrize("kind", ["rademacher", "gaussian", "sphere"])
def test_probes_have_identity_covariance(kind):
    draws = probe_like(torch.zeros(40_000, 3, dtype=DOUBLE), kind)
    covariance = draws.T @ draws / len(draws)
    torch.testing.assert_close(covariance, torch.eye(3, dtype=DOUBLE), rtol=0, atol=0.03)
    if kind == "sphere":
        torch.testing.assert_close(draws.square().sum(1), torch.full((40_000,), 3.0, dtype=DOUBLE))


@pytest.mark.parametrize("name", ESTIMATORS)
def test_one_probe_of_signs_is_the_default(name):
    """On z = A x: ||s^T A||^2 with signs for the outputs, or ||A s||^2 for the inputs."""
    a, x = torch.randn(3, 4, dtype=DOUBLE), torch.zeros(2, 4, dtype=DOUBLE, requires_grad=True)
    drawn = torch.randn(2, 3 if name in ("per_layer", "projected") else 4, dtype=DOUBLE)
    signs = drawn.sign()
    weights = torch.tensor([0.7], dtype=DOUBLE)
    with fed(drawn):
        if name in DIFFERENCES:
            center = {"center": [x @ a.T]} if name == "forward_difference" else {}
            found = finite_difference(
                lambda d: [(x + d) @ a.T], x, weights, hessian=False, step=0.3, **center
            )
        else:
            function = {"projected": projected, "per_layer": per_layer, "directional": directional}
            found = function[name]([x @ a.T], x, weights, hessian=False)
    rows = signs @ a if name in ("per_layer", "projected") else signs @ a.T
    torch.testing.assert_close(found.jacobian.detach(), 0.7 * rows.square().sum(1))
    assert not found.hessian.any()


@pytest.mark.parametrize("name", ESTIMATORS)
def test_several_probes_are_averaged(name):
    """Three probes give the mean of what each of them gives."""
    model, x = Toy(), point(2)
    first = WEIGHTS * torch.tensor([1.0, 0.0])  # one layer: all draws come in the same order
    settings = {"hessian": name != "per_layer"}

    def run(**options):
        if name in DIFFERENCES:
            center = {"center": model(x)[:1]} if name == "forward_difference" else {}
            return finite_difference(
                lambda d: model(x + d)[:1], x, first[:1], step=1e-3, **center, **settings, **options
            )
        leaf = torch.zeros_like(x, requires_grad=True)
        function = {"projected": projected, "per_layer": per_layer, "directional": directional}
        return function[name](model(x + leaf)[:1], leaf, first[:1], **settings, **options)

    torch.manual_seed(3)
    singles = [run() for _ in range(3)]
    torch.manual_seed(3)
    for part, *parts in zip(run(probes=3), *singles, strict=True):
        torch.testing.assert_close(part, sum(parts) / 3)
        assert part.any() == any(each.any() for each in parts)


@pytest.mark.parametrize("name", ["exact", "per_layer", "projected", "directional"])
def test_an_output_that_does_not_depend_on_the_input_adds_nothing(name):
    x = torch.ones(2, 3, dtype=DOUBLE, requires_grad=True)
    constant = torch.ones(2, 4, dtype=DOUBLE, requires_grad=True)
    function = {"projected": projected, "per_layer": per_layer, "directional": directional}
    found = []
    for outputs in ([x**2], [x**2, constant * 3]):
        torch.manual_seed(3)
        estimator = function.get(name, exact)
        found.append(estimator(outputs, x, torch.ones(len(outputs)).double(), hessian=False))
    if name == "exact":  # ||diag(2x)||^2
        assert found[0].jacobian.tolist() == [12, 12]
    torch.testing.assert_close(found[0].jacobian, found[1].jacobian)


def test_probes_of_signs_and_of_one_example():
    signs = probe_like(torch.zeros(5, 40), "rademacher")
    assert set(signs.unique().tolist()) == {-1.0, 1.0}
    single = probe_like(torch.zeros(1, 3, 4, dtype=DOUBLE), "sphere")
    assert single.norm().item() == pytest.approx(math.sqrt(12))


def test_drawn_dimensions_are_uniform_and_never_one_too_many():
    z = torch.zeros(2, 4)
    with fed(torch.tensor([-1.0, -0.51, -0.49, 0.01, 0.51, 1.0])):
        assert _indices(z, 6) == [0, 0, 1, 2, 3, 3]


def test_float32_error_at_the_default_step():
    """Per draw: below 1 % of the Jacobian norm and 5 % of the Hessian norm, at h = 0.01 rms."""
    model, x = Toy(), point(200)
    step = 0.01 * x.square().mean().sqrt().item()
    results = []
    for dtype, h in ((torch.float32, step), (DOUBLE, 1e-4)):
        torch.manual_seed(8)
        signs = [torch.randint(0, 2, x.shape) * 2.0 - 1 for _ in range(2)]
        moved = functional_dtype(model, dtype)
        with fed(*(sign.to(dtype) for sign in signs)):
            results.append(
                finite_difference(
                    lambda d, moved=moved, dtype=dtype: moved(x.to(dtype) + d),
                    x.to(dtype),
                    WEIGHTS.to(dtype),
                    hessian=True,
                    step=h,
                    probe="gaussian",
                )
            )
    single, truth = results
    for name, limit in (("jacobian", 0.01), ("hessian", 0.05)):
        found, expected = getattr(single, name).double(), getattr(truth, name)
        assert ((found - expected).norm() / expected.norm()).item() < limit


def functional_dtype(model, dtype):
    """The model computing in another type."""
    weights = {name: p.to(dtype) for name, p in model.named_parameters()}
    return lambda x: functional_call(model, weights, (x,))
