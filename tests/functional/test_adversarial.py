"""Balls, units and ascent, one token and one example at a time."""

import pytest
import torch

from helpers.conformance import fed
from helpers.literal import added, cross_entropy
from smoothtune import ForwardPass
from smoothtune.functional.adversarial import (
    Ascent,
    ascend,
    cosine,
    diagnostics,
    gradient_at,
    norm_of,
    normalize,
    project,
    uniform_start,
    unit,
)
from smoothtune.testing import tiny_batch, tiny_model

DOUBLE = torch.float64
SHAPE = (4, 6, 8)  # of the tiny batch's embeddings


def draws(seed, *shape):
    return torch.randn(*shape, dtype=DOUBLE, generator=torch.Generator().manual_seed(seed))


def length(x, norm):
    numbers = x.flatten().tolist()
    return max(map(abs, numbers)) if norm == "linf" else sum(n**2 for n in numbers) ** 0.5


def pieces(x, per):
    """Indices of what a norm runs over."""
    if per == "example":
        return [(b,) for b in range(len(x))]
    return [(b, t) for b in range(len(x)) for t in range(x.shape[1])]


@pytest.mark.parametrize("per", ["token", "example"])
@pytest.mark.parametrize("norm", ["l2", "linf"])
def test_norms(norm, per):
    x = draws(0, 2, 3, 4)
    shape = (2, 3, 1) if per == "token" else (2, 1, 1)
    found, normed = norm_of(x, norm, per), normalize(x, norm, per)
    assert found.shape == shape
    for piece in pieces(x, per):
        assert found[piece].item() == pytest.approx(length(x[piece], norm))
        torch.testing.assert_close(normed[piece], x[piece] / length(x[piece], norm))


@pytest.mark.parametrize("size", [1e-25, 1e-37])
def test_a_tiny_gradient_has_length_1(size):
    """Its squares are 0 in float32; a sure prediction has such gradients."""
    gradient = size * torch.tensor([[[3.0, -4.0], [0.0, 12.0]]])
    expected = torch.tensor([[[3.0, -4.0], [0.0, 12.0]]]) / 13
    torch.testing.assert_close(normalize(gradient, "l2", "example"), expected)
    assert cosine(gradient, expected).item() == pytest.approx(1)


def test_a_zero_gradient_stays_zero():
    assert not normalize(torch.zeros(1, 2, 3), "l2", "token").any()


@pytest.mark.parametrize("per", ["token", "example"])
@pytest.mark.parametrize("radius", ["number", "each"])
def test_projection_onto_the_l2_ball(radius, per):
    x = draws(0, 2, 3, 4)
    x[0] *= 0.01  # inside
    shape = (2, 3, 1) if per == "token" else (2, 1, 1)
    radii = torch.full(shape, 1.5) if radius == "number" else 1 + draws(1, *shape).abs()
    found = project(x, 1.5 if radius == "number" else radii, "l2", per)
    for piece in pieces(x, per):
        size, bound = length(x[piece], "l2"), radii[piece].item()
        torch.testing.assert_close(found[piece], x[piece] * min(1, bound / size))
    assert torch.equal(found[0], x[0])
    assert not torch.equal(found[1], x[1])


def test_projection_onto_the_linf_ball():
    x = torch.tensor([[[3.0, -0.5, -2.0]], [[0.5, 0.1, -1.0]]])
    radius = torch.tensor([1.0, 0.2]).view(2, 1, 1)
    expected = [[[1.0, -0.5, -1.0]], [[0.2, 0.1, -0.2]]]
    torch.testing.assert_close(project(x, radius, "linf", "token"), torch.tensor(expected))


@pytest.mark.parametrize("per", ["token", "example"])
@pytest.mark.parametrize("norm", ["l2", "linf"])
def test_relative_sizes_count_in_the_embeddings_that_are_disturbed(norm, per):
    model, batch = tiny_model("bert"), tiny_batch()
    found = unit(ForwardPass(model, batch), "word", norm, per, "relative")
    x = model.get_input_embeddings()(batch["input_ids"]) * batch["attention_mask"][..., None]
    for piece in pieces(x, per):
        tokens = batch["attention_mask"][piece].sum().item()
        size = length(x[piece], "l2")
        if norm == "linf" and tokens:
            size /= (8 * tokens) ** 0.5
        assert found[piece].item() == pytest.approx(size)


def test_absolute_sizes_count_in_ones():
    found = unit(ForwardPass(tiny_model("bert"), tiny_batch()), "word", "l2", "token", "absolute")
    assert (found.item(), found.shape, found.dtype) == (1, (), DOUBLE)


