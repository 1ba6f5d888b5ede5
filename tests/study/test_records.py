"""Identity of runs, their records, and how settings are chosen."""

import json
import shutil
from pathlib import Path

import datasets
import pytest
from rich.console import Console

from helpers.study_files import finished, made_result
from smoothtune.config.run import RunConfig
from smoothtune.config.task import configured_task
from smoothtune.core.traits import Traits
from smoothtune.errors import ConfigError, DataError, OutputError
from smoothtune.results import CellContent, CellRecord
from smoothtune.study.config import load_study
from smoothtune.study.inputs import data_fingerprint
from smoothtune.study.parts import write_parts
from smoothtune.study.plan import Plan
from smoothtune.study.records import Cell, Records, digest
from smoothtune.study.status import show_status


def cells(file: Path, folder: Path | None = None) -> list[Cell]:
    plan = Plan(load_study(file), folder)
    return plan.final(plan.choices(Records(folder or Path("nowhere"))))


def ids(file: Path) -> dict[str, str]:
    return {f"{cell.label} {cell.seed}": cell.id for cell in cells(file)}


TWO = "methods: [{name: lnsr, weight: 0.5}]\nseeds: [0, 1]\n"


def test_a_cell_is_what_decides_its_result(write, inputs: Path, tmp_path: Path) -> None:
    first = ids(write(TWO))
    assert len(set(first.values())) == 6
    assert (
        ids(write("seeds: [0, 1]\nmethods: [{name: lnsr, weight: 0.5, noise: standard}]\n"))[
            "lnsr weight=0.5 noise=standard 0"
        ]
        == first["lnsr weight=0.5 0"]
    )  # a default that is written out
    renamed = ids(write("methods: [{name: lnsr, weight: 0.5, label: x}]\nseeds: [0, 1]\n"))
    assert renamed["x 1"] == first["lnsr weight=0.5 1"]
    for place in ("data", "model"):
        shutil.copytree(inputs / place, tmp_path / place)
    moved = write(TWO)
    moved.write_text(moved.read_text().replace(str(inputs), str(tmp_path)))
    assert ids(moved) == first
    rows = (tmp_path / "data" / "train.csv").read_text().replace("plot", "film", 1)
    (tmp_path / "data" / "train.csv").write_text(rows)
    assert not set(ids(moved).values()) & set(first.values())


def test_weights_and_method_versions_are_part_of_it(write, monkeypatch) -> None:
    from smoothtune.methods import METHODS

    before = ids(write(TWO))
    monkeypatch.setattr(METHODS["lnsr"], "declared", Traits(version=2))
    after = ids(write(TWO))
    assert {name for name in before if before[name] != after[name]} == {
        "lnsr weight=0.5 0",
        "lnsr weight=0.5 1",
    }
    plan = Plan(load_study(write(TWO)), None)
    plan._known = {f"weights {plan.study.runs[0, 0, 0].model}": "other weights"}
    assert not {cell.id for cell in plan.final({})} & set(after.values())


def test_fingerprints_do_not_depend_on_the_format(inputs: Path, write, tmp_path: Path) -> None:
    run = load_study(write(TWO)).runs[0, 0, 0]
    for name, split in configured_task(run).load_splits(inputs / "data").items():
        datasets.Dataset.from_list(split.to_list()).to_parquet(str(tmp_path / f"{name}.parquet"))
    assert data_fingerprint(str(inputs / "data"), run) == data_fingerprint(str(tmp_path), run)


def test_records_verify(write, tmp_path: Path) -> None:
    cell, other = cells(write(TWO))[:2]
    records = Records(tmp_path)
    records.fail(cell, "killed", "message")
    records.write(cell, finished(0.6))
    assert records.failure(cell.id) is None
    path = tmp_path / "cells" / f"{cell.id}.json"
    content = json.loads(path.read_text())
    assert records.read(cell.id) == CellRecord.parse(content)
    assert records.read(cell.id).result.score == 0.6
    assert records.read(other.id) is None
    for change in (finished(0.7).content(), {"status": "nan"}, {"sha256": "0"}):
        path.write_text(json.dumps(content | change))
        assert records.read(cell.id) is None
    path.write_text(path.read_text()[:-20])
    assert records.read(cell.id) is None
    (tmp_path / "cells" / f"{other.id}.json").write_text(json.dumps(content))
    assert records.read(other.id) is None  # a record under another cell's name
    foreign = {"identity": {}, "id": digest({})[:16], "status": "done"}
    path.write_text(json.dumps(foreign | {"sha256": digest(foreign)}))
    assert records.read(cell.id) is None


