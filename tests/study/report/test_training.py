"""How runs were trained: what they recorded, or what they will run with, without places."""

from dataclasses import replace
from pathlib import Path

import pytest

from helpers.study_files import content_of, made_result
from smoothtune.config.run import load_config
from smoothtune.results import CellContent
from smoothtune.study.fields import ConditionKey
from smoothtune.study.records import Cell, Extras, Fingerprints, Records, cell_identity
from smoothtune.study.report.methods import run_of
from smoothtune.study.report.training import method_table, strength_table, training_table


def cell(label: str, task: str, method: str = "plain", learning_rate: float = 1e-4) -> Cell:
    options = {"task": task, "text_columns": ["text"], "data": "/secret/data", "output_dir": "x"}
    options |= {"methods": {method: {}}, "learning_rate": learning_rate}
    config = load_config(None, [], options)
    identity = cell_identity(config, Extras(), Fingerprints("data", "weights"))
    where = ConditionKey(task, "m", 100)
    return Cell(label, label, where, False, config, Extras(), {}, identity)


@pytest.fixture
def records(tmp_path: Path) -> Records:
    return Records(tmp_path)


def done(cell: Cell) -> CellContent:
    config = {"learning_rate": 1e-4, "num_train_epochs": 2.0, "data": "one", "max_steps": -1}
    result = made_result(0.8) | {
        "config": config,
        "methods": {"lnsr": {"weight": 2.0, "k": None}},
        "cost": {"steps": 7, "train_seconds": 1.0, "evaluation_seconds": 1.0},
    }
    return content_of({"status": "done", "result": result, "extras": {}})


def test_finished_runs_say_what_they_ran_with(records: Records) -> None:
    finished, waiting = cell("plain", "one"), cell("plain", "two", learning_rate=3e-5)
    records.write(finished, done(finished))
    table = training_table([waiting, finished], records)
    rows = {row[0]: row[1:] for row in table.rows}
    assert table.head == ["field", "two, m, 100 examples", "one, m, 100 examples"]
    assert rows["learning_rate"] == ["3e-05", "0.0001"]
    assert rows["training examples"] == ["–", "100"]
    assert rows["updates"] == ["–", "7"]
    assert rows["data"] == ["data", "data"]
    assert "max_steps" not in rows
    assert "secret" not in str(table)


def test_the_norm_that_gradients_were_clipped_to(records: Records) -> None:
    """Unset, it is 1, but for a method that clips by itself."""
    cells = [cell("plain", "one"), cell("both", "one", "cwgnc"), cell("lnsr", "one", "lnsr")]
    records.write(cells[0], done(cells[0]))
    rows = {row[0]: row[1:] for row in training_table(cells, records).rows}
    assert rows["max_grad_norm"] == ["1; 0 with both"]
    alone = {row[0]: row[1] for row in training_table(cells[::2], records).rows}
    assert alone["max_grad_norm"] == "1"


def test_fields_of_methods_are_those_that_ran(records: Records) -> None:
    ran, asked = cell("lnsr", "one", "lnsr"), cell("smooth", "one", "lnsr")
    records.write(ran, done(ran))
    other = replace(asked, identity={}, changes={"learning_rate": 1e-3})
    cells = [ran, ran, other]
    found = method_table(cells, [run_of(cell, records) for cell in cells])
    assert found.rows[0] == ["lnsr", "lnsr", "weight 2, k –", "–"]
    assert found.rows[1][0] == "smooth"
    assert found.rows[1][3] == "learning_rate 0.001"
    assert len(found.rows) == 2


def test_how_strong_terms_were_is_a_mean_over_runs(records: Records) -> None:
    cells = [cell("lnsr", "one", "lnsr", rate) for rate in (1e-4, 2e-4)] + [cell("plain", "one")]
    measured = [(0.2, 0.9, 0.0), (0.4, 0.7, 0.5), None]
    for of, values in zip(cells, measured, strict=True):
        content = done(of).content()
        if values:
            names = ("share", "largest", "bounded")
            content["result"]["applied"] = {"lnsr": dict(zip(names, values, strict=True))}
        records.write(of, content_of(content))
    table = strength_table([run_of(of, records) for of in cells])
    assert table.rows == [["lnsr", "lnsr", "0.30", "0.90", "25 %"]]
