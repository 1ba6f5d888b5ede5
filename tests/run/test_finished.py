"""A finished run is looked at before it is said that there is nothing to do."""

import json
import shutil
from pathlib import Path

import pytest
from rich.console import Console
from safetensors.torch import load_file, save_file

from smoothtune.config.evaluation import Prediction, Settings
from smoothtune.config.run import RunConfig
from smoothtune.errors import DataError, ModelError, OutputError
from smoothtune.evaluation.predict import predict
from smoothtune.evaluation.run import evaluate
from smoothtune.models import load
from smoothtune.run import train as train_module
from smoothtune.run.output import STAGING, publish
from smoothtune.run.train import train
from smoothtune.run.trainer import RunTrainer

SILENT = Console(quiet=True)


def config_of(**changes) -> RunConfig:
    """Of a run in the current folder."""
    settings = {
        "task": "quality",
        "data": "data",
        "text_columns": ["text"],
        "model": "./model",
        "output_dir": "out",
        "unlabeled": "texts",
        "methods": {"vat": {"weight": 1.0}},
        "max_steps": 1,
        "cost_steps": 0,
    }
    return RunConfig(**settings | changes)


@pytest.fixture(scope="module")
def finished(inputs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data, texts without labels, a base model and the folder of a finished run."""
    folder = tmp_path_factory.mktemp("finished")
    for name in ("data", "model"):
        shutil.copytree(inputs / name, folder / name)
    shutil.copytree(inputs / "data", folder / "texts")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        train(config_of(), console=SILENT)
    return folder


@pytest.fixture
def folder(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it, the current folder."""
    shutil.copytree(finished, tmp_path / "copy")
    monkeypatch.chdir(tmp_path / "copy")
    return tmp_path / "copy"


def replace(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def swap_labels(folder: Path) -> None:
    for file in (folder / "data").glob("*.csv"):
        replace(file, "fine", "?")
        replace(file, "poor", "fine")
        replace(file, "?", "poor")


def double_weights(folder: Path) -> None:
    weights = load_file(file := folder / "model" / "model.safetensors")
    save_file({name: 2 * w for name, w in weights.items()}, file, {"format": "pt"})


def change_texts(folder: Path) -> None:
    replace(folder / "texts" / "train.csv", "film", "plot")


def flip_a_bit(folder: Path, name: str = "model.safetensors") -> None:
    content = bytearray((folder / "out" / name).read_bytes())
    content[-2] ^= 1
    (folder / "out" / name).write_bytes(content)


def remove_weights(folder: Path) -> None:
    (folder / "out" / "model.safetensors").unlink()


def add_a_field(folder: Path) -> None:
    replace(folder / "out" / "config.json", "{", '{"further": 1,')


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (swap_labels, "other content of its data than"),
        (double_weights, "other content of its base weights than"),
        (change_texts, "other content of its unlabeled than"),
        (flip_a_bit, "model.safetensors was changed after it was written"),
        (remove_weights, "model.safetensors is missing"),
        (add_a_field, "config.json was changed after"),
    ],
)
def test_a_change_is_seen(folder: Path, change, told: str) -> None:
    change(folder)
    with pytest.raises(OutputError, match=f"holds this run, finished, but .*{told}"):
        train(config_of(), console=SILENT)


@pytest.mark.parametrize("killed", [False, True])
def test_a_folder_beside_the_weights_is_replaced_and_can_be_read(tmp_path: Path, killed) -> None:
    """As the chat templates of a tokenizer that has several."""
    for name in ("old", "new"):
        templates = tmp_path / STAGING / "additional_chat_templates"
        templates.mkdir(parents=True)
        (templates / f"{name}.jinja").write_text(name)
        (tmp_path / STAGING / "README.md").write_text(name)
        if killed:
            (tmp_path / "result.json").unlink(missing_ok=True)
        publish(tmp_path, {"config": {}}, keep_checkpoints=False)
    folder = tmp_path / "additional_chat_templates"
    assert [path.name for path in folder.iterdir()] == ["new.jinja"]
    assert folder.stat().st_mode & 0o500 == 0o500  # not that of a file


