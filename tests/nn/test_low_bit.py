"""Frozen weights of fewer than 32 bits under LoRA: methods are those of the same model in float32.

16-bit weights are compared with their float32 copies, quantized ones with what transformers
de-quantizes them to.
"""

import copy
from contextlib import suppress
from importlib.util import find_spec
from itertools import product

import pytest
import torch
from peft import LoraConfig, PeftModelForCausalLM, get_peft_model
from transformers import (
    BitsAndBytesConfig,
    LlamaForCausalLM,
    LlamaForSequenceClassification,
    TorchAoConfig,
)

from helpers.causal import language_batch, tiny_language_model
from smoothtune import LNSR, METHODS, R3F, VAT, JacHess, Objective
from smoothtune.core import support
from smoothtune.core.regularizer import LossTerm
from smoothtune.core.support import runs_model
from smoothtune.nn import environments
from smoothtune.nn.hf_versions import enable_checkpointing, recomputes_hooks
from smoothtune.nn.low_bit import Float32Compute, Float32View, is_quantized
from smoothtune.testing import ARCHITECTURES, tiny_batch, tiny_model, with_weight

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning"),  # peft's own
    pytest.mark.filterwarnings("ignore:fan_in_fan_out is set to:UserWarning"),
]

QUANTIZED = {
    "4 bits": {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"},
    "4 bits, twice": {"load_in_4bit": True, "bnb_4bit_use_double_quant": True},
    "8 bits": {"load_in_8bit": True},
}
NARROW = ["bfloat16", "float16", *QUANTIZED]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tiny Llama on disk."""
    folder = tmp_path_factory.mktemp("llama")
    tiny_model("llama", dropout=0.1, dtype=torch.float32).save_pretrained(folder)
    return folder


class Bases(dict):
    """Without quantized ones where bitsandbytes is not installed."""

    def __missing__(self, name):
        pytest.skip("bitsandbytes is not installed")


@pytest.fixture(scope="module")
def bases(folder):
    """Frozen weights by kind: as they are stored, and in float32."""
    found = Bases()
    for name in NARROW:
        if name in QUANTIZED and not find_spec("bitsandbytes"):
            continue
        dtype = getattr(torch, name, torch.bfloat16)
        options = {"dtype": dtype, "attention_dropout": 0.1}
        if name in QUANTIZED:
            options["quantization_config"] = BitsAndBytesConfig(**QUANTIZED[name])
        pair = [LlamaForSequenceClassification.from_pretrained(folder, **options) for _ in range(2)]
        if name in QUANTIZED:
            pair[1].dequantize(dtype=torch.float32)
        found[name] = pair[0], pair[1].float()
    return found


def adapted(*models, task_type="SEQ_CLS"):
    """Copies of models with adapters that do something, the same in all and in float32."""
    config = LoraConfig(task_type=task_type, r=2, lora_alpha=4, target_modules="all-linear")
    found = [get_peft_model(copy.deepcopy(model), config).train() for model in models]
    for model in found:
        torch.manual_seed(0)
        for weight in trained(model):
            weight.data = 0.1 * torch.randn(weight.shape)
    return found


def trained(model):
    return [weight for weight in model.parameters() if weight.requires_grad]


def outcome(model, method, autocast=True):
    """Loss, and the gradient of what is trained, in an update of a method."""
    batch = language_batch() if isinstance(model, PeftModelForCausalLM) else tiny_batch()
    weights = trained(model)
    torch.manual_seed(3)
    objective = Objective(method).bind(model, torch.optim.SGD(weights, lr=1e-3))
    try:
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            loss = objective(model, batch)
        found = torch.autograd.grad(loss, weights, allow_unused=True)
    finally:
        objective.detach()
    pairs = zip(weights, found, strict=True)
    return loss, torch.cat([(torch.zeros_like(w) if g is None else g).flatten() for w, g in pairs])


def computes_in_float32(method):
    return isinstance(method, LossTerm) and (method.traits.needs_float32 or runs_model(method))


def agrees(models, make):
    """A method's update in few bits is the one in float32, to the last bit but one or two."""
    narrow, wide = models
    expected = outcome(wide, make(), autocast=False)
    torch.testing.assert_close(outcome(narrow, make()), expected, rtol=1e-6, atol=1e-9)


FAST = ["bfloat16", "4 bits"]


def products():
    """Every method with one kind of weights in turn; the rest is slow."""
    names = [name for name in METHODS if name != "reinit"]  # refused: blocks are frozen
    for (i, name), base in product(enumerate(names), NARROW):
        marks = () if base == FAST[i % 2] else pytest.mark.slow
        yield pytest.param(name, base, marks=marks)


@pytest.mark.parametrize(("name", "base"), list(products()))
def test_every_method_is_that_of_the_model_in_float32(bases, name, base):
    def make():
        return with_weight(METHODS[name]())

    narrow, wide = adapted(*bases[base])
    if computes_in_float32(make()):
        agrees((narrow, wide), make)
    else:  # the model's own arithmetic, as in plain training
        expected, found = outcome(wide, make())[1], outcome(narrow, make())[1]
        assert torch.cosine_similarity(found, expected, 0) > 0.99


FINE = [
    lambda: JacHess(weight=1.0, c=1.0, smoothness=[1.0, 2.0]),
    lambda: JacHess(
        weight=1.0, c=1.0, smoothness=[1.0, 2.0], estimator="projected"
    ),  # a third derivative
    lambda: R3F(sigma=1e-5, weight=1e6),
    lambda: LNSR(share=0.3, ramp_start=0),
]


@pytest.mark.parametrize(
    ("make", "base"),
    [  # fast: each on one kind of weights, in turn
        pytest.param(make, base, marks=() if i % 3 == j else pytest.mark.slow)
        for i, make in enumerate(FINE)
        for j, base in enumerate(["bfloat16", "4 bits, twice", "8 bits"])
    ],
)
def test_small_differences_and_high_derivatives(bases, make, base):
    agrees(adapted(*bases[base]), make)


@pytest.mark.parametrize("base", FAST)
@pytest.mark.parametrize("name", ["vat", "jacobian"])
def test_recomputed_blocks_are_wide_too(bases, name, base):
    narrow, wide = adapted(*bases[base])
    if name == "jacobian" and recomputes_hooks(wide.base_model.model.model.layers[0]):
        pytest.skip("second derivatives need transformers 5.23 there")
    enable_checkpointing(narrow)
    agrees((narrow, wide), lambda: METHODS[name](weight=1.0))


@pytest.mark.parametrize("architecture", [name for name in ARCHITECTURES if name != "llama"])
def test_other_architectures(architecture):
    base = tiny_model(architecture, dropout=0.1, dtype=torch.float32)
    base.set_attn_implementation("eager")
    narrow = copy.deepcopy(base).to(torch.bfloat16)
    models = adapted(narrow, copy.deepcopy(narrow).float())
    agrees(models, lambda: JacHess(weight=1.0, c=1.0, smoothness=[1.0, 2.0]))


@pytest.mark.parametrize("architecture", ["llama", "gpt2"])  # gpt2's head is its embeddings
def test_language_models(architecture):
    base = tiny_language_model(architecture, dropout=0.1, dtype=torch.bfloat16)
    models = adapted(base, copy.deepcopy(base).float(), task_type="CAUSAL_LM")
    agrees(models, lambda: R3F(sigma=1e-3, weight=1e3))


def test_updates_in_which_no_method_acts_stay_narrow(bases):
    (model,), seen = adapted(bases["bfloat16"][0]), []
    layer = model.base_model.model.model.layers[0]
    layer.register_forward_hook(lambda module, args, output: seen.append(output.dtype))
    optimizer = torch.optim.SGD(trained(model), lr=0.0)
    objective = Objective(VAT(weight=1.0, every=2)).bind(model, optimizer)
    for dtype in (torch.float32, torch.bfloat16):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            objective(model, tiny_batch()).backward()
        optimizer.step()
        assert set(seen) == {dtype}
        seen.clear()


@pytest.mark.parametrize("base", FAST)
def test_the_model_is_left_as_it_was(bases, base):
    (model,) = adapted(bases[base][0])
    before = [dict(vars(m)) | dict(m._parameters) for m in model.modules()]
    with suppress(KeyboardInterrupt), Float32Compute(model):
        assert all(weight.dtype == torch.float32 for weight in model.parameters())
        raise KeyboardInterrupt
    after = [dict(vars(m)) | dict(m._parameters) for m in model.modules()]
    for one, other in zip(before, after, strict=True):
        assert list(one) == list(other)
        assert all(one[key] is other[key] for key in one)


@pytest.mark.parametrize("base", FAST)
def test_the_graph_holds_no_float32_copy_of_a_weight(bases, base):
    (model,), kept = adapted(bases[base][0]), []
    shape = model.base_model.model.model.layers[0].mlp.up_proj.base_layer
    shapes = {(shape.in_features, shape.out_features), (shape.out_features, shape.in_features)}

    def keep(tensor):
        kept.append((type(tensor), tuple(tensor.shape)))
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x), Float32Compute(model):
        model(**tiny_batch())
    assert {kind for kind, found in kept if found in shapes} == {Float32View}


