"""Every cell of the support table: equal to one float32 process, or refused.

DDP and FSDP2 cells run on two processes in tests/distributed, 16-bit and quantized base weights in
test_wide_weights.py, with every method.
"""

import re
from contextlib import nullcontext

import pytest
import torch
from peft import LoraConfig, PromptTuningConfig, get_peft_model

from helpers.causal import tiny_language_model
from helpers.seq2seq import tiny_seq2seq
from smoothtune import (
    CWGNC,
    L2SP,
    LNSR,
    METHODS,
    R3F,
    SAM,
    SMART,
    UEGR,
    HyPe,
    JacHess,
    Jacobian,
    Mixout,
    Objective,
    compile_blocks,
)
from smoothtune.core import support
from smoothtune.core.regularizer import Penalty
from smoothtune.core.support import KINDS, REFUSED, kinds
from smoothtune.nn.environments import ENVIRONMENTS, LOW_BIT, environments
from smoothtune.nn.hf_versions import enable_checkpointing
from smoothtune.testing import (
    all_in_float64,
    fixed_draws,
    has_right_gradient,
    tiny_batch,
    tiny_model,
    with_weight,
)
from smoothtune.testing.contract import Models

REPRESENTATIVES = {
    "perturbs": [lambda: LNSR(reduction="token_sum", weight=1.0), lambda: SMART(weight=5.0, mu=0)],
    "finite differences": [lambda: JacHess(c=1.0, estimator="finite_difference", weight=1.0)],
    "differentiates twice": [lambda: Jacobian(weight=1.0, estimator="projected")],
    "substitutes weights": [lambda: Mixout(p=0.5)],
    "needs whole weights": [lambda: L2SP(beta=1.0)],
    "edits updates": [lambda: CWGNC(max_norm=0.05)],
    "changes dropout": [lambda: UEGR(keep=1.0)],
    "ascends in weights": [lambda: SAM(rho=0.5)],
    "has a bound": [lambda: L2SP(share=0.5, beta=1.0)],
}
SMALL, STEPS = "round small perturbations away", "round small steps away"
ROUNDING = "derivatives are lost in 16-bit rounding"
HOOKS, REENTRANT = "compile_blocks(model)", "reentrant checkpointing has no inner gradients"
WHOLE, FULL = "whole weights where FSDP2 has shards", "full batch: use one process"
REFUSES = {  # what each message says; every cell that is not here is run
    "perturbs": {
        "16-bit weights": SMALL,
        "reentrant checkpointing": REENTRANT,
        "torch.compile": HOOKS,
    },
    "finite differences": {
        "16-bit weights": ROUNDING,
        "reentrant checkpointing": REENTRANT,
        "torch.compile": HOOKS,
    },
    "differentiates twice": {
        "16-bit weights": ROUNDING,
        "reentrant checkpointing": REENTRANT,
        "torch.compile": "compiled graphs have no second derivative",
        "compiled blocks": "compiled graphs have no second derivative",
        "FSDP2": "sharded modules have no second derivative",
    },
    "substitutes weights": {
        "16-bit weights": "W - W_0 is lost",
        "torch.compile": "changes modules after they are compiled",
        "compiled blocks": "every block would have graphs of its own",
        "FSDP2": WHOLE,
    },
    "needs whole weights": {"FSDP2": WHOLE},
    "edits updates": {"FSDP2": WHOLE},
    "changes dropout": {
        "16-bit weights": SMALL,
        "activation checkpointing": "recomputed blocks would drop out at the model's own rates",
        "reentrant checkpointing": REENTRANT,
        "torch.compile": "lost in a compiled model: do not compile",
        "compiled blocks": "every dropout rate would be compiled again",
        "FSDP2": WHOLE,
    },
    "ascends in weights": {
        "16-bit weights": STEPS,
        "reentrant checkpointing": REENTRANT,
        "DDP": FULL,
        "FSDP2": FULL,
    },
    "has a bound": {
        "reentrant checkpointing": "the gradients of term and task cannot be told apart there",
    },
}
CASES = [(kind, make) for kind in KINDS for make in REPRESENTATIVES[kind]]
IDS = [f"{kind}-{i}" for i, (kind, _) in enumerate(CASES)]


