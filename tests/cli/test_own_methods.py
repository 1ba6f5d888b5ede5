"""Methods of other packages: named by the user, and never imported because a record names them."""

import json
import os
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner, Result

from smoothtune import catalog
from smoothtune.cli import app
from smoothtune.config.run import load_config
from smoothtune.errors import ConfigError
from smoothtune.study import pool
from smoothtune.study.config import load_study

MODULE = '''
from smoothtune import Penalty, method
from smoothtune.core.regularizer import Positive

@method("small_logits")
class SmallLogits(Penalty):
    """Logits must be small."""

    scale: Positive = 1.0
    """Factor."""

    def loss(self, clean):
        return self.scale * clean.run().logits.square().sum(-1).mean()

class NoMethod:
    pass
'''
OWN = "their_methods:SmallLogits"


def call(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture
def arguments(inputs: Path, tmp_path: Path) -> list[object]:
    return [
        *("train", "--task", "quality", "--text-column", "text", "--max-steps", 2),
        *("--data", inputs / "data", "--model", inputs / "model", "--cost-steps", 0),
        *("--output-dir", tmp_path / "out"),
    ]


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    folder = tmp_path / "modules"
    folder.mkdir()
    (folder / "their_methods.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, "their_methods", raising=False)
    return "their_methods"


def test_train_with_a_method_of_ones_own(
    arguments: list[object], module: str, tmp_path: Path
) -> None:
    arguments = [*arguments, "--logging-steps", 1, "--method", f"{OWN}:scale=2"]
    found = call(*arguments, "--method", "l2_sp")
    assert found.exit_code == 0, found.output
    result = json.loads((tmp_path / "out" / "result.json").read_text())
    assert list(result["methods"]) == [OWN, "l2_sp"]
    assert result["methods"][OWN]["scale"] == 2
    assert any("loss/small_logits" in entry for entry in result["log_history"])
    card = (tmp_path / "out" / "README.md").read_text()
    assert "Logits must be small." in card
    assert "nothing to do" in call(*arguments, "--method", "l2_sp").stdout
    shown = call("methods", OWN)
    assert "scale: number > 0, default 1.0" in shown.stdout


@pytest.mark.parametrize(
    ("method", "message"),
    [
        ("their_methods:Nothing", "cannot be imported: AttributeError: module 'their_methods'"),
        ("their_methods:NoMethod", "not a class of methods, a subclass of Regularizer"),
        ("not_installed:Method", "no module 'not_installed' is installed; the current folder is"),
        (f"{OWN}:scale=-1", "scale: must be greater than 0, not -1"),
        (f"{OWN}:scael=1", "unknown field 'scael'; did you mean 'scale'?"),
    ],
)
def test_mistakes(module: str, method: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(options={"task": "rte", "output_dir": "out"}, methods=[method])
    assert message in str(caught.value)


def test_a_study_takes_them(inputs: Path, module: str, tmp_path: Path) -> None:
    study = {
        "task": {"name": "quality", "text_columns": ["text"]},
        "data": str(inputs / "data"),
        "model": str(inputs / "model"),
        "methods": [{"name": OWN, "scale": 3.0}, f"{OWN}:scale=0.5"],
        "seeds": [0],
    }
    study["task"] |= {"data": study.pop("data")}
    file = tmp_path / "study.yaml"
    file.write_text(yaml.safe_dump(study))
    runs = [run.methods for run in load_study(file).runs.values()]
    assert {run[OWN]["scale"] for run in runs if OWN in run} == {3.0, 0.5}
    (run,) = [
        run for run in load_study(file).runs.values() if run.methods.get(OWN, {}).get("scale") == 3
    ]
    assert type(run.regularizers()[0]).__module__ == module


def test_what_a_package_offers(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    offered = EntryPoint("small", OWN, catalog.GROUP)
    monkeypatch.setattr(catalog, "entry_points", lambda group: [offered])
    with pytest.raises(ConfigError, match="did you mean 'small'"):
        load_config(options={"task": "rte", "output_dir": "out"}, methods=["smal"])
    assert call("methods").exit_code == 0
    assert module not in sys.modules, "listing imports nothing"
    config = load_config(options={"task": "rte", "output_dir": "out"}, methods=["small:scale=2"])
    assert config.regularizers()[0].scale == 2


def test_records_of_others_import_nothing(
    arguments: list[object], module: str, inputs: Path, tmp_path: Path
) -> None:
    """A model folder that names a method is evaluated, predicted with and refused unimported."""
    assert call(*arguments).exit_code == 0
    folder = tmp_path / "out"
    result = json.loads((folder / "result.json").read_text())
    for record in (result, result["config"]):
        record["methods"] = {OWN: {"scale": 1.0}}
    (folder / "result.json").write_text(json.dumps(result))
    out = tmp_path / "evaluation"
    found = call("evaluate", folder, "--output-dir", out, "--num-resamples", 20)
    assert found.exit_code == 0, found.output
    assert OWN in (out / "evaluation.html").read_text()
    data = inputs / "data" / "train.csv"
    assert call("predict", folder, "--data", data, "--to", tmp_path / "p.csv").exit_code == 0
    again = call(*arguments)
    assert again.exit_code == 2
    assert "holds a different run" in again.stderr
    assert call("train", *arguments[1:], "--dry-run").exit_code == 2
    assert module not in sys.modules


def test_workers_search_what_pythonpath_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    here = str(Path.cwd())
    monkeypatch.setattr(sys, "path", ["", here, *sys.path])
    monkeypatch.delenv("PYTHONPATH", raising=False)
    with pool._without_current_directory():
        assert here not in sys.path
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([".", here]))
    with pool._without_current_directory():
        assert here in sys.path
        assert "" not in sys.path
