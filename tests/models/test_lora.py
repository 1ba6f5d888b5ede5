"""LoRA from the command line: trained, saved in peft's form, loaded by peft alone, merged."""

import io
import json
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from helpers.tiny_folder import tiny_bert, tiny_data, tiny_decoder, tiny_pairs
from smoothtune import CWGNC, L2SP, LNSR, UEGR, Jacobian, Mixout, Objective
from smoothtune.cli.cost import _configured, _measured
from smoothtune.config.run import RunConfig, load_config
from smoothtune.config.task import configured_task
from smoothtune.errors import ConfigError, LoraError, ModelError
from smoothtune.evaluation import Settings, evaluate
from smoothtune.models.load import load_base, load_classifier
from smoothtune.models.lora import LoraSettings, add_lora, stored_as
from smoothtune.nn.autocast import in_float32
from smoothtune.run.train import fit, train
from smoothtune.tasks import describe_task
from smoothtune.testing import tiny_batch, tiny_model

PEFT_ALONE = """
import sys, warnings
sys.modules["smoothtune"] = None
warnings.filterwarnings("ignore")
from peft import PeftModel
from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer
base, folder = sys.argv[1:]
config = AutoConfig.from_pretrained(folder)
model = AutoModelForSequenceClassification.from_pretrained(base, config=config)
model = PeftModel.from_pretrained(model, folder).eval()
tokenizer = AutoTokenizer.from_pretrained(folder)
print(model(**tokenizer("the film was good", return_tensors="pt")).logits.tolist()[0])
"""
NOWHERE = Console(file=io.StringIO())


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("lora")
    tiny_pairs(root / "pairs")
    tiny_data(root / "data")
    tiny_bert(root / "bert")
    for family in ("llama", "opt"):
        tiny_decoder(root / family, family)
    return root


def settings(folder, output_dir, model="llama", **changes):
    return {
        "task": "rte",
        "data": str(folder / "pairs"),
        "model": str(folder / model),
        "methods": {"lnsr": {}, "l2_sp": {"alpha": 0.1}},
        "lora": {"r": 4, "alpha": 16.0, "dropout": 0.1},
        "output_dir": str(output_dir),
        "learning_rate": 1e-2,
        "max_steps": 4,
        "cost_steps": 0,
        "eval_strategy": "no",
    } | changes


@pytest.fixture(scope="module", params=["llama", pytest.param("opt", marks=pytest.mark.slow)])
def adapter(request, folder):
    """A family and the folder of its trained adapter."""
    output_dir = folder / f"{request.param}-adapter"
    train(RunConfig(**settings(folder, output_dir, request.param)), console=NOWHERE)
    return request.param, output_dir


