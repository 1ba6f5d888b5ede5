"""Two gloo processes that shard a model with FSDP2 give what one process gives."""

from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, StateDictType

from helpers.fsdp import SHARDED, updates
from helpers.processes import on_two_processes
from helpers.training import (
    FSDP_TESTED,
    SHARE_UPDATES,
    SHARES_TESTED,
    Rows,
    arguments,
    collate,
)
from smoothtune import LNSR, METHODS, Jacobian, Objective, SmoothTrainer
from smoothtune.testing import fixed_draws, tiny_model, with_weight
from smoothtune.trainer.compatibility import sharding_problems


@pytest.fixture(scope="module")
def on_two(tmp_path_factory):
    """Folder of the whole gradients of one step on two processes."""
    folder = tmp_path_factory.mktemp("two")
    on_two_processes("fsdp_worker.py", folder)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("kind", SHARDED)
@pytest.mark.parametrize("method", FSDP_TESTED)
def test_two_processes_equal_one(method, kind, on_two):
    found = torch.load(on_two / f"{kind}-{method}.pt", weights_only=True)
    make, data = SHARDED[kind]
    model = make()
    objective = Objective(with_weight(METHODS[method](**FSDP_TESTED[method]))).attach(model)
    with fixed_draws():
        objective(model, collate([data[i] for i in range(len(data))])).backward()
    graded = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    assert graded.keys() == found.keys()
    for name, gradient in graded.items():
        torch.testing.assert_close(found[name], gradient, rtol=0, atol=1e-6, msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("method", SHARES_TESTED)
def test_a_share_is_that_of_the_reduced_gradients(method, on_two):
    """Two processes, each with two batches an update, and one with whole batches."""
    make, data = SHARDED["classifier"]
    model = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    objective = updates(model, optimizer, method, data, slice(None))
    found = torch.load(on_two / f"share-{method}.pt", weights_only=True)
    for name, weight in model.state_dict().items():
        torch.testing.assert_close(found[name], weight, rtol=0, atol=1e-6, msg=name)
    state = torch.load(on_two / f"strength-{method}.pt", weights_only=True)
    for key, expected in objective.strengths.state_dict().items():
        parts = slice(6) if key.startswith("sums") else ...  # last: of each batch, if it were alone
        torch.testing.assert_close(
            state[key][parts], expected[parts], rtol=1e-3, atol=1e-3, msg=key
        )


@pytest.mark.slow
def test_batches_without_labels_are_refused(on_two):
    told = torch.load(on_two / "unlabeled-0.pt", weights_only=True)
    assert told == "batches without labels are not verified with FSDP2: use DDP"


@pytest.mark.slow
def test_a_policy_of_mixed_precision_is_refused(on_two):
    told = torch.load(on_two / "policy-0.pt", weights_only=True)
    assert "lnsr with 16 bits of FSDP2's mixed-precision policy" in told


@pytest.fixture(scope="module")
def by_accelerate(tmp_path_factory):
    """Folder of the whole weights after updates of a loop with models prepared by accelerate."""
    folder = tmp_path_factory.mktemp("accelerate")
    on_two_processes("fsdp_accelerate_worker.py", folder)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("method", SHARES_TESTED)
def test_a_loop_of_accelerate_equals_one_process(method, by_accelerate):
    found = torch.load(by_accelerate / f"{method}.pt", weights_only=True)
    model = tiny_model("bert")
    updates(model, torch.optim.SGD(model.parameters(), lr=0.05), method, Rows(32), slice(None))
    for name, weight in model.state_dict().items():
        torch.testing.assert_close(found[name], weight, rtol=0, atol=1e-6, msg=name)


@pytest.fixture(scope="module")
def by_trainer(tmp_path_factory):
    """Folder of the whole weights after two updates of a Trainer with accelerate's plugin."""
    folder = tmp_path_factory.mktemp("trainer")
    on_two_processes("fsdp_trainer_worker.py", folder)
    return folder


TRAINED = {"plain": {}, **FSDP_TESTED} | {f"share-{n}": f for n, f in SHARES_TESTED.items()}


@pytest.mark.slow
@pytest.mark.parametrize("name", TRAINED)
def test_the_trainer_on_two_processes_equals_one(name, by_trainer, tmp_path):
    found = torch.load(by_trainer / f"{name}.pt", weights_only=True)
    method = METHODS[name.removeprefix("share-")](**TRAINED[name])
    shared = name.startswith("share-")
    model = tiny_model("bert")
    with fixed_draws():
        SmoothTrainer(
            model=model,
            args=arguments(tmp_path, max_steps=SHARE_UPDATES if shared else 2),
            train_dataset=Rows(),
            regularizers=[method if shared else with_weight(method)],
        ).train()
    weights, start = model.state_dict(), tiny_model("bert").state_dict()
    assert weights.keys() == found.keys()
    for name, weight in weights.items():
        torch.testing.assert_close(found[name], weight, rtol=0, atol=1e-6, msg=name)
    assert any(not torch.equal(weights[name], start[name]) for name in weights)


@pytest.mark.slow
def test_the_trainer_resumes_and_saves_whole_models(by_trainer):
    whole, resumed = (
        torch.load(by_trainer / f"{name}.pt", weights_only=True) for name in ("whole", "resumed")
    )
    for name, weight in whole.items():
        torch.testing.assert_close(resumed[name], weight, rtol=0, atol=1e-6, msg=name)
    saved = load_file(by_trainer / "model" / "model.safetensors")
    for name, weight in saved.items():
        torch.testing.assert_close(resumed[name], weight, rtol=0, atol=0, msg=name)
    assert (by_trainer / "model" / "result.json").exists()


@pytest.mark.slow
def test_the_trainer_says_what_shards_forbid(by_trainer):
    told = torch.load(by_trainer / "told.pt", weights_only=True)
    assert "mixout with FSDP2: it needs whole weights" in told["whole weights"]
    assert "jacobian with FSDP2: sharded modules have no second" in told["second derivatives"]
    assert "unlabeled_dataset is not verified with FSDP2 and ZeRO" in told["unlabeled"]


PLAIN = {
    "bf16": False,
    "fp16": False,
    "activation_checkpointing": False,
    "torch_compile": False,
}
PLUGIN = {
    "fsdp_version": 2,
    "activation_checkpointing": False,
    "cpu_ram_efficient_loading": False,
    "cpu_offload": None,
    "state_dict_type": StateDictType.FULL_STATE_DICT,
}


def with_settings(args=(), plugin=(), mixed_precision="no", dtype=torch.float32):
    """What is read of a trainer, by its name of every version of transformers."""
    fields = PLAIN | dict(args)
    state = SimpleNamespace(fsdp_plugin=SimpleNamespace(**PLUGIN | dict(plugin)))
    accelerator = SimpleNamespace(state=state, mixed_precision=mixed_precision)
    return SimpleNamespace(
        args=SimpleNamespace(**fields, gradient_checkpointing=fields["activation_checkpointing"]),
        accelerator=accelerator,
        model=tiny_model("bert").to(dtype),
    )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"args": {"bf16": True}}, "FSDP2 with bf16 and fp16 is not verified"),
        ({"mixed_precision": "fp16"}, "FSDP2 with bf16 and fp16 is not verified"),
        ({"args": {"activation_checkpointing": True}}, "with activation_checkpointing is not"),
        ({"plugin": {"cpu_ram_efficient_loading": True}}, "cpu_ram_efficient_loading is not"),
        ({"plugin": {"cpu_offload": CPUOffloadPolicy()}}, "with offload_params is not"),
        ({"args": {"torch_compile": True}}, "with torch_compile is not"),
        ({"dtype": torch.bfloat16}, "with 16-bit weights is not"),
        ({"plugin": {"fsdp_version": 1}}, "set fsdp_version to 2"),
        (
            {"plugin": {"state_dict_type": StateDictType.SHARDED_STATE_DICT}},
            "fsdp_state_dict_type FULL_STATE_DICT only",
        ),
    ],
)
def test_settings_of_the_plugin_that_are_not_verified(settings, message):
    assert sharding_problems(with_settings()) == []
    (told,) = sharding_problems(with_settings(**settings))
    assert message in told


