"""Parts of models are found in every architecture."""

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel
from transformers import BertModel

from helpers.causal import tiny_language_model
from helpers.seq2seq import tiny_seq2seq
from smoothtune.nn.architecture import (
    base_model,
    blocks,
    embedding_norm,
    embedding_table,
    head_modules,
    is_fsdp1,
    linear_layers,
    pooled_positions,
    trainable,
    trained_weights,
    unwrap,
    weights_of,
    word_embeddings,
)
from smoothtune.nn.model_facts import is_causal, is_causal_lm, transformer
from smoothtune.testing import ARCHITECTURES, tiny_model

PARTS = {  # architecture -> base model, word embeddings, blocks
    "bert": ("bert", "bert.embeddings.word_embeddings", "bert.encoder.layer"),
    "roberta": ("roberta", "roberta.embeddings.word_embeddings", "roberta.encoder.layer"),
    "deberta": ("deberta", "deberta.embeddings.word_embeddings", "deberta.encoder.layer"),
    "modernbert": ("model", "model.embeddings.tok_embeddings", "model.layers"),
    "opt": ("model", "model.decoder.embed_tokens", "model.decoder.layers"),
    "llama": ("model", "model.embed_tokens", "model.layers"),
    "gpt2": ("transformer", "transformer.wte", "transformer.h"),
}
NORMS = {  # the LayerNorm that closes the embeddings; the others start with block 0
    "bert": "bert.embeddings.LayerNorm",
    "roberta": "roberta.embeddings.LayerNorm",
    "deberta": "deberta.embeddings.LayerNorm",
    "modernbert": "model.embeddings.norm",
}


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_parts(architecture):
    model = tiny_model(architecture)
    base, word, layers = (model.get_submodule(name) for name in PARTS[architecture])
    assert base_model(model) is base
    assert word_embeddings(model) is word
    assert embedding_table(model) is word.weight
    assert embedding_table(model).shape == (40, 8)
    assert blocks(model) is layers
    norm = model.get_submodule(NORMS[architecture]) if architecture in NORMS else layers[0]
    assert embedding_norm(model) is norm
    assert is_causal(model) == (architecture in ("opt", "llama", "gpt2"))
    assert not is_causal_lm(model)
    inside = {name for name, _ in base.named_parameters(PARTS[architecture][0])}
    found = list(trainable(model))
    assert [name for name, _, _ in found] == [name for name, _ in model.named_parameters()]
    assert {name for name, _, is_new in found if not is_new} == inside
    assert {name for name, _, is_new in found if is_new}
    assert all(parameter is model.get_parameter(name) for name, parameter, _ in found)


def test_the_head_is_what_is_outside_the_base_model():
    model = tiny_model("bert")
    assert head_modules(model) == [model.dropout, model.classifier]
    assert head_modules(model.bert) == []
    assert base_model(model.bert) is model.bert


def test_linear_layers():
    model = tiny_model("bert")
    expected = [m for m in model.bert.modules() if isinstance(m, nn.Linear)]
    assert len(expected) == 2 * 6 + 1  # six in each block, and the pooler
    assert linear_layers(model, head=False) == expected
    assert linear_layers(model, head=True) == [*expected, model.classifier]
    model.bert.pooler.requires_grad_(False)
    assert linear_layers(model, head=False) == expected[:-1]
    assert len(linear_layers(tiny_model("gpt2"), head=False)) == 2 * 4


def test_what_does_not_train_is_not_listed():
    model = tiny_model("bert")
    model.bert.requires_grad_(False)
    assert [name for name, _, _ in trainable(model)] == ["classifier.weight", "classifier.bias"]
    assert linear_layers(model, head=False) == []


@pytest.mark.parametrize("architecture", ["llama", "opt", "gpt2"])
def test_a_language_model_is_all_pre_trained(architecture):
    model = tiny_language_model(architecture)
    assert is_causal_lm(model)
    assert base_model(model) is model
    assert head_modules(model) == []


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")  # peft's own
def test_adapters_are_no_head():
    config = LoraConfig(task_type="SEQ_CLS", r=2, target_modules=["query"])
    inner = tiny_model("bert")
    model = get_peft_model(inner, config)
    assert base_model(model) is inner.bert
    assert {is_new for name, _, is_new in trainable(model) if "lora" in name} == {False}
    assert {is_new for name, _, is_new in trainable(model) if "classifier" in name} == {True}