def test_the_folder_has_pefts_form(adapter):
    _, output_dir = adapter
    names = {path.name for path in output_dir.iterdir()} - {"special_tokens_map.json"}  # of 4.x
    assert sorted(names) == [
        "README.md",
        "adapter_config.json",
        "adapter_model.safetensors",
        "config.json",
        "result.json",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    weights = load_file(output_dir / "adapter_model.safetensors")
    assert all("lora_" in name or name.endswith("score.weight") for name in weights)
    found = json.loads((output_dir / "adapter_config.json").read_text())
    assert (found["r"], found["lora_alpha"], found["lora_dropout"]) == (4, 16.0, 0.1)
    assert any(weights[name].any() for name in weights if "lora_B" in name)
    result = json.loads((output_dir / "result.json").read_text())
    assert result["config"]["lora"]["r"] == 4
    card = (output_dir / "README.md").read_text()
    assert "library_name: peft" in card
    assert "PeftModel.from_pretrained(base, folder)" in card


@pytest.mark.slow
@pytest.mark.parametrize("adapter", ["llama", "opt"], indirect=True)
def test_peft_alone_loads_it(adapter, folder):
    family, output_dir = adapter
    ran = subprocess.run(
        [sys.executable, "-c", PEFT_ALONE, folder / family, output_dir],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout.splitlines()[-1])
    merged = evaluated_model(output_dir)
    tokenizer = AutoTokenizer.from_pretrained(output_dir)
    logits = merged(**tokenizer("the film was good", return_tensors="pt")).logits[0]
    assert found == pytest.approx(logits.tolist(), abs=1e-5)


def evaluated_model(output_dir):
    """The model as `evaluate` loads it."""
    from smoothtune.evaluation import load_predictor
    from smoothtune.tasks.presets import TASKS

    return load_predictor(load_base(str(output_dir)), TASKS["rte"]).model


def test_evaluate_reads_an_adapter(adapter, tmp_path):
    _, output_dir = adapter
    found = evaluate(
        Settings(
            model=str(output_dir),
            output_dir=str(tmp_path / "evaluation"),
            parts=("drift",),
            num_resamples=20,
        ),
        console=NOWHERE,
    )
    result = json.loads((output_dir / "result.json").read_text())
    accuracy = found["parts"]["metrics"]["numbers"]["metrics"]["accuracy"]["value"]
    assert accuracy == pytest.approx(result["metrics"]["accuracy"])
    moved = found["parts"]["drift"]["curves"]["distance"]["series"]
    distances = [point[1] for point in moved["weights"]]
    assert distances[0] == 0  # the embeddings are frozen
    assert max(distances) > 0


def test_merged_model_is_a_plain_one_with_the_same_outputs(adapter, folder, tmp_path):
    family, output_dir = adapter
    config = RunConfig(**settings(folder, tmp_path / "out", family, merge_adapter=True))
    train(config, console=NOWHERE)
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert {"model.safetensors", "config.json"} <= names
    assert not any("adapter" in name for name in names)
    assert "library_name: transformers" in (tmp_path / "out" / "README.md").read_text()
    plain = AutoModelForSequenceClassification.from_pretrained(tmp_path / "out").eval()
    batch = {"input_ids": torch.tensor([[3, 4, 5]]), "attention_mask": torch.ones(1, 3)}
    expected = evaluated_model(output_dir)(**batch).logits  # the same run, adapter kept
    torch.testing.assert_close(plain(**batch).logits, expected, rtol=1e-4, atol=1e-5)


def in_few_bits(folder, output_dir, stored, model="llama", **changes):
    fields = {"methods": {"r3f": {"weight": 1.0}}, "bf16": True, "frozen_weights": stored}
    return settings(folder, output_dir, model, **fields | changes)


@pytest.mark.parametrize(
    ("stored", "model"),
    [("4bit", "llama"), ("bfloat16", "bert"), pytest.param("8bit", "bert", marks=pytest.mark.slow)],
)
def test_frozen_weights_in_few_bits(stored, model, folder, tmp_path):
    """What is trained is float32; what is evaluated holds what the frozen weights round to."""
    if stored in ("4bit", "8bit"):
        pytest.importorskip("bitsandbytes")
    config = RunConfig(**in_few_bits(folder, tmp_path / "out", stored, model))
    trained = fit(config, tmp_path / "work", console=NOWHERE)
    trained.save(tmp_path / "out")
    dtypes = {weight.dtype for weight in trained.model.parameters() if weight.requires_grad}
    assert dtypes == {torch.float32}
    batch = {"input_ids": torch.tensor([[3, 4, 5]]), "attention_mask": torch.ones(1, 3)}
    with in_float32(trained.model, torch.device("cpu")):
        expected = trained.model.eval()(**batch).logits
    found = evaluated_model(tmp_path / "out")
    assert {weight.dtype for weight in found.parameters()} == {torch.float32}
    torch.testing.assert_close(found(**batch).logits, expected, rtol=1e-4, atol=1e-5)


def test_four_bits_train_on_after_an_evaluation_on_any_cpu(folder, tmp_path, monkeypatch):
    """With bfloat16 arithmetic bitsandbytes would pack the weights in the first evaluation."""
    pytest.importorskip("bitsandbytes")
    monkeypatch.setattr("bitsandbytes.nn.modules.has_avx512bf16", lambda: True)
    changes = {"eval_strategy": "epoch"}  # four updates, three of them in the first epoch
    config = RunConfig(**in_few_bits(folder, tmp_path / "out", "4bit", **changes))
    trained = fit(config, tmp_path / "work", console=NOWHERE)
    evaluated = [entry["epoch"] for entry in trained.result.log_history if "eval_loss" in entry]
    assert evaluated[0] == 1
    assert evaluated[-1] > 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lora": None}, "--frozen-weights: needs lora, as other weights are not frozen"),
        ({"bf16": False}, "--frozen-weights: needs bf16: true"),
        ({"merge_adapter": True}, "--merge-adapter: would round the adapters"),
    ],
)
def test_what_frozen_weights_in_few_bits_need(changes, message, folder):
    fields = in_few_bits(folder, "out", "4bit", **changes)
    with pytest.raises(ConfigError, match=message):
        load_config(options=fields)


