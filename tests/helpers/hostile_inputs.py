"""A committed list of hostile inputs, and how each kind is read."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from smoothtune.config.evaluation import Settings, load_settings
from smoothtune.config.run import load_config
from smoothtune.data.sources import load_splits
from smoothtune.errors import ConfigError, DataError, ModelError, OutputError
from smoothtune.evaluation.output import read_evaluation
from smoothtune.evaluation.settings import resolve, training_record
from smoothtune.models.load import load_base, load_classifier
from smoothtune.study.config import load_study
from smoothtune.tasks.presets import TASKS, describe_task

ERRORS = (ConfigError, DataError, ModelError, OutputError)
"""All that an input may end in."""

DEEP = b"[" * 50_000
JSON = [b"", b"{", b"[]", b"null", b"3", DEEP, b'{"a":' * 50_000, b"\xff", b'{"a": NaN}', b"\0" * 9]
YAML = [
    b"",
    b"\xff",
    b"\0",
    b"- 1",
    b"a: [" * 200,
    b"a: &x [1]\nb: *x",
    b"!!python/object/apply:os.system [ls]",
    b"task: rte\ntask: sst2",
    b"task: {}\noutput_dir: []",
    b"task: rte\noutput_dir: out\nseed: " + b"9" * 5000,
    b"task: rte\noutput_dir: out\nlearning_rate: .nan",
    b"task: rte\noutput_dir: out\nlearning_rate: 1e999",
    b'task: "\\ud800"\noutput_dir: out',
    b'task: rte\noutput_dir: "a\\0b"',
    b"task: rte\noutput_dir: out\nmethods: {lnsr: {layers: [9999999999999999999999]}}",
    b"task: rte\noutput_dir: out\nmethods: [3]",
    b"task: rte\noutput_dir: out\nmethods: [[[]]]",
    b"? [a]\n: 1",
    b"a: 'x",
    b"\t",
    b"a: 1\n--- \nb: 2",
    b"%YAML 9.9\n---\na: 1",
]
STUDY = [
    b"task: rte\nmethods: 3",
    b"task: rte\nmethods: [[[lnsr]]]",
    b"task: rte\nmethods: [{name: [lnsr]}]",
    b"task: rte\nmethods: [{methods: [{}]}]",
    b"task: rte\nmethods: [{name: lnsr, label: {}}]",
    b"task: rte\nseeds: [-1]",
    b"task: rte\nseeds: x",
    b"task: [[rte]]",
    b"task: [{name: 3}]",
    b"task: rte\nscales: {a: 3}",
    b"include: ../x.yaml",
    b"include: study.yaml",
    b"include: [a]",
    b"task: rte\nmax_train_samples: [x]",
    b"task: rte\nmodel: [[minilm]]",
    b"task: rte\nlearning_rate: [[1]]\nmethods: [lnsr]",
    b"task: rte\npaper: 3",
    b"task: rte\npaper: [{}]",
    b"task: rte\nmore_epochs: .inf",
    b"task: rte\nmethods: [{name: lnsr, weight: [x, {}]}]",
]
CSV = [
    b"",
    b"text,label\n",
    b"\0" * 99,
    b"text,label\n\xff,1\n",
    b'text,label\n"a,1\n' * 3,
    b"text,label\na,b,c,d\n",
    b"text,text,label\na,b,c\n",
    b"text,label\na," + b"9" * 40 + b"\n",
    b"text,label\na,inf\nb,nan\n",
    b"text,label\n=1+1,=a\n@x,+b\n",
    b"text;label\na;b\n",
    "text,label\na,b\n".encode("utf-16"),
    b"text,label\r\na\rb,c\n",
    b"text,label\n" + b"a" * 5_000_000 + b",x\nb,y\n",
]
ROWS = [
    *JSON,
    b"null\nnull\n",
    b'"a"\n',
    b'{"text": "a", "label": "x"}\n{"text": 1, "label": []}\n',
    b'{"text": "\xff", "label": "x"}\n',
    b'{"text": "\\ud800", "label": "x"}\n',
    b'{"text": "a", "label": ' + b"9" * 40 + b"}\n",
    b'{"text": "a", "label": 1e999}\n',
    b'{"text": {"a": [1]}, "label": 1}\n',
    b'{"text": "' + b"a" * 5_000_000 + b'", "label": "x"}\n{"text": "b", "label": "y"}\n',
]
OVERRIDES = [
    "", "=", "a", "a=", ".=1", "task=", "task=[", "task={a: 1}", "methods=3", "methods.lnsr=3",
    "methods.lnsr.weight=[1]", "methods.lnsr.weight.x=1", "seed=-1", "seed=1e3", "seed=true",
    "learning_rate=.nan", "learning_rate=1e999", "learning_rate=" + "9" * 5000, "task=\ud800",
    "task=" + "[" * 500, "output_dir=\x00", "lora.r=0", "lora=3", "text_columns=3", "task=!!x y",
]  # fmt: skip
CONFIG_FIELDS = (
    *("architectures", "model_type", "vocab_size", "hidden_size", "num_hidden_layers", "dtype"),
    *("num_attention_heads", "id2label", "label2id", "pad_token_id", "attn_implementation"),
    *("problem_type", "quantization_config", "auto_map", "hidden_act", "max_position_embeddings"),
    *("type_vocab_size", "layer_norm_eps", "tie_word_embeddings", "transformers_version"),
)
VALUES: list[Any] = [
    *(None, True, -1, 0, 10**12, 10**30, 0.5, 1e300, "", "x", "../x", "a/b", "\x1b[31m", "\x00"),
    *([], [[]], ["x"], {}, {"a": {}}, {"0": 3}, {"": ""}),
]


def parquet_files() -> list[bytes]:
    """Files that are no Parquet, or that say one thing and hold another."""

    def stored(table: pa.Table) -> bytes:
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink)
        return sink.getvalue().to_pybytes()

    def text(values: list[bytes]) -> pa.Array:
        binary = pa.array(values, pa.binary())
        return pa.Array.from_buffers(pa.string(), len(values), binary.buffers())

    good = pa.table({"text": ["a", "b"], "label": ["x", "y"]})
    whole = stored(good)
    tables = [
        good,
        pa.table({}),
        good.slice(0, 0),
        good.replace_schema_metadata({"huggingface": b"[" * 9999}),
        good.replace_schema_metadata({"huggingface": b'{"info": 1}'}),
        pa.table({"text": text([b"a", b"\xff"]), "label": ["x", "y"]}),
        pa.table({"text": ["a", "b"], "label": text([b"x", b"\xff"])}),
        pa.table({"text": [b"a", b"b"], "label": [[1], [2]]}),
        pa.table({"text": [{"a": 1}] * 2, "label": pa.array([1, 2], pa.decimal128(5))}),
        pa.table({"text": pa.nulls(2), "label": pa.array([0, 2**64 - 1], pa.uint64())}),
        pa.table({"text": ["a" * 5_000_000, "b"], "label": ["x", "y"]}),
    ]
    return [*map(stored, tables), b"", whole[:50], whole[:-5], b"PAR1" + b"\0" * 99 + b"PAR1"]


def read_data(file: Path) -> None:
    task = describe_task("x", text_columns=["text"])
    splits = load_splits(file)
    task.with_labels(splits["train"], str(file)).rows.check(splits, str(file))


def read_model(folder: Path) -> None:
    load_classifier(load_base(str(folder)), TASKS["rte"], seed=0)


def read_result(folder: Path) -> None:
    record = training_record(str(folder))
    resolve(Settings(model=str(folder), output_dir="out"), record)


def read_override(text: str) -> None:
    load_config(None, [text], {"task": "rte", "output_dir": "out"})


def read_settings(text: str) -> None:
    load_settings([text], {"model": "m", "output_dir": "out"}, [text], [text])


def read_method(text: str) -> None:
    load_config(None, [], {"task": "rte", "output_dir": "out"}, [text])


def ends_well(read: Callable[[Any], object], given: Any) -> bool:
    """Read; True if it was used, False for an error of the project that says something."""
    try:
        read(given)
    except ERRORS as error:
        if not str(error).strip():
            raise AssertionError("an error without words") from error
        return False
    return True


def written(folder: Path, name: str, content: bytes) -> Path:
    """A file in a folder of its own."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / name).write_bytes(content)
    return folder / name