def gradient(make, environment=None, dtype=torch.float32):
    """Flat gradient of a step on tiny BERT, as the optimizer sees it, in an environment.

    Of the second one where there is a share, which is known after the first.
    """
    model = tiny_model("bert", dropout=0.1, dtype=dtype)
    batch, around = tiny_batch(), nullcontext()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    scaler = torch.amp.GradScaler("cpu", enabled=environment == "fp16 and scaler")
    if environment == "16-bit weights":
        model.to(torch.bfloat16)
    elif environment in ("activation checkpointing", "reentrant checkpointing"):
        enable_checkpointing(model, use_reentrant=environment == "reentrant checkpointing")
    elif environment in ("bf16 autocast", "fp16 and scaler"):
        half = torch.bfloat16 if environment == "bf16 autocast" else torch.float16
        around = torch.autocast("cpu", dtype=half)
    elif environment == "compiled blocks":
        compile_blocks(model, backend="aot_eager")
    called = torch.compile(model, backend="eager") if environment == "torch.compile" else model
    objective = Objective(make()).bind(called, optimizer)
    seen = []
    optimizer.register_step_pre_hook(
        lambda *_: seen.append(
            torch.cat(
                [
                    torch.zeros_like(p).flatten() if p.grad is None else p.grad.flatten()
                    for p in model.parameters()
                ]
            )
        )
    )
    torch.manual_seed(3)
    try:
        shares = [isinstance(r, Penalty) and r.share for r in objective.regularizers.values()]
        for _ in range(2 if any(shares) else 1):
            optimizer.zero_grad()
            with fixed_draws():  # the backward recomputes blocks, so it must draw the same
                with around:
                    loss = objective(called, batch)
                scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    except RuntimeError as error:
        if "as one graph" not in str(error) or not torch.__version__.startswith("2.6."):
            raise
        pytest.skip(str(error))
    finally:
        objective.detach()
        torch.compiler.reset()
    return seen[-1].float()


@pytest.mark.parametrize("make", [LNSR, HyPe, Jacobian, R3F, L2SP])
def test_blocks_that_are_recomputed_with_their_hooks(make, monkeypatch):
    """As before transformers 5.23: what a method did in a block is gone by then."""
    monkeypatch.setattr(support, "recomputes_hooks", lambda block: True)
    model = tiny_model("bert")
    objective = Objective(make()).bind(model, torch.optim.SGD(model.parameters(), lr=0.0))
    objective(model, tiny_batch())  # without checkpointing
    enable_checkpointing(model)
    if make in (R3F, L2SP):
        objective(model, tiny_batch())
        return
    objective.detach()
    refused = f"{make.name} with activation checkpointing: BertLayer would be recomputed without"
    with pytest.raises(ValueError, match=refused):
        Objective(make()).attach(model)


@pytest.mark.parametrize("side", ["encoder", "decoder"])
def test_blocks_that_are_recomputed_are_those_of_the_side(side, monkeypatch):
    monkeypatch.setattr(
        support, "recomputes_hooks", lambda block: type(block).__name__ == "BartDecoderLayer"
    )
    model = tiny_seq2seq("bart")
    enable_checkpointing(model)
    objective = Objective(LNSR(weight=1.0, side=side))
    if side == "encoder":
        objective.attach(model).detach()
        return
    with pytest.raises(ValueError, match="BartDecoderLayer would be recomputed"):
        objective.attach(model)


def test_representatives_are_of_their_kind():
    for kind, make in CASES:
        assert kind in kinds(make())


KINDS_OF = {  # of every method as it is by default
    "lnsr": {"perturbs", "has a bound"},
    "noise": {"perturbs"},
    "r3f": {"perturbs", "has a bound"},
    "r4f": {"perturbs", "substitutes weights", "has a bound"},
    "l2_sp": {"needs whole weights"},
    "mixout": {"substitutes weights"},
    "cwgnc": {"edits updates"},
    "jachess": {"perturbs", "finite differences", "has a bound"},
    "jacobian": {"perturbs", "differentiates twice", "has a bound"},
    "cross_holder": {"perturbs", "finite differences", "has a bound"},
    "double_backprop": {"perturbs", "differentiates twice", "has a bound"},
    "child_tuning": {"edits updates"},
    "hype": {"perturbs"},
    "llrd": {"needs whole weights"},
    "neftune": {"perturbs"},
    "reinit": {"needs whole weights"},
    "uegr": {"perturbs", "edits updates", "changes dropout"},
    "smart": {"perturbs", "needs whole weights", "has a bound"},
    "sift": {"perturbs", "has a bound"},
    "alum": {"perturbs", "has a bound"},
    "alice": {"perturbs"},
    "vat": {"perturbs", "has a bound"},
    "freelb": {"perturbs", "needs whole weights"},
    "fgm": {"perturbs"},
    "pgd": {"perturbs"},
    "sam": {"ascends in weights"},
    "plain": set(),
    "label_smoothing": set(),
    "r_drop": set(),
}


