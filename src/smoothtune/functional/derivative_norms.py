"""Squared norms of Jacobians and Hessians, exactly or in expectation.

For outputs z_1..z_L, z_l of shape (B, d_l), and an input x of shape (B, ...), every function gives

    J = sum_l lambda_l ||dz_l/dx||_F^2        H = sum_l lambda_l sum_i ||d^2 z_{l,i}/dx^2||_F^2

of every example, two tensors (B,); H is zero unless `hessian`. The examples of a batch must not
influence one another, so that a gradient of a sum over the batch holds every example's own.

Probes u, v have independent entries of mean 0 and variance 1, so E[v v^T] = I; signs (Rademacher)
have the least variance. `exact`, `per_layer`, `projected` and `directional` differentiate, and H
needs a LayerNorm that is right at third order (`smoothtune.nn.higher_order`) when it is trained
through. `finite_difference` needs forward passes alone and is right in every environment.

Arguments of all: `outputs` z_l (B, d_l), computed from `x` (B, ...); `weights` (L,) lambda_l;
`hessian`: compute H too; `probes`: independent draws averaged; `probe`: their distribution.
"""

import math
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from smoothtune.nn import rng

Outputs = Sequence[Tensor]
Probe = Literal["rademacher", "gaussian", "sphere"]


class Estimate(NamedTuple):
    """The two norms of every example."""

    jacobian: Tensor  # (B,), or (L, B) before weighting
    hessian: Tensor


def probe_like(x: Tensor, kind: Probe) -> Tensor:
    """A probe of the shape (B, ...) and type of x with E[v v^T] = I for every example.

    Args:
        x: only its shape counts.
        kind: "rademacher": signs; "gaussian": N(0, I); "sphere": uniform on the sphere of radius
            sqrt(d), d the entries of an example.
    """
    if kind == "rademacher":
        return torch.where(rng.uniform_like(x) < 0, -1.0, 1.0).to(x.dtype)
    draws = rng.normal_like(x.detach())
    if kind == "gaussian":
        return draws
    norms = torch.linalg.vector_norm(draws.flatten(1), dim=1)
    radius = math.sqrt(draws[0].numel())
    return draws * (radius / norms).view(-1, *[1] * (x.ndim - 1))


def gradient(scalar: Tensor, x: Tensor) -> Tensor:
    """D scalar / dx with its graph; zero where the scalar does not depend on x."""
    if not scalar.requires_grad:
        return torch.zeros_like(x)
    return torch.autograd.grad(scalar, x, create_graph=True, materialize_grads=True)[0]


def squared_norm(x: Tensor) -> Tensor:
    """(B,) squared Euclidean norm of every example of x (B, ...)."""
    return x.flatten(1).square().sum(1)


def exact(outputs: Outputs, x: Tensor, weights: Tensor, *, hessian: bool) -> Estimate:
    """Row by row, no randomness: sum_l d_l gradients, and as many times numel(x) for H.

    >>> x = torch.ones(1, 2, requires_grad=True)  # z = (x_1 x_2, x_1) at (1, 1)
    >>> z = torch.stack([x.prod(1), x[:, 0]], 1)
    >>> [part.item() for part in exact([z], x, torch.ones(1), hessian=True)]
    [3.0, 2.0]
    """
    jacobian = curvature = x.new_zeros(len(x))
    for weight, z in zip(weights, outputs, strict=True):
        for column in z.unbind(1):
            row = gradient(column.sum(), x)
            jacobian = jacobian + weight * squared_norm(row)
            for entry in row.flatten(1).unbind(1) if hessian else ():
                curvature = curvature + weight * squared_norm(gradient(entry.sum(), x))
    return Estimate(jacobian, curvature)


