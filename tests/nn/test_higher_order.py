"""Models made differentiable, and left as they were."""

import copy

import pytest
import torch
from torch import nn
from transformers.models.nemotron.modeling_nemotron import NemotronLayerNorm1P
from transformers.models.olmo.modeling_olmo import OlmoLayerNorm

from smoothtune import JacHess, Objective
from smoothtune.nn.hf_versions import can_change_attention
from smoothtune.nn.higher_order import CompositeLayerNorm, HigherDerivatives, warn_once
from smoothtune.testing import all_in_float64, tiny_batch, tiny_model


@pytest.mark.parametrize("affine", [True, False])
def test_composite_equals_stock(affine):
    stock = nn.LayerNorm((2, 3), elementwise_affine=affine, dtype=torch.float64)
    if affine:
        nn.init.normal_(stock.weight)
        nn.init.normal_(stock.bias)
    composite = copy.deepcopy(stock)
    composite.__class__ = CompositeLayerNorm
    x = torch.randn(5, 2, 3, dtype=torch.float64)
    torch.testing.assert_close(composite(x), stock(x), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", [nn.LayerNorm, OlmoLayerNorm, NemotronLayerNorm1P])
def test_third_derivatives_equal_finite_differences(kind):
    """Layer norms of a model's own call the function whose third derivative is wrong, too."""
    model = nn.Sequential(kind(4)).double()
    x, v, w = torch.randn(3, 2, 4, dtype=torch.float64)
    x.requires_grad_()

    def curvature(x):
        (row,) = torch.autograd.grad(model(x).pow(3).sum(), x, create_graph=True)
        return (torch.autograd.grad((row * v).sum(), x, create_graph=True)[0] * v).sum()

    changed, h = HigherDerivatives(model, 3), 1e-5
    with all_in_float64():
        slope = (torch.autograd.grad(curvature(x), x)[0] * w).sum()
        difference = (curvature(x + h * w) - curvature(x - h * w)) / (2 * h)
    torch.testing.assert_close(slope, difference, rtol=1e-6, atol=1e-6)
    changed.undo()
    assert type(model[0]) is kind


# In 4.x BERT has layers for each implementation, and none replaces the others.
KEEPS = classmethod(lambda cls: False)
changes_attention = pytest.mark.skipif(
    not can_change_attention(tiny_model("bert")), reason="BERT keeps its attention"
)


@changes_attention
@pytest.mark.parametrize(("order", "attention", "composite"), [(1, "sdpa", 0), (2, "eager", 0)])
def test_changes_no_more_than_is_needed(order, attention, composite):
    model = tiny_model("bert")
    found = HigherDerivatives(model, order)
    assert model.config._attn_implementation == attention
    assert sum(isinstance(m, CompositeLayerNorm) for m in model.modules()) == composite
    found.undo()


def test_a_model_that_is_eager_already_is_left_alone():
    model = tiny_model("bert", attention="eager")
    found = HigherDerivatives(model, 3)
    assert found.attention is None
    found.undo()
    assert model.config._attn_implementation == "eager"


@changes_attention
def test_what_changes_is_said_once(caplog):
    warn_once.cache_clear()
    for order, said in ((1, []), (2, ["attention"]), (3, ["LayerNorm"]), (3, [])):
        caplog.clear()
        HigherDerivatives(tiny_model("bert"), order).undo()
        assert len(caplog.messages) == len(said)
        assert all(word in text for word, text in zip(said, caplog.messages, strict=True))
    warn_once.cache_clear()
    caplog.clear()
    HigherDerivatives(torch.nn.Linear(2, 2), 3).undo()  # has neither
    assert not caplog.messages


@changes_attention
def test_undo_restores_everything():
    model = tiny_model("bert")
    before = [type(module) for module in model.modules()]
    changed = HigherDerivatives(model, 3)
    assert model.config._attn_implementation == "eager"
    assert any(isinstance(module, CompositeLayerNorm) for module in model.modules())
    changed.undo()
    assert model.config._attn_implementation == "sdpa"
    assert [type(module) for module in model.modules()] == before


def test_attention_that_a_model_keeps_is_computed_by_a_kernel_with_second_derivatives(monkeypatch):
    gradients = []
    for attention in ("eager", "sdpa"):
        model = tiny_model("bert", attention=attention)
        monkeypatch.setattr(type(model.base_model), "_can_set_attn_implementation", KEEPS)
        monkeypatch.setattr(type(model), "_can_set_attn_implementation", KEEPS)
        objective = Objective(JacHess(c=1.0, estimator="projected", weight=1.0)).attach(model)
        assert model.config._attn_implementation == attention
        torch.manual_seed(0)
        objective(model, tiny_batch()).backward()
        gradients.append({name: p.grad for name, p in model.named_parameters()})
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-6, atol=1e-9)


def test_other_fused_attention_that_a_model_keeps_is_refused(monkeypatch):
    model = tiny_model("bert")
    monkeypatch.setattr(type(model.base_model), "_can_set_attn_implementation", KEEPS)
    monkeypatch.setattr(type(model), "_can_set_attn_implementation", KEEPS)
    model.config._attn_implementation_internal = "flash_attention_2"
    with pytest.raises(ValueError, match='load the model with attn_implementation="eager"'):
        HigherDerivatives(model, 2)


@changes_attention
@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_fused_attention_is_replaced_only_for_estimators_that_need_it(dropout):
    model = tiny_model("bert", dropout=dropout)
    for estimator, expected in [("projected", "eager"), ("finite_difference", "sdpa")]:
        objective = Objective(JacHess(c=1.0, estimator=estimator, weight=1.0)).attach(model)
        assert model.config._attn_implementation == expected
        objective(model, tiny_batch()).backward()
        objective.detach()
        assert model.config._attn_implementation == "sdpa"