def test_a_record_that_changes_has_another_row(write, tmp_path: Path) -> None:
    cell = cells(write(TWO))[0]
    records = Records(tmp_path)
    assert records.row(cell.id) is None
    for score in (0.6, 0.7):
        Records(tmp_path).write(cell, finished(score))  # as another process does
        assert records.row(cell.id).score == score
    path = tmp_path / "cells" / f"{cell.id}.json"
    path.write_text(path.read_text()[:-20])
    assert records.row(cell.id) is None
    path.unlink()
    assert records.row(cell.id) is None


def test_parts_are_the_rows_that_are_trained_on(inputs: Path, write, tmp_path: Path) -> None:
    run = load_study(write(TWO + "max_train_samples: 10\n")).runs[0, 0, 0]
    write_parts(run, 0.4, tmp_path / "parts")
    parts = configured_task(run).load_splits(tmp_path / "parts")
    assert {name: len(rows) for name, rows in parts.items()} == {"train": 6, "validation": 4}
    texts = [row["text"] for rows in parts.values() for row in rows]
    from smoothtune.models.load import load_base
    from smoothtune.tasks.prepare import prepare

    prepared = prepare(
        inputs / "data",
        configured_task(run),
        load_base(run.model).tokenizer,
        max_train_samples=10,
        seed=run.seed,
    )
    source = configured_task(run).load_splits(inputs / "data")["train"]
    assert sorted(texts) == sorted(source[i]["text"] for i in prepared.train["example_id"])
    with pytest.raises(DataError, match="10 training rows are too few: .* hold out a larger share"):
        write_parts(run, 0.01, tmp_path / "none")


def test_rows_held_out_as_development_set_stay_out(inputs: Path, write, tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    shutil.copy(inputs / "data" / "train.csv", tmp_path / "one" / "train.csv")
    run = load_study(write(TWO)).runs[0, 0, 0].model_copy(update={"data": str(tmp_path / "one")})
    write_parts(run, 0.25, tmp_path / "parts")
    parts = configured_task(run).load_splits(tmp_path / "parts")
    assert sum(map(len, parts.values())) == 24 - 2  # a tenth is the development set


def test_every_setting_of_a_grid_is_tried_with_every_selection_seed(write) -> None:
    file = write(
        "methods: [{name: lnsr, weight: [1, 2, 3]}]\nweight_decay: [0, 0.1]\nmore_epochs: null\n"
        "seeds: [5, 6]\nselection_seeds: [5, 6]\n"
    )
    plan = Plan(load_study(file), None)
    found = plan.selection
    assert [len(by_setting) for by_setting in found.values()] == [2, 6]
    chosen = [
        cell for by_setting in found.values() for group in by_setting.values() for cell in group
    ]
    assert len({cell.id for cell in chosen}) == 2 * (2 + 6)
    assert {cell.seed for cell in chosen} == {5, 6}
    assert all("selection" in cell.config.data for cell in chosen)


def test_no_choice_before_all_settings_have_ended(write, tmp_path: Path) -> None:
    plan = Plan(
        load_study(write("methods: [plain]\nmore_epochs: null\nweight_decay: [0, 1]\n")), None
    )
    records = Records(tmp_path)
    (by_setting,) = plan.selection.values()
    (first,), (second,) = by_setting.values()
    assert plan.final(plan.choices(records)) == []
    records.write(first, finished(0.6))
    assert plan.choices(records)[0, 0].setting is None
    records.write(second, finished(0.7))
    choice = plan.choices(records)[0, 0]
    assert (choice.setting, choice.tried) == (1, 2)
    assert {c.config.weight_decay for c in plan.final({(0, 0): choice})} == {1}
    records.write(second, CellContent(status="nan"))
    assert plan.choices(records)[0, 0].setting == 0


def test_digests_do_not_depend_on_the_order_of_keys() -> None:
    assert digest({"a": 1, "b": [1.0, None]}) == digest({"b": [1.0, None], "a": 1})


def signed(content: dict) -> str:
    return json.dumps(content | {"sha256": digest(content)})


RESULT = made_result(0.5) | {"log_history": [{"step": 1, "loss": 0.7}]}


@pytest.mark.parametrize(
    "changes",
    [
        {"status": "evil"},
        {"result": None},
        {"extras": None},
        {"extras": {"ece": "x"}},
        {"extras": {"noise": 3}},
        *({"result": RESULT | {name: "x"}} for name in RESULT if name not in ("task", "model")),
        {"result": RESULT | {"metrics": {"other": 1.0}}},
        {"result": RESULT | {"log_history": [{"step": "x"}]}},
        {"result": RESULT | {"log_history": [{"step": 1, "loss": "x"}]}},
    ],
)
def test_a_signed_record_of_other_types_does_not_count(changes: dict, tmp_path: Path) -> None:
    """Whoever writes a record can write its checksum too."""
    identity = {"config": {"methods": {}}}
    cell = digest(identity)[:16]
    record = {"id": cell, "identity": identity, "status": "done", "result": RESULT, "extras": {}}
    (tmp_path / "cells").mkdir()
    file = tmp_path / "cells" / f"{cell}.json"
    file.write_text(signed(record))
    assert Records(tmp_path).read(cell) is not None
    file.write_text(signed(record | changes))
    assert Records(tmp_path).read(cell) is None


@pytest.mark.parametrize(
    "text",
    ["[" * 50_000, "[]", '{"identity": 3}', '{"identity": {"config": {"methods": {"lnsr": 3}}}}'],
)
def test_damaged_files_of_a_study_are_left_out(text: str, tmp_path: Path) -> None:
    for name in ("cells", "failures"):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"{'0' * 16}.json").write_text(text)
    (tmp_path / "log.jsonl").write_text(text + '\n3\n{"event": "start", "cell": "x"}\n\xff')
    records = Records(tmp_path)
    assert records.read("0" * 16) is records.failure("0" * 16) is None
    assert [line["cell"] for line in records.log()] == ["x"]


