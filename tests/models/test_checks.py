"""Model folders of others: what they may say, and what ends in one sentence."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import transformers

from helpers.tiny_folder import tiny_bert
from smoothtune.errors import ModelError
from smoothtune.evaluation.predictor import load_predictor
from smoothtune.models.load import load_base, load_classifier, weights_fingerprint
from smoothtune.models.lora import LoraSettings, add_lora, save
from smoothtune.tasks.presets import TASKS


@pytest.fixture
def bert(tmp_path: Path) -> Path:
    return tiny_bert(tmp_path / "bert")


def change(file: Path, **fields: Any) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))


def load(folder: Path, **options: Any) -> None:
    load_classifier(load_base(str(folder), **options), TASKS["rte"], seed=0)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"_attn_implementation": "evil/kernel:f"}, "--trust-remote-code"),
        ({"quantization_config": {"quant_method": "gptq", "bits": 4}}, "quantization_config"),
        ({"quantization_config": "evil"}, "cannot be loaded"),
        ({"dtype": "load"}, "load"),
        ({"dtype": "evil"}, "evil"),
        ({"dtype": 7}, "dtype 7 is no type"),
        ({"vocab_size": "many"}, "cannot be loaded"),
        ({"hidden_size": 10**12}, "hidden_size"),
        ({"num_attention_heads": 0}, "cannot be loaded"),
        ({"num_hidden_layers": "two"}, "cannot be loaded"),
        ({"hidden_act": "evil"}, "cannot be loaded"),
        ({"model_type": ["bert"]}, "cannot be loaded"),
        ({"model_type": "evil"}, "cannot be loaded"),
        ({"id2label": [1]}, "cannot be loaded"),
        ({"architectures": 7}, "architectures 7 is no list"),
    ],
)
def test_hostile_configuration(fields: dict, message: str, bert: Path) -> None:
    change(bert / "config.json", **fields)
    with pytest.raises(ModelError, match=message):
        load(bert)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"attn_implementation": "evil/kernel"}, "attn_implementation to 'evil/kernel'"),
        ({"attn_implementation": ["sdpa"]}, "code that is not part of transformers"),
        ({"experts_implementation": "evil/kernel"}, "experts_implementation"),
    ],
)
def test_code_of_others(fields: dict, message: str, bert: Path) -> None:
    change(bert / "config.json", **fields)
    if transformers.__version__.startswith("4."):  # which does not read these names
        model, _ = load_classifier(load_base(str(bert)), TASKS["rte"], seed=0)
        assert model.config._attn_implementation == "sdpa"
    else:
        with pytest.raises(ModelError, match=message):
            load(bert)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "tokenizer_config.json"])
@pytest.mark.parametrize(
    "content", [b"[" * 200_000, b'{"a":' * 200_000, b"", b"[]", b"null", b"\xff\xfe", b'{"a": 1'
])  # fmt: skip
def test_damaged_file(name: str, content: bytes, bert: Path) -> None:
    (bert / name).write_bytes(content)
    with pytest.raises(ModelError, match="cannot be loaded") as caught:
        load(bert)
    assert str(bert) in str(caught.value)


def test_long_configuration(bert: Path) -> None:
    (bert / "config.json").write_text(" " * 10_000_001)
    with pytest.raises(ModelError, match=r"config.json has more than 10,000,000 bytes"):
        load(bert)


@pytest.fixture
def shards(bert: Path, tmp_path: Path) -> Path:
    folder, base = tmp_path / "shards", load_base(str(bert))
    load_classifier(base, TASKS["rte"], seed=0)[0].save_pretrained(folder, max_shard_size="5KB")
    base.tokenizer.save_pretrained(folder)
    return folder


@pytest.mark.parametrize(
    "name", ["../{}", "sub/{}", "{0}/../{0}", "/etc/passwd", "..", "", 7, None]
)
def test_an_index_cannot_point_elsewhere(name: Any, shards: Path) -> None:
    index = shards / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    key, shard = next(iter(content["weight_map"].items()))
    os.link(shards / shard, shards.parent / shard)  # the file that it points to is there
    content["weight_map"][key] = name.format(shard) if isinstance(name, str) else name
    index.write_text(json.dumps(content))
    for function in (load, lambda folder: weights_fingerprint(str(folder))):
        with pytest.raises(ModelError, match=r"index\.json"):
            function(shards)


@pytest.mark.parametrize("content", ["[", "{}", '{"weight_map": 1}', "[" * 200_000])
def test_damaged_index(content: str, shards: Path) -> None:
    (shards / "model.safetensors.index.json").write_text(content)
    with pytest.raises(ModelError, match="is no index of weights"):
        load(shards)


def test_shards_of_other_names_are_in_the_fingerprint(shards: Path) -> None:
    index = shards / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    for shard in set(content["weight_map"].values()):
        (shards / shard).rename(shards / f"own-{shard}")
    content["weight_map"] = {key: f"own-{shard}" for key, shard in content["weight_map"].items()}
    index.write_text(json.dumps(content))
    before = weights_fingerprint(str(shards))
    last = shards / max(content["weight_map"].values())
    last.write_bytes(last.read_bytes() + b" ")
    assert weights_fingerprint(str(shards)) != before


@pytest.mark.parametrize("base", ["../bert", "a/../../bert", "https://evil/bert", "", None, 7])
def test_an_adapter_cannot_point_elsewhere(base: Any, bert: Path, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    loaded = load_base(str(bert))
    model, _ = load_classifier(loaded, TASKS["rte"], seed=0)
    adapted = add_lora(model, LoraSettings(r=2), "SEQ_CLS", [], seed=0)
    save(adapted, tmp_path / "adapter")
    loaded.tokenizer.save_pretrained(tmp_path / "adapter")
    source = load_base(str(tmp_path / "adapter"))
    load_predictor(source, TASKS["rte"])  # with its own base it is used
    change(tmp_path / "adapter" / peft.utils.CONFIG_NAME, base_model_name_or_path=base)
    with pytest.raises(ModelError, match=r"base_model_name_or_path|cannot be loaded"):
        load_predictor(source, TASKS["rte"])
