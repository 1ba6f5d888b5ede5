"""The hub's path, against a server on this machine: online, then offline from the cache."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from transformers import BertForSequenceClassification

from helpers.hub_server import HubServer, clean_environment, make_cola, make_model

pytestmark = pytest.mark.slow
SCRIPT = """
import json, sys
from transformers import AutoModelForSequenceClassification, AutoTokenizer
from smoothtune.cli import main
from smoothtune.tasks import DataError, TASKS

splits = TASKS["cola"].load_splits("nyu-mll/glue")
model = AutoModelForSequenceClassification.from_pretrained("tiny/bert", trust_remote_code=False)
tokenizer = AutoTokenizer.from_pretrained("tiny/bert", trust_remote_code=False)
errors = []
for source, task in [("tiny/nothing", "cola"), ("nyu-mll/glue", "rte")]:
    try:
        TASKS[task].load_splits(source)
    except DataError as error:
        errors.append(str(error))
folder = sys.argv[1]
sys.argv = ["smoothtune", "train", "--task", "cola", "--data", "nyu-mll/glue",
            "--model", "tiny/bert", "--method", "lnsr:layer=1", "--max-steps", "2",
            "--output-dir", folder]
try:
    main()
except SystemExit as end:
    assert not end.code, end.code
result = json.load(open(folder + "/result.json"))
print(json.dumps({
    "rows": {name: len(split) for name, split in splits.items()},
    "first": splits["train"][0],
    "names": splits["train"].features["label"].names,
    "parameters": model.num_parameters(),
    "ids": tokenizer("the cats sat")["input_ids"],
    "errors": errors,
    "trained": {"metrics": result["metrics"], "base": result["base_model_id"]},
}))
"""


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a process loads and trains online, then another one offline with the server gone."""
    folder = tmp_path_factory.mktemp("hub")
    make_model(folder / "bert")
    make_cola(folder / "glue")
    with HubServer({"tiny/bert": folder / "bert"}, {"nyu-mll/glue": folder / "glue"}) as hub:
        online = run(folder / "a", hub.environment(folder / "home"))
    offline = run(folder / "b", clean_environment(folder / "home") | {"HF_HUB_OFFLINE": "1"})
    model = BertForSequenceClassification.from_pretrained(folder / "bert")
    return {"online": online, "offline": offline, "parameters": model.num_parameters()}


def run(output: Path, environment: dict[str, str]) -> dict[str, Any]:
    finished = subprocess.run(
        [sys.executable, "-c", SCRIPT, output],
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert finished.returncode == 0, finished.stderr
    return json.loads(finished.stdout.splitlines()[-1])


@pytest.mark.parametrize("when", ["online", "offline"])
def test_data_set_with_configuration(loaded: dict[str, Any], when: str) -> None:
    assert loaded[when]["rows"] == {"train": 24, "validation": 8}
    assert loaded[when]["first"] == {"sentence": "The cat sat on the mat .", "label": 1, "idx": 0}
    assert loaded[when]["names"] == ["unacceptable", "acceptable"]


@pytest.mark.parametrize("when", ["online", "offline"])
def test_model_and_tokenizer(loaded: dict[str, Any], when: str) -> None:
    assert loaded[when]["parameters"] == loaded["parameters"]
    # [CLS] the cat ##s sat [SEP]
    assert loaded[when]["ids"] == [2, 5, 7, 14, 9, 3]


def test_missing_data_set_and_configuration(loaded: dict[str, Any]) -> None:
    missing, configuration = loaded["online"]["errors"]
    assert missing.startswith("tiny/nothing: no such file or folder here")
    assert "doesn't exist on the Hub" in missing
    assert configuration.startswith("nyu-mll/glue, configuration 'rte'")
    assert "Available: ['cola']" in configuration


def test_missing_data_set_offline(loaded: dict[str, Any]) -> None:
    missing, configuration = loaded["offline"]["errors"]
    assert missing.startswith("tiny/nothing: no such file or folder here")
    assert configuration.startswith("nyu-mll/glue, configuration 'rte'")


def test_training_from_hub_ids_then_offline(loaded: dict[str, Any]) -> None:
    """`smoothtune train` with ids for data and model; once more from the cache, server gone."""
    online, offline = (loaded[when]["trained"] for when in ("online", "offline"))
    assert online["base"] == "tiny/bert"
    assert online == offline
    assert "matthews_correlation" in online["metrics"]
