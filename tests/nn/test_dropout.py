"""Dropout rates set for the time of a forward."""

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import (
    MPNetConfig,
    MPNetModel,
    Starcoder2Config,
    Starcoder2Model,
    T5Config,
    T5EncoderModel,
)

from smoothtune import ForwardPass
from smoothtune.nn.dropout import dropout_rates, has_dropout, sites
from smoothtune.nn.hf_versions import enable_checkpointing
from smoothtune.testing import ARCHITECTURES, tiny_batch, tiny_model

SIZES = {"vocab_size": 40, "num_hidden_layers": 1, "num_attention_heads": 2, "hidden_size": 8}


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_is_the_model_configured_with_that_rate(architecture):
    model, other = tiny_model(architecture, dropout=0.2), tiny_model(architecture, dropout=0.4)
    logits = []
    torch.manual_seed(3)
    with dropout_rates(model, 0.4):
        logits.append(model(**tiny_batch())["logits"])
    for each in (other, model):
        torch.manual_seed(3)
        logits.append(each(**tiny_batch())["logits"])
    assert torch.equal(logits[0], logits[1])
    assert not torch.equal(logits[0], logits[2])


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")  # peft's own
def test_dropout_of_adapters_changes_nothing_at_first():
    def adapted(dropout):
        config = LoraConfig(r=2, target_modules=["query"], lora_dropout=0.5)
        return get_peft_model(tiny_model("bert", dropout=dropout), config)

    assert has_dropout(tiny_model("bert", dropout=0.1))
    assert has_dropout(adapted(0.1))
    assert not has_dropout(tiny_model("bert", dropout=0.0))
    assert not has_dropout(adapted(0.0))


def test_at_a_rate_of_0_nothing_is_drawn():
    rates = {"residual_dropout": 0.5, "embedding_dropout": 0.5}
    model = Starcoder2Model(Starcoder2Config(**SIZES, **rates, num_key_value_heads=2)).train()
    ids = torch.arange(12).view(2, 6)

    def states():
        return model(input_ids=ids)["last_hidden_state"]

    assert not torch.equal(states(), states())
    with dropout_rates(model, 0.0):
        assert torch.equal(states(), states())


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_rates_return_after_an_exception(architecture):
    model = tiny_model(architecture, dropout=0.2)

    def rates():
        return [getattr(module, name) for module, name, _ in sites(model)]

    before, inside = rates(), []
    assert before

    def fail():
        inside.extend(rates())
        raise KeyError

    with pytest.raises(KeyError), dropout_rates(model, 0.4):
        fail()
    assert set(inside) == {0.4}
    assert rates() == before


@pytest.mark.parametrize(
    ("architecture", "kinds"),
    [
        ("bert", {"hidden", "attention", "head"}),
        ("llama", {"attention"}),
        ("opt", {"hidden", "attention"}),
        ("gpt2", {"hidden", "attention"}),
        ("modernbert", {"hidden", "attention", "head"}),
    ],
)
def test_kinds_of_dropout(architecture, kinds):
    assert {kind for _, _, kind in sites(tiny_model(architecture, dropout=0.2))} == kinds


@pytest.mark.parametrize(
    ("model", "inside"),
    [
        (MPNetModel(MPNetConfig(**SIZES, intermediate_size=8)), "attention.attn.dropout"),
        (T5EncoderModel(T5Config(**SIZES, d_kv=4, d_ff=8)), "layer.0.SelfAttention"),
    ],
)
def test_dropout_around_attention_is_none_of_its_probabilities(model, inside):
    (owner,) = [owner for owner, _, kind in sites(model) if kind == "attention"]
    (name,) = [name for name, module in model.named_modules() if module is owner]
    assert name.endswith(inside)


def test_only_the_kind_asked_for_changes():
    model = tiny_model("bert", dropout=0.2)
    attention = [layer.attention.self.dropout for layer in model.bert.encoder.layer]
    with dropout_rates(model, {"attention": 0.5, "head": 0.0}):
        assert [module.p for module in attention] == [0.5, 0.5]
        assert model.dropout.p == 0.0
        assert model.bert.embeddings.dropout.p == 0.2


def test_a_model_without_such_dropout_is_refused():
    with (
        pytest.raises(ValueError, match="no hidden dropout"),
        dropout_rates(tiny_model("llama"), {"hidden": 0.1}),
    ):
        pass


def test_a_pass_runs_at_its_rate_and_shares_masks():
    model = tiny_model("bert", dropout=0.2)
    clean = ForwardPass(model, tiny_batch()).run()
    same = clean.at(dropout="shared", rate=0.2)
    higher = clean.at(dropout="shared", rate=0.5)
    assert torch.equal(clean.logits, same.logits)
    assert not torch.allclose(clean.logits, higher.logits)
    assert model.dropout.p == 0.2


def test_refused_under_activation_checkpointing():
    model = tiny_model("bert", dropout=0.2)
    enable_checkpointing(model)
    with pytest.raises(ValueError, match="activation checkpointing"):
        ForwardPass(model, tiny_batch()).at(rate=0.5)
    assert torch.isfinite(ForwardPass(model, tiny_batch()).at().logits).all()


def test_a_pass_at_another_rate_does_not_reuse_the_embeddings():
    model = tiny_model("bert", dropout=0.2)
    clean = ForwardPass(model, tiny_batch(), points=(0,)).run()
    assert torch.isfinite(clean.logits).all()
    nothing = clean.zeros(0)
    disturbed = clean.at(nothing, 0, dropout="shared", rate=0.5)
    assert torch.equal(disturbed.logits, clean.at(dropout="shared", rate=0.5).logits)