@pytest.mark.parametrize("cells", [3, [3], [{"id": "../../x", "title": "t"}], [{"id": "0" * 16}]])
def test_damaged_list_of_cells(cells: object, tmp_path: Path) -> None:
    (tmp_path / "study.json").write_text(json.dumps({"name": "s", "cells": cells}))
    with pytest.raises(OutputError, match=r"study.json: cells"):
        show_status(tmp_path, Console(quiet=True))


def test_texts_of_another_column_are_other_data(write, inputs: Path, tmp_path: Path) -> None:
    for name in ("train", "validation"):
        (tmp_path / f"{name}.csv").write_text("text,title,label\na film,good,0\na plot,bad,1\n")
    file = write("methods: [{name: plain, label: titles, text_columns: [title]}]\nseeds: [0]\n")
    file.write_text(file.read_text().replace(str(inputs / "data"), str(tmp_path)))
    other = next(cell for cell in cells(file) if cell.label == "titles")
    assert other.identity["data"] == data_fingerprint(other.config.data, other.config)


def test_a_run_is_not_shared_by_other_metrics(inputs: Path, tmp_path: Path) -> None:
    """A named task decides these, and the id of a run does not tell the name."""
    rows = "sentence,label\ngood film,1\nbad film,0\ngood plot,1\nbad plot,0\n"
    for name in ("train", "validation"):
        (tmp_path / f"{name}.csv").write_text(rows)
    file = tmp_path / "study.yaml"
    file.write_text(
        f"data: {tmp_path}\nmodel: {inputs / 'model'}\ntask: [cola, sst2]\nmethods: []\n"
    )
    with pytest.raises(ConfigError, match=r"task: cola, model and sst2, model differ in metrics"):
        cells(file)


def test_a_run_is_not_shared_by_models_of_other_settings(write, inputs: Path, tmp_path) -> None:
    for name in ("same", "calm"):
        shutil.copytree(inputs / "model", tmp_path / name)
    config = tmp_path / "calm" / "config.json"
    config.write_text(
        config.read_text().replace('"hidden_dropout_prob": 0.1', '"hidden_dropout_prob": 0')
    )

    def compared_with(name: str) -> Path:
        file = write("methods: []\nmore_epochs: null\n")
        models = f"model: [{inputs / 'model'}, {tmp_path / name}]"
        file.write_text(file.read_text().replace(f"model: {inputs / 'model'}", models))
        return file

    assert len({cell.id for cell in cells(compared_with("same"))}) == 5
    with pytest.raises(ConfigError, match=r"quality, model and quality, calm differ in config"):
        cells(compared_with("calm"))


def test_the_size_of_a_model_with_code_of_its_own(write, monkeypatch) -> None:
    asked = []

    def count(run: RunConfig) -> int:
        asked.append(run.trust_remote_code)
        return 12

    monkeypatch.setattr("smoothtune.study.plan.weight_bytes", count)
    plan = Plan(load_study(write("methods: []\ntrust_remote_code: true\n")), None)
    assert (plan.weight_bytes(), asked) == (12, [True])


def test_other_data_sets_that_do_not_fit_are_told_before_training(write, tmp_path: Path) -> None:
    other = tmp_path / "other.csv"
    other.write_text("text,label\ngood film,1\nbad film,0\nbad plot,7\n")
    study = load_study(write(f"methods: [plain]\nood: {{other: {other}}}\n"))
    with pytest.raises(DataError, match="other.csv"):
        Plan(study, None).final({})
