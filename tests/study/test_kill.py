"""A study that is killed again and again ends with the table of one that is not."""

import csv
import os
import random
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from multiprocessing import forkserver
from pathlib import Path

import pytest
from rich.console import Console

from smoothtune.study.config import load_study
from smoothtune.study.plan import Plan
from smoothtune.study.pool import SERVER_LOST, Ended, Pool
from smoothtune.study.records import Cell, Records
from smoothtune.study.status import show_status
from smoothtune.study.worker import run_here

KILLS, CELLS = 10, 20
STUDY = "methods: [lnsr, {name: jachess, every: 2}, [mixout, r3f]]\nseeds: [0, 1, 2, 3]\n"


def start(file: Path, folder: Path) -> subprocess.Popen:
    main = [sys.executable, "-m", "smoothtune"]
    arguments = ["study", str(file), "--output-dir", str(folder), "--jobs", "2"]
    return subprocess.Popen([*main, *arguments], start_new_session=True, stdout=subprocess.DEVNULL)


def finish(file: Path, folder: Path) -> None:
    assert start(file, folder).wait(timeout=600) == 0


def table(folder: Path) -> list[dict[str, str]]:
    with (folder / "results.csv").open() as lines:
        rows = list(csv.DictReader(lines))
    return [{k: v for k, v in row.items() if "seconds" not in k} for row in rows]


def cell_of(file: Path) -> Cell:
    (cell,) = Plan(load_study(file), file.parent).final({})
    return cell


def kill_after(process: subprocess.Popen, folder: Path, lines: int, seconds: float) -> None:
    """Kill everything when the log has grown, and some time has passed."""
    before = len(Records(folder).log())
    while process.poll() is None and len(Records(folder).log()) < before + lines:
        time.sleep(0.02)
    time.sleep(seconds)
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@pytest.mark.slow
def test_ten_kills(write, tmp_path: Path) -> None:
    file = write(STUDY)
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    draw = random.Random(0)
    for _ in range(KILLS):
        kill_after(start(file, killed), killed, draw.randint(1, 5), draw.uniform(0, 1))
    between = [line["event"] for line in Records(killed).log()]
    assert between.count("start") > between.count("done") > 0
    finish(file, killed)
    finish(file, whole)
    assert table(killed) == table(whole)
    ended: set[str] = set()
    for line in Records(killed).log():
        assert line["event"] != "start" or line["cell"] not in ended, "run again after it was done"
        if line["event"] == "done":
            ended.add(line["cell"])
    assert len(table(killed)) == CELLS


