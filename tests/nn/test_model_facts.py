"""What models declare, and that the task loss is theirs whatever they are."""

import copy

import pytest
import torch
import torch.nn.functional as F
from peft import AdaLoraConfig, LoraConfig, get_peft_model
from torch import nn
from transformers import (
    BartConfig,
    BartForCausalLM,
    BartForConditionalGeneration,
    BertLMHeadModel,
    BloomConfig,
    BloomForCausalLM,
    BloomForSequenceClassification,
    CLIPConfig,
    CLIPModel,
    CodeGenConfig,
    CodeGenForCausalLM,
    ImageGPTConfig,
    ImageGPTForImageClassification,
    LlamaForCausalLM,
    MambaConfig,
    MambaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    MptConfig,
    MptForCausalLM,
    OpenAIGPTConfig,
    OpenAIGPTLMHeadModel,
    T5Config,
    T5ForConditionalGeneration,
    ViTConfig,
    ViTForImageClassification,
    ViTMAEConfig,
    ViTMAEForPreTraining,
    XGLMConfig,
    XGLMForCausalLM,
)

from smoothtune import (
    FGM,
    L2SP,
    LNSR,
    R3F,
    VAT,
    DoubleBackprop,
    Jacobian,
    NonFiniteLoss,
    Objective,
)
from smoothtune.nn.model_facts import (
    _calls_loss_function,
    added_loss,
    has_labels,
    is_causal,
    is_causal_lm,
)
from smoothtune.testing import ARCHITECTURES, all_in_float64, tiny_batch, tiny_model
from smoothtune.testing.tiny import COMMON_CONFIG, VOCABULARY, random_model

SEQ2SEQ = {
    "d_model": 8,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 16,
    "decoder_ffn_dim": 16,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 32,
    "pad_token_id": 1,
}
GPT = {"vocab_size": VOCABULARY, "n_embd": 8, "n_layer": 2, "n_head": 2, "n_positions": 32}
# Decoders none of whose attention modules says that it is causal.
SILENT = {
    "bloom": (BloomForCausalLM, BloomConfig, {"n_head": 2, "n_layer": 2, "hidden_size": 8}),
    "mpt": (MptForCausalLM, MptConfig, {"d_model": 8, "n_heads": 2, "n_layers": 2}),
    "codegen": (CodeGenForCausalLM, CodeGenConfig, GPT | {"n_head": 4, "n_embd": 16}),
    "openai-gpt": (OpenAIGPTLMHeadModel, OpenAIGPTConfig, GPT),
    "xglm": (
        XGLMForCausalLM,
        XGLMConfig,
        {"d_model": 8, "attention_heads": 2, "num_layers": 2, "ffn_dim": 16},
    ),
    "mamba": (MambaForCausalLM, MambaConfig, {"hidden_size": 8, "num_hidden_layers": 2}),
}


def silent(name):
    cls, config, sizes = SILENT[name]
    if name == "codegen":
        sizes = sizes | {"rotary_dim": 4}
    config = config(**{"vocab_size": VOCABULARY, "pad_token_id": 1} | sizes)
    return random_model(cls, config, dtype=torch.float32)  # XGLM's mask overflows in float64


def seq2seq(name):
    if name == "bart":
        return random_model(BartForConditionalGeneration, BartConfig(**SEQ2SEQ))
    config = T5Config(
        vocab_size=VOCABULARY,
        d_model=8,
        d_ff=16,
        d_kv=4,
        num_layers=2,
        num_heads=2,
        pad_token_id=1,
        decoder_start_token_id=1,
        dropout_rate=0.0,
    )
    return random_model(T5ForConditionalGeneration, config)


def texts(**changes):
    batch = tiny_batch(**changes)
    labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
    labels[:, :2] = -100
    return batch | {"labels": labels}


def task_loss(model, batch, *methods):
    objective = Objective(*(methods or (L2SP(),))).attach(model)
    with all_in_float64():
        objective(model, batch)
        own = model(**batch)["loss"]
    objective.detach()
    return objective.terms["loss/task"], own.detach()