def per_layer(
    outputs: Outputs,
    x: Tensor,
    weights: Tensor,
    *,
    hessian: bool,
    probes: int = 1,
    probe: Probe = "rademacher",
    dims: int = 10,
) -> Estimate:
    """The paper's: for every layer `probes` VJPs, and one HVP for each of `dims` output dimensions.

    ||J_l||^2 = E ||v^T J_l||^2; ||H_{l,i}||^2 = E ||H_{l,i} u||^2, i uniform, times d_l.
    Unbiased: E[v^T J J^T v] = tr(J J^T E[v v^T]) = ||J||^2. Reference: Jukic & Snajder, TACL 2025.
    The `dims` output dimensions are drawn with replacement, the same for all examples.
    """
    jacobian = curvature = x.new_zeros(len(x))
    for weight, z in zip(weights, outputs, strict=True):
        for _ in range(probes):
            row = gradient((probe_like(z, probe) * z).sum(), x)
            jacobian = jacobian + weight / probes * squared_norm(row)
        for i in _indices(z, dims) if hessian else ():
            product = _hessian_product(gradient(z[:, i].sum(), x), x, probe)
            curvature = curvature + weight * z.shape[1] / dims * squared_norm(product)
    return Estimate(jacobian, curvature)


def projected(
    outputs: Outputs,
    x: Tensor,
    weights: Tensor,
    *,
    hessian: bool,
    probes: int = 1,
    probe: Probe = "rademacher",
) -> Estimate:
    """One VJP, and one HVP, for all layers and all output dimensions together.

    s = sum_l sqrt(lambda_l) v_l . z_l;  J = E ||ds/dx||^2,  H = E ||d^2s/dx^2 u||^2.
    Unbiased: E[v_l v_k^T] = 0 removes what different layers and dimensions have in common.
    Reference: for one layer Hoffman, Roberts, Yaida, arXiv 1908.02729.
    """
    jacobian = curvature = x.new_zeros(len(x))
    for _ in range(probes):
        terms = [
            weight.sqrt() * (probe_like(z, probe) * z).sum()
            for weight, z in zip(weights, outputs, strict=True)
        ]
        row = gradient(torch.stack(terms).sum(), x)
        jacobian = jacobian + squared_norm(row) / probes
        if hessian:
            curvature = curvature + squared_norm(_hessian_product(row, x, probe)) / probes
    return Estimate(jacobian, curvature)


def directional(
    outputs: Outputs,
    x: Tensor,
    weights: Tensor,
    *,
    hessian: bool,
    probes: int = 1,
    probe: Probe = "rademacher",
) -> Estimate:
    """Derivatives along random directions of the input, for all layers at once.

    ||J_l||^2 = E ||J_l u||^2,  sum_i ||H_{l,i}||^2 = E sum_i (u^T H_{l,i} w)^2, u, w independent.
    Unbiased: E[u_a u_b] = E[w_a w_b] = 1 if a = b else 0. (u^T H u)^2 would add (tr H)^2.
    A JVP is taken as the derivative of a VJP in its cotangent, which works for every operation that
    has a double backward; training through J alone needs the right LayerNorm already.
    Reference: Pearlmutter, Neural Computation 6 (1994) 147-160.
    """
    jacobian = curvature = x.new_zeros(len(x))
    for _ in range(probes):
        along = _derivative_along(outputs, x, probe_like(x, probe))
        jacobian = jacobian + weights @ _squared_norms(along) / probes
        if hessian:
            twice = _derivative_along(along, x, probe_like(x, probe))
            curvature = curvature + weights @ _squared_norms(twice) / probes
    return Estimate(jacobian, curvature)


