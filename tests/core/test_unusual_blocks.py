"""Models whose embeddings or blocks are not what they are in most: supported, or refused."""

import pytest
import torch
from transformers import (
    BertConfig,
    BertForPreTraining,
    CanineConfig,
    CanineForSequenceClassification,
    GitConfig,
    GitForCausalLM,
    IBertConfig,
    IBertForSequenceClassification,
    LongformerConfig,
    LongformerForSequenceClassification,
    OpenAIGPTConfig,
    OpenAIGPTForSequenceClassification,
    RemBertConfig,
    RemBertForQuestionAnswering,
    RwkvConfig,
    RwkvForCausalLM,
    SqueezeBertConfig,
    SqueezeBertForSequenceClassification,
    XLMConfig,
    XLMForSequenceClassification,
)

from smoothtune import FGM, L2SP, LNSR, R3F, ForwardPass, JacHess, Objective, RDrop
from smoothtune.core.compute_loss import model_loss
from smoothtune.testing import tiny_batch, tiny_model
from smoothtune.testing.tiny import COMMON_CONFIG, random_model

XLM = {"emb_dim": 8, "n_layers": 2, "n_heads": 2, "vocab_size": 40, "pad_token_id": 1}
GPT = {"n_embd": 8, "n_layer": 2, "n_head": 2, "vocab_size": 40, "pad_token_id": 1}
SQUEEZE = {"embedding_size": 8, **{f"{x}_groups": 1 for x in ("q", "k", "v", "post_attention")}}
SQUEEZE |= {"intermediate_groups": 1, "output_groups": 1}
LONG = {"attention_window": 8}
CANINE = {"num_hash_buckets": 8, "downsampling_rate": 2, "local_transformer_stride": 4}
VISION = {k: v for k, v in COMMON_CONFIG.items() if "size" in k or "hidden" in k}
VISION |= {"num_attention_heads": 2, "image_size": 8, "patch_size": 4}
CASES = {
    "xlm": (XLMForSequenceClassification, lambda: XLMConfig(**XLM)),
    "openai-gpt": (OpenAIGPTForSequenceClassification, lambda: OpenAIGPTConfig(**GPT)),
    "squeezebert": (
        SqueezeBertForSequenceClassification,
        lambda: SqueezeBertConfig(**COMMON_CONFIG | SQUEEZE),
    ),
    "ibert": (IBertForSequenceClassification, lambda: IBertConfig(**COMMON_CONFIG)),
    "longformer": (
        LongformerForSequenceClassification,
        lambda: LongformerConfig(**COMMON_CONFIG | LONG),
    ),
    "canine": (CanineForSequenceClassification, lambda: CanineConfig(**COMMON_CONFIG | CANINE)),
    "rwkv": (
        RwkvForCausalLM,
        lambda: RwkvConfig(vocab_size=40, hidden_size=8, num_hidden_layers=2, context_length=16),
    ),
    "git": (GitForCausalLM, lambda: GitConfig(**COMMON_CONFIG, vision_config=VISION)),
    "rembert": (
        RemBertForQuestionAnswering,
        lambda: RemBertConfig(**COMMON_CONFIG, input_embedding_size=8, output_embedding_size=8),
    ),
    "bert": (BertForPreTraining, lambda: BertConfig(**COMMON_CONFIG)),
}


def model_of(kind):
    make, config = CASES[kind]
    return random_model(make, config(), dtype=torch.float32)


def batch():
    whole = tiny_batch()
    return {name: tensor % 2 if name == "labels" else tensor for name, tensor in whole.items()}


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("xlm", "separate lists, attentions, layer_norm1, ffns, layer_norm2, so its hidden states"),
        ("squeezebert", "does not call the module that is hooked there, so use a weight-side"),
        ("longformer", r"state of shape \(4, 8, 8\) does not fit a batch of \(4, 6\) tokens: use"),
        ("canine", "has no table of word embeddings: use a weight-side method"),
    ],
)
def test_states_that_cannot_be_reached_are_refused(kind, words):
    layer = "word" if kind in ("longformer", "canine") else 0
    with pytest.raises((ValueError, RuntimeError), match=words):
        Objective(LNSR(layer=layer, weight=1.0)).attach(model := model_of(kind))(model, batch())


