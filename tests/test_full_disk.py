"""A full disk and a folder that may not be written: the old files or the new, and what to do."""

import gc
from contextlib import ExitStack
from pathlib import Path

import pytest
from rich.console import Console

from helpers.full_disk import content, no_room, read_only_folder
from helpers.study_files import finished, inputs, write  # noqa: F401
from smoothtune.config.evaluation import Prediction, Settings
from smoothtune.config.run import RunConfig
from smoothtune.data.sources import load_rows
from smoothtune.data.tokenizing import Encoder, encoded_rows
from smoothtune.errors import OutputError
from smoothtune.evaluation import run as evaluation
from smoothtune.evaluation.predict import predict
from smoothtune.evaluation.report import write_report
from smoothtune.models.load import load_base
from smoothtune.run.output import STAGING, publish, writing
from smoothtune.run.train import Trained, fit, train
from smoothtune.study.config import load_study
from smoothtune.study.description import write_description
from smoothtune.study.plan import Plan
from smoothtune.study.records import Records
from smoothtune.study.report.page import report_so_far
from smoothtune.study.run import run_study

SILENT = Console(quiet=True)
FULL = "cannot be written.*: File too large; make room or give the right to write, and run the same"


def run_of(inputs: Path, to: Path, **changes) -> RunConfig:  # noqa: F811
    return RunConfig(
        task="quality",
        data=str(inputs / "data"),
        text_columns=["text"],
        model=str(inputs / "model"),
        output_dir=str(to),
        max_steps=1,
        cost_steps=0,
        **changes,
    )


