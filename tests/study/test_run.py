"""Studies on a tiny model, in real processes."""

import csv
import json
import os
import re
import signal
import threading
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from helpers.study_files import finished
from smoothtune.config.run import RunConfig
from smoothtune.device import SLOW_BFLOAT16
from smoothtune.errors import OutputError, Stopped
from smoothtune.files import owned
from smoothtune.run.train import train
from smoothtune.study.config import load_study
from smoothtune.study.fields import ConditionKey
from smoothtune.study.forecast import _seconds_left
from smoothtune.study.plan import Choice, Plan
from smoothtune.study.records import Records
from smoothtune.study.report.content import StudyContent
from smoothtune.study.report.findings import findings
from smoothtune.study.report.page import report_so_far
from smoothtune.study.run import failed_runs, run_study
from smoothtune.study.status import show_status
from smoothtune.study.table import Row


class Output:
    """A console that remembers."""

    def __init__(self) -> None:
        self.console = Console(file=open(os.devnull, "w"), record=True, width=300)  # noqa: SIM115

    @property
    def text(self) -> str:
        return self.console.export_text(clear=False)


@pytest.fixture
def output():
    output = Output()
    yield output
    output.console.file.close()


def starts(folder: Path) -> Counter:
    return Counter(e["cell"] for e in Records(folder).log() if e["event"] == "start")


def test_a_study_from_start_to_end(write, tmp_path: Path, output: Output) -> None:
    file = write("methods: [{name: l2_sp, alpha: 0.5}, [mixout, r3f]]\nseeds: [0]\n")
    study, folder = load_study(file), tmp_path / "out"
    content = run_study(study, folder, jobs=2, console=output.console)

    assert [item["method"] for item in content["methods"]] == [
        "plain",
        "plain_more_epochs",
        "l2_sp alpha=0.5",
        "mixout+r3f",
    ]
    assert all(item["measures"]["score"]["n"] == 1 for item in content["methods"])
    assert set(starts(folder).values()) == {1}
    names = {path.name for path in folder.iterdir()}
    assert {"results.json", "results.csv", "report.html", "report.md", "study.json"} <= names
    assert "work" not in names
    with (folder / "results.csv").open() as lines:
        assert len(list(csv.DictReader(lines))) == 4

    by_train = same_by_train(study.runs[0, 3, 0], tmp_path / "train")
    cell = next(r for r in content["rows"] if r["method"] == "mixout+r3f" and r["seed"] == 0)
    result = Records(folder).read(cell["cell"]).result
    assert result.metrics == by_train["metrics"]
    assert losses(result.content()) == losses(by_train)

    more = load_study(write("methods: [{name: l2_sp, alpha: 0.5}, lnsr]\nseeds: [0, 1]\n"))
    before = starts(folder)
    content = run_study(more, folder, jobs=2, console=output.console)
    again = starts(folder)
    assert all(again[cell] == count for cell, count in before.items())
    assert sum(again.values()) - sum(before.values()) == 2 * 4 - 3
    assert "1 finished run is not among those asked for" in output.text
    assert show_status(folder, output.console) == {
        "done": 8,
        "running": 0,
        "not_supported": 0,
        "failed": 0,
        "open": 0,
    }


def same_by_train(config: RunConfig, folder: Path) -> dict:
    with open(os.devnull, "w") as nothing:
        return train(
            config.model_copy(update={"output_dir": str(folder)}), console=Console(file=nothing)
        )


def losses(result: dict) -> list[float]:
    return [entry["loss"] for entry in result["log_history"] if "loss" in entry]


