"""Gradient ascent for adversarial perturbations: norms, balls, steps and diagnostics.

Norms run over one token, or over all real tokens of one example (`per`), so a perturbation does not
depend on the batch an example comes in. Sizes are absolute, or relative to the embeddings they
perturb (`units`): relative to ||x||_2 for l2 balls and to the root mean square of x for linf balls.

The gradient of a divergence vanishes where both predictions agree, so a search that climbs one
starts from noise, large enough that float32 rounding does not dominate: on a tuned MiniLM a KL at
noise of 1e-5 ||x|| gives a direction with cosine 0.7 to the exact one, at 1e-2 ||x|| one of 1.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from smoothtune.core.forward import Dropout, ForwardPass
from smoothtune.functional.noise import relative_norm
from smoothtune.nn import rng
from smoothtune.nn.gradients import need_gradients
from smoothtune.nn.hooks import Point

Norm = Literal["l2", "linf"]
Per = Literal["token", "example"]
Units = Literal["relative", "absolute"]
Inner = Callable[[ForwardPass], Tensor]
Update = Callable[[Tensor, Tensor], Tensor]
"""(delta, gradient) -> next delta"""


def norm_of(x: Tensor, norm: Norm, per: Per) -> Tensor:
    """Norm of every token (B, T, 1) or example (B, 1, 1) of x (B, T, D), zero on padding."""
    dims = (-1,) if per == "token" else (1, 2)
    order = 2 if norm == "l2" else torch.inf
    return torch.linalg.vector_norm(x, order, dim=dims, keepdim=True)


def normalize(gradient: Tensor, norm: Norm, per: Per) -> Tensor:
    """G / ||g||; a zero gradient stays zero, and a tiny one, of a sure prediction, has length 1."""
    tiny = torch.finfo(gradient.dtype).tiny
    # first by the largest entry: the squares of entries below 1e-23 are 0 in float32
    gradient = gradient / norm_of(gradient, "linf", per).clamp(min=tiny)
    return gradient / norm_of(gradient, norm, per).clamp(min=tiny)


def project(delta: Tensor, radius: Tensor | float, norm: Norm, per: Per) -> Tensor:
    """The nearest point of the ball ||delta|| <= radius.

    Args:
        delta: (B, T, D).
        radius: a number, or one for every token (B, T, 1) or example (B, 1, 1).
        norm: which ball.
        per: what its norm runs over; makes no difference for linf.
    """
    bound = radius.to(delta) if isinstance(radius, Tensor) else delta.new_full((), radius)
    if norm == "linf":
        return delta.clamp(-bound, bound)
    size = norm_of(delta, norm, per).clamp(min=torch.finfo(delta.dtype).tiny)
    return delta * (bound / size).clamp(max=1)


def unit(clean: ForwardPass, point: Point, norm: Norm, per: Per, units: Units) -> Tensor:
    """The unit of sizes: ||x||_2 (l2) or rms(x) (linf) of tokens or examples; 1 if absolute.

    Its shape is (B, T, 1), (B, 1, 1) or ().
    """
    if units == "absolute":
        return clean.zeros(point).new_ones(())
    keep = clean.mask[..., None]
    x = clean.embeddings(point).to(clean.zeros(point).dtype) * keep
    size = norm_of(x, "l2", per)
    if norm == "l2":
        return size
    tokens = 1 if per == "token" else keep.sum(1, keepdim=True).clamp(min=1)
    return size / (tokens * x.shape[-1]) ** 0.5


def uniform_start(draws: Tensor, mask: Tensor, radius: Tensor, norm: Norm) -> Tensor:
    """(B, T, D) a random point of the ball over an example; for l2, E ||delta||^2 = radius^2 / 3.

    Args:
        draws: (B, T, D) from U(-1, 1).
        mask: (B, T) real tokens.
        radius: () or (B, 1, 1).
        norm: of the ball.
    """
    keep = mask[..., None]
    if norm == "l2":
        radius = radius / (keep.sum(1, keepdim=True) * draws.shape[-1]).clamp(min=1).sqrt()
    return draws * keep * radius


def task_loss(run: ForwardPass) -> Tensor:
    """() the loss of a pass over a batch with labels."""
    assert run.loss is not None
    return run.loss


def gradient_at(
    run: ForwardPass, loss: Tensor, point: Point, *, keep_graph: bool = False
) -> Tensor:
    """(B, T, D) gradient of B * loss at the perturbation of a pass, zero on padding.

    `loss` is a mean over examples; times B, an example's gradient does not depend on the batch.
    No gradient of a parameter is computed and no `.grad` is touched.

    Raises:
        RuntimeError: gradients are off.
    """
    need_gradients()
    (gradient,) = torch.autograd.grad(
        len(run.mask) * loss, run.delta(point), retain_graph=keep_graph
    )
    return gradient * run.mask[..., None]


def ascend(
    clean: ForwardPass,
    start: Tensor,
    inner: Inner,
    update: Update,
    *,
    point: Point,
    num_steps: int,
    dropout: Dropout,
) -> tuple[Tensor, Tensor]:
    """Climb `inner` from `start`, `num_steps` times delta <- update(delta, gradient).

    Args:
        clean: the pass to perturb.
        start: (B, T, D) first perturbation.
        inner: perturbed pass -> () objective of the ascent, a mean over examples.
        update: (delta, gradient) -> next delta.
        point: where the perturbation enters.
        num_steps: at least 1; each costs a forward and a backward to the point.
        dropout: masks of the perturbed passes relative to the clean one.

    Returns:
        (B, T, D) the last perturbation, and the gradient of the step that led to it.
    """
    delta = start * clean.mask[..., None]
    for _ in range(num_steps):
        run = clean.at(delta.requires_grad_(), point, dropout=dropout)
        gradient = gradient_at(run, inner(run), point)
        delta = update(delta.detach(), gradient) * clean.mask[..., None]
    return delta, gradient


@dataclass(frozen=True)
class Ascent:
    """Normalized gradient ascent from Gaussian noise, projected onto a ball.

    delta_0 ~ N(0, (sigma rms)^2), delta <- Project(delta + step_size * u * g / ||g||, epsilon * u),
    where u is `unit` (and rms is 1 for absolute sizes).
    """

    point: Point
    norm: Norm
    per: Per
    units: Units
    sigma: float
    step_size: float
    epsilon: float
    num_steps: int
    dropout: Dropout

    def search(self, clean: ForwardPass, inner: Inner) -> tuple[Tensor, Tensor]:
        """The perturbation that maximizes `inner`, and the last gradient."""
        u = unit(clean, self.point, self.norm, self.per, self.units)
        rms = unit(clean, self.point, "linf", self.per, self.units)

        def update(delta: Tensor, gradient: Tensor) -> Tensor:
            step = self.step_size * u * normalize(gradient, self.norm, self.per)
            return project(delta + step, self.epsilon * u, self.norm, self.per)

        start = self.sigma * rms * rng.normal_like(clean.zeros(self.point))
        return self.climb(clean, start, inner, update)

    def climb(
        self, clean: ForwardPass, start: Tensor, inner: Inner, update: Update
    ) -> tuple[Tensor, Tensor]:
        """`ascend` at this point, with these steps and masks."""
        steps, dropout = self.num_steps, self.dropout
        return ascend(
            clean, start, inner, update, point=self.point, num_steps=steps, dropout=dropout
        )


def cosine(delta: Tensor, gradient: Tensor) -> Tensor:
    """() cosine of perturbation and gradient of an example, a mean over examples."""
    aligned = normalize(delta, "l2", "example") * normalize(gradient, "l2", "example")
    return aligned.sum((1, 2)).mean()


def diagnostics(delta: Tensor, gradient: Tensor, x: Tensor, mask: Tensor) -> dict[str, Tensor]:
    """Size of a perturbation, and its alignment with the gradient of the last ascent step.

    `delta_ratio` is ||delta|| / ||x||. `cos_gradient` is the cosine of the perturbation and that
    gradient: near 0 for noise, about 0.8 for signs of the gradient (the corner of an linf ball), 1
    for its direction.
    """
    return {
        "delta_ratio": relative_norm(delta, x, mask),
        "cos_gradient": cosine(delta, gradient),
    }


def with_defaults(
    values: tuple[float | None, ...], defaults: tuple[float, ...]
) -> tuple[float, ...]:
    """The values, and the defaults for those that are None."""
    return tuple(d if v is None else v for v, d in zip(values, defaults, strict=True))
