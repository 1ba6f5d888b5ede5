"""Methods on compiled blocks, against the same model that is not compiled."""

import copy
import inspect
import pickle
from contextlib import nullcontext

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch._dynamo.utils import counters
from transformers import AutoModelForSequenceClassification, DistilBertConfig

from helpers.seq2seq import seq2seq_batch, tiny_seq2seq
from smoothtune import (
    LNSR,
    METHODS,
    R3F,
    UEGR,
    VAT,
    FreeLB,
    JacHess,
    Objective,
    compile_blocks,
)
from smoothtune.core.forward import ForwardPass
from smoothtune.core.support import REFUSED, kinds
from smoothtune.nn.architecture import blocks
from smoothtune.nn.compile import CompiledForward, uncompile_blocks
from smoothtune.nn.dropout import evaluating
from smoothtune.nn.environments import environments
from smoothtune.nn.hf_versions import enable_checkpointing
from smoothtune.testing import tiny_batch, tiny_model, with_weight
from smoothtune.testing.tiny import COMMON_CONFIG, random_model

# torch hides this warning of its own, which an error is not
pytestmark = [
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning"),
    # what inductor imports
    pytest.mark.filterwarnings("ignore:.*script_method. is deprecated:DeprecationWarning"),
]


@pytest.fixture(scope="module", autouse=True)
def graphs():
    """Those of this file; its tests share them."""
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def updates(methods, model, batches, around=nullcontext):
    """Loss and flat gradient of updates with plain gradient descent."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    objective = Objective(*methods).bind(model, optimizer)
    torch.manual_seed(3)
    found = []
    for batch in batches:
        with around():
            loss = objective(model, batch)
        loss.backward()
        gradients = [p.grad.flatten() for p in model.parameters() if p.grad is not None]
        found += [loss.detach(), torch.cat(gradients)]
        optimizer.step()
        optimizer.zero_grad()
    objective.detach()
    return found


def equal_updates(methods, make_model, batches, *, backend="aot_eager", rtol=1e-9, **options):
    """Compare compiled updates with others; what they draw is the same with aot_eager."""
    expected = updates(methods(), make_model(), batches, **options)
    found = updates(methods(), compile_blocks(make_model(), backend=backend), batches, **options)
    for one, other in zip(found, expected, strict=True):
        assert (one - other).norm() <= rtol * other.norm()


def two_lengths(make=tiny_batch):
    return [make(), make(padding=2)]


FAST = ("lnsr", "mixout", "l2_sp")


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n in FAST else pytest.mark.slow) for n in METHODS]
)
def test_every_method_is_as_without_compilation_or_refused(name):
    """With the model's dropout masks; with batches of two lengths."""
    method = METHODS[name]()
    refused = [kind for kind in kinds(method) if "compiled blocks" in REFUSED[kind]]
    with pytest.raises(ValueError, match="compiled blocks") if refused else nullcontext():
        equal_updates(
            lambda: [with_weight(METHODS[name]())],
            lambda: tiny_model("bert", dropout=0.1),
            two_lengths(),
            rtol=1e-7,  # finite differences
        )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "dropout"),
    [
        (lambda: VAT(share=0.5, ramp_start=0), 0.1),
        (lambda: LNSR(weight=1.0, layer=1), 0.1),
        (lambda: LNSR(weight=1.0, every=2), 0.1),
        (lambda: LNSR(weight=1.0, dropout="off"), 0.1),
        (lambda: R3F(weight=1.0, dropout="independent"), 0.1),
        (lambda: R3F(weight=1.0, rows=0.5), 0.0),
        (lambda: UEGR(combination="model"), 0.1),
    ],
)
def test_fields_that_change_the_passes(make, dropout):
    equal_updates(lambda: [make()], lambda: tiny_model("bert", dropout=dropout), two_lengths())


@pytest.mark.slow
def test_passes_over_some_rows_share_their_masks():
    """So that a perturbation of nothing changes nothing."""
    model = compile_blocks(tiny_model("bert", dropout=0.3), backend="aot_eager")
    objective = Objective(R3F(weight=1.0, sigma=1e-9, rows=0.5, dropout="shared")).attach(model)
    objective(model, tiny_batch())
    assert objective.terms["loss/r3f"] < 1e-12
    objective.detach()


