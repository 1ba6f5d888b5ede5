"""HyPe."""

from contextlib import ExitStack

import pytest
import torch

from helpers.conformance import fed
from helpers.literal import MODELS, gradient, span_batch, tiny_span_model
from smoothtune import HyPe, Objective
from smoothtune.testing import tiny_batch, tiny_model

LAYERS = {
    "bert": lambda model: model.bert.encoder.layer,
    "deberta": lambda model: model.deberta.encoder.layer,
    "opt": lambda model: model.model.decoder.layers,
    "llama": lambda model: model.model.layers,
}


def noisy_loss(model, layers, batch, noise, relative=True):
    """Loss with noise[b] added to the real tokens that enter layer b, perhaps times their RMS."""
    keep = batch["attention_mask"][..., None]

    def noisy(x, z):
        size = (x**2).sum(-1, keepdim=True) / x.shape[-1] + 1e-12
        return x + keep * z * (size.sqrt() if relative else 1)

    with ExitStack() as stack:
        for layer, z in zip(layers, noise, strict=True):
            stack.enter_context(
                layer.register_forward_pre_hook(
                    lambda module, args, z=z: (noisy(args[0], z), *args[1:])
                )
            )
        return model(**batch).loss


@pytest.mark.parametrize(
    ("fields", "noise"),
    [
        ({}, lambda draw: 0.3 * draw),
        ({"noise": "uniform"}, lambda draw: 0.3 * draw),
        ({"noise": "uniform", "compat": "official"}, lambda draw: 0.3 * (draw + 1) / 2),
    ],
)
@pytest.mark.parametrize("units", ["relative", "absolute"])
@pytest.mark.parametrize("architecture", MODELS)
def test_equals_its_equation(architecture, units, fields, noise):
    model, batch = tiny_model(architecture), tiny_batch()
    drawn = [2 * torch.rand(4, 6, 8, dtype=torch.float64) - 1 for _ in range(2)]
    layers = LAYERS[architecture](model)
    drawn_noise, relative = [noise(draw) for draw in drawn], units == "relative"
    expected = noisy_loss(model, layers, batch, drawn_noise, relative)
    with fed(*drawn):
        total = Objective(HyPe(sigma=0.3, units=units, **fields))(model, batch)
    torch.testing.assert_close(total, expected)
    torch.testing.assert_close(gradient(total, [model]), gradient(expected, [model]))
    assert abs(total - model(**batch).loss) > 1e-4


@pytest.mark.parametrize("spans", [False, True])
def test_regression_and_spans(spans):
    model = tiny_span_model() if spans else tiny_model("bert", num_labels=1)
    batch = span_batch(tiny_batch()) if spans else tiny_batch(num_labels=1)
    drawn = [torch.randn(4, 6, 8, dtype=torch.float64) for _ in range(2)]
    expected = noisy_loss(model, model.bert.encoder.layer, batch, [0.1 * draw for draw in drawn])
    with fed(*drawn):
        torch.testing.assert_close(Objective(HyPe(sigma=0.1))(model, batch), expected)


def test_official_uniform_noise_is_never_negative():
    draw = HyPe(noise="uniform", compat="official", sigma=0.5).draw(torch.zeros(100, 10))
    assert draw.min() >= 0
    assert draw.max() <= 0.5
    assert draw.mean().item() == pytest.approx(0.25, abs=0.02)
    paper = HyPe(noise="uniform", sigma=0.5).draw(torch.zeros(100, 10))
    assert paper.mean().item() == pytest.approx(0, abs=0.04)


def test_noise_has_its_size_relative_to_the_state_whatever_that_is():
    for scale in (1e-3, 1.0, 1e3):
        model, batch = tiny_model("llama"), tiny_batch()
        with torch.no_grad():
            model.model.embed_tokens.weight.mul_(scale)
        objective = Objective(HyPe(sigma=0.2))
        objective(model, batch)
        assert objective.terms["hype/delta_ratio"].item() == pytest.approx(0.2, rel=0.2)


def test_defaults_follow_the_units():
    paper = Objective(HyPe(units="absolute"))
    paper(tiny_model("bert"), tiny_batch())
    assert paper.terms["hype/delta_ratio"] < 1e-3
    ours = Objective(HyPe())
    ours(tiny_model("bert"), tiny_batch())
    assert ours.terms["hype/delta_ratio"].item() == pytest.approx(0.03, rel=0.2)


def test_compat_without_the_noise_it_is_of_is_refused():
    with pytest.raises(ValueError, match='set noise="uniform"'):
        HyPe(compat="official")