def test_nothing_to_do(folder: Path, monkeypatch) -> None:
    monkeypatch.setattr(RunTrainer, "training_step", None)
    replace(folder / "out" / "README.md", "#", "# Mine\n#")  # the card is for people to write on
    assert train(config_of(), console=SILENT)["config"]["max_steps"] == 1


def leave_remains(out: Path, config: RunConfig) -> dict[str, bool]:
    """What is there after a kill when all was written; returns whether each of it is."""
    for place in (".unfinished", "checkpoints/.removed-checkpoint-1", "checkpoints/checkpoint-1"):
        (out / place).mkdir(parents=True)
        (out / place / "model.safetensors").touch()
    started = {"config": config.in_force(), "method_versions": config.method_versions()}
    (out / "run.json").write_text(json.dumps(started))
    return remains(out)


def remains(out: Path) -> dict[str, bool]:
    return {name: (out / name).exists() for name in (".unfinished", "checkpoints", "run.json")}


def test_a_run_that_was_killed_when_all_was_written_is_cleaned_up(folder: Path) -> None:
    assert all(leave_remains(folder / "out", config_of()).values())
    train(config_of(), console=SILENT)
    assert not any(remains(folder / "out").values())


def test_what_a_later_run_has_begun_in_the_folder_stays(folder: Path) -> None:
    before = leave_remains(folder / "out", config_of(seed=1))
    train(config_of(), console=SILENT)
    assert remains(folder / "out") == before


def test_data_that_are_gone_cannot_be_compared(folder: Path) -> None:
    shutil.rmtree(folder / "data")
    with pytest.raises(DataError, match="data"):
        train(config_of(), console=SILENT)


@pytest.mark.parametrize(
    ("change", "told"), [(flip_a_bit, "was changed after"), (remove_weights, "is missing")]
)
def test_a_changed_model_is_not_used(folder: Path, change, told: str) -> None:
    change(folder)
    message = f"out is not as smoothtune wrote it: model.safetensors {told}"
    here = "./out"
    with pytest.raises(ModelError, match=message):
        evaluate(Settings(model=here, output_dir="evaluation"), console=SILENT)
    with pytest.raises(ModelError, match=message):
        predict(Prediction(model=here, data="data/validation.csv", to="rows.csv"))
    further = config_of(model=here, output_dir="further")
    with pytest.raises(ModelError, match=message):
        train(further, console=SILENT)
    record = json.loads((folder / "out" / "result.json").read_text())
    record["files"].pop("model.safetensors")  # it was changed on purpose
    (folder / "out" / "result.json").write_text(json.dumps(record))
    assert load.load_base(here)


def test_weights_that_are_not_finite_are_not_evaluated(folder: Path) -> None:
    weights = load_file(file := folder / "out" / "model.safetensors")
    weights["classifier.bias"][0] = float("nan")
    save_file(weights, file, {"format": "pt"})
    record = json.loads((folder / "out" / "result.json").read_text())
    record["files"].pop("model.safetensors")
    (folder / "out" / "result.json").write_text(json.dumps(record))
    with pytest.raises(ModelError, match="weight classifier.bias is not finite everywhere"):
        evaluate(Settings(model="./out", output_dir="evaluation"), console=SILENT)


def test_the_base_is_named_as_it_was_loaded(folder: Path, monkeypatch) -> None:
    """It is replaced, or deleted, while the run trains."""
    original, before = RunTrainer.training_step, load.weights_fingerprint(str(folder / "model"))

    def step(*args, **kwargs):
        shutil.rmtree(folder / "model", ignore_errors=True)
        return original(*args, **kwargs)

    monkeypatch.setattr(RunTrainer, "training_step", step)
    config = config_of(output_dir="other")
    result = train(config, console=SILENT)
    assert result["fingerprints"]["base_weights"] == before


def test_a_base_that_is_replaced_while_it_is_loaded_is_refused(folder: Path, monkeypatch) -> None:
    original = train_module.prepare_model

    def prepare(*args):
        double_weights(folder)
        return original(*args)

    monkeypatch.setattr(train_module, "prepare_model", prepare)
    with pytest.raises(ModelError, match="were changed while they were loaded"):
        train(config_of(output_dir="other"), console=SILENT)