@pytest.mark.parametrize("method", ["plain", "r3f:weight=1"])
def test_memory_is_measured_as_it_is_trained(method, folder):
    pytest.importorskip("bitsandbytes")
    config = _configured(method, "r=2", "4bit")
    assert config.bf16
    assert config.frozen_weights == "4bit"
    found = _measured(config, str(folder / "llama"), 2, 8, True)
    assert set(found.bytes_by_rows) == {2, 4}


def test_float16_on_a_processor_is_refused_with_what_works_there(monkeypatch):
    """F.layer_norm of bfloat16 with weights in float16 is an error of PyTorch's there."""
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    with pytest.raises(LoraError, match="float16 needs an accelerator.*use bfloat16"):
        stored_as("float16", [])
    x = torch.ones(1, 4, dtype=torch.bfloat16)
    with pytest.raises(RuntimeError, match="mixed dtype"):
        torch.nn.functional.layer_norm(x, (4,), torch.ones(4, dtype=torch.float16))
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    assert stored_as("float16", []) == {"dtype": torch.float16}


def test_without_bitsandbytes_the_extra_is_named(monkeypatch):
    monkeypatch.setattr("smoothtune.models.lora.find_spec", lambda name: None)
    with pytest.raises(LoraError, match=r'pip install "smoothtune\[quantized\]"'):
        stored_as("4bit", [])
    assert stored_as("bfloat16", []) == {"dtype": torch.bfloat16}


@pytest.mark.parametrize(
    ("model", "changes"),
    [
        ("bert", {"methods": {"r3f": {"share": 0.1}}}),
        pytest.param(
            "bert",
            {"lora": {"target_modules": "all-linear"}, "methods": {"lnsr": {"share": 0.01}}},
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "llama",
            {"methods": {"jacobian": {}, "mixout": {"p": 0.3}}},
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "opt",
            {"methods": {"uegr": {"keep": 1.0}}, "lora": {"alpha": 32.0}},
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "llama",
            {"methods": {"cwgnc": {}}, "gradient_checkpointing": True},
            marks=pytest.mark.slow,
        ),
    ],
)
def test_it_learns_on_encoders_and_decoders(model, changes, folder, tmp_path):
    config = RunConfig(
        **settings(folder, tmp_path / "out", model, learning_rate=1e-2, **changes)
        | {"task": "mood", "data": str(folder / "data"), "text_columns": ["text"]}
        | {"max_steps": 60}
    )
    result = train(config, console=NOWHERE)
    assert result["train_metrics"]["nll"] < 0.5  # from log 2 = 0.69


