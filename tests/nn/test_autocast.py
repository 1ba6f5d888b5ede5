"""Terms that compare passes are those of float32 under autocast, in a loop's and accelerate's."""

from contextlib import nullcontext, suppress

import pytest
import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from peft import LoraConfig, get_peft_model
from torch.overrides import TorchFunctionMode
from transformers import AutoModelForSequenceClassification, ElectraConfig

from helpers.causal import language_batch, tiny_language_model
from smoothtune import (
    ALUM,
    LNSR,
    PGD,
    R3F,
    R4F,
    SMART,
    UEGR,
    VAT,
    CrossHolder,
    DoubleBackprop,
    FreeLB,
    JacHess,
    Jacobian,
    Noise,
    Objective,
    RDrop,
    SiFT,
)
from smoothtune.core.strength import Strengths
from smoothtune.core.terms import Terms
from smoothtune.nn.autocast import tf32_products
from smoothtune.nn.dropout import has_dropout
from smoothtune.testing import tiny_batch, tiny_model
from smoothtune.testing.tiny import COMMON_CONFIG, random_model

METHODS = {
    "vat": lambda: VAT(weight=1.0),
    "r3f": lambda: R3F(dropout="shared", weight=1.0),
    "lnsr": lambda: LNSR(noise="in_manifold", k=4, weight=1.0),
    "smart": lambda: SMART(weight=1.0),
    "alum": lambda: ALUM(weight=1.0),
    "sift": lambda: SiFT(weight=1.0),
    "jachess": lambda: JacHess(weight=1.0),
    "jacobian": lambda: Jacobian(weight=0.01, estimator="finite_difference"),
    "cross_holder": lambda: CrossHolder(weight=0.1),
}


def term_gradient(make, dtype=None, prepared=False, dropout=0.1):
    """Flat gradient of a method's term alone."""
    model, method = tiny_model("bert", dropout=dropout, dtype=torch.float32), make()
    objective = Objective(method).attach(model)
    if prepared:
        AcceleratorState._reset_state(reset_partial_state=True)
        model = Accelerator(mixed_precision="bf16", cpu=True).prepare_model(model)
    losses = {}
    original = objective._record

    def record(summed):
        losses.update(summed.weighed)
        original(summed)

    objective._record = record
    torch.manual_seed(3)
    with torch.autocast("cpu", dtype=dtype) if dtype else nullcontext():
        objective(model, tiny_batch())
    weights = list(model.parameters())
    found = torch.autograd.grad(losses[method.name], weights, allow_unused=True)
    if prepared:
        assert model.forward is not model._original_forward  # the wrapper is there again
        AcceleratorState._reset_state(reset_partial_state=True)
    objective.detach()
    pairs = zip(weights, found, strict=True)
    return torch.cat([(torch.zeros_like(w) if g is None else g).flatten() for w, g in pairs])


@pytest.mark.parametrize("name", METHODS)
def test_the_term_is_that_of_float32(name):
    expected = term_gradient(METHODS[name])
    for dtype in (torch.bfloat16, torch.float16):
        torch.testing.assert_close(term_gradient(METHODS[name], dtype), expected)


@pytest.mark.parametrize("name", ["vat", "jachess"])
def test_also_where_accelerate_wraps_the_forward(name):
    expected = term_gradient(METHODS[name])
    torch.testing.assert_close(term_gradient(METHODS[name], prepared=True), expected)


@pytest.mark.parametrize("make", [FreeLB, UEGR])
def test_inner_gradients_do_not_underflow_in_half_precision(make):
    expected, found = term_gradient(make), term_gradient(make, torch.float16)
    torch.testing.assert_close(found, expected)


def test_what_compares_nothing_stays_in_sixteen_bits():
    model, batch = tiny_model("bert", dtype=torch.float32), tiny_batch()
    seen = []
    model.classifier.register_forward_hook(lambda module, args, output: seen.append(output.dtype))
    for method, dtype in ((FreeLB(), torch.bfloat16), (VAT(weight=1.0), torch.float32)):
        objective = Objective(method).attach(model)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            objective(model, batch)
        objective.detach()
        assert set(seen) == {dtype}
        seen.clear()


@pytest.mark.parametrize("precision", ["highest", "high", "medium"])
def test_tf32_is_put_back(precision):
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision(precision)
        with suppress(KeyError), tf32_products():
            assert torch.backends.cuda.matmul.allow_tf32
            raise KeyError
        assert torch.get_float32_matmul_precision() == precision
        assert torch.backends.cuda.matmul.allow_tf32 == (precision != "highest")
    finally:
        torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize(
    ("methods", "tolerate"),
    [
        ([LNSR(weight=1.0), UEGR()], True),
        ([Jacobian(weight=1.0)], True),
        ([Jacobian(weight=1.0, estimator="finite_difference")], False),
        ([LNSR(weight=1.0), R3F(weight=1.0)], False),  # noise of 1e-5
        ([JacHess(weight=1.0)], False),
    ],
)
def test_terms_that_tf32_would_spoil(methods, tolerate):
    named = {method.name: method for method in methods}
    assert Terms(named, Strengths(named)).tolerate_tf32(labeled=True) == tolerate