@pytest.mark.parametrize("name", ["bart", "t5"])
def test_encoder_decoders_train_their_own_task(name):
    model = seq2seq(name)
    assert not is_causal_lm(model)
    ours, own = task_loss(model, texts())
    torch.testing.assert_close(ours, own, rtol=1e-9, atol=0)


def test_a_decoder_whose_loss_is_not_shifted_keeps_it():
    model = random_model(BartForCausalLM, BartConfig(**SEQ2SEQ))
    assert not is_causal_lm(model)
    assert is_causal(model)
    ours, own = task_loss(model, texts())
    torch.testing.assert_close(ours, own, rtol=1e-9, atol=0)


@pytest.mark.parametrize("name", SILENT)
def test_decoders_that_do_not_say_is_causal(name):
    model = silent(name)
    if not _calls_loss_function(type(model)):
        pytest.skip("it has a loss of its own in this version, as BartForCausalLM")
    assert is_causal_lm(model)
    assert is_causal(model)
    batch = texts()
    ours, own = task_loss(model, batch)
    torch.testing.assert_close(ours.to(own.dtype), own)  # in transformers 4 CodeGen's has 32 bits
    if name != "mamba":  # measured: a later token changes no earlier prediction
        later = batch["input_ids"].clone()
        later[:, -1] = 7
        with torch.no_grad():
            first, second = (
                model.eval()(input_ids=ids).logits for ids in (batch["input_ids"], later)
            )
        torch.testing.assert_close(first[:, :-1], second[:, :-1], rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match="mean over tokens"):
        Objective(DoubleBackprop(weight=0.003)).attach(model)


def test_a_classifier_on_such_a_decoder_reads_the_last_token():
    config = BloomConfig(vocab_size=VOCABULARY, pad_token_id=1, **SILENT["bloom"][2])
    model = random_model(BloomForSequenceClassification, config)
    clean = Objective(LNSR(weight=1.0))._terms.clean_pass(model, tiny_batch(), None, True)
    positions = torch.arange(6).expand(4, 6)[..., None]
    assert clean.pooled(positions).flatten().tolist() == [5, 3, 4, 2]


@pytest.mark.parametrize(
    ("is_decoder", "expected"), [(True, True), (False, False)], ids=["decoder", "encoder"]
)
def test_encoders_are_causal_where_their_configuration_says_so(is_decoder, expected):
    config = ARCHITECTURES["bert"]()
    config.is_decoder = is_decoder
    assert is_causal(random_model(BertLMHeadModel, config)) == expected


def test_a_classifier_of_pixels_that_come_one_after_the_other_is_causal():
    config = ImageGPTConfig(vocab_size=40, n_positions=8, n_embd=8, n_layer=2, n_head=2)
    model = random_model(ImageGPTForImageClassification, config).eval()
    assert is_causal(model)
    ids = torch.tensor([[3, 5, 7, 9]])
    places = {"position_ids": torch.arange(4)[None]}  # which transformers 4 asks for without cache
    first, second = (
        model(input_ids=pixels, **places, output_hidden_states=True).hidden_states[-1]
        for pixels in (ids, ids + torch.tensor([0, 0, 0, 1]))
    )
    assert torch.equal(first[:, :-1], second[:, :-1])
    assert not torch.equal(first[:, -1], second[:, -1])


class OwnBloom(BloomForCausalLM):
    """As code of one's own has it: a model type that transformers does not know."""


def test_a_decoder_of_an_unknown_type_is_causal_by_its_loss():
    config = BloomConfig(vocab_size=VOCABULARY, pad_token_id=1, **SILENT["bloom"][2])
    model = random_model(OwnBloom, config)
    model.config.model_type = "own"
    assert is_causal_lm(model)
    assert is_causal(model)


