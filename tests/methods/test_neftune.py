"""NEFTune."""

import math

import pytest
import torch

from helpers.conformance import CASES, assert_conforms, batch, draws, fed, recorded_bert
from helpers.literal import MODELS, added, gradient, span_batch, tiny_span_model
from smoothtune import NEFTune, Objective
from smoothtune.testing import tiny_batch, tiny_model


def scaled(draw, lengths, alpha):
    """alpha / sqrt(T D) * draw for every real token."""
    z = torch.zeros_like(draw)
    for row, length in enumerate(lengths):
        for token in range(length):
            for feature in range(draw.shape[2]):
                z[row, token, feature] = (
                    alpha / math.sqrt(length * draw.shape[2]) * draw[row, token, feature]
                )
    return z


@pytest.mark.parametrize("num_labels", [3, 1])
@pytest.mark.parametrize("architecture", MODELS)
def test_equals_its_equation(architecture, num_labels):
    model, batch = (
        tiny_model(architecture, num_labels=num_labels),
        tiny_batch(num_labels=num_labels),
    )
    draw = 2 * torch.rand(4, 6, 8, dtype=torch.float64) - 1
    with added(model, scaled(draw, [6, 4, 5, 3], alpha=2.0)):
        expected = model(**batch).loss
    with fed(draw):
        total = Objective(NEFTune(alpha=2.0))(model, batch)
    torch.testing.assert_close(total, expected)
    torch.testing.assert_close(gradient(total, [model]), gradient(expected, [model]))
    assert abs(total - model(**batch).loss) > 1e-4


def test_spans():
    model, batch = tiny_span_model(), span_batch(tiny_batch())
    draw = 2 * torch.rand(4, 6, 8, dtype=torch.float64) - 1
    with added(model, scaled(draw, [6, 4, 5, 3], alpha=5.0)):
        expected = model(**batch).loss
    with fed(draw):
        torch.testing.assert_close(Objective(NEFTune(alpha=5.0))(model, batch), expected)


def test_equals_transformers():
    case = CASES["neftune_transformers"]
    alpha, model = case["hyper"]["alpha"], recorded_bert()
    (noise,) = draws("neftune_transformers")
    half_width = alpha / math.sqrt(4 * 8)  # padded length times features
    with fed(noise / half_width):
        loss = Objective(NEFTune(alpha=alpha, compat="transformers"))(model, batch())
    loss.backward()
    assert_conforms("neftune_transformers", loss, model)


def test_noise_is_logged_and_has_the_size_of_the_paper():
    model = tiny_model("bert")
    objective = Objective(NEFTune(alpha=3.0))
    inputs = tiny_batch(rows=slice(0, 1))  # six tokens
    with fed(torch.ones(1, 6, 8, dtype=torch.float64)):
        objective(model, inputs)
    x = model.get_input_embeddings()(inputs["input_ids"])
    assert objective.terms["neftune/delta_ratio"].item() == pytest.approx(3.0 / x.norm().item())