@pytest.mark.slow
def test_two_studies_at_once_on_one_folder(write, tmp_path: Path) -> None:
    """One of them works, the other is refused; both are killed again and again."""
    file = write("methods: [lnsr, mixout]\nmore_epochs: null\nseeds: [0, 1]\n")
    both, whole = tmp_path / "both", tmp_path / "whole"
    draw = random.Random(1)
    for _ in range(KILLS // 2):
        processes = [start(file, both) for _ in range(2)]
        kill_after(processes[0], both, draw.randint(0, 3), draw.uniform(0, 1))
        kill_after(processes[1], both, 0, draw.uniform(0, 1))
        assert {process.returncode for process in processes} <= {0, 2, -signal.SIGKILL}
    processes = [start(file, both) for _ in range(2)]
    codes = sorted(process.wait(timeout=600) for process in processes)
    assert codes in ([0, 0], [0, 2])
    finish(file, both)
    finish(file, whole)
    assert table(both) == table(whole)
    ended: set[str] = set()
    for line in Records(both).log():
        assert line["event"] != "start" or line["cell"] not in ended, "run again after it was done"
        if line["event"] == "done":
            ended.add(line["cell"])


@pytest.mark.slow
def test_cells_end_when_their_study_is_killed(write, tmp_path: Path) -> None:
    file = write("methods: [plain]\nmore_epochs: null\nseeds: [0]\n")
    file.write_text(file.read_text().replace("max_steps: 3", "max_steps: 100000"))
    process = start(file, tmp_path / "out")
    while not Records(tmp_path / "out").log():
        assert process.poll() is None, "the study ended before its cell began"
        time.sleep(0.05)
    (line,) = Records(tmp_path / "out").log()
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    deadline = time.monotonic() + 10
    while alive(line["pid"]) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not alive(line["pid"]), "the cell goes on without its study"


def alive(pid: int) -> bool:
    status = Path(f"/proc/{pid}/stat")
    try:
        return status.read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_all_processes_interrupts_and_fails_no_run(
    write, tmp_path: Path, number: int
) -> None:
    file = write("methods: [plain]\nmore_epochs: null\nseeds: [0, 1]\n")
    file.write_text(file.read_text().replace("max_steps: 3", "max_steps: 100000"))
    process = start(file, tmp_path / "out")
    while not Records(tmp_path / "out").log():
        assert process.poll() is None, "the study ended before its cell began"
        time.sleep(0.05)
    time.sleep(1)
    os.killpg(process.pid, number)
    assert process.wait(timeout=60) == 75
    assert not list((tmp_path / "out").glob("failures/*"))
    counts = show_status(tmp_path / "out", Console(quiet=True))
    assert (counts["open"], sum(counts.values())) == (2, 2)


@dataclass
class Died:
    """A process that is no more."""

    exitcode: int
    pid: int = 2**22 + 1

    def join(self) -> None:
        pass


OTHER_CODES = [pytest.param(code, marks=pytest.mark.slow) for code in (75, -signal.SIGINT)]


@pytest.mark.parametrize("code", [SERVER_LOST, -signal.SIGTERM, *OTHER_CODES])
def test_a_run_may_get_the_signal_that_ends_the_study_first(
    write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    monkeypatch.setattr("smoothtune.study.pool.start_server", lambda: None)
    cell = cell_of(write("methods: [plain]\nmore_epochs: null\nseeds: [0]\n"))
    pool = Pool(tmp_path, 1)
    read, write_end = os.pipe()
    os.close(write_end)  # what a process that ends does
    began = time.monotonic()
    try:
        pool.running[read] = (Died(code), cell, None)
        assert pool.ended(1, lambda: time.monotonic() > began + 0.2) == []
        assert Records(tmp_path).failure(cell.id) is None
        (ended,) = pool.ended(1, lambda: False)
    finally:
        os.close(read)
    assert ended.status == "killed"
    assert Records(tmp_path).failure(cell.id) is not None


@pytest.mark.slow
def test_a_server_that_is_killed_is_started_again(write, tmp_path: Path) -> None:
    study = load_study(write("methods: [plain]\nmore_epochs: null\nseeds: [0]\n"))
    (folder := tmp_path / "out").mkdir()
    (cell,) = Plan(study, folder).final({})
    assert run_here  # imported, so that the process is asked for at once
    pool = Pool(folder, 1)
    first = forkserver._forkserver._forkserver_pid
    os.kill(first, signal.SIGSTOP)  # it is killed while it is asked for a process
    threading.Timer(1, os.kill, (first, signal.SIGKILL)).start()
    pool.start(cell)
    second = forkserver._forkserver._forkserver_pid
    assert second != first
    environment = Path(f"/proc/{second}/environ").read_bytes().split(b"\0")
    assert b"PYTHONSAFEPATH=1" in environment
    ended: list[Ended] = []
    while not ended:
        ended = pool.ended(1, lambda: False)
    pool.stop()
    assert [(e.cell.id, e.status) for e in ended] == [(cell.id, "done")]


@pytest.mark.slow
def test_a_run_whose_server_is_killed_is_over_before_it_is_tried_again(
    write, tmp_path: Path
) -> None:
    file = write("methods: [plain]\nmore_epochs: null\nseeds: [0]\n")
    file.write_text(file.read_text().replace("max_steps: 3", "max_steps: 100000"))
    (folder := tmp_path / "out").mkdir()
    (cell,) = Plan(load_study(file), folder).final({})
    pool = Pool(folder, 1)
    pool.start(cell)
    ((process, *_),) = pool.running.values()
    while not Records(folder).log():
        time.sleep(0.05)
    os.kill(forkserver._forkserver._forkserver_pid, signal.SIGKILL)
    (ended,) = pool.ended(60, lambda: False)
    assert not alive(process.pid)
    assert ended.status == "killed"
    assert "the server" in ended.message