@pytest.fixture
def sharded_bert(monkeypatch):
    """What is read of a sharded model; any sharded module counts."""

    def make(policy):
        class Sharded(torch.nn.Linear):
            def _get_fsdp_state(self):
                return SimpleNamespace(_mp_policy=policy)

        monkeypatch.setattr("torch.distributed.fsdp.FSDPModule", Sharded)
        model = tiny_model("bert")
        model.classifier.__class__ = Sharded
        return model

    return make


def test_refuses_what_it_cannot_do(sharded_bert):
    model = sharded_bert(MixedPrecisionPolicy())
    with pytest.raises(ValueError, match="use DDP"):
        Objective(Jacobian(estimator="projected", weight=0.01)).attach(model)
    with pytest.raises(ValueError, match="use DDP"):
        Objective(LNSR(noise="in_manifold", weight=1.0)).attach(model)
    Objective(LNSR(weight=1.0)).attach(model)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("field", ["param_dtype", "output_dtype", "reduce_dtype"])
def test_a_policy_that_rounds_is_refused(field, dtype, sharded_bert):
    model = sharded_bert(MixedPrecisionPolicy(**{field: dtype}))
    with pytest.raises(ValueError, match="r3f with 16 bits of FSDP2's mixed-precision policy"):
        Objective(METHODS["r3f"]()).attach(model)
    Objective(METHODS["plain"]()).attach(model)
