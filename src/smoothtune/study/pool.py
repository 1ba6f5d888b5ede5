"""Cells in processes of this machine.

A server process has imported everything and loaded nothing; every cell is a fork of it. So a cell
imports nothing again, starts in the same state as any other, and harms no other when it is killed.
"""

import multiprocessing
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import wait
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

from smoothtune.errors import STOP_SIGNALS, OutputError
from smoothtune.study.records import STOPPED, Cell, Records, Status

PRELOAD = ["smoothtune.study.worker"]
STARTS = 5
"""Attempts to get a process from a server that is killed again and again."""
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "PYTHONSAFEPATH": "1",  # no current directory on the path on which modules are found
}
"""Of the server and its forks: one thread each."""
SERVER_LOST = 255
"""Exit code that multiprocessing tells for a process whose server died; it may still run."""
BY_SIGNAL = (SERVER_LOST, STOPPED, *(-number for number in STOP_SIGNALS))
"""Exit codes of cells that ended by a signal which the study may get as well, a moment later."""
SECONDS_FOR_SIGNAL = 1.0
MEMORY_PER_CELL = 1.5e9
"""Bytes that a process takes beside its model, on a GPU as in the machine's memory."""
COPIES_OF_MODEL = 6
"""Weights, gradients, two moments of the optimizer, and activations of about twice the weights."""


@dataclass(frozen=True)
class Ended:
    """How a cell's process ended."""

    cell: Cell
    status: Status
    message: str = ""


def start_server() -> None:
    """Start the server unless it runs; it imports in the background, so call this early."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOAD)
    with _environment(ENVIRONMENT), _without_current_directory():
        from multiprocessing.forkserver import ensure_running

        ensure_running()


class Pool:
    """Processes on this machine, one thread each, and one of its GPUs if it has some."""

    def __init__(self, folder: Path, size: int, *, keep_models: bool = False) -> None:
        self.folder, self.size, self.keep_models = folder, size, keep_models
        self.records = Records(folder)
        self.running: dict[Any, tuple[ForkServerProcess, Cell, str | None]] = {}
        start_server()
        self.gpus = visible_gpus()

    def start(self, cell: Cell) -> None:
        """Start a cell.

        Raises:
            OutputError: the server was killed whenever it was asked for a process.
        """
        for _ in range(STARTS):
            gpu = self._least_used_gpu()
            try:
                process = self._fork(cell, gpu)
            except (EOFError, ConnectionError):  # the server was killed meanwhile
                continue
            self.running[process.sentinel] = (process, cell, gpu)
            return
        raise OutputError(
            f"the server that forks the runs of {self.folder} was killed {STARTS} times in a row, "
            "perhaps by the kernel for want of memory: try --jobs 1; the same command goes on"
        )

    def _least_used_gpu(self) -> str | None:
        """None where there are not several."""
        used = Counter(gpu for _, _, gpu in self.running.values())
        return min(self.gpus, key=used.__getitem__) if len(self.gpus) > 1 else None

    def _fork(self, cell: Cell, gpu: str | None) -> ForkServerProcess:
        from smoothtune.study.worker import run_here

        start_server()  # another one, if it was killed
        context = multiprocessing.get_context("forkserver")
        arguments = (cell, self.folder, self.keep_models, gpu)
        process = context.Process(target=run_here, args=arguments, daemon=True)
        with _environment(ENVIRONMENT), _without_current_directory():
            process.start()  # and a third, if this one was killed since
        return process

    def ended(self, seconds: float, stopped: Callable[[], bool]) -> list[Ended]:
        """Cells that have ended, after waiting for one at most this long.

        A signal to all processes may reach a cell before the study. Once one has `stopped` this,
        how cells ended is no result.
        """
        ended, ready = [], wait(list(self.running), seconds)
        for process, _, _ in (self.running[sentinel] for sentinel in ready):
            process.join()
            if process.exitcode in BY_SIGNAL:
                _wait_for(stopped)
        if stopped():
            return []
        for sentinel in ready:
            process, cell, _ = self.running.pop(sentinel)
            if process.exitcode == SERVER_LOST:
                _end(process.pid)
            ended.append(self._judge(cell, process.exitcode))
        return ended

    def _judge(self, cell: Cell, code: int | None) -> Ended:
        if record := self.records.read(cell.id):
            return Ended(cell, record.status, record.message)
        failure = self.records.failure(cell.id)
        if code == 1 and failure:  # else it is of an attempt before
            return Ended(cell, failure["status"], failure["message"])
        message = _how_it_died(code)
        self.records.fail(cell, "killed", message)
        return Ended(cell, "killed", message)

    def stop(self) -> None:
        """End all cells; they have written nothing."""
        for process, _, _ in self.running.values():
            process.kill()
        for process, _, _ in self.running.values():
            process.join()
        self.running.clear()


def _wait_for(stopped: Callable[[], bool]) -> None:
    """Wait a moment for a signal that others have got."""
    end = time.monotonic() + SECONDS_FOR_SIGNAL
    while not stopped() and time.monotonic() < end:
        time.sleep(0.02)


def _end(pid: int | None) -> None:
    """Kill a process that is no child of this one; it is gone, with what it wrote, on return."""
    import psutil

    with suppress(psutil.Error):
        process = psutil.Process(pid)
        process.kill()
        process.wait(10)


def _how_it_died(code: int | None) -> str:
    if code == SERVER_LOST:
        return "the server that forked the process was killed"
    if code is None or code >= 0:
        return f"the process ended with exit code {code} and left no result"
    name = signal.Signals(-code).name
    hint = "; perhaps by the kernel for want of memory: try --jobs 1" * (name == "SIGKILL")
    return f"the process was killed by {name}{hint}"


@contextmanager
def _without_current_directory() -> Iterator[None]:
    """Give processes started in a ``with`` no path to the modules of the current directory.

    It stays where it is the folder of the running script, or PYTHONPATH names it in full.
    """
    script = getattr(sys.modules["__main__"], "__file__", None)
    here, kept = Path.cwd(), list(sys.path)
    if script is None or Path(script).resolve().parent != here:
        entries = os.environ.get("PYTHONPATH", "").split(os.pathsep)
        named = {entry for entry in entries if os.path.isabs(entry)}
        sys.path[:] = [
            entry for entry in kept if entry in named or (entry and Path(entry).resolve() != here)
        ]
    try:
        yield
    finally:
        sys.path[:] = kept


@contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    """Environment variables for the time of a ``with``."""
    before = {name: os.environ[name] for name in values if name in os.environ}
    os.environ.update(values)
    try:
        yield
    finally:
        for name in values:
            del os.environ[name]
        os.environ.update(before)


def visible_gpus() -> list[str]:
    """The GPUs of this machine, by the names that CUDA_VISIBLE_DEVICES gives or may give them."""
    import torch

    count = torch.cuda.device_count()
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    return (named.split(",") if named else [str(i) for i in range(count)])[:count]


def default_jobs(weight_bytes: int) -> int:
    """How many cells this machine can run at once, by cores and by memory that is free.

    A run on a GPU has its context, and the `weight_bytes` of its model, in both memories.
    """
    import psutil
    import torch

    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    each = COPIES_OF_MODEL * weight_bytes + MEMORY_PER_CELL
    room = psutil.virtual_memory().available // each
    if gpus := torch.cuda.device_count():
        room = min(room, sum(torch.cuda.mem_get_info(i)[0] // each for i in range(gpus)))
    return max(1, min(cores, int(room)))
