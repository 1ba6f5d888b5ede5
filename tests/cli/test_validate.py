"""`validate` and `--dry-run` refuse what `train` refuses, in its words, and write nothing."""

import json
import shutil
from pathlib import Path

import pytest
import yaml
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner, Result

from smoothtune.cli import app


def call(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture
def fields(inputs: Path, tmp_path: Path) -> dict:
    return {
        "task": "quality",
        "text_columns": ["text"],
        "data": str(inputs / "data"),
        "model": str(inputs / "model"),
        "output_dir": str(tmp_path / "out"),
        "cost_steps": 0,
    }


def write(path: Path, fields: dict) -> Path:
    path.write_text(yaml.safe_dump(fields))
    return path


def test_a_run_that_would_start(fields: dict, tmp_path: Path) -> None:
    file = write(tmp_path / "run.yaml", fields | {"methods": ["lnsr", "mixout"]})
    found = call("validate", file)
    assert (found.exit_code, found.stdout) == (0, f"{file}: ok (quality, lnsr + mixout)\n")
    assert not (tmp_path / "out").exists()


LABELED = {"name": "r3f", "batches": "labeled"}
MISTAKES = [
    ({"model": "./none"}, "there is no model folder ./none"),
    ({"label_column": "stars"}, "has no column 'stars'"),
    ({"data": "none.csv"}, "none.csv"),
    (
        {"methods": ["hype", "r_drop"]},
        "hype and r_drop each replace the task loss",
    ),
    ({"gradient_checkpointing": True, "methods": ["sift"]}, None),
    ({"lora": {"target_modules": ["q_prj"]}}, "such as classifier, dense, key, query, value"),
    ({"lora": {"target_modules": ["query"]}, "methods": ["reinit"]}, "frozen (by LoRA, perhaps)"),
    ({"data": "LONG"}, "tokens, and the model 32 positions"),
    ({"methods": ["sam"], "gradient_accumulation_steps": 2}, "needs the gradient of the full bat"),
    ({"unlabeled": "DATA", "methods": [LABELED]}, "no method has a term on unlabeled"),
    (
        {"unlabeled": "DATA", "methods": ["vat"], "gradient_accumulation_steps": 3},
        "set an even number, 2 for one of each",
    ),
]


@pytest.mark.parametrize(("changes", "message"), MISTAKES)
def test_what_train_refuses(
    fields: dict, tmp_path: Path, changes: dict, message: str | None
) -> None:
    long = tmp_path / "long.csv"
    long.write_text("text,label\n" + f"{'good ' * 40},1\n{'bad ' * 40},0\n" * 8)
    places = {"DATA": fields["data"], "LONG": str(long)}
    changes = {k: places.get(v, v) if isinstance(v, str) else v for k, v in changes.items()}
    file = write(tmp_path / "run.yaml", fields | {"max_steps": 1} | changes)
    checked, trained = call("validate", file), call("train", file)
    assert checked.exit_code == trained.exit_code, (checked.output, trained.output)
    if message is not None:
        assert message in checked.stderr
        told = trained.stderr.removeprefix("error: ").splitlines()
        assert [line for line in told if line not in checked.stderr] == []


def test_a_folder_with_something_else(fields: dict, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.tex").touch()
    found = call("validate", write(tmp_path / "run.yaml", fields))
    assert found.exit_code == 2
    assert "holds other files (thesis.tex)" in found.stderr


def test_study(fields: dict, tmp_path: Path) -> None:
    study = {key: value for key, value in fields.items() if key != "output_dir"}
    study |= {"seeds": [0, 1], "methods": ["mixout", "lnsr"], "more_epochs": None}
    file = write(tmp_path / "study.yaml", study)
    found = call("validate", file)
    assert (found.exit_code, found.stdout) == (0, f"{file}: ok (a study of 6 runs)\n")
    wrong = write(tmp_path / "wrong.yaml", study | {"label_column": "stars"})
    assert "has no column 'stars'" in call("validate", wrong).stderr
    unfit = study | {"methods": [{"name": "sam", "gradient_accumulation_steps": 2}]}
    found = call("validate", write(tmp_path / "unfit.yaml", unfit))
    assert "needs the gradient of the full batch" in found.stderr


def test_json(fields: dict, tmp_path: Path) -> None:
    good = write(tmp_path / "run.yaml", fields)
    bad = write(tmp_path / "bad.yaml", fields | {"seed": -1})
    found = call("validate", good, bad, "--json")
    first, second = json.loads(found.stdout)["files"]
    assert (found.exit_code, first["ok"], first["runs"]) == (2, True, ["quality, plain"])
    assert second["problems"][0]["field"] == "seed"


def test_a_model_folder_without_weights(fields: dict, tmp_path: Path) -> None:
    shutil.copytree(fields["model"], tmp_path / "model")
    (tmp_path / "model" / "model.safetensors").unlink()
    file = write(tmp_path / "run.yaml", fields | {"model": str(tmp_path / "model")})
    assert (call("validate", file).exit_code, call("train", file).exit_code) == (2, 2)
    assert "model holds neither model.safetensors nor" in call("validate", file).stderr


def test_a_study_with_adapters(fields: dict, tmp_path: Path) -> None:
    """Methods may differ in their adapters, and each is checked on its own."""
    study = {key: value for key, value in fields.items() if key != "output_dir"}
    some = {"name": "lnsr", "lora": {"target_modules": ["query"]}}
    study |= {"seeds": [0], "methods": [some], "more_epochs": None}
    assert call("validate", write(tmp_path / "study.yaml", study)).exit_code == 0
    some["name"] = "reinit"
    found = call("validate", write(tmp_path / "study.yaml", study))
    assert "frozen (by LoRA, perhaps)" in found.stderr


def test_a_dry_run_shows_adapters(fields: dict, tmp_path: Path) -> None:
    file = write(tmp_path / "run.yaml", fields | {"lora": {"r": 2}, "max_steps": 1})
    planned, trained = call("train", file, "--dry-run"), call("train", file)
    (told,) = [line for line in planned.stdout.splitlines() if line.startswith("lora: ")]
    assert told.startswith("lora: adapters on query, value; 0.00M parameters are trained, ")
    assert told in trained.stdout.splitlines()


def test_dry_run(fields: dict, tmp_path: Path) -> None:
    file = write(tmp_path / "run.yaml", fields | {"num_train_epochs": 1, "max_train_samples": 1})
    told = call("train", file, "--dry-run").stdout
    assert "1 update of 8 rows, 1 training row, 1 epoch\n" in told
    file = write(tmp_path / "run.yaml", fields | {"num_train_epochs": 2, "max_train_samples": 20})
    found = call("train", file, "--dry-run")
    assert found.exit_code == 0, found.output
    assert "6 updates of 8 rows, 20 training rows, 2 epochs" in found.stdout
    assert "nothing was written" in found.stdout
    assert not (tmp_path / "out").exists()
    plan = json.loads(call("train", file, "--dry-run", "--json").stdout)
    assert plan["steps"] == 6
    assert plan["data"]["splits"]["train"]["rows"] == 20
    trained = json.loads(call("train", file, "--json").stdout)
    assert trained["cost"]["steps"] == 6
    assert trained == {k: v for k, v in _result(tmp_path / "out").items() if k != "files"}


@pytest.mark.parametrize(
    ("alternate", "accumulation"),
    [pytest.param("step", 1, marks=pytest.mark.slow), ("epoch", 2), ("batch", 2)],
)
def test_updates_of_a_run_with_unlabeled_rows(
    fields: dict, tmp_path: Path, alternate: str, accumulation: int
) -> None:
    """As the Trainer counts them: 20 labeled rows in batches of 8."""
    dual = {"unlabeled": fields["data"], "methods": [{"name": "vat", "weight": 1.0}]}
    cut = {"alternate": alternate, "gradient_accumulation_steps": accumulation, "cost_steps": 1}
    file = write(tmp_path / "run.yaml", fields | dual | cut | {"max_train_samples": 20})
    planned = json.loads(call("train", file, "--dry-run", "--json").stdout)["steps"]
    told = call("train", file, "--dry-run").stdout
    assert ("half of them unlabeled, 20 training rows" in told) == (alternate == "batch")
    training = call("train", file, "--json")
    assert "unlabeled batches, as many again, come on top" in " ".join(training.stderr.split())
    assert json.loads(training.stdout)["cost"]["steps"] == planned


def _result(folder: Path) -> dict:
    return json.loads((folder / "result.json").read_text())


def test_weights_that_do_not_fit(fields: dict, tmp_path: Path) -> None:
    shutil.copytree(fields["model"], tmp_path / "model")
    weights = tmp_path / "model" / "model.safetensors"
    kept = {name: x for name, x in load_file(weights).items() if "layer.0" not in name}
    save_file(kept, weights, metadata={"format": "pt"})
    broken = fields | {"model": str(tmp_path / "model"), "max_steps": 1}
    file = write(tmp_path / "run.yaml", broken)
    for command in ("validate", "train"):
        found = call(command, file)
        assert found.exit_code == 2
        assert "model do not fit its config.json. The file lacks " in found.stderr
    asked = write(tmp_path / "asked.yaml", broken | {"allow_new_weights": True})
    assert call("validate", asked).exit_code == 0
    assert "encoder.layer.0" in call("train", asked).stdout