def test_a_slow_bfloat16_is_named_before_the_first_run(
    write, tmp_path: Path, output: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[int] = []
    monkeypatch.setattr("smoothtune.study.run.slow_at_bfloat16", lambda: True)
    monkeypatch.setattr("smoothtune.study.run.Pool", lambda *_, **__: SimpleNamespace(stop=list))
    monkeypatch.setattr(
        "smoothtune.study.run.execute", lambda *_: told.append(output.text.count(SLOW_BFLOAT16))
    )
    for bf16 in ("true", "false"):
        file = write(f"methods: [plain]\nseeds: [0]\nbf16: {bf16}\nmore_epochs: null\n")
        run_study(load_study(file), tmp_path / bf16, console=output.console)
    assert told == [1, 1]  # once, and not for the second study


@pytest.mark.usefixtures("no_plots")
def test_settings_are_chosen_on_training_rows(write, tmp_path: Path, output: Output) -> None:
    file = write("methods: [plain]\nmore_epochs: null\nseeds: [0, 1]\nweight_decay: [0, 0.5]\n")
    study, folder = load_study(file), tmp_path / "out"
    content = run_study(study, folder, jobs=1, console=output.console)
    (choice,) = content["choices"]
    assert choice["tried"] == 2
    assert len(choice["scores"]) == 2
    best = max(choice["scores"].values())
    assert choice["scores"][choice["chosen"]] == best
    assert {row["setting"] for row in content["rows"]} == {choice["chosen"]}
    assert "1 finished" not in output.text
    splits = [
        record.result.data.splits
        for path in (folder / "cells").iterdir()
        if (record := Records(folder).read(path.stem))
    ]
    sizes = Counter((split["train"].rows, split["validation"].rows) for split in splits)
    assert sizes == {(24, 24): 2, (19, 5): 2}

    described = json.loads((folder / "study.json").read_text())
    assert (len(described["choosing"]), len(described["cells"])) == (2, 2)
    (folder / "cells" / f"{described['choosing'][0]}.json").unlink()
    (folder / "study.json").write_text("{}")
    content = report_so_far(study, folder, output.console)  # what it will be is open again
    assert (folder / "study.json").read_text() == "{}"
    report = (folder / "report.md").read_text()
    assert "**Go on with the study: the settings to report are still being chosen.**" in report
    assert "| plain | 2 | not yet |" in report
    condition = ConditionKey("quality", "model", None)
    failed = Choice(condition, "plain", 2, None, None, complete=True, scores={})
    first, *_ = findings(StudyContent(choices=[failed]))
    assert "none of its settings could be trained" in first.text


@pytest.mark.usefixtures("no_plots")
def test_a_report_has_the_versions_of_finished_runs_alone(
    write, tmp_path: Path, output: Output
) -> None:
    study = load_study(write("methods: [plain]\nmore_epochs: null\nseeds: [0]\n"))
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "study.json").write_text("{}")
    content = report_so_far(study, tmp_path / "out", output.console)
    assert content["versions"] == {}
    assert [item["missing"] for item in content["methods"]] == [1]


@pytest.mark.usefixtures("no_plots")
def test_a_report_of_all_parts_says_what_it_is_of(write, tmp_path: Path, output: Output) -> None:
    def part(*methods: str):
        return load_study(
            write("methods: [plain, r3f, mixout]\nmore_epochs: null\nseeds: [0]\n"),
            only={"methods": list(methods)},
        )

    def listed() -> list[str]:
        return [cell["label"] for cell in json.loads((folder / "study.json").read_text())["cells"]]

    folder = tmp_path / "out"
    for method in ("r3f", "mixout"):
        run_study(part(method), folder, jobs=1, console=output.console)
    assert listed() == ["plain", "mixout"]
    with owned(folder):  # while it runs, the file is the running command's
        report_so_far(part("r3f", "mixout"), folder, output.console)
    assert listed() == ["plain", "mixout"]
    report_so_far(part("r3f", "mixout"), folder, output.console)
    assert listed() == ["plain", "r3f", "mixout"]
    assert show_status(folder, output.console)["done"] == 3


@pytest.mark.usefixtures("no_plots")
def test_records_name_no_folders_of_this_machine(write, tmp_path: Path, output: Output) -> None:
    study = load_study(write("methods: [plain]\nmore_epochs: null\nseeds: [0]\n"))
    folder = tmp_path / "out"
    run_study(study, folder, jobs=1, console=output.console, command=["x", str(tmp_path)])
    for path in folder.rglob("*"):
        if path.is_file():
            assert str(tmp_path.parent).encode() not in path.read_bytes(), path