def test_the_router_loss_of_a_mixture_of_experts_is_part_of_the_task():
    config = MixtralConfig(
        **COMMON_CONFIG,
        num_key_value_heads=2,
        num_local_experts=2,
        output_router_logits=True,
        router_aux_loss_coef=0.5,
    )
    model = random_model(MixtralForCausalLM, config, dtype=torch.float32)
    batch = texts()
    ours, own = task_loss(model, batch, R3F(weight=1.0))
    torch.testing.assert_close(ours, own)
    without, _ = task_loss(model, batch | {"output_router_logits": False}, R3F(weight=1.0))
    assert own - without > 0.1


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")  # peft's own
def test_losses_that_a_model_or_its_adapters_add_are_known():
    def adapted(config):
        return get_peft_model(random_model(LlamaForCausalLM, ARCHITECTURES["llama"]()), config)

    target = {"target_modules": ["q_proj"], "task_type": "CAUSAL_LM"}
    assert added_loss(adapted(LoraConfig(r=2, **target)), {}) is None
    orthogonal = adapted(AdaLoraConfig(init_r=2, target_r=1, total_step=10, **target))
    assert "orth_reg_weight" in added_loss(orthogonal, {})
    model = random_model(LlamaForCausalLM, ARCHITECTURES["llama"]())
    assert added_loss(model, {}) is None
    assert "router" in added_loss(model, {"output_router_logits": True})
    model.config.text_config = MixtralConfig(output_router_logits=True)  # as of images and texts
    assert "router" in added_loss(model, {})
    assert added_loss(model, {"output_router_logits": False}) is None


def test_a_batch_that_asks_for_a_loss_has_one():
    model, batch = tiny_model("bert"), {"input_ids": tiny_batch()["input_ids"]}
    assert not has_labels(model, batch)
    assert not has_labels(model, batch | {"return_loss": False})
    assert has_labels(model, batch | {"return_loss": True})


class OtherLoss(LlamaForCausalLM):
    """Declares the loss of causal language models and then computes another."""

    def forward(self, input_ids=None, attention_mask=None, labels=None, **options):
        outputs = super().forward(input_ids=input_ids, attention_mask=attention_mask, **options)
        if labels is not None:
            outputs.loss = 2 * self.loss_function(outputs.logits, labels, VOCABULARY)
        return outputs


def test_a_model_that_computes_another_loss_than_it_declares_is_refused():
    model = random_model(OtherLoss, ARCHITECTURES["llama"]())
    objective = Objective(L2SP()).attach(model)
    with pytest.raises(ValueError, match="OtherLoss declares the loss of language models"):
        objective(model, texts())


def test_labels_that_are_shifted_already_are_refused():
    model = random_model(LlamaForCausalLM, ARCHITECTURES["llama"]())
    with pytest.raises(ValueError, match="shift_labels"):
        Objective(L2SP()).attach(model)(model, texts() | {"shift_labels": texts()["labels"]})


class Targets(nn.Module):
    """Its labels have a name of their own."""

    def __init__(self):
        super().__init__()
        self.words, self.out = nn.Embedding(VOCABULARY, 8), nn.Linear(8, 3)

    def forward(self, input_ids, targets, attention_mask=None):
        logits = self.out(self.words(input_ids).mean(1))
        return {"logits": logits, "loss": F.cross_entropy(logits, targets)}


def test_labels_of_any_name_give_a_task_loss():
    batch = tiny_batch()
    batch["targets"] = batch.pop("labels")
    ours, own = task_loss(Targets(), batch, R3F(weight=1.0))
    torch.testing.assert_close(ours, own)


def test_models_that_need_no_labels_have_a_task_loss():
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    image = {"image_size": 8, "patch_size": 4, "intermediate_size": 16}
    decoder = {f"decoder_{name}": value for name, value in sizes.items()}
    config = ViTMAEConfig(**sizes, **image, **decoder, decoder_intermediate_size=16)
    model = random_model(ViTMAEForPreTraining, config)
    batch = {"pixel_values": torch.rand(2, 3, 8, 8).double()}
    batch["noise"] = torch.rand(2, 4).double()
    ours, own = task_loss(model, batch)
    torch.testing.assert_close(ours, own)

    text = {"vocab_size": VOCABULARY, "eos_token_id": 39, **sizes, "intermediate_size": 16}
    clip = random_model(
        CLIPModel,
        CLIPConfig(text_config=text, vision_config=sizes | image, projection_dim=8),
        dtype=torch.float32,
    )
    pairs = tiny_batch()
    del pairs["labels"]
    pairs |= {"pixel_values": torch.rand(4, 3, 8, 8), "return_loss": True}
    ours, own = task_loss(clip, pairs)
    torch.testing.assert_close(ours, own)


