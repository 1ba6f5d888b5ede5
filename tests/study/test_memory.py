"""Runs of a study that do not fit in memory."""

import os
import resource
import warnings
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import torch
from rich.console import Console
from transformers import BertConfig, BertModel

from helpers.study_files import finished
from helpers.tiny_folder import tiny_bert
from smoothtune.study import pool, run, worker
from smoothtune.study.config import load_study
from smoothtune.study.inputs import fingerprints_of
from smoothtune.study.plan import Plan
from smoothtune.study.pool import Ended
from smoothtune.study.records import Records, cell_identity
from smoothtune.study.run import Progress

STUDY = "methods: [plain, lnsr]\nmore_epochs: null\nseeds: [0, 1]\n"


def cells_of(write, folder: Path, text: str = STUDY):
    return Plan(load_study(write(text)), folder).final({})


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB"),
        torch.OutOfMemoryError(),
        MemoryError(),
        RuntimeError("[enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: can't "
                     "allocate memory: you tried to allocate 80000000000 bytes."),
        RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 8 bytes."),
    ],
    ids=lambda error: f"{type(error).__name__} {str(error)[:12]}",
)  # fmt: skip
def test_the_batch_size_is_named(write, tmp_path: Path, monkeypatch, error) -> None:
    def no_memory(*_, **__):
        raise error

    monkeypatch.setattr(worker, "fit", no_memory)
    status, message = worker.attempt(cells_of(write, tmp_path)[0], tmp_path)
    assert status == "out of memory"
    assert (str(error).split(".")[0] or type(error).__name__) in message
    assert "per_device_train_batch_size 8, per_device_eval_batch_size 32" in message
    assert "per_device_train_batch_size=4 with gradient_accumulation_steps=2" in message
    assert message.endswith("; or --jobs 1")


def test_a_batch_of_one_row_is_not_halved(write, tmp_path: Path, monkeypatch) -> None:
    cell = cells_of(write, tmp_path)[0]
    one = cell.config.model_copy(update={"per_device_train_batch_size": 1})
    trained = SimpleNamespace(result=SimpleNamespace(config={}))
    monkeypatch.setattr(worker, "_fit", lambda *_: trained)
    monkeypatch.setattr(worker, "measure", lambda *_: (_ for _ in ()).throw(MemoryError))
    status, message = worker.attempt(replace(cell, config=one), tmp_path)
    assert (status, "per_device_train_batch_size 1, " in message) == ("out of memory", True)
    assert "gradient_accumulation_steps" not in message


def test_other_errors_keep_their_words(write, tmp_path: Path, monkeypatch) -> None:
    def fails(*_, **__):
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    monkeypatch.setattr(worker, "fit", fails)
    status, message = worker.attempt(cells_of(write, tmp_path)[0], tmp_path)
    assert (status, message) == ("error", "RuntimeError: mat1 and mat2 shapes cannot be multiplied")


@pytest.mark.slow
def test_a_run_for_which_the_system_has_no_memory(write, tmp_path: Path) -> None:
    """In a process that may take 170 MB more; weights, gradients and moments need 230."""
    config = BertConfig.from_pretrained(tiny_bert(tmp_path / "large"))
    config.hidden_size, config.intermediate_size = 768, 3072
    BertModel(config).save_pretrained(tmp_path / "large")
    small = cells_of(write, tmp_path)[0]
    run = small.config.model_copy(update={"model": str(tmp_path / "large")})
    prints = fingerprints_of(run, small.extras)
    identity = cell_identity(run, small.extras, prints)
    cell = replace(small, config=run, identity=identity)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # threads, which the child does not use
        child = os.fork()
    if not child:
        limit = psutil.Process().memory_info().vms + 170_000_000
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        (tmp_path / "told").write_text("\n".join(map(str, worker.attempt(cell, tmp_path / "work"))))
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    status, message = (tmp_path / "told").read_text().split("\n", 1)
    assert (status, "per_device_train_batch_size 8" in message) == ("out of memory", True), message