@pytest.mark.usefixtures("no_plots")
def test_failures_are_classified_and_do_not_stop_the_others(
    write, tmp_path: Path, output: Output
) -> None:
    file = write("""
methods:
  - {name: plain, label: explodes, learning_rate: 1e30}
  - {name: lnsr, label: too_deep, weight: 1, layer_weights: [1, 1, 1, 1, 1, 1, 1, 1, 1]}
more_epochs: null
seeds: [0]
""")
    study, folder = load_study(file), tmp_path / "out"
    content = run_study(study, folder, jobs=1, console=output.console)
    status = {row["method"]: row["status"] for row in content["rows"]}
    assert status == {"plain": "done", "explodes": "nan", "too_deep": "error"}
    assert [failure["status"] for failure in content["failures"]] == ["nan", "error"]
    assert "layer_weights" in content["failures"][1]["message"]
    assert failed_runs(content) == "1 run failed (1 error)"  # NaN is a result
    assert set(starts(folder).values()) == {1}
    assert "explodes" in (folder / "report.md").read_text()
    run_study(study, folder, jobs=1, console=output.console)
    again = starts(folder)
    assert sorted(again.values()) == [1, 1, 2]  # an error may be mended; NaN is a result


@pytest.mark.usefixtures("no_plots")
def test_a_method_that_is_not_for_the_task_is_left_out(
    write, tmp_path: Path, output: Output
) -> None:
    (scores := tmp_path / "scores").mkdir()
    for name in ("train", "validation"):
        rows = "".join(f"good bad {index},{index / 8}\n" for index in range(16))
        (scores / f"{name}.csv").write_text("text,label\n" + rows)
    file = write("methods: [lnsr, label_smoothing]\nseeds: [0]\nmore_epochs: null\n")
    file.write_text(re.sub("data: .*", f"data: {scores}", file.read_text(), count=1))
    content = run_study(load_study(file), tmp_path / "out", jobs=2, console=output.console)
    status = {row["method"]: row["status"] for row in content["rows"]}
    assert status == {"plain": "done", "lnsr": "done", "label_smoothing": "not supported"}
    assert failed_runs(content) == "1 run failed (1 not supported)"  # it is for no task at all
    other_task = {"method": "label_smoothing", "status": "done"}
    assert failed_runs(content | {"rows": [*content["rows"], other_task]}) == ""
    assert "2 of 2 runs are done, 0 failed. Not supported, and left out: label_smoothing on" in (
        report := (tmp_path / "out" / "report.md").read_text().replace("\\", "")
    )
    assert "| not supported | label_smoothing needs one class number" in report
    counts = show_status(tmp_path / "out", output.console)
    assert (counts["done"], counts["not_supported"], counts["failed"]) == (2, 1, 0)
    assert "no process is running it" not in output.text


@pytest.mark.usefixtures("no_plots")
def test_a_killed_worker_costs_its_cell_once(write, tmp_path: Path, output: Output) -> None:
    file = write("methods: [lnsr]\nmore_epochs: null\nseeds: [0]\n")
    study, folder = load_study(file), tmp_path / "out"
    killer = threading.Thread(target=kill_first, args=(folder,))
    killer.start()
    content = run_study(study, folder, jobs=1, console=output.console)
    killer.join()
    assert [row["status"] for row in content["rows"]] == ["done", "done"]
    assert sorted(starts(folder).values()) == [1, 2]
    assert "killed: the process was killed by SIGKILL" in output.text
    assert "; tried again" in output.text
    assert not list((folder / "failures").glob("*.json"))


def kill_first(folder: Path) -> None:
    """Kill the first cell that starts."""
    for _ in range(1200):
        if lines := Records(folder).log():
            os.kill(lines[0]["pid"], signal.SIGKILL)
            return
        time.sleep(0.05)


@pytest.mark.usefixtures("no_plots")
def test_a_signal_leaves_a_resumable_folder(write, tmp_path: Path, output: Output) -> None:
    file = write("methods: [lnsr]\nmore_epochs: null\nseeds: [0, 1]\n")
    study, folder = load_study(file), tmp_path / "out"

    def interrupt() -> None:
        while not starts(folder):
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(Stopped, match="of 4 runs done; the same command goes on"):
        run_study(study, folder, jobs=1, console=output.console)
    thread.join()
    assert not (folder / "work").exists()
    assert not (folder / ".lock").exists()
    status = show_status(folder, output.console)
    assert status["running"] == 0
    assert status["open"] > 0
    content = run_study(study, folder, jobs=1, console=output.console)
    assert [row["status"] for row in content["rows"]] == ["done"] * 4