# --- refused -----------------------------------------------------------------------------------


def refusal(model, method=None):
    with pytest.raises(ValueError, match="not supported:\n") as caught:
        Objective(method or VAT(weight=1.0)).attach(model)
    return str(caught.value)


def test_a_head_that_is_trained_in_16_bits(bases):
    (model,) = adapted(bases["4 bits"][0])
    model.base_model.model.score.modules_to_save.default.to(torch.bfloat16)
    found = refusal(model)
    assert "vat with 16-bit weights: 16-bit weights round small perturbations away" in found
    assert "trained in 16 bits: base_model.model.score.modules_to_save.default.weight: " in found


@pytest.mark.parametrize("base", FAST)
def test_reentrant_checkpointing_and_compiled_models(bases, base):
    environment = f"{'quantized' if base in QUANTIZED else '16-bit'} base weights"
    (model,) = adapted(bases[base][0])
    model.base_model.model.model.layers[0].compile(backend="eager")
    message = f"alum with {environment} and torch.compile: its passes would not be float32"
    assert message in refusal(model, METHODS["alum"](weight=1.0))
    (model,) = adapted(bases[base][0])
    enable_checkpointing(model, use_reentrant=True)
    assert f"vat with {environment} and reentrant checkpointing" in refusal(model)
    Objective(METHODS["l2_sp"]()).attach(model)  # has no passes