@pytest.fixture(scope="module")
def old(inputs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:  # noqa: F811
    """A model, its evaluation, predictions and a report."""
    folder = tmp_path_factory.mktemp("old")
    train(run_of(inputs, folder / "model", seed=1), console=SILENT)
    evaluation.evaluate(settings(inputs, folder), console=SILENT)
    return folder


def settings(inputs: Path, folder: Path, **changes) -> Settings:  # noqa: F811
    return Settings(
        model=str(folder / "model"),
        data=str(inputs / "data"),
        output_dir=str(folder / "evaluation"),
        num_resamples=20,
        **changes,
    )


@pytest.fixture(scope="module")
def trained(inputs: Path, tmp_path_factory: pytest.TempPathFactory) -> Trained:  # noqa: F811
    folder = tmp_path_factory.mktemp("trained")
    return fit(run_of(inputs, folder), folder, resumable=False, console=SILENT)


def save(trained: Trained, folder: Path, room: int, room_for_result: int) -> None:
    with writing(folder):
        with no_room(room):
            trained.save(folder / STAGING)
        with no_room(room_for_result):
            publish(folder, trained.result.content(), keep_checkpoints=False)


def test_a_model_folder(trained: Trained, old: Path) -> None:
    """Whichever file is the first that does not fit; ``result.json`` is the last."""
    before = content(old / "model")
    sizes = sorted({len(raw) for raw in before.values()})
    assert len(sizes) > 5
    much = 2 * sizes[-1]
    rooms = [(min(size - 1, sizes[-1] // 2), much) for size in (1, *sizes)]
    for room, room_for_result in [*rooms, (much, 0), (much, 100)]:
        with pytest.raises(OutputError, match=r"the model cannot be written to .*; make room"):
            save(trained, old / "model", room, room_for_result)
        assert content(old / "model") == before
        assert not (old / "model" / STAGING).exists()


def test_the_record_of_a_run(inputs: Path, tmp_path: Path) -> None:  # noqa: F811
    with pytest.raises(OutputError, match=f"run.json {FULL}"), no_room(100):
        train(run_of(inputs, tmp_path / "out"), console=SILENT)
    assert content(tmp_path / "out") == {}


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_predictions(old: Path, inputs: Path, tmp_path: Path, suffix: str) -> None:  # noqa: F811
    asked = Prediction(
        model=str(old / "model"),
        data=str(inputs / "data" / "validation.csv"),
        to=str(tmp_path / f"out.{suffix}"),
        overwrite=True,
    )
    predict(asked, console=SILENT)
    before = content(tmp_path)
    with pytest.raises(OutputError, match=f"out.{suffix} {FULL}"), no_room(100):
        predict(asked, console=SILENT)
    assert content(tmp_path) == before


def test_an_evaluation_and_its_plots(old: Path, inputs: Path, monkeypatch) -> None:  # noqa: F811
    before = content(old / "evaluation")
    more = settings(inputs, old, parts=("calibration",))
    measure = evaluation.evaluate_part
    for size in (0, 300, 5_000):  # the table, the plot, the numbers
        with ExitStack() as stack, monkeypatch.context() as patch:

            def fills(*values, stack=stack, size=size):
                result = measure(*values)
                stack.enter_context(no_room(size))
                return result

            patch.setattr(evaluation, "evaluate_part", fills)
            with pytest.raises(OutputError, match=FULL):
                evaluation.evaluate(more, console=SILENT)
        after = content(old / "evaluation")
        assert {name: after[name] for name in before} == before
        assert not [name for name in after if "partial" in name]
    parts = evaluation.evaluate(more, console=SILENT)["parts"]
    assert parts.keys() == {"metrics", "calibration"}


@pytest.mark.parametrize("name", ["report.md", "report.html"])
def test_a_report(old: Path, tmp_path: Path, name: str) -> None:
    write_report([old / "evaluation"], tmp_path / name)
    before = content(tmp_path)
    with pytest.raises(OutputError, match=f"{name} {FULL}"), no_room(100):
        write_report([old / "evaluation"], tmp_path / name, overwrite=True)
    assert content(tmp_path) == before


# datasets leaves the file that it could not write open
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_the_cache_of_datasets(inputs: Path, tmp_path: Path, monkeypatch) -> None:  # noqa: F811
    full = "the cache folder of datasets, cannot be written: File too large; make room, or set HF_"
    (tmp_path / "rows.jsonl").write_text('{"text": "good film"}\n' * 100)
    with no_room(100):  # files are read into memory
        assert len(load_rows(tmp_path / "rows.jsonl")) == 100
        rows = load_rows(str(inputs / "data" / "train.csv"))
    encoder = Encoder(lambda batch: {"length": [len(t) for t in batch["text"]]}, "x", 1)
    tokenizer = load_base(str(inputs / "model")).tokenizer
    with pytest.raises(OutputError, match=full), no_room(100):
        encoded_rows(rows, encoder, tokenizer, str(tmp_path))
    assert len(encoded_rows(rows, encoder, tokenizer, str(tmp_path))) == 24
    gc.collect()


def test_a_study(write, tmp_path: Path) -> None:  # noqa: F811
    study = load_study(write("methods: [plain]\nmore_epochs: null\nseeds: [0, 1]\n"))
    (folder := tmp_path / "out").mkdir()
    records, plan = Records(folder), Plan(study, folder)
    cells = plan.final({})
    write_description(plan, folder, cells, {}, [])
    records.end(cells[0], "done", finished(0.5))
    report_so_far(study, folder, SILENT)
    before = content(folder)
    for size in (0, 300):
        with pytest.raises(OutputError, match=FULL), no_room(size):
            records.end(cells[1], "done", finished(0.5))
    with pytest.raises(OutputError, match=FULL), no_room(10):
        records.fail(cells[1], "killed", "by a test")
    with pytest.raises(OutputError, match=rf"log.jsonl {FULL}"), no_room(10):
        records.note("start", cells[1].id)
    for size in (100, 5_000):
        with pytest.raises(OutputError, match=FULL), no_room(size):
            report_so_far(study, folder, SILENT)
    assert content(folder) == before


def test_a_study_removes_what_killed_runs_left(write, tmp_path: Path) -> None:  # noqa: F811
    study = load_study(write("methods: [plain]\nmore_epochs: null\nseeds: [0]\n"))
    folder = tmp_path / "out"
    for cell in Plan(study, None).final({}):
        (folder / "cells").mkdir(parents=True)
        Records(folder).write(cell, finished(0.5))
    (left := folder / "cells" / ".0123456789abcdef.json.7.partial").write_text("{")
    run_study(study, folder, jobs=1, console=SILENT)
    assert not left.exists()


def test_folders_that_may_not_be_written(write, old: Path, inputs: Path) -> None:  # noqa: F811
    study = load_study(write("methods: [plain]\nmore_epochs: null\nseeds: [0]\n"))
    denied = "cannot be written: Permission denied"
    with read_only_folder(beside=old / "evaluation") as folder:
        for to in (folder, folder / "new"):
            with pytest.raises(OutputError, match=denied):
                train(run_of(inputs, to), console=SILENT)
            with pytest.raises(OutputError, match=denied):
                run_study(study, to, console=SILENT)
        for to in (folder / "report.md", folder / "new" / "report.md"):
            with pytest.raises(OutputError, match=denied):
                write_report([folder.parent / "evaluation"], to)
        assert list(folder.iterdir()) == []