def test_embeddings_that_are_no_tensor_are_refused():
    model = model_of("ibert")
    with pytest.raises(RuntimeError, match="at point 'word' is a tuple, not a tensor: use"):
        Objective(FGM()).attach(model)(model, batch())
    with pytest.raises(
        ValueError, match="QuantEmbedding, give a tuple, not a tensor: use a weight"
    ):
        Objective(JacHess(c=0.1, weight=1.0)).attach(model_of("ibert"))


def test_a_perturbation_of_other_tokens_is_refused():
    with pytest.raises(RuntimeError, match=r"'word', \(4, 8, 8\): use a weight-side method"):
        Objective(FGM()).attach(model := model_of("longformer"))(model, batch())


def test_blocks_that_are_not_called_are_named():
    run = ForwardPass(model_of("squeezebert"), batch(), points=())
    with pytest.raises(RuntimeError, match="0 hidden states were recorded .* with 2 blocks"):
        run.run()


def test_blocks_that_return_a_list_are_supported():
    model = model_of("openai-gpt").eval()
    states = ForwardPass(model, batch(), points=()).run().hidden_states
    own = model(**batch(), output_hidden_states=True).hidden_states
    for mine, given in zip(states, own, strict=True):
        torch.testing.assert_close(mine, given)


def test_weights_that_change_in_evaluation_mode_are_refused():
    ids = {"input_ids": batch()["input_ids"], "labels": batch()["input_ids"]}
    with pytest.raises(RuntimeError, match=r"changes its weights in evaluation .*rescale_every=0"):
        Objective(JacHess(c=0.1, weight=1.0)).attach(model := model_of("rwkv"))(model, ids)


def test_predictions_under_other_names_are_refused():
    ids = tiny_batch()["input_ids"]
    inputs = {"input_ids": ids, "labels": ids, "next_sentence_label": batch()["labels"]}
    with pytest.raises(ValueError, match="prediction_logits, seq_relationship_logits, and no `log"):
        Objective(R3F(weight=1.0)).attach(model := model_of("bert"))(model, inputs)


def test_predictions_of_a_tuple_are_refused():
    model = tiny_model("bert")
    model.config.return_dict = False
    inputs = tiny_batch()

    def loss(model, inputs):
        outputs = model(**inputs)
        return outputs[0], outputs

    with pytest.raises(ValueError, match=r"gives a tuple, .*config\.return_dict = True"):
        Objective(RDrop()).attach(model)(model, inputs, loss)


def test_logits_of_other_positions_than_the_tokens_are_refused():
    ids = tiny_batch()["input_ids"]
    inputs = {"input_ids": ids, "labels": ids, "pixel_values": torch.ones(4, 3, 8, 8)}
    with pytest.raises(ValueError, match=r"has 11 positions for 6 tokens .*: use a weight-side"):
        Objective(L2SP()).attach(model := model_of("git"))(model, inputs)
    with pytest.raises(ValueError, match=r"has 11 positions for 6 tokens .*: use a weight-side"):
        Objective(R3F(weight=1.0)).attach(model := model_of("git"))(model, inputs, model_loss)


def test_positions_that_a_model_clamps_in_place_are_its_own():
    model, positions = model_of("rembert"), torch.tensor([0, 1, 2, 9])
    inputs = {name: tiny_batch()[name] for name in ("input_ids", "attention_mask")}
    inputs |= {"start_positions": positions, "end_positions": positions.clone()}
    Objective(R3F(weight=1.0)).attach(model)(model, inputs).backward()
    assert positions.tolist() == [0, 1, 2, 9]