@pytest.mark.parametrize("norm", ["l2", "linf"])
def test_random_start(norm):
    drawn = 2 * torch.rand(4000, 3, 2, dtype=DOUBLE) - 1
    mask = torch.tensor([True, True, False]).expand(4000, 3)
    radius = torch.full((4000, 1, 1), 0.7, dtype=DOUBLE)
    found = uniform_start(drawn, mask, radius, norm)
    assert not found[:, 2].any()
    if norm == "linf":
        assert torch.equal(found[:, :2], 0.7 * drawn[:, :2])
    else:
        mean = found.square().sum((1, 2)).mean().item()
        assert mean == pytest.approx(0.7**2 / 3, rel=0.03)
        assert found.flatten(1).norm(dim=1).max() <= 0.7


def test_random_start_of_one_number():
    start = uniform_start(torch.tensor([[[0.5]]]), torch.tensor([[True]]), torch.tensor(3.0), "l2")
    assert start.item() == 1.5


def literal_gradient(model, batch, delta):
    """Gradient of every example's own loss at a perturbation of all embeddings."""
    delta = delta.clone().requires_grad_()
    inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
    with added(model, delta):
        loss = 4 * cross_entropy(model(**inputs).logits, batch["labels"])
    return torch.autograd.grad(loss, delta)[0] * batch["attention_mask"][..., None]


def test_gradient_of_a_pass_does_not_depend_on_the_size_of_the_batch():
    model, batch = tiny_model("bert"), tiny_batch()
    delta = 0.1 * draws(0, *SHAPE)
    run = ForwardPass(model, batch).run().at(delta.requires_grad_())
    found = gradient_at(run, run.loss, "word", keep_graph=True)
    torch.testing.assert_close(found, literal_gradient(model, batch, delta.detach()))
    assert torch.equal(gradient_at(run, run.loss, "word"), found)  # the graph was kept
    assert all(p.grad is None for p in model.parameters())
    with pytest.raises(RuntimeError, match="second time"):
        gradient_at(run, run.loss, "word")


@pytest.mark.parametrize("num_steps", [1, 3])
def test_ascent(num_steps):
    model, batch = tiny_model("bert"), tiny_batch()
    start, keep = 0.1 * draws(0, *SHAPE), batch["attention_mask"][..., None]
    found = ascend(
        ForwardPass(model, batch).run(),
        start,
        lambda run: run.loss,
        lambda delta, gradient: delta + 0.2 * gradient + 0.01,
        point="word",
        num_steps=num_steps,
        dropout="shared",
    )
    delta = start * keep
    for _ in range(num_steps):
        gradient = literal_gradient(model, batch, delta)
        delta = (delta + 0.2 * gradient + 0.01) * keep
    torch.testing.assert_close(found, (delta, gradient))
    assert not found[0].requires_grad


def test_what_is_logged():
    delta, gradient, x = draws(0, 2, 3, 4), draws(1, 2, 3, 4), draws(2, 2, 3, 4)
    mask = torch.tensor([[True, True, False], [True, True, True]])
    angles = [
        (d * g).sum() / length(d, "l2") / length(g, "l2")
        for d, g in zip(delta, gradient, strict=True)
    ]
    torch.testing.assert_close(cosine(delta, gradient), sum(angles) / 2)
    logged = diagnostics(delta, gradient, x, mask)
    torch.testing.assert_close(logged["cos_gradient"], sum(angles) / 2)
    torch.testing.assert_close(logged["delta_ratio"], delta[mask].norm() / x[mask].norm())
    assert cosine(torch.zeros(1, 2, 3), draws(0, 1, 2, 3)) == 0


@pytest.mark.parametrize("units", ["relative", "absolute"])
def test_search_from_noise_inside_a_ball(units):
    """delta_0 = sigma rms z, then steps of eta u g / ||g||, cut back to epsilon u."""
    model, batch = tiny_model("bert"), tiny_batch()
    keep = batch["attention_mask"][..., None]
    noise = draws(0, *SHAPE)
    ascent = Ascent(
        point="word",
        norm="l2",
        per="example",
        units=units,
        sigma=0.01,
        step_size=0.3,
        epsilon=0.5,
        num_steps=2,
        dropout="shared",
    )
    with fed(noise):
        found = ascent.search(ForwardPass(model, batch).run(), lambda run: run.loss)
    x = model.get_input_embeddings()(batch["input_ids"]).detach() * keep
    sizes, starts = torch.ones(4, 1, 1, dtype=DOUBLE), torch.ones(4, 1, 1, dtype=DOUBLE)
    if units == "relative":
        for b in range(4):
            sizes[b] = length(x[b], "l2")
            starts[b] = sizes[b] / (8 * keep[b].sum()) ** 0.5
    delta = 0.01 * starts * noise * keep
    for _ in range(2):
        gradient = literal_gradient(model, batch, delta)
        for b in range(4):
            delta[b] += 0.3 * sizes[b] * gradient[b] / length(gradient[b], "l2")
            delta[b] *= min(1, (0.5 * sizes[b] / length(delta[b], "l2")).item())
    torch.testing.assert_close(found, (delta, gradient))


def test_small_perturbations_have_a_cosine():
    tiny = 1e-9 * draws(0, 1, 2, 3)
    assert cosine(tiny, -tiny).item() == pytest.approx(-1)