def finite_difference(
    function: Callable[[Tensor], Outputs],
    x: Tensor,
    weights: Tensor,
    *,
    hessian: bool,
    step: float,
    probes: int = 1,
    probe: Probe = "rademacher",
    center: Outputs | None = None,
) -> Estimate:
    """`directional` by symmetric differences: two forward passes, four with the Hessian.

    J u = [f(x+hu) - f(x-hu)] / 2h;  with four points f(x +- hu +- hw), written f++ to f--,
    u^T H w = (f++ - f+- - f-+ + f--) / 4h^2, and ||J||^2 = E (||a||^2 + ||b||^2) / 4 from
    a = (f++ - f--) / 2h = J(u+w) and b = (f+- - f-+) / 2h = J(u-w).
    Unbiased as `directional` up to O(h^2); both are exact for quadratic f.
    With `center` = f(x), forward differences need one pass, three with the Hessian:
    J u = [f(x+hu) - f] / h,  u^T H w = (f(x+hu+hw) - f(x+hu) - f(x+hw) + f) / h^2. A draw errs by
    O(h), their mean by O(h^2), as the error is odd in (u, w); H is exact for quadratic f.
    Rounding adds an error of about eps |f| / (2 h^2 |u^T H w|): in float32 take h = 0.01 times the
    root mean square of what x is added to.
    Reference: Abramowitz & Stegun, Handbook of Mathematical Functions, 25.3.21 and 25.3.26.

    `function` maps delta, of the shape and type of x, to the z_l at x + delta, with the same noise
    in every call; `step` is h, in units of x.
    """
    estimates = [
        finite_difference_per_layer(
            function, x, hessian=hessian, step=step, probe=probe, center=center
        )
        for _ in range(probes)
    ]
    jacobian, curvature = (torch.stack(parts).mean(0) for parts in zip(*estimates, strict=True))
    return Estimate(weights @ jacobian, weights @ curvature)


def finite_difference_per_layer(
    function: Callable[[Tensor], Outputs],
    x: Tensor,
    *,
    hessian: bool,
    step: float,
    probe: Probe = "rademacher",
    center: Outputs | None = None,
) -> Estimate:
    """`finite_difference` with one probe and without the weighted sum: two tensors (L, B)."""
    u = step * probe_like(x, probe)
    if not hessian:
        behind, distance = (function(-u), 2 * step) if center is None else (center, step)
        jacobian = _squared_norms(_combine([function(u), behind], [1, -1], distance))
        return Estimate(jacobian, torch.zeros_like(jacobian))
    w = step * probe_like(x, probe)
    if center is not None:
        points = [function(u + w), function(u), function(w), center]
        sides = _combine(points, [0, 1, 0, -1], step), _combine(points, [0, 0, 1, -1], step)
        mixed, draws = _combine(points, [1, -1, -1, 1], step**2), 2
    else:
        points = [function(delta) for delta in (u + w, u - w, w - u, -u - w)]
        sides = _combine(points, [1, 0, 0, -1], 2 * step), _combine(points, [0, 1, -1, 0], 2 * step)
        mixed, draws = _combine(points, [1, -1, -1, 1], 4 * step**2), 4
    one, other = map(_squared_norms, sides)
    return Estimate((one + other) / draws, _squared_norms(mixed))


def _combine(points: Sequence[Outputs], signs: Sequence[int], divisor: float) -> list[Tensor]:
    """The signed sum of the points, layer by layer, divided by a number."""
    used = [(sign, z) for sign, z in zip(signs, points, strict=True) if sign]
    layers = zip(*(z for _, z in used), strict=True)
    return [
        torch.stack([sign * z for (sign, _), z in zip(used, layer, strict=True)]).sum(0) / divisor
        for layer in layers
    ]


def _squared_norms(outputs: Outputs) -> Tensor:
    """(L, B)."""
    return torch.stack([squared_norm(z) for z in outputs])


def _hessian_product(row: Tensor, x: Tensor, probe: Probe) -> Tensor:
    return gradient((row * probe_like(x, probe)).sum(), x)


def _derivative_along(outputs: Outputs, x: Tensor, direction: Tensor) -> list[Tensor]:
    """J_l u of every layer: a VJP is linear in its cotangent, and its derivative is the JVP."""
    cotangents = [torch.zeros_like(z, requires_grad=True) for z in outputs]
    pairs = [(c * z).sum() for c, z in zip(cotangents, outputs, strict=True)]
    row = gradient(torch.stack(pairs).sum(), x)
    return list(
        torch.autograd.grad(row, cotangents, direction, create_graph=True, materialize_grads=True)
    )


def _indices(z: Tensor, count: int) -> list[int]:
    """Output dimensions drawn uniformly, with replacement."""
    width = z.shape[1]
    draws = rng.uniform_like(z.new_zeros(count))
    return [min(int(i), width - 1) for i in ((draws + 1) / 2 * width).tolist()]