@pytest.mark.parametrize("name", KINDS_OF)
def test_kinds_of_methods(name):
    assert kinds(METHODS[name]()) == KINDS_OF[name]


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        (LNSR(noise="in_manifold", weight=1.0), {"perturbs", "needs whole weights"}),
        (SMART(mu=0, weight=1.0), {"perturbs"}),
        (UEGR(attack="none", keep=1.0), {"changes dropout"}),
        (JacHess(estimator="projected", weight=1.0), {"perturbs", "differentiates twice"}),
    ],
)
def test_fields_that_change_the_kind(method, expected):
    assert kinds(method) >= expected


class DistributedModel(torch.nn.parallel.DistributedDataParallel):
    """One that needs no other process."""

    def __init__(self, module):
        torch.nn.Module.__init__(self)
        self.module = module


def test_environments_of_a_model():
    model = tiny_model("bert", dtype=torch.float32)
    assert environments(model) == set()
    assert environments(tiny_model("bert", dtype=torch.float16)) == {"16-bit weights"}
    assert environments(DistributedModel(model)) == {"DDP"}
    model.classifier.to(torch.bfloat16)  # one is enough
    assert environments(model) == {"16-bit weights"}
    model.classifier.requires_grad_(False)
    assert environments(model) == {"16-bit base weights"}
    for reentrant, name in (
        (True, "reentrant checkpointing"),
        (False, "activation checkpointing"),
    ):
        model = tiny_model("bert")
        enable_checkpointing(model, use_reentrant=reentrant)
        assert environments(model) == {name}
    model = tiny_model("bert")
    assert environments(torch.compile(model, backend="eager")) == {"torch.compile"}
    assert environments(compile_blocks(tiny_model("bert"))) == {"compiled blocks"}
    model.classifier.compile(backend="eager")  # a part is enough
    assert environments(model) == {"torch.compile"}


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")  # peft's own
def test_adapters_are_an_environment():
    config = LoraConfig(task_type="SEQ_CLS", r=2, target_modules=["query"])
    assert environments(get_peft_model(tiny_model("bert"), config)) == {"LoRA"}


def test_autocast_counts_on_the_device_that_is_looked_at():
    model, cpu = tiny_model("bert"), torch.device("cpu")
    for dtype, name in (
        (torch.bfloat16, "bf16 autocast"),
        (torch.float16, "fp16 and scaler"),
    ):
        with torch.autocast("cpu", dtype=dtype):
            assert environments(model, cpu) == {name}
            assert environments(model) == environments(model, torch.device("cuda")) == set()
    assert environments(model, cpu) == set()


def test_everything_that_is_wrong_is_said_at_once_and_once():
    model = tiny_model("bert", dtype=torch.bfloat16)
    with pytest.raises(ValueError, match="not supported:\n") as caught:
        Objective(LNSR(weight=1.0), Mixout(), L2SP(), SMART(weight=1.0)).attach(model)
    lines = str(caught.value).splitlines()[1:]
    assert [line.split(":")[0] for line in lines] == [
        "- lnsr with 16-bit weights",
        "- mixout with 16-bit weights",
        "- smart with 16-bit weights",
    ]


@pytest.mark.parametrize(
    ("method", "message"),
    [
        (L2SP(), "l2_sp with quantized weights in Adapted: use bitsandbytes"),
        (METHODS["plain"](), None),
    ],
)
def test_quantized_layers_of_another_kind(method, message):
    """Of bitsandbytes by the module that it is defined in, without weights of its kind."""
    quantized = type("Linear4bit", (torch.nn.Linear,), {"__module__": "bitsandbytes.nn.modules"})
    model = tiny_model("bert")
    model.classifier.__class__ = type("Adapted", (quantized,), {})
    with pytest.raises(ValueError, match=message) if message else nullcontext():
        Objective(method).attach(model)


