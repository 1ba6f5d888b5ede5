"""Whatever is given is used, or ends in an error of the project; nothing else is raised."""

import json
import os
import random
import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from helpers.hostile_inputs import (
    CONFIG_FIELDS,
    OVERRIDES,
    READERS,
    VALID,
    VALUES,
    changed,
    ends_well,
    read_method,
    read_model,
    read_override,
    read_result,
    read_settings,
    written,
)
from helpers.tiny_folder import tiny_bert

# readers of data leave a file open when they fail
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
FEW = settings(
    max_examples=25,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)
ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)
INPUTS = int(os.environ.get("SMOOTHTUNE_FUZZ", "300"))
"""Mutations of each kind of file; more on demand."""
RUN_FIELDS = ("task", "data", "text_columns", "label_column", "seed", "max_train_samples", "model")


@pytest.mark.parametrize("name", READERS)
def test_the_committed_list(name: str, tmp_path: Path) -> None:
    read, contents = READERS[name]
    for number, content in enumerate(contents):
        ends_well(read, written(tmp_path / str(number), name, content))


@pytest.mark.parametrize("name", VALID)
def test_a_right_input_is_used(name: str, tmp_path: Path) -> None:
    assert ends_well(READERS[name][0], written(tmp_path, name, VALID[name]))


@pytest.mark.parametrize("text", OVERRIDES)
def test_values_of_the_command_line(text: str) -> None:
    for read in (read_override, read_settings, read_method):
        ends_well(read, text)


@FEW
@given(st.text(max_size=40))
def test_any_value_of_the_command_line(text: str) -> None:
    for read in (read_override, read_settings, read_method):
        ends_well(read, text)


@FEW
@given(st.sampled_from(["run.yaml", "study.yaml"]), st.data())
def test_any_run_or_study(tmp_path_factory: pytest.TempPathFactory, name: str, data) -> None:
    fields = st.sampled_from(["task", "methods", "seeds", "seed", "lora", "output_dir", "scales"])
    content = {"task": "rte", "output_dir": "out"} | data.draw(st.dictionaries(fields, ANY_JSON))
    text = json.dumps(content) if data.draw(st.booleans()) else data.draw(st.text(max_size=60))
    file = tmp_path_factory.getbasetemp() / "any" / name
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(text.encode("utf-8", "replace"))
    ends_well(READERS[name][0], file)


@FEW
@given(st.dictionaries(st.sampled_from(RUN_FIELDS), ANY_JSON))
def test_any_result(tmp_path_factory: pytest.TempPathFactory, fields: dict) -> None:
    text = json.dumps({"config": {"task": "rte"} | fields})
    folder = tmp_path_factory.getbasetemp() / "any_result"
    ends_well(read_result, written(folder, "result.json", text.encode()).parent)


def mutated(content: bytes, draw: random.Random) -> bytes:
    """A file with bytes changed, removed, repeated or cut off."""
    changed_bytes = bytearray(content[:20_000])
    for _ in range(draw.choice((1, 1, 2, 8))):
        at = draw.randrange(len(changed_bytes) + 1)
        match draw.randrange(5):
            case 0:
                changed_bytes[at : at + 1] = bytes([draw.randrange(256)])
            case 1:
                del changed_bytes[at : at + draw.randrange(1, 30)]
            case 2:
                changed_bytes[at:at] = changed_bytes[at : at + draw.randrange(1, 30)]
            case 3:
                pieces = (b"\0", b'"', b",", b"\n", b"[" * 2000, b"\xff", b"null", b"{}", b"1e999")
                changed_bytes[at:at] = draw.choice(pieces)
            case 4:
                del changed_bytes[at:]
    return bytes(changed_bytes)


@pytest.mark.slow
@pytest.mark.parametrize("name", READERS)
def test_mutations_of_the_list(name: str, tmp_path: Path, record_property) -> None:
    """Of each kind of file, `INPUTS` that are nearly right or nearly one of the list."""
    draw, (read, contents) = random.Random(0), READERS[name]
    small = [content for content in contents if len(content) < 100_000]
    used = 0
    for number in range(INPUTS):
        content = mutated(VALID[name] if draw.random() < 0.7 else draw.choice(small), draw)
        used += ends_well(read, written(tmp_path / str(number % 20), name, content))
    record_property("inputs", f"{name}: {INPUTS}, {used} of them used")
    print(f"{name}: {INPUTS} inputs, {used} used, {INPUTS - used} refused")


@pytest.mark.slow
@pytest.mark.parametrize("field", CONFIG_FIELDS)
def test_fields_of_a_models_configuration(field: str, tmp_path: Path) -> None:
    bert = tiny_bert(tmp_path / "bert")
    for value in VALUES:
        ends_well(read_model, changed(bert, tmp_path / "copy", "config.json", field, value))
    shutil.rmtree(bert)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
def test_fields_of_a_tokenizer(name: str, tmp_path: Path) -> None:
    bert = tiny_bert(tmp_path / "bert")
    for field in json.loads((bert / name).read_text()):
        for value in VALUES:
            ends_well(read_model, changed(bert, tmp_path / "copy", name, field, value))
