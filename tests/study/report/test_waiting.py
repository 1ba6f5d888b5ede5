"""Methods whose scores are plain's in every run: was their term late, or never there?"""

from dataclasses import replace
from pathlib import Path

from smoothtune.config.run import load_config
from smoothtune.study.records import Cell, Extras, Fingerprints, Records, cell_identity, digest
from smoothtune.study.report.waiting import late_terms, waiting_of


def cell(method: str, seed: int, **fields: object) -> Cell:
    options = {"task": "one", "text_columns": ["text"], "data": "x", "output_dir": "x"}
    options |= {"methods": {method: fields}, "seed": seed}
    config = load_config(None, [], options)
    identity = cell_identity(config, Extras(), Fingerprints("data", "weights"))
    name = digest(identity)[:16]
    return Cell(method, method, "one", "m", 100, seed, False, config, Extras(), {}, name, identity)


def write(records: Records, cell: Cell, from_step: int | None, logged: int = 40) -> None:
    """A run of 40 updates that logs every tenth, and has its term from one of them."""
    log = [{"step": step, "loss": 0.5, "loss/task": 0.5} for step in range(10, logged + 1, 10)]
    for entry in log:
        if from_step is not None and entry["step"] >= from_step:
            entry["loss/lnsr"] = 0.1
    log.append({"step": 40, "train_loss": 0.5})
    result = {
        **{"headline": "accuracy", "metrics": {"accuracy": 0.8}, "trivial_baseline": 0.5},
        **{"train_metrics": {"accuracy": 0.9}, "generalization_gap": 0.1, "versions": {}},
        **{"cost": {"steps": 40, "train_seconds": 1.0, "evaluation_seconds": 1.0}},
        **{"log_history": log, "methods": cell.config.methods},
    }
    records.write(cell, {"status": "done", "result": result, "extras": {}})


def said(records: Records, *cells: Cell) -> str:
    return late_terms(["lnsr"], waiting_of(cells, records, {"lnsr"})).get("lnsr", "")


def test_a_term_that_came_in_late_or_never_says_so(tmp_path: Path) -> None:
    records, cells = Records(tmp_path), [cell("lnsr", seed) for seed in range(3)]
    assert "and may have come in late or never: train for more" in said(records, *cells)
    write(records, cells[0], 40)
    write(records, cells[1], 30)
    assert "and came in late (in the log from 75 % of the updates on): train" in said(
        records, *cells
    )
    write(records, cells[2], None)
    assert "of the updates on), in 1 of 3 runs never: train" in said(records, *cells)
    assert "and came in in none of its runs: train" in said(records, cells[2])


def test_terms_that_were_there_are_not_blamed(tmp_path: Path) -> None:
    records, early, short = Records(tmp_path), cell("lnsr", 0), cell("lnsr", 1)
    write(records, early, 10)
    assert said(records, early) == ""
    assert said(records, cell("lnsr", 2, ramp_start=0.0)) == ""
    assert waiting_of([replace(early, label="other")], records, {"lnsr"}) == []
    write(records, short, None, logged=20)
    assert "may have come in late or never" in said(records, short)
