"""Two gloo processes under DeepSpeed's ZeRO, stages 1 and 2, give what one process gives."""

from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file

from helpers.processes import on_two_processes
from helpers.seq2seq import tiny_seq2seq
from helpers.training import ZERO_ARGUMENTS, ZERO_TESTED, Rows, arguments
from smoothtune import METHODS, SmoothTrainer
from smoothtune.testing import fixed_draws, tiny_model, with_weight
from smoothtune.trainer.compatibility import zero_problems


@pytest.fixture(scope="module")
def by_trainer(tmp_path_factory):
    """Folder of the weights after three updates of a Trainer."""
    pytest.importorskip("deepspeed", reason="needs DeepSpeed: pip install 'smoothtune[deepspeed]'")
    folder = tmp_path_factory.mktemp("zero")
    on_two_processes("zero_trainer_worker.py", folder)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("name", [*ZERO_TESTED, "lnsr, stage 1"])
def test_the_trainer_on_two_processes_equals_one(name, by_trainer, tmp_path):
    name, _, stage = name.partition(", stage ")
    found = torch.load(by_trainer / f"{name}-{stage or 2}.pt", weights_only=True)
    method, fields = ZERO_TESTED[name]
    regularizer = METHODS[method](**fields)
    model = tiny_model("bert", dtype=torch.float32)
    with fixed_draws():
        SmoothTrainer(
            model=model,
            args=arguments(tmp_path, max_steps=3, **ZERO_ARGUMENTS.get(name, {})),
            train_dataset=Rows(),
            regularizers=[regularizer if "share" in fields else with_weight(regularizer)],
        ).train()
    weights, start = model.state_dict(), tiny_model("bert", dtype=torch.float32).state_dict()
    assert weights.keys() == found.keys()
    differences = method in ("jachess", "cross_holder")  # magnify the rounding of float32
    for name, weight in weights.items():
        atol = 1e-5 if differences else 1e-6
        torch.testing.assert_close(found[name], weight, rtol=0, atol=atol, msg=name)
    assert any(not torch.equal(weights[name], start[name]) for name in weights)


@pytest.mark.slow
def test_saves_whole_models(by_trainer):
    *_, last = ZERO_TESTED
    trained = torch.load(by_trainer / f"{last}-2.pt", weights_only=True)
    saved = load_file(by_trainer / "model" / "model.safetensors")
    for name, weight in saved.items():
        torch.testing.assert_close(trained[name], weight, rtol=0, atol=0, msg=name)
    assert (by_trainer / "model" / "result.json").exists()


@pytest.mark.slow
def test_says_what_is_refused(by_trainer):
    told = torch.load(by_trainer / "told.pt", weights_only=True)
    assert "cwgnc with ZeRO: it edits gradients, which are in parts: use DDP" in told["edits"]
    assert "sam with ZeRO: it needs the gradient of the full batch" in told["climbs"]
    assert "ZeRO stage 3 is not verified: use stage 2, FSDP2 or DDP" in told["stage 3"]
    assert 'set save_strategy="no" and call save_model at the end' in told["checkpoints"]
    assert "ZeRO with gradient_accumulation_steps is not verified" in told["accumulation"]
    assert "unlabeled_dataset is not verified with FSDP2 and ZeRO" in told["unlabeled"]


PLAIN = {
    "bf16": False,
    "fp16": False,
    "activation_checkpointing": False,
    "torch_compile": False,
    "gradient_accumulation_steps": 1,
    "save_strategy": "no",
}


def with_settings(args=(), config=(), stage=2, mixed_precision="no", model=None):
    """What is read of a trainer, by its name of every version of transformers."""
    fields = PLAIN | dict(args)
    plugin = SimpleNamespace(zero_stage=stage, deepspeed_config={"zero_optimization": dict(config)})
    state = SimpleNamespace(deepspeed_plugin=plugin)
    accelerator = SimpleNamespace(state=state, mixed_precision=mixed_precision)
    return SimpleNamespace(
        args=SimpleNamespace(**fields, gradient_checkpointing=fields["activation_checkpointing"]),
        accelerator=accelerator,
        model=model or tiny_model("bert", dtype=torch.float32),
    )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"stage": 3}, "ZeRO stage 3 is not verified: use stage 2, FSDP2 or DDP"),
        ({"args": {"bf16": True}}, "ZeRO with bf16 and fp16 is not verified"),
        ({"mixed_precision": "bf16"}, "ZeRO with bf16 and fp16 is not verified"),
        ({"args": {"activation_checkpointing": True}}, "activation_checkpointing is not verified"),
        ({"args": {"torch_compile": True}}, "torch_compile is not verified"),
        ({"args": {"gradient_accumulation_steps": 2}}, "gradient_accumulation_steps is not"),
        ({"model": tiny_model("bert", dtype=torch.float16)}, "16-bit weights is not verified"),
        ({"model": tiny_seq2seq("t5")}, "an encoder-decoder is not verified"),
        ({"args": {"save_strategy": "epoch"}}, 'set save_strategy="no"'),
        ({"config": {"offload_optimizer": {"device": "cpu"}}}, "offload_optimizer is not verified"),
    ],
)
def test_settings_that_are_not_verified(settings, message):
    assert zero_problems({}, with_settings()) == []
    (told,) = zero_problems({}, with_settings(**settings))
    assert message in told


@pytest.mark.parametrize(
    ("method", "message"),
    [
        (METHODS["uegr"](), "it edits gradients, which are in parts: use DDP"),
        (METHODS["sam"](), "it needs the gradient of the full batch"),
    ],
)
def test_methods_that_are_refused(method, message):
    (told,) = zero_problems({method.name: method}, with_settings())
    assert told.startswith(f"{method.name} with ZeRO: {message}")