def changed(original: Path, copy: Path, name: str, field: str, value: Any) -> Path:
    """A copy of a folder in whose JSON file one field is another."""
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(original, copy)
    content = json.loads((copy / name).read_text()) if (copy / name).exists() else {}
    (copy / name).write_text(json.dumps(content | {field: value}))
    return copy


_CURVE = {
    **{"title": "t", "x_label": "x", "y_label": "y", "band": "", "log_y": False, "numbers": {}},
    "series": {"a": [[0.0, 0.5, 0.4, 0.6], [1.0, 0.5]]},
}
_SCORES = {
    "metrics": {"accuracy": {"value": 0.5, "low": 0.4, "high": 0.6}},
    **{"train_metrics": {"accuracy": 0.6}, "generalization_gap": 0.1},
    **{"trivial_baseline": 0.5, "rows": 9},
}
_PART = {"numbers": _SCORES, "curves": {"a": _CURVE}, "skipped": "", "seconds": 1.0}
_EVALUATION = {
    **{"model": "m", "task": "rte", "task_type": "text-classification", "headline": "accuracy"},
    **{"metrics": ["accuracy"], "label_names": ["a", "b"], "training": None},
    **{"data": {"splits": {"validation": {}}}, "settings": {"seed": 1, "num_resamples": 9}},
    **{"fingerprints": {"data": "0"}, "versions": {"torch": "2"}, "parts": {"metrics": _PART}},
}
_RUN = {"task": "rte", "seed": 3, "max_train_samples": 9, "text_columns": ["a", "b"], "model": "m"}
_RUN |= {"task_type": "text-classification", "data": "x.csv", "max_seq_length": 64}
VALID = {
    "run.yaml": b"task: rte\noutput_dir: out\nlearning_rate: 1e-5\n"
    b"methods:\n  lnsr:\n    weight: 1\n",
    "study.yaml": b"task: [rte, sst2]\nmodel: minilm\nseeds: [0, 1]\nmax_train_samples: [9, 99]\n"
    b"methods: [lnsr, {name: jachess, every: 8, label: x}, [mixout, r3f]]\nlearning_rate: 1e-5\n",
    "train.csv": b"text,label\ngood film,a\nbad film,b\n" * 3,
    "train.tsv": b"text\tlabel\ngood film\ta\nbad film\tb\n" * 3,
    "train.jsonl": b'{"text": "good", "label": "a"}\n{"text": "bad", "label": "b"}\n' * 3,
    "train.json": b'[{"text": "good", "label": "a"},\n {"text": "bad", "label": "b"}]\n',
    "train.parquet": parquet_files()[0],
    "result.json": json.dumps({"config": _RUN, "methods": {"lnsr": {}}, "seed": 1}).encode(),
    "evaluation.json": json.dumps(_EVALUATION).encode(),
}
"""A right input of each kind."""
READERS: dict[str, tuple[Callable[[Path], object], list[bytes]]] = {
    "run.yaml": (load_config, YAML),
    "study.yaml": (load_study, YAML + STUDY),
    "train.csv": (read_data, CSV),
    "train.tsv": (read_data, [content.replace(b",", b"\t") for content in CSV[:-1]]),
    "train.jsonl": (read_data, ROWS),
    "train.json": (read_data, ROWS),
    "train.parquet": (read_data, parquet_files()),
    "result.json": (lambda file: read_result(file.parent), JSON),
    "evaluation.json": (lambda file: read_evaluation(file.parent), JSON),
}
"""Reader and committed inputs by name of the file."""