def adapted(model):
    config = LoraConfig(task_type="SEQ_CLS", r=2, lora_dropout=0.1, target_modules="all-linear")
    model = get_peft_model(model, config).to(torch.float64).train()
    for name, weight in model.named_parameters():
        if "lora_B" in name:
            weight.data.normal_(std=0.1, generator=torch.Generator().manual_seed(0))
    return model


def checkpointed(model):
    enable_checkpointing(model)
    return model


@pytest.mark.slow
@pytest.mark.parametrize("change", [adapted, checkpointed])
@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")  # peft's own
def test_adapters_and_checkpointing(change):
    """Blocks are recomputed with the masks that they had."""
    equal_updates(
        lambda: [LNSR(weight=1.0, layer=1), FreeLB()],
        lambda: change(tiny_model("bert", dropout=0.1)),
        two_lengths(),
    )


@pytest.mark.slow
def test_bf16_autocast():
    """The second update, in which no method acts, is one of bfloat16."""
    kinds_seen = set()

    def autocast():
        return torch.autocast("cpu", dtype=torch.bfloat16)

    def make():
        model = tiny_model("bert", dtype=torch.float32)
        model.classifier.register_forward_hook(lambda *call: kinds_seen.add(call[2].dtype))
        return model

    methods = [LNSR(weight=1.0, every=2)]
    equal_updates(lambda: methods, make, two_lengths(), rtol=0.02, around=autocast)
    assert kinds_seen == {torch.float32, torch.bfloat16}


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ["t5", "bart"])
def test_encoder_decoders(architecture):
    equal_updates(
        lambda: [R3F(weight=1.0, side="both"), VAT(weight=1.0, side="both")],
        lambda: tiny_seq2seq(architecture, dropout=0.1),
        two_lengths(seq2seq_batch),
    )


@pytest.mark.slow
def test_graphs_are_few():
    """One for a mode, with gradients and without, then one for all other lengths."""
    model = compile_blocks(tiny_model("bert"), backend="aot_eager")
    torch.compiler.reset()
    counters.clear()
    for padding in (0, 1, 2, 3, 5, 8):
        batch = tiny_batch(padding=padding)
        model(**batch).loss.backward()
        with torch.no_grad():
            model(**batch)
            with evaluating(model):
                model(**batch)
    assert counters["stats"]["unique_graphs"] == 6
    assert not counters["graph_break"]


def test_a_block_that_torch_cannot_compile_says_so():
    def forward(block, x):
        torch._dynamo.graph_break()
        return block.weight @ x

    with pytest.raises(RuntimeError, match="cannot compile Linear as one graph: use a newer torch"):
        CompiledForward(forward, "aot_eager")(torch.nn.Linear(2, 2), torch.ones(2))


def test_a_block_that_is_compiled_too_often(monkeypatch):
    torch.compiler.reset()
    monkeypatch.setattr("smoothtune.nn.compile.GRAPHS", 1)
    model = compile_blocks(tiny_model("bert"), backend="aot_eager")
    model(**tiny_batch())
    with pytest.raises(RuntimeError, match="more than 1 times.*set torch_compile=False"):
        model(**tiny_batch(padding=1))
    torch.compiler.reset()


def test_copies_weights_and_undoing(tmp_path):
    model = tiny_model("bert", dtype=torch.float32)
    names = list(model.state_dict())
    assert compile_blocks(model, backend="aot_eager") is model
    assert list(model.state_dict()) == names
    other = copy.deepcopy(model)
    for weight in other.parameters():
        weight.data.zero_()
    assert environments(other) == {"compiled blocks"}
    assert not other(**tiny_batch()).logits.any()  # its own blocks, not the first model's
    assert environments(pickle.loads(pickle.dumps(model))) == set()
    model.save_pretrained(tmp_path)
    loaded = AutoModelForSequenceClassification.from_pretrained(tmp_path).train()
    torch.testing.assert_close(loaded(**tiny_batch()).loss, model(**tiny_batch()).loss)
    uncompile_blocks(model)
    assert environments(model) == set()
    assert "forward" not in vars(blocks(model)[0])


def test_a_compiled_block_tells_the_names_of_its_arguments():
    """By them the hidden state of a block is found that is called with named arguments."""
    model = tiny_model("bert")
    before = inspect.signature(blocks(model)[0].forward)
    compile_blocks(model, backend="aot_eager")
    assert inspect.signature(blocks(model)[0].forward) == before