def test_a_loss_of_the_users_is_asked_for_whatever_the_batch_is_called():
    model, batch = tiny_model("bert"), tiny_batch()
    del batch["labels"]

    def reconstruction(model, batch):
        outputs = model(**batch)
        return outputs.logits.square().mean(), outputs

    objective = Objective(LNSR(weight=1.0)).attach(model)
    objective(model, batch, reconstruction)
    assert objective.terms["loss/task"] == reconstruction(model, batch)[0]
    objective(model, batch | {"unlabeled": True}, reconstruction)
    assert "loss/task" not in objective.terms


def test_a_batch_without_a_loss_that_is_not_marked_is_an_error():
    model, batch = tiny_model("bert"), tiny_batch()
    with pytest.raises(ValueError, match=r'set batch\["unlabeled"\] = True'):
        Objective()(model, batch, lambda model, batch: (None, model(**batch)))


@pytest.mark.parametrize(
    "method", [R3F(weight=1.0), LNSR(weight=1.0), Jacobian(weight=0.01), FGM()]
)
def test_pixels_are_refused_where_words_are_perturbed(method):
    config = ViTConfig(
        hidden_size=8,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=16,
        image_size=8,
        patch_size=4,
    )
    model = random_model(ViTForImageClassification, config)
    with pytest.raises(ValueError, match="pixel_values.*mixout or l2_sp"):
        Objective(method).attach(model)
    batch = {"pixel_values": torch.rand(2, 3, 8, 8).double(), "labels": torch.tensor([0, 1])}
    ours, own = task_loss(model, batch)
    torch.testing.assert_close(ours, own)


def test_embeddings_in_place_of_tokens_are_refused_where_words_are_perturbed():
    model, batch = tiny_model("bert"), tiny_batch()
    words = model.get_input_embeddings()(batch.pop("input_ids")).detach()
    ours, own = task_loss(model, batch | {"inputs_embeds": words})
    torch.testing.assert_close(ours, own)
    with pytest.raises(ValueError, match="needs `input_ids`, and the batch has"):
        Objective(R3F(weight=1.0)).attach(model)(model, batch | {"inputs_embeds": words})


def test_a_mask_of_pairs_of_tokens_is_refused_where_words_are_perturbed():
    model, batch = tiny_model("bert"), tiny_batch()
    rows, length = batch["input_ids"].shape
    batch["attention_mask"] = torch.ones(rows, 1, length, length)
    ours, own = task_loss(model, batch)
    torch.testing.assert_close(ours, own)
    with pytest.raises(ValueError, match="whether it is real, not of each pair"):
        Objective(R3F(weight=1.0)).attach(model)(model, batch)


def test_labels_of_unknown_kind_before_the_first_labeled_batch():
    model, batch = tiny_model("bert"), tiny_batch()
    unlabeled = {name: batch[name] for name in ("input_ids", "attention_mask")}
    objective = Objective(VAT(weight=1.0)).attach(model)
    with pytest.raises(ValueError, match="problem_type"):
        objective(model, unlabeled)
    told = copy.deepcopy(model)
    told.config.problem_type = "multi_label_classification"
    again = Objective(VAT(weight=1.0)).attach(told)
    torch.manual_seed(0)
    before = again(told, unlabeled)
    again(told, batch | {"labels": F.one_hot(batch["labels"], 3).double()})
    again.calls = 0
    torch.testing.assert_close(again(told, unlabeled), before)


def test_the_message_does_not_call_spoiled_weights_good():
    model = tiny_model("bert")
    model.classifier.weight.data[0, 0] = torch.nan
    with pytest.raises(NonFiniteLoss, match=r"classifier\.weight among them.*go back") as caught:
        Objective()(model, tiny_batch())
    assert "last good state" not in str(caught.value)
