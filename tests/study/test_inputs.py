"""What a study reads: no run is of other data or weights, and its report needs none of them."""

import io
import json
import os
import shutil
from pathlib import Path

import pytest
from rich.console import Console
from safetensors.torch import load_file, save_file

from helpers.study_files import COMMON
from helpers.study_files import finished as ended
from smoothtune.errors import DataError, OutputError
from smoothtune.reproduce.page import write_reproduction
from smoothtune.run.train import fit
from smoothtune.study import inputs as inputs_module
from smoothtune.study import worker
from smoothtune.study.config import Study, load_study
from smoothtune.study.description import write_description
from smoothtune.study.files import portable_fields
from smoothtune.study.plan import Plan
from smoothtune.study.records import Cell, Records
from smoothtune.study.report.page import report_so_far

SILENT = Console(file=io.StringIO())
LAYOUT = """
layout:
- table: "Table 1"
  rows: [{name: LNSR, method: lnsr}]
  columns: [{name: quality, task: quality}]
"""
STUDY = """
methods: [plain, lnsr]
more_epochs: null
seeds: [0, 1]
noise_curve: true
ood:
  other: {source: OTHER}
"""


@pytest.fixture
def place(inputs: Path, tmp_path: Path) -> Path:
    """Data, other data and a model that a test may change."""
    place = tmp_path / "place"
    for name in ("data", "model"):
        shutil.copytree(inputs / name, place / name)
    (place / "other").mkdir()
    shutil.copy(inputs / "data" / "validation.csv", place / "other" / "test.csv")
    return place


def study_of(place: Path, text: str = STUDY) -> Study:
    file = place.parent / "study.yaml"
    where = f"data: {place / 'data'}\nmodel: {place / 'model'}\n"
    file.write_text(where + COMMON + text.replace("OTHER", str(place / "other")))
    return load_study(file)


def change_labels(place: Path) -> None:
    file = place / "data" / "train.csv"
    text = file.read_text()
    assert "fine" in text
    file.write_text(text.replace("fine", "?").replace("poor", "fine").replace("?", "poor"))


def double_weights(place: Path) -> None:
    weights = load_file(file := place / "model" / "model.safetensors")
    save_file({name: 2 * w for name, w in weights.items()}, file, {"format": "pt"})


def change_other_data(place: Path) -> None:
    file = place / "other" / "test.csv"
    file.write_text(file.read_text().replace("film", "plot"))


CHANGES = [
    (change_labels, "data changed since the study began"),
    (double_weights, "base weights changed since"),
    (change_other_data, "other data other changed since"),
]


def planned(place: Path) -> Cell:
    return Plan(study_of(place), None).final({})[0]


@pytest.mark.parametrize(("change", "told"), CHANGES)
def test_a_run_on_what_changed_between_runs_is_refused(
    place: Path, tmp_path: Path, monkeypatch, change, told: str
) -> None:
    cell = planned(place)
    change(place)
    monkeypatch.setattr(worker, "fit", None)  # nothing is trained
    with pytest.raises(DataError, match=told):
        worker.compute(cell, tmp_path / "work")


@pytest.mark.parametrize(("change", "told"), CHANGES[:2])
def test_a_run_during_which_it_changed_leaves_no_record(
    place: Path, tmp_path: Path, monkeypatch, change, told: str
) -> None:
    cell = planned(place)

    def changed_first(*args, **kwargs):
        change(place)
        return fit(*args, **kwargs)

    monkeypatch.setattr(worker, "fit", changed_first)
    with pytest.raises(DataError, match=told):
        worker.compute(cell, tmp_path / "work")


def test_a_run_on_what_was_planned_is_done(place: Path, tmp_path: Path) -> None:
    assert worker.compute(planned(place), tmp_path / "work").status == "done"


@pytest.fixture
def finished(place: Path, tmp_path: Path) -> Path:
    """The folder of a finished study, with made-up records."""
    study, folder = study_of(place, STUDY + LAYOUT), tmp_path / "out"
    folder.mkdir()
    plan, records = Plan(study, folder), Records(folder)
    cells = plan.final({})
    write_description(plan, folder, cells, {}, [])
    for number, cell in enumerate(cells):
        found = ended(0.7 + number / 100)
        config = portable_fields(cell.config.model_dump(mode="json"))
        found.result.config, found.result.methods = config, cell.config.methods
        found.extras.noise = {"0.1": 0.7, "0.2": 0.6, "area": 0.65}
        records.end(cell, "done", found)
    return folder


def files(folder: Path) -> dict[str, bytes]:
    return {
        path.name: path.read_bytes()
        for path in folder.rglob("*")
        if path.suffix in (".json", ".csv", ".md") and path.name != "study.json"
    }


def test_reports_need_the_folder_alone(place: Path, finished: Path, monkeypatch) -> None:
    study = study_of(place, STUDY + LAYOUT)
    content = report_so_far(study, finished, SILENT)
    assert [item["measures"]["score"]["n"] for item in content["methods"]] == [2, 2]
    reproduced = write_reproduction(study, finished, SILENT)
    assert reproduced["runs"] == {"done": 4, "planned": 4}
    before = files(finished)

    for name in ("data", "model", "other"):
        shutil.rmtree(place / name)
    for name in os.listdir(finished):
        if name not in ("study.json", "cells"):
            path = finished / name
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    moved = finished.rename(place / "moved")
    for name in ("data_fingerprint", "base_weights_fingerprint", "other_fingerprint"):
        monkeypatch.setattr(inputs_module, name, None)
    study = study_of(place, STUDY + LAYOUT)
    report_so_far(study, moved, SILENT)
    write_reproduction(study, moved, SILENT)
    after = files(moved)
    assert after.keys() == before.keys()
    assert {name for name in after if after[name] != before[name]} <= {"results.json"}


def test_methods_that_have_not_been_run_are_missing(place: Path, finished: Path) -> None:
    shutil.rmtree(place / "model")
    study = study_of(place, STUDY.replace("lnsr]", "lnsr, mixout]"))
    content = report_so_far(study, finished, SILENT)
    found = {item["method"]: item["missing"] for item in content["methods"]}
    assert found == {"plain": 0, "lnsr": 0, "mixout": 2}


def test_a_part_of_a_study_leaves_what_is_known_of_the_others(
    place: Path, finished: Path, monkeypatch
) -> None:
    plan = Plan(study_of(place, STUDY.replace("plain, lnsr", "plain")), finished)
    write_description(plan, finished, plan.final({}), {}, [])
    content = report_so_far(study_of(place), finished, SILENT)
    assert [item["measures"]["score"]["n"] for item in content["methods"]] == [2, 2]


@pytest.mark.parametrize("damage", [3, {"x": 3}, {"x": {"data": 3, "base_weights": ""}}])
def test_damaged_fingerprints(place: Path, finished: Path, damage) -> None:
    described = json.loads((finished / "study.json").read_text())
    (finished / "study.json").write_text(json.dumps(described | {"fingerprints": damage}))
    with pytest.raises(OutputError, match=r"study.json: fingerprints.*not as smoothtune study"):
        report_so_far(study_of(place), finished, SILENT)