class Int8Tensor(torch.Tensor):
    """As torchao's: told by the module that defines its class."""


def test_quantized_weights_that_are_trained_or_unknown():
    Int8Tensor.__module__ = "torchao.quantization.int8"
    trained, declared = tiny_model("bert", dtype=torch.float32), tiny_model("bert")
    weight = trained.classifier.weight.detach().as_subclass(Int8Tensor)
    trained.classifier.weight = torch.nn.Parameter(weight)
    declared.hf_quantizer = object()
    for model, message in ((trained, "that are trained: freeze"), (declared, "of an unknown kind")):
        with pytest.raises(ValueError, match=f"l2_sp with quantized weights {message}"):
            Objective(L2SP()).attach(model)


EXACT = ["activation checkpointing", "reentrant checkpointing", "torch.compile", "compiled blocks"]
ROUNDED = ["bf16 autocast", "fp16 and scaler", "16-bit weights"]


def cells():
    """All; compilation, which takes a second, of every third kind, and in slow tests of all."""
    for number, (kind, make) in enumerate(CASES):
        for environment in [*EXACT, *ROUNDED]:
            slow = environment == "torch.compile"
            slow |= environment == "compiled blocks" and number % 3 > 0
            name = f"{IDS[number]}-{environment}"
            yield pytest.param(
                kind, make, environment, id=name, marks=pytest.mark.slow if slow else ()
            )


@pytest.mark.filterwarnings("ignore::UserWarning")  # reentrant checkpointing: inputs need no grad
@pytest.mark.parametrize(("kind", "make", "environment"), list(cells()))
def test_cell(kind, make, environment):
    if environment in REFUSES[kind]:
        message = f"with {re.escape(environment)}: .*{re.escape(REFUSES[kind][environment])}"
        with pytest.raises(ValueError, match=message):
            gradient(make, environment)
        return
    # compiled blocks round otherwise, and differences of float32 passes amplify it here
    dtype = torch.float64 if environment == "compiled blocks" else torch.float32
    expected = gradient(make, dtype=dtype)
    try:
        found = gradient(make, environment, dtype=dtype)
    except ValueError as error:
        if "use transformers 5.23" not in str(error):
            raise
        pytest.skip(str(error))
    if environment in EXACT:
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)
    else:
        assert torch.cosine_similarity(found, expected, 0) > 0.99
        assert found.norm().item() == pytest.approx(expected.norm().item(), rel=0.1)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(
    ("name", "environment"),
    [
        pytest.param(name, each, marks=pytest.mark.slow if each in slow else ())
        for name, slow in [
            ("r_drop", ("torch.compile",)),
            ("label_smoothing", ("torch.compile", "compiled blocks")),
        ]
        for each in [*EXACT, *ROUNDED]
    ],
)
def test_methods_of_no_kind_work_everywhere(name, environment):
    assert not kinds(METHODS[name]())
    expected, found = gradient(METHODS[name]), gradient(METHODS[name], environment)
    if environment in EXACT:
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)
    else:
        assert torch.cosine_similarity(found, expected, 0) > 0.99


@pytest.mark.parametrize(("kind", "make"), CASES, ids=IDS)
def test_attention_implementation_does_not_matter(kind, make):
    results = []
    for implementation in ("eager", "sdpa"):
        model = tiny_model("bert", attention=implementation)
        objective = Objective(make()).attach(model)
        with fixed_draws(), all_in_float64():
            loss = objective(model, tiny_batch())
        results.append(
            torch.autograd.grad(loss, model.bert.encoder.layer[0].output.dense.bias)[0]
            if kind != "substitutes weights"
            else loss
        )
        objective.detach()
        assert model.config._attn_implementation == implementation
    torch.testing.assert_close(*results, rtol=1e-6, atol=1e-9)


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")  # peft's own
@pytest.mark.parametrize(("kind", "make"), CASES, ids=IDS)
def test_lora(kind, make):
    """Adapters alone are trained, through frozen weights, with the right gradient."""

    def adapted(architecture, **changes):
        model = tiny_model(architecture, **changes)
        config = LoraConfig(
            task_type="SEQ_CLS", r=2, lora_alpha=4, target_modules=["query", "value"]
        )
        model = get_peft_model(model, config).to(torch.float64).train()
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.data.copy_(0.1 * torch.randn_like(parameter))
        return model

    has_right_gradient(make, "bert", Models(adapted))
    model = adapted("bert")
    objective = Objective(make()).attach(model)
    with fixed_draws():
        objective(model, tiny_batch()).backward()
    trained = {n for n, p in model.named_parameters() if p.grad is not None and p.grad.any()}
    assert any("lora_A" in name for name in trained)
    assert all("lora" in name or "classifier" in name for name in trained)