def test_wrapped_models_are_unwrapped():
    model = tiny_model("bert")
    assert unwrap(model) is model
    compiled = torch.compile(model, backend="eager")
    for wrapped in (nn.DataParallel(model), compiled, nn.DataParallel(compiled)):
        assert unwrap(wrapped) is model


def test_fsdp_of_version_1_is_a_wrapper_and_fsdp2_is_none():
    class Own(FullyShardedDataParallel):
        pass

    assert is_fsdp1(FullyShardedDataParallel)
    assert is_fsdp1(Own)
    assert not is_fsdp1(nn.DataParallel)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_weights_are_those_of_the_module_in_its_order(architecture):
    for model in (tiny_model(architecture), tiny_language_model("gpt2")):
        model.again = model.base_model  # a module twice
        model.register_module("nothing", None)
        assert list(map(id, weights_of(model))) == list(map(id, model.parameters()))


def test_weights_that_an_optimizer_holds_beside_the_models_are_trained():
    model, outside = nn.Linear(2, 1), nn.Linear(3, 1)
    model.bias.requires_grad_(False)
    outside.bias.requires_grad_(False)
    both = torch.optim.SGD([*outside.parameters(), *model.parameters()], lr=0.1)
    others = torch.optim.SGD(outside.parameters(), lr=0.1)  # as one that has copies in float32
    assert trained_weights(model) == [model.weight]
    assert trained_weights(nn.DataParallel(model), both) == [model.weight, outside.weight]
    assert trained_weights(model, others) == [model.weight]


def test_each_side_has_as_many_blocks_as_its_configuration_says():
    for architecture, name in (("bart", "decoder_layers"), ("t5", "num_decoder_layers")):
        model = tiny_seq2seq(architecture, **{name: 3})
        assert len(blocks(model)) == 2
        assert len(blocks(model, "decoder")) == 3


def test_the_head_reads_the_last_token_of_a_decoder_and_the_first_of_an_encoder():
    mask = torch.tensor([[1, 1, 0, 0], [0, 0, 1, 1], [0, 1, 1, 0]])
    assert pooled_positions(tiny_model("llama"), mask).tolist() == [1, 3, 2]
    assert pooled_positions(tiny_model("bert"), mask).tolist() == [0, 2, 1]
    with pytest.raises(ValueError, match="compare all tokens"):
        pooled_positions(tiny_seq2seq("bart"), mask)


class Holder(nn.Module):
    """What a SentenceTransformer looks like."""

    def __init__(self, inner):
        super().__init__()
        self.first = inner

    @property
    def transformers_model(self):
        return self.first


def test_the_transformer_inside_an_embedding_model():
    inner = BertModel(ARCHITECTURES["bert"]())
    holder = Holder(inner)
    assert transformer(holder) is inner
    assert transformer(inner) is inner
    assert word_embeddings(holder) is inner.embeddings.word_embeddings
    assert blocks(holder) is inner.encoder.layer


class Plain(nn.Module):
    def __init__(self, tables):
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(5, 2) for _ in range(tables))


def test_models_of_ones_own():
    model = Plain(1)
    assert word_embeddings(model) is model.tables[0]
    assert base_model(model) is model
    assert not is_causal_lm(model)
    for tables in (0, 2):
        with pytest.raises(ValueError, match=f"Plain has {tables} nn.Embedding"):
            word_embeddings(Plain(tables))
    with pytest.raises(ValueError, match="num_hidden_layers=None"):
        blocks(model)


def test_two_norms_among_the_embeddings_are_none():
    model = tiny_model("bert")
    model.bert.embeddings.more = nn.LayerNorm(8)
    assert embedding_norm(model) is model.bert.encoder.layer[0]