def dtypes_of(method, model):
    """Of the logits of a step under bf16 autocast."""
    seen = []
    hook = model.classifier.register_forward_hook(lambda m, args, output: seen.append(output.dtype))
    objective = Objective(method).attach(model)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        objective(model, tiny_batch())
    objective.detach()
    hook.remove()
    return set(seen)


@pytest.mark.parametrize("make", [R3F, R4F])
def test_passes_with_other_masks_stay_in_sixteen_bits(make):
    model = tiny_model("bert", dtype=torch.float32, dropout=0.1)
    assert dtypes_of(make(weight=1.0), model) == {torch.bfloat16}
    assert dtypes_of(make(weight=1.0, dropout="shared"), model) == {torch.float32}
    assert dtypes_of(make(weight=1.0), tiny_model("bert", dtype=torch.float32, dropout=0.0)) == {
        torch.float32
    }


GRADIENTS = {
    "projected": lambda: Jacobian(weight=1.0),
    "directional": lambda: Jacobian(weight=1.0, estimator="directional"),
    "double_backprop": lambda: DoubleBackprop(weight=1.0),
}


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients_of_gradients_stay_in_sixteen_bits(name):
    model = tiny_model("bert", dtype=torch.float32)
    assert dtypes_of(GRADIENTS[name](), model) == {torch.bfloat16}
    exact = term_gradient(GRADIENTS[name], dropout=0.0)
    found = term_gradient(GRADIENTS[name], torch.bfloat16, dropout=0.0)
    assert torch.cosine_similarity(found, exact, dim=0) > 0.99
    assert 0.9 < found.norm() / exact.norm() < 1.1


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")  # peft's own
def test_dropout_of_adapters_tells_no_passes_apart():
    model = tiny_model("bert", dtype=torch.float32, dropout=0.0)
    adapters = LoraConfig(target_modules=["query"], lora_dropout=0.1, task_type="SEQ_CLS")
    assert not has_dropout(get_peft_model(model, adapters))
    assert has_dropout(tiny_model("bert", dropout=0.1))


def test_only_a_gpu_has_tf32(monkeypatch):
    model = tiny_model("bert", dtype=torch.float32)
    objective = Objective(LNSR(weight=1.0)).attach(model)
    monkeypatch.setattr("smoothtune.core.objective.tf32_products", None)  # to call it fails
    with torch.autocast("cpu", dtype=torch.bfloat16):
        objective(model, tiny_batch())


class CastsOfOlderTorch(TorchFunctionMode):
    """Autocast's cache of an older torch: a cast made without gradients has no graph."""

    def __init__(self):
        super().__init__()
        self.casts = {}

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is F.linear:
            x, weight, *bias = args
            if weight.is_leaf and weight.requires_grad:
                weight = self.casts.setdefault(weight, weight.clone())
            args = (x, weight, *bias)
        return func(*args, **(kwargs or {}))


def electra():
    """Whose embeddings are projected before block 0."""
    sizes = {"embedding_size": 4, "classifier_dropout": 0.0, "num_labels": 3}
    config = ElectraConfig(**COMMON_CONFIG, **sizes)
    return random_model(AutoModelForSequenceClassification.from_config, config)


@pytest.mark.parametrize(
    ("make_model", "method", "make_batch"),
    [
        (lambda: tiny_language_model("llama"), RDrop(), language_batch),  # compares losses first
        (lambda: tiny_model("bert"), PGD(layer=1), tiny_batch),  # looks at block 1 first
        (electra, Noise(), tiny_batch),
    ],
)
def test_passes_without_gradients_leave_no_casts_behind(
    make_model, method, make_batch, monkeypatch
):
    """Later passes in the caller's autocast would have no gradient in these weights."""
    reached = []
    for casts in (nullcontext(), CastsOfOlderTorch()):
        model = make_model()
        objective = Objective(method).attach(model)
        if isinstance(casts, CastsOfOlderTorch):
            monkeypatch.setattr(torch, "clear_autocast_cache", casts.casts.clear)
        with casts:
            loss = objective(model, make_batch())
        loss.backward()
        objective.detach()
        reached.append({name for name, p in model.named_parameters() if p.grad is not None})
    assert len(reached[0]) > 10
    assert reached[0] == reached[1]
