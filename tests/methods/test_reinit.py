"""Re-initialization of the top blocks."""

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, prune, spectral_norm, weight_norm
from transformers import AutoConfig, AutoModelForSequenceClassification

from smoothtune import L2SP, LLRD, Mixout, Objective, ReInit
from smoothtune.functional.parametrizations import trained_weight
from smoothtune.nn.architecture import blocks
from smoothtune.testing import ARCHITECTURES, tiny_batch, tiny_model


def values(module):
    return torch.cat([p.detach().flatten() for p in module.parameters()])


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_top_block_is_new_and_the_rest_is_not(architecture):
    model, before = tiny_model(architecture), tiny_model(architecture)
    objective = Objective(ReInit(layers=1, pooler=False)).attach(model)
    bottom, top = blocks(model)
    assert not torch.equal(values(top), values(blocks(before)[1]))
    assert torch.equal(values(bottom), values(blocks(before)[0]))
    changed = {id(p) for p in top.parameters()}
    for (name, p), q in zip(model.named_parameters(), before.parameters(), strict=True):
        assert id(p) in changed or torch.equal(p, q), name
    new = values(top).clone()
    objective.detach()
    assert torch.equal(values(top), new)


def test_weights_follow_the_initialization_of_bert():
    model = tiny_model("bert")
    model.config.initializer_range = 0.5
    Objective(ReInit(layers=2)).attach(model)
    linear = [m for m in blocks(model).modules() if isinstance(m, nn.Linear)]
    linear.append(model.bert.pooler.dense)
    weights = torch.cat([layer.weight.flatten() for layer in linear])
    assert weights.std().item() == pytest.approx(0.5, rel=0.1)
    assert weights.mean().item() == pytest.approx(0.0, abs=0.05)
    assert all((layer.bias == 0).all() for layer in linear)
    norms = [m for m in blocks(model).modules() if isinstance(m, nn.LayerNorm)]
    assert all((norm.weight == 1).all() and (norm.bias == 0).all() for norm in norms)


@pytest.mark.parametrize("name", ["t5", "gpt2", "modernbert"])
def test_weights_that_a_block_scales_are_as_in_a_new_model(name):
    torch.manual_seed(0)
    sizes = {"vocab_size": 50, "num_labels": 2, "pad_token_id": 1}
    heads = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    own = {
        "t5": {"d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4},
        "gpt2": {"n_embd": 64, "n_layer": 2, "n_head": 4},
        "modernbert": heads | {"cls_token_id": 2, "sep_token_id": 3},
    }
    config = AutoConfig.for_model(name, **sizes, **own[name])
    model = AutoModelForSequenceClassification.from_config(config)
    before = {key: weight.clone() for key, weight in model.named_parameters()}
    Objective(ReInit(layers=2)).attach(model)
    changed = {key: p for key, p in model.named_parameters() if not torch.equal(p, before[key])}
    assert any("proj" in key or "Wo" in key or ".q." in key for key in changed)
    for key, weight in changed.items():
        if weight.numel() >= 4096:
            assert weight.std().item() == pytest.approx(before[key].std().item(), rel=0.1), key


def test_also_weights_that_were_loaded(tmp_path):
    tiny_model("bert").save_pretrained(tmp_path)
    model = type(tiny_model("bert")).from_pretrained(tmp_path, dtype=torch.float64)
    pooler, before = model.bert.pooler, values(model.bert.pooler).clone()
    Objective(ReInit(layers=0, pooler=False)).attach(model).detach()
    assert torch.equal(values(pooler), before)
    Objective(ReInit(layers=1)).attach(model)
    assert not torch.equal(values(pooler), before)


def test_draws_follow_the_seed_and_leave_the_generator():
    results = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        model = tiny_model("bert")
        torch.manual_seed(seed)
        Objective(ReInit()).attach(model)
        results.append((values(blocks(model)[1]), torch.rand(1)))
        torch.manual_seed(seed)
        assert torch.equal(results[-1][1], torch.rand(1))
    assert torch.equal(results[0][0], results[1][0])
    assert not torch.equal(results[0][0], results[2][0])


def test_methods_that_remember_the_start_see_the_new_weights():
    model = tiny_model("bert")
    objective = Objective(L2SP(alpha=1.0, beta=0.0), ReInit())
    objective.attach(model)
    objective(model, tiny_batch())
    assert objective.terms["loss/l2_sp"] == 0

    model = tiny_model("bert")
    Objective(Mixout(p=1.0), ReInit()).attach(model)
    dense = blocks(model)[1].output.dense
    trained = trained_weight(dense)
    assert not torch.equal(trained, blocks(tiny_model("bert"))[1].output.dense.weight)
    assert torch.equal(dense.weight, trained)  # the pre-trained one


def test_refusals():
    with pytest.raises(ValueError, match="layers=3.* has 2 blocks"):
        ReInit(layers=3).attach(tiny_model("bert"))
    frozen = tiny_model("bert").requires_grad_(False)
    with pytest.raises(ValueError, match="frozen"):
        ReInit().attach(frozen)


def test_binding_that_fails_leaves_the_pre_trained_weights():
    """As LLRD refuses an optimizer with a scheduler; the second try is a first one."""
    model = tiny_model("bert")
    before = {name: weight.clone() for name, weight in model.named_parameters()}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.optim.lr_scheduler.StepLR(optimizer, 1)
    objective = Objective(ReInit(), LLRD())
    with pytest.raises(ValueError, match="scheduler already"):
        objective.bind(model, optimizer)
    for name, weight in model.named_parameters():
        assert torch.equal(weight, before[name])
    objective.bind(model, torch.optim.SGD(model.parameters(), lr=0.1))
    name = "bert.encoder.layer.1.output.dense.weight"
    assert not torch.equal(model.get_parameter(name), before[name])
    objective.detach()


@pytest.mark.filterwarnings("ignore:.*torch.nn.utils.*is deprecated:FutureWarning")
@pytest.mark.parametrize(
    "dress",
    [
        lambda layer: prune.random_unstructured(layer, "weight", 0.5),
        lambda layer: prune.random_unstructured(layer, "bias", 0.5),
        parametrizations.weight_norm,
        weight_norm,
        spectral_norm,
    ],
)
def test_weights_that_are_computed_are_refused(dress):
    """They would be what they were in the next forward."""
    model = tiny_model("bert")
    dress(blocks(model)[1].intermediate.dense)
    before = {name: weight.clone() for name, weight in model.named_parameters()}
    with pytest.raises(ValueError, match=r"computes the .* of a .*Linear.*permanent first"):
        Objective(ReInit()).attach(model)
    for name, weight in model.named_parameters():
        assert torch.equal(weight, before[name])
    dress(blocks(model)[0].intermediate.dense)
    objective = Objective(ReInit(layers=0)).attach(model)  # writes to the pooler alone
    objective.detach()
