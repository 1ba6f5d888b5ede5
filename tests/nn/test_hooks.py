"""Points of a model, and what is added and seen there."""

import pytest
import torch
from torch import nn

from smoothtune.nn.hooks import (
    PointReached,
    Tap,
    depth,
    module_at,
    tapped,
    token_rms,
    token_std,
    width_at,
)
from smoothtune.testing import tiny_batch, tiny_model


def inputs():
    return {name: tiny_batch()[name] for name in ("input_ids", "attention_mask")}


def hooks(model):
    return [(len(m._forward_hooks), len(m._forward_pre_hooks)) for m in model.modules()]


def test_points_are_modules():
    model = tiny_model("bert")
    assert module_at(model, "word") is model.bert.embeddings.word_embeddings
    assert module_at(model, "normalized") is model.bert.embeddings.LayerNorm
    assert module_at(model, 1) is model.bert.encoder.layer[1]
    with pytest.raises(ValueError, match="there is no block 2: .* has 2, numbered from 0"):
        module_at(model, 2)


def test_points_from_the_bottom_up():
    assert sorted([1, "normalized", 0, "word"], key=depth) == ["word", "normalized", 0, 1]


def test_width_and_type_of_a_perturbation():
    model = tiny_model("bert", dtype=torch.bfloat16)
    for point in ("word", "normalized", 0):
        assert width_at(model, point) == (8, torch.float32)
    assert width_at(tiny_model("bert"), "word") == (8, torch.float64)
    model.bert.embeddings.LayerNorm = nn.LayerNorm(5)
    model.bert.embeddings.word_embeddings = nn.Embedding(40, 3)
    assert [width_at(model, point)[0] for point in ("normalized", "word", 1)] == [5, 3, 8]


def test_standard_deviation_of_a_token():
    x = torch.tensor([[[1.0, 3.0], [2.0, 2.0]]], dtype=torch.float64)
    expected = torch.tensor([[[(1 + 1e-7) ** 0.5], [1e-7**0.5]]], dtype=torch.float64)
    torch.testing.assert_close(token_std(x), expected)


def test_root_mean_square_of_a_token():
    x = torch.tensor([[[1.0, 7.0], [0.0, 0.0]]], dtype=torch.float64)
    expected = torch.tensor([[[(25 + 1e-12) ** 0.5], [1e-6]]], dtype=torch.float64)
    torch.testing.assert_close(token_rms(x), expected)


def test_a_relative_perturbation_counts_in_root_mean_squares():
    model, states = tiny_model("bert"), []
    delta = torch.randn(4, 6, 8, dtype=torch.float64)
    with tapped(model, [], {0: delta}, hidden_states=states, relative=True) as taps:
        model(**inputs())
    x = taps[0].value
    size = x.norm(dim=-1, keepdim=True) / 8**0.5
    torch.testing.assert_close(states[0], x + size * delta)


def test_a_perturbation_at_the_norm_counts_in_standard_deviations():
    """LN(x + std(x) delta) = LN((x - mean) / std + delta)."""
    model = tiny_model("bert")
    norm = model.bert.embeddings.LayerNorm
    delta = torch.randn(4, 6, 8, dtype=torch.float64)
    seen = []
    norm.register_forward_hook(lambda module, args, output: seen.append(output))
    with tapped(model, [], {"normalized": delta}) as taps:
        model(**inputs())
    x = taps["normalized"].value
    normed = (x - x.mean(-1, keepdim=True)) / x.std(-1, correction=0, keepdim=True)
    torch.testing.assert_close(seen[0], norm(normed + delta), rtol=0, atol=1e-4)


def test_what_is_seen_at_a_point_is_unperturbed():
    model = tiny_model("bert")
    delta = torch.randn(4, 6, 8, dtype=torch.float64)
    plain = model(**inputs(), output_hidden_states=True).hidden_states
    before, states = hooks(model), []
    with tapped(model, ["word", 0], {0: delta}, hidden_states=states) as taps:
        model(**inputs())
    assert torch.equal(taps["word"].value, model.get_input_embeddings()(inputs()["input_ids"]))
    assert torch.equal(taps[0].value, plain[0])
    assert torch.equal(states[0], plain[0] + delta)
    assert len(states) == 3
    assert hooks(model) == before


def test_values_of_another_pass_take_the_place_of_this_ones():
    model = tiny_model("bert")
    base, delta = torch.randn(2, 4, 6, 8, dtype=torch.float64)
    states = []
    with tapped(model, [0], {0: delta}, bases={0: base}, hidden_states=states):
        model(**inputs())
    assert torch.equal(states[0], base + delta)


@pytest.mark.parametrize("options", [{}, {"detach": False}, {"detach": True}])
def test_the_graph_below_a_point_can_be_cut(options):
    model = tiny_model("bert")
    with tapped(model, [1], {}, **options):
        model(**inputs()).logits.sum().backward()
    assert (model.get_input_embeddings().weight.grad is None) == bool(options.get("detach"))
    assert model.bert.encoder.layer[1].output.dense.weight.grad is not None


def test_a_forward_can_end_at_a_point():
    model = tiny_model("bert")
    with pytest.raises(PointReached), tapped(model, [1], {}, stop=True) as taps:
        model(**inputs())
    assert torch.equal(taps[1].value, model(**inputs(), output_hidden_states=True).hidden_states[1])


def test_a_perturbation_has_the_type_of_what_it_disturbs():
    tap = Tap("word", torch.ones(1, 1, 2), None, detach=False, stop=False)
    found = tap.pass_through(torch.zeros(1, 1, 2, dtype=torch.bfloat16))
    assert (found.dtype, found.tolist()) == (torch.bfloat16, [[[1, 1]]])