def test_nothing_else_is_refused():
    assert set(ENVIRONMENTS) == {*EXACT, *ROUNDED, *LOW_BIT, "DDP", "FSDP2", "LoRA"}
    assert {kind: set(row) for kind, row in REFUSED.items()} == {
        kind: set(row) for kind, row in REFUSES.items()
    }


@pytest.mark.parametrize(
    ("model_type", "message"), [("xlnet", "XLNet"), ("pegasus", "encoder-decoder")]
)
def test_models_that_cannot_be_perturbed_are_refused(model_type, message):
    model = tiny_model("bert")
    model.config.model_type = model_type
    model.config.is_encoder_decoder = model_type == "pegasus"
    with pytest.raises(ValueError, match=message):
        Objective(LNSR(weight=1.0)).attach(model)
    Objective(L2SP()).attach(model)


def test_a_compiled_model_stays_compiled():
    ran = []

    def backend(graph, inputs):
        def compiled(*args):
            ran.append(len(inputs))
            return graph.forward(*args)

        return compiled

    model = tiny_model("bert", dropout=0.1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    objective = Objective(L2SP()).bind(model, optimizer)
    try:
        objective(torch.compile(model, backend=backend), tiny_batch())
    finally:
        torch.compiler.reset()
    assert ran


def test_wrappers_that_were_not_verified_are_refused():
    class Engine(torch.nn.Linear):
        __module__ = "deepspeed.runtime.engine"

    class FullyShardedDataParallel(torch.nn.Linear):  # the real one needs processes
        pass

    class OfOnesOwn(FullyShardedDataParallel):
        pass

    for model, message in (
        (torch.nn.Sequential(OfOnesOwn(2, 2)), "FSDP1, which is not verified"),
        (Engine(2, 2), "DeepSpeed in a loop of your own"),
        (torch.nn.Sequential(FullyShardedDataParallel(2, 2)), "FSDP1, which is not verified"),
        (torch.nn.DataParallel(tiny_model("bert")), "nn.DataParallel, which does not split"),
    ):
        with pytest.raises(ValueError, match=message):
            Objective(LNSR()).attach(model)


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")
@pytest.mark.parametrize("make", [tiny_model, tiny_language_model], ids=["classifier", "language"])
@pytest.mark.parametrize("name", METHODS)
def test_prompt_tuning_is_refused_at_once_or_trains(name, make):
    """Tokens of its own come before those of the batch."""
    config = PromptTuningConfig(
        task_type="SEQ_CLS" if make is tiny_model else "CAUSAL_LM", num_virtual_tokens=2
    )
    model = get_peft_model(make("llama", dtype=torch.float32), config).train()
    optimizer = torch.optim.SGD([w for w in model.parameters() if w.requires_grad], lr=0.1)
    objective = Objective(with_weight(METHODS[name]()))
    needs_positions = name in {"lnsr", "jachess", "sift", "noise", "hype"}
    if needs_positions or make is not tiny_model:
        with pytest.raises(ValueError, match=f"{name} with prompt tuning, which puts tokens of"):
            objective.bind(model, optimizer, 4)
        return
    if name in {"mixout", "reinit"}:  # which write to layers that are frozen
        return
    objective.bind(model, optimizer, 4)
    objective(model, tiny_batch()).backward()
    objective.detach()


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")
def test_merged_adapters_are_refused_until_they_are_taken_out():
    """The head alone would learn, in silence."""
    config = LoraConfig(task_type="SEQ_CLS", target_modules=["q_proj"], init_lora_weights=False)
    model = get_peft_model(tiny_model("llama", dtype=torch.float32), config)
    model.merge_adapter()
    optimizer = torch.optim.SGD([w for w in model.parameters() if w.requires_grad], lr=0.1)
    with pytest.raises(ValueError, match=r"lnsr with adapters that are merged.*unmerge_adapter"):
        Objective(LNSR()).bind(model, optimizer, 4)
    model.unmerge_adapter()
    Objective(LNSR()).bind(model, optimizer, 4).detach()