def test_a_resumed_run_is_the_same(folder, tmp_path, monkeypatch):
    import signal

    from smoothtune.errors import Stopped
    from smoothtune.run.callbacks import ProgressCallback

    whole = RunConfig(**settings(folder, tmp_path / "whole"))
    train(whole, console=NOWHERE)
    config = RunConfig(**settings(folder, tmp_path / "parts"))
    moved = ProgressCallback.on_step_end

    def stop_at_2(self, args, state, control, **others):
        moved(self, args, state, control, **others)
        if state.global_step == 2:
            os.kill(os.getpid(), signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr(ProgressCallback, "on_step_end", stop_at_2)
        with pytest.raises(Stopped):
            train(config, console=NOWHERE)
    train(config, resume=True, console=NOWHERE)
    first, second = (
        load_file(tmp_path / name / "adapter_model.safetensors") for name in ("whole", "parts")
    )
    for name, weight in first.items():
        torch.testing.assert_close(second[name], weight, rtol=0, atol=0)


# --- settings ------------------------------------------------------------------------------------


def test_flag_and_mapping_say_the_same(tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text("task: rte\noutput_dir: out\nlora:\n  r: 8\n  alpha: 32\n  dropout: 0.1\n")
    from_file = load_config(file)
    options = {"task": "rte", "output_dir": "out", "lora": "r=8,alpha=32,dropout=0.1"}
    assert load_config(options=options).lora == from_file.lora
    assert from_file.lora == LoraSettings(r=8, alpha=32.0, dropout=0.1)
    assert load_config(file, ["lora.r=2"]).lora.r == 2
    listed = load_config(options=options | {"lora": "target_modules=[q_proj,v_proj],r=1"})
    assert listed.lora.target_modules == ["q_proj", "v_proj"]


@pytest.mark.parametrize(
    ("lora", "message"),
    [
        ("rank=8", "lora.rank: unknown field 'rank'"),
        ("r=0", "lora.r: .*greater than or equal to 1"),
        ("dropout=1", "lora.dropout: .*less than 1"),
        ("r", "is not field=value"),
        (
            "r=8,target_modules=q_proj,v_proj",
            r"'v_proj' is not .*, and a list in brackets: 'target_modules=\[q_proj,v_proj\]'",
        ),
        ("alpha=big", "lora.alpha"),
    ],
)
def test_wrong_settings_are_named(lora, message):
    options = {"task": "rte", "output_dir": "out", "lora": lora}
    with pytest.raises(ConfigError, match=message):
        load_config(options=options)


def test_merging_needs_adapters():
    options = {"task": "rte", "output_dir": "out", "merge_adapter": True}
    with pytest.raises(ConfigError, match="--merge-adapter: needs lora"):
        load_config(options=options)


def test_layers_that_are_not_there_are_answered_with_those_that_are(folder, tmp_path):
    config = settings(folder, tmp_path / "out", lora={"target_modules": ["query"]})
    with pytest.raises(ConfigError, match="such as .*q_proj.*all-linear"):
        train(RunConfig(**config), console=NOWHERE)


@pytest.mark.parametrize(
    ("lora", "message"),
    [
        (
            {"target_modules": ["qproj", "v_proj"]},
            "target_modules: no layer is named qproj. .*q_proj",
        ),
        (
            {"modules_to_save": ["embed_tokens", "lm_head"]},
            "modules_to_save: .* has no module lm_head",
        ),
    ],
)
def test_a_name_that_no_layer_has_is_refused_beside_one_that_has(lora, message):
    model = tiny_model("llama", num_labels=2)
    with pytest.raises(LoraError, match=message):
        add_lora(model, LoraSettings(**lora), "SEQ_CLS", [], seed=0)


def test_training_on_an_adapter_is_refused(adapter, folder, tmp_path):
    _, output_dir = adapter
    config = settings(folder, tmp_path / "out") | {"model": str(output_dir)}
    with pytest.raises(ModelError, match="train on the model it was made for"):
        train(RunConfig(**config), console=NOWHERE)


def test_an_adapter_whose_base_is_gone_says_so(adapter, tmp_path):
    _, output_dir = adapter
    copy = tmp_path / "copy"
    copy.mkdir()
    for path in output_dir.iterdir():
        if path.name != "result.json":  # which knows the files by their sha256
            (copy / path.name).write_bytes(path.read_bytes())
    file = copy / "adapter_config.json"
    record = json.loads(file.read_text()) | {"base_model_name_or_path": str(tmp_path / "gone")}
    file.write_text(json.dumps(record))
    with pytest.raises(ModelError, match="is an adapter of .*gone"):
        evaluated_model(copy)


def test_without_peft_the_extra_is_named(folder, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(ConfigError, match=r'pip install "smoothtune\[lora\]"'):
        train(RunConfig(**settings(folder, tmp_path / "out")), console=NOWHERE)


# --- what methods on weights mean ----------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")
@pytest.mark.parametrize("architecture", ["bert", "llama", "opt", "gpt2"])
def test_methods_on_weights_act_on_adapters_and_head_alone(architecture):
    model = tiny_model(architecture)
    frozen = {name: p.detach().clone() for name, p in model.named_parameters()}
    new = ["classifier.weight"] if architecture == "bert" else ["score.weight"]
    model = add_lora(model, LoraSettings(r=2), "SEQ_CLS", new, seed=0).double().train()
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    methods = [Mixout(p=0.3), L2SP(), CWGNC(max_norm=0.05), UEGR(keep=0.5), LNSR(weight=1.0)]
    objective = Objective(*methods).bind(model, optimizer)
    for _ in range(2):
        objective(model, tiny_batch()).backward()
        norms = [p.grad.norm() for p in model.parameters() if p.grad is not None]
        optimizer.step()
        optimizer.zero_grad()
    objective.detach()
    assert len(norms) == len([p for p in model.parameters() if p.requires_grad])
    base = {
        name.replace("base_model.model.", "").replace(".base_layer", ""): p
        for name, p in model.named_parameters()
        if not p.requires_grad and "original_module" not in name
    }
    assert base
    for name, weight in base.items():
        assert torch.equal(weight, frozen[name]), name


@pytest.mark.parametrize("method", [LNSR(weight=1.0), Jacobian(weight=0.01)])
def test_quantized_layers_of_an_unknown_kind_are_refused(method):
    stand_in = type("Linear4bit", (torch.nn.Linear,), {"__module__": "bitsandbytes.nn.modules"})
    model = tiny_model("llama")
    model.model.layers[0].self_attn.q_proj.__class__ = stand_in
    with pytest.raises(ValueError, match="quantized weights in Linear4bit: use bitsandbytes"):
        Objective(method).attach(model)


def test_new_head_is_told_from_the_base(folder):
    config = RunConfig(**settings(folder, "out", "bert"))
    model, new = load_classifier(load_base(config.model), configured_task(config), seed=0)
    adapted = add_lora(model, LoraSettings(), "SEQ_CLS", new, seed=0)
    trained = {name for name, p in adapted.named_parameters() if p.requires_grad}
    whole = {name for name in trained if "lora_" not in name}
    assert whole == {
        f"base_model.model.classifier.modules_to_save.default.{part}" for part in ("weight", "bias")
    }
    assert np.isfinite(sum(p.sum().item() for p in adapted.parameters()))


@pytest.mark.parametrize("family", ["llama", pytest.param("opt", marks=pytest.mark.slow)])
def test_real_rte(family, tmp_path):
    data = os.environ.get("SMOOTHTUNE_DATA")
    if not data:
        pytest.skip("SMOOTHTUNE_DATA is not set")
    tiny_decoder(tmp_path / family, family)
    config = settings(tmp_path, tmp_path / "out", family)
    config |= {"data": f"{data}/rte", "max_train_samples": 32, "max_seq_length": 32}
    result = train(RunConfig(**config | {"max_eval_samples": 32}), console=NOWHERE)
    assert 0 <= result["metrics"]["accuracy"] <= 1
    assert evaluated_model(tmp_path / "out") is not None


def test_new_weights_are_trained_whatever_else_is(folder):
    """They are saved with the adapter: nothing else knows them."""
    fields = {"text_columns": "q", "choice_columns": ["a", "b"], "label_names": ("0", "1")}
    base = load_base(str(folder / "bert"))
    task = describe_task("t", "multiple-choice", **fields)
    model, new = load_classifier(base, task, seed=0)
    settings = LoraSettings(modules_to_save=["bert.embeddings.LayerNorm"])
    adapted = add_lora(model, settings, task.peft_type, new, seed=0)
    trained = {name for name, weight in adapted.named_parameters() if weight.requires_grad}
    for name in (*new, "bert.embeddings.LayerNorm.weight"):
        module, _, weight = name.rpartition(".")
        assert f"base_model.model.{module}.modules_to_save.default.{weight}" in trained