def test_a_block_whose_forward_is_another_programs_is_refused():
    model = tiny_model("bert")
    block = blocks(model)[1]
    block.forward = lambda *inputs, **options: type(block).forward(block, *inputs, **options)
    with pytest.raises(ValueError, match="has replaced the forward of BertLayer"):
        compile_blocks(model)
    assert "forward" not in vars(blocks(model)[0])


def test_another_backend_is_refused():
    with pytest.raises(ValueError, match="backend='eager' is not verified.*'inductor'"):
        compile_blocks(tiny_model("bert"), backend="eager")


# --- inductor ------------------------------------------------------------------------------------


def distilbert(dropout):
    config = DistilBertConfig(
        **{"vocab_size": 40, "dim": 8, "n_layers": 2, "n_heads": 2, "hidden_dim": 16},
        max_position_embeddings=32,
        pad_token_id=COMMON_CONFIG["pad_token_id"],
        num_labels=3,
        seq_classif_dropout=dropout,
    )
    return random_model(AutoModelForSequenceClassification.from_config, config, dropout)


def of(name, dropout=0.0):
    return distilbert(dropout) if name == "distilbert" else tiny_model(name, dropout=dropout)


def some_methods():
    return [LNSR(weight=1.0, layer=1), FreeLB()]


def derivatives():
    return [VAT(share=0.5, ramp_start=0), JacHess(weight=1.0, estimator="finite_difference")]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("architecture", "methods", "rtol"),
    [
        ("bert", some_methods, 1e-7),
        ("bert", derivatives, 1e-7),
        ("distilbert", some_methods, 1e-7),
        ("distilbert", derivatives, 1e-7),
        # RMSNorm computes in float32 in any case, which the small steps of float64 would magnify
        ("llama", some_methods, 1e-6),
    ],
)
def test_inductor(architecture, methods, rtol):
    """Without dropout, as its masks are others."""
    equal_updates(methods, lambda: of(architecture), two_lengths(), backend="inductor", rtol=rtol)


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ["bert", "llama"])
def test_inductor_and_differences_in_float32(architecture):
    """Differences magnify rounding; their default step is wide enough for that of float32."""

    def make():
        return tiny_model(architecture, dtype=torch.float32)

    method = [JacHess(weight=1.0, estimator="finite_difference")]
    for batch in two_lengths():
        equal_updates(lambda: method, make, [batch], backend="inductor", rtol=0.01)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["inductor", "aot_eager"])
@pytest.mark.parametrize("architecture", ["bert", "llama", "distilbert"])
def test_dropout_masks(architecture, backend):
    """Shared ones are the same bit for bit, with gradients, with some and without."""
    model = compile_blocks(of(architecture, dropout=0.3), backend=backend)
    for batch in two_lengths():
        clean = ForwardPass(model, batch, differentiable=True).run()
        shared = [clean.at(dropout="shared"), clean.at(clean.zeros(), dropout="shared")]
        shared.append(clean.at(clean.zeros(), dropout="shared", detach=True))
        with torch.no_grad():
            shared.append(clean.at(clean.zeros(), dropout="shared"))
        for other in shared:
            assert torch.equal(other.logits, clean.logits)
        others = [clean, clean.at(), clean.at(), clean.at(dropout="off")]
        for i, one in enumerate(others):
            for other in others[:i]:
                assert (one.logits - other.logits).abs().max() > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("change", [lambda model: model, checkpointed])
def test_the_backward_pass_has_the_masks_of_the_forward_pass(change):
    """The gradient is a slope of the loss with the same draws."""
    model = compile_blocks(change(tiny_model("bert", dropout=0.3)), backend="inductor")
    weight = blocks(model)[0].attention.self.value.weight
    direction = torch.randn_like(weight)

    def loss(step):
        weight.data += step * direction
        torch.manual_seed(3)
        value = model(**tiny_batch()).loss
        weight.data -= step * direction
        return value

    (gradient,) = torch.autograd.grad(loss(0.0), weight)
    slope = (loss(1e-5) - loss(-1e-5)).item() / 2e-5
    assert slope == pytest.approx((gradient * direction).sum().item(), rel=1e-6)