@pytest.mark.usefixtures("no_plots")
def test_a_damaged_record_is_run_again(write, tmp_path: Path, output: Output) -> None:
    study = load_study(write("methods: [plain]\nmore_epochs: null\nseeds: [0]\n"))
    folder = tmp_path / "out"
    run_study(study, folder, jobs=1, console=output.console)
    (path,) = (folder / "cells").iterdir()
    good = path.read_text()
    record = json.loads(good)
    record["result"]["metrics"]["accuracy"] = 1.0
    path.write_text(json.dumps(record))
    run_study(study, folder, jobs=1, console=output.console)
    assert (
        json.loads(path.read_text())["result"]["metrics"] == json.loads(good)["result"]["metrics"]
    )
    assert set(starts(folder).values()) == {2}
    # of a run that was killed between its record and its end
    (folder / "checkpoints" / path.stem / "checkpoint-1").mkdir(parents=True)
    run_study(study, folder, jobs=1, console=output.console)
    assert set(starts(folder).values()) == {2}
    assert not (folder / "checkpoints").exists()


@pytest.mark.usefixtures("no_plots")
def test_extras_and_models(write, tmp_path: Path, output: Output) -> None:
    text = "methods: [plain]\nmore_epochs: null\nseeds: [0]\nkeep_models: true\nnoise_curve: true\n"
    study = load_study(write(text + "evaluate: [drift, calibration]\n"))
    folder = tmp_path / "out"
    content = run_study(study, folder, jobs=1, console=output.console)
    (row,) = content["rows"]
    record = Records(folder).read(row["cell"])
    assert set(record.extras.parts) == {"calibration", "drift"}
    by_part = record.extras.parts["calibration"].numbers["all_rows"]["ece"]
    assert record.extras.ece == pytest.approx(by_part)
    assert record.extras.noise["clean"] == row["score"]
    model = folder / "models" / row["cell"]
    assert {"config.json", "model.safetensors"} <= {path.name for path in model.iterdir()}


def test_foreign_folders_are_left_alone(write, tmp_path: Path, output: Output) -> None:
    study = load_study(write("methods: [plain]\n"))
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.tex").write_text("")
    with pytest.raises(OutputError, match="holds other files"):
        run_study(study, tmp_path / "out", console=output.console)
    (tmp_path / "search" / "cells").mkdir(parents=True)
    (tmp_path / "search" / "search.json").write_text("{}")
    with pytest.raises(OutputError, match="holds a search of smoothtune"):
        run_study(study, tmp_path / "search", console=output.console)
    with pytest.raises(OutputError, match="is a file"):
        run_study(study, tmp_path / "study.yaml", console=output.console)


def test_the_time_left_is_that_of_runs_of_the_same_size(write) -> None:
    text = "methods: [lnsr]\nmore_epochs: null\nseeds: [0]\nmax_train_samples: [8, 16]\n"
    cells = Plan(load_study(write(text)), None).final({})
    row = Row(measures={"train_seconds": 2.0, "evaluation_seconds": 1.0})
    of_size = {n: [c for c in cells if c.condition.max_train_samples == n] for n in (8, 16)}
    assert _seconds_left(cells, {of_size[8][0].id: row}) is None
    assert _seconds_left(cells, {of_size[n][0].id: row for n in (8, 16)}) == 6.0


@pytest.mark.usefixtures("no_plots")
def test_finished_runs_without_a_model_are_told(write, tmp_path: Path, output: Output) -> None:
    text = "methods: []\nmore_epochs: null\nseeds: [0, 1]\nkeep_models: true\n"
    study, folder = load_study(write(text)), tmp_path / "out"
    first, second = Plan(study, None).final({})
    for cell in (first, second):
        Records(folder).write(cell, finished(0.8))
    (folder / "models" / second.id).mkdir(parents=True)
    run_study(study, folder, jobs=1, console=output.console)
    assert "1 finished run has no model in " in output.text