class Pool:
    """Runs cells at once; those of LNSR are always out of memory."""

    size = 2

    def __init__(self, folder: Path) -> None:
        self.folder, self.records, self.waiting = folder, Records(folder), []
        self.started: Counter = Counter()

    def start(self, cell) -> None:
        self.started[cell.label, cell.seed] += 1
        self.waiting.append(cell)

    def ended(self, seconds: float, stopped):
        ended = []
        for cell in self.waiting:
            small = cell.label == "plain"
            status, found = ("done", finished(0.5)) if small else ("out of memory", "no room")
            self.records.end(cell, status, found)
            ended.append(Ended(cell, status, "" if small else found))
        self.waiting = []
        return ended

    def stop(self) -> None:
        pass


class NoSignals:
    received = None


def test_the_bar_names_what_runs(write, tmp_path: Path) -> None:
    first, second, *_ = cells_of(write, tmp_path)
    with open("/dev/null", "w") as nothing:
        progress = Progress(Console(file=nothing, width=200), "runs")
        progress.start("study", 4)
        progress.working([first])
        assert progress.bar.tasks[0].description == f"study: {first.title}"
        progress.working([first, second])
        assert progress.bar.tasks[0].description == f"study: {first.title} and 1 more"
        progress.console.width = 50
        progress.working([first, second])
        assert len(progress.bar.tasks[0].description) <= 20


def test_other_cells_go_on_and_no_cell_is_tried_for_ever(write, tmp_path: Path) -> None:
    cells, pool = cells_of(write, tmp_path), Pool(tmp_path)
    with open("/dev/null", "w") as nothing:
        console = Console(file=nothing)
        with Progress(console, "runs", Records(tmp_path)) as progress:
            run.execute(cells, pool, progress, NoSignals())
    assert pool.started == {
        ("plain", 0): 1,
        ("plain", 1): 1,
        ("lnsr", 0): run.ATTEMPTS,
        ("lnsr", 1): run.ATTEMPTS,
    }
    assert [Records(tmp_path).read(c.id) is not None for c in cells] == [
        c.label == "plain" for c in cells
    ]


@pytest.mark.parametrize(("free_on_gpus", "expected"), [([9e9], 2), ([80e9], 4), ([1e9], 1),
                                                       ([5e9, 9e9], 3)])  # fmt: skip
def test_runs_at_once_fit_in_the_memory_of_the_gpus(monkeypatch, free_on_gpus, expected) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(64))
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=17e9))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(free_on_gpus))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda i: (free_on_gpus[i], 80e9))
    assert pool.default_jobs(438_000_000) == expected  # 4.1 GB each, and 17 GB in the machine


@pytest.mark.parametrize(
    ("named", "expected"), [(None, ["0", "1"]), ("2,7", ["2", "7"]), ("", ["0", "1"])]
)
def test_every_run_has_the_gpu_with_the_fewest(monkeypatch, tmp_path, named, expected) -> None:
    if named is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(pool, "start_server", lambda: None)
    started = []

    def fork(self, cell, gpu):
        started.append(gpu)
        return SimpleNamespace(sentinel=len(started))

    monkeypatch.setattr(pool.Pool, "_fork", fork)
    found = pool.Pool(tmp_path, 4)
    for cell in "abc":
        found.start(cell)
    del found.running[2]  # b has ended
    found.start("d")
    first, second = expected
    assert started == [first, second, first, second]


def test_a_run_sees_its_gpu_alone(monkeypatch, tmp_path) -> None:
    class SeenError(Exception):
        pass

    def look():
        raise SeenError(os.environ["CUDA_VISIBLE_DEVICES"])

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,7")
    monkeypatch.setattr(worker.gc, "freeze", look)
    with pytest.raises(SeenError, match="^7$"):
        worker.run_here("cell", tmp_path, False, "7")