@pytest.mark.parametrize("base", FAST)
def test_shards(bases, base, monkeypatch):
    (model,) = adapted(bases[base][0])
    for module in (environments, support):
        monkeypatch.setattr(module, "shards", lambda model: [model])
    monkeypatch.setattr(support, "casts", lambda unit: False)
    environment = f"{'quantized' if base in QUANTIZED else '16-bit'} base weights"
    message = f"r3f with {environment} and FSDP2: its passes would not be float32: load the base"
    assert message in refusal(model, R3F(weight=1.0))


def test_weights_that_were_packed_for_inference(bases):
    (model,) = adapted(bases["4 bits"][0])
    weight = model.base_model.model.model.layers[0].mlp.up_proj.base_layer.weight
    weight.quant_state.packing_format_for_cpu = True
    objective = Objective(VAT(weight=1.0)).attach(model)
    try:
        with pytest.raises(RuntimeError, match="packed the 4-bit weights for inference"):
            objective(model, tiny_batch())
    finally:
        objective.detach()


@pytest.mark.parametrize("attached", [True, False])
def test_no_weight_is_packed_for_inference(attached, tmp_path):
    """As bitsandbytes does on some processors in evaluation mode; the loss is checked so, too."""
    tiny_language_model("llama", dtype=torch.float32).save_pretrained(tmp_path)
    pytest.importorskip("bitsandbytes")
    four_bits = {"quantization_config": BitsAndBytesConfig(**QUANTIZED["4 bits"])}
    base = LlamaForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16, **four_bits)
    (model,) = adapted(base, task_type="CAUSAL_LM")
    for module in model.modules():
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.support_avx512bf16_for_cpu = True
    objective = Objective(R3F(weight=1.0))
    if attached:
        objective.attach(model)
        with torch.no_grad():
            model.eval()(**language_batch())
        model.train()
    objective(model, language_batch()).backward()
    states = [w.quant_state for w in model.parameters() if hasattr(w, "quant_state")]
    assert states
    assert not any(getattr(state, "packing_format_for_cpu", False) for state in states)
    objective.detach()


def test_embeddings_in_few_bits(bases):
    (model,) = adapted(bases["4 bits"][0])
    from bitsandbytes.nn import Embedding4bit

    model.base_model.model.model.embed_tokens = Embedding4bit(40, 8).requires_grad_(False)
    assert "vat with quantized weights in Embedding4bit: use bitsandbytes" in refusal(model)


def test_torchao(folder):
    quantization = pytest.importorskip("torchao.quantization", reason="torchao is not installed")
    load = LlamaForSequenceClassification.from_pretrained
    config = TorchAoConfig(quantization.Int8WeightOnlyConfig(version=2))
    narrow = load(folder, quantization_config=config, dtype=torch.float32)
    wide = load(folder, dtype=torch.float32)
    for module, copied in zip(narrow.modules(), wide.modules(), strict=True):
        if is_quantized(getattr(module, "weight", module)):
            copied.weight.data = module.weight.dequantize()
    narrow.requires_grad_(False)
    agrees(adapted(narrow, wide), lambda: JacHess(weight=1.0, c=1.0, estimator="projected"))
    narrow.model.layers[0].mlp.up_proj.weight.requires_grad_(True)
    assert "vat with quantized weights that are trained: freeze them" in refusal(narrow)
    rounds = copy.deepcopy(wide)
    config = quantization.Int8DynamicActivationInt8WeightConfig(version=2)
    quantization.quantize_(rounds, config)
    rounds.requires_grad_(False)
    assert "vat with quantized activations, which have no gradient" in refusal(rounds)
