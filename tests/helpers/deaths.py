"""Commands that die at random, again and again, against the same command left alone.

A command is a fork of this process, which has imported everything, in a process group of its own.
It dies at a random moment or, as often, at a random one of its operations on files; a file that
torch or safetensors writes may then be cut in half.
"""

from __future__ import annotations

import csv
import gc
import multiprocessing
import os
import random
import shutil
import signal
import socket
import sys
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import torch
from rich.console import Console
from tqdm import tqdm
from transformers import modeling_utils

from smoothtune.cli.output import USAGE
from smoothtune.config.evaluation import Settings
from smoothtune.config.run import RunConfig
from smoothtune.config.tuning import load_tune
from smoothtune.errors import OutputError
from smoothtune.evaluation.output import EVALUATION
from smoothtune.evaluation.run import evaluate
from smoothtune.files import LOCK, RESULT, read_json
from smoothtune.reproduce.page import CONTENT
from smoothtune.reproduce.run import reproduce
from smoothtune.run.output import newest_checkpoint
from smoothtune.run.train import train
from smoothtune.study import pool
from smoothtune.study.config import load_study
from smoothtune.study.records import CELLS, Records
from smoothtune.study.run import run_study
from smoothtune.study.worker import run_here
from smoothtune.trainer import checkpoints
from smoothtune.tune import run as tune_run

MOST_DEATHS = 8
"""Of one folder, before the command may end."""
HANGS_AFTER = 180.0
"""Seconds."""
OPERATIONS = ("replace", "rename", "unlink", "rmdir", "mkdir", "fsync")
WRITERS = ((torch, "save"), (modeling_utils, "safe_save_file"), (checkpoints, "save_file"))
FINISHED = 10**9
operations = multiprocessing.RawValue("q", 0)
"""Operations on files of a command, in all of its processes; a lock would die with its holder."""


tqdm.monitor_interval = 0
tqdm.set_lock(threading.RLock())  # its own is one of all processes, and dies with its holder


class Job(NamedTuple):
    """A command, and how to judge its folder."""

    run: Callable[[Path, Console], object]
    """Begins in a folder, or goes on there."""
    outcome: Callable[[Path], dict[str, Any]]
    """What must be equal in the end."""
    progress: Callable[[Path], int]
    """What no death may lessen."""
    processes: int = 1
    as_one: bool = False
    """Whether the processes are of one training: it ends where one of them dies."""


def _killed_at(point: int) -> None:
    """Die at the n-th operation on files from here on; 0: count them alone."""
    operations.value = 0

    def is_the_point() -> bool:
        operations.value += 1
        return operations.value == point

    def patched(call: Callable[..., Any], *, is_writer: bool) -> Callable[..., Any]:
        def wrapped(*values: Any, **named: Any) -> Any:
            if is_the_point():
                os.killpg(0, signal.SIGKILL)
            result = call(*values, **named)
            if is_writer and is_the_point():
                file = next(v for v in values if isinstance(v, str | Path))
                os.truncate(file, os.path.getsize(file) // 2)
                os.killpg(0, signal.SIGKILL)
            return result

        return wrapped

    for module, name in [*((os, name) for name in OPERATIONS), *WRITERS]:
        call = getattr(module, name)
        setattr(module, name, patched(call, is_writer=module is not os))


def _forked(work: Callable[[Console], object], log: Path, point: int, **environment: str) -> int:
    """Start work in a child process; returns its number."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # threads, which the child does not use
        child = os.fork()
    if child:
        return child
    code = 1
    try:
        os.setpgid(0, 0)
        sys.modules["matplotlib"] = None  # type: ignore[assignment]  # plots take most of the time
        os.environ |= environment
        warnings.simplefilter("ignore")
        with log.open("a") as output:
            output.write(f"--- {os.getpid()}, to die at operation {point}\n")
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
            _killed_at(point)
            work(Console(file=output))
        log.with_suffix(".modules").write_text("\n".join(n for n, m in sys.modules.items() if m))
        code = 0
    except OutputError as error:
        with log.open("a") as output:
            output.write(f"refused: {error}\n")
        code = USAGE
    except BaseException as error:
        with log.open("a") as output:
            output.write(f"{type(error).__name__}: {error}\n")
    finally:
        os._exit(code)


def _kill(child: int) -> None:
    for kill in (os.killpg, os.kill):  # it may not lead its group yet
        try:
            kill(child, signal.SIGKILL)
        except ProcessLookupError:
            continue


def _free_port() -> str:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return str(server.getsockname()[1])


class Launch:
    """A command that runs once.

    Args:
        job: the command.
        folder: its output folder.
        point: operation on files at which it dies; 0: at none.
        moments: seconds after which each of its processes is killed; None: never.
    """

    def __init__(
        self, job: Job, folder: Path, point: int = 0, moments: list[float] | None = None
    ) -> None:
        self.job, self.folder, self.begin = job, folder, time.monotonic()
        self.logs = [folder.with_suffix(f".{rank}.txt") for rank in range(job.processes)]
        port, self.running, self.codes = _free_port(), {}, {}
        for rank, log in enumerate(self.logs):
            environment = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port} if job.as_one else {}
            environment |= {"RANK": f"{rank}", "LOCAL_RANK": f"{rank}"} if job.as_one else {}
            environment |= {"WORLD_SIZE": f"{job.processes}"} if job.as_one else {}
            child = _forked(lambda console: job.run(folder, console), log, point, **environment)
            self.running[rank] = child
        self.moments = dict(enumerate(moments or [HANGS_AFTER] * job.processes))

    def wait(self) -> None:
        """Wait until all processes have ended, and kill those whose moment comes."""
        while self.running:
            now = time.monotonic() - self.begin
            for rank, child in list(self.running.items()):
                if now > self.moments[rank]:
                    _kill(child)
                ended, status = os.waitpid(child, os.WNOHANG)
                if not ended:
                    continue
                del self.running[rank]
                self.codes[rank] = os.waitstatus_to_exitcode(status)
                if self.job.as_one and self.codes[rank]:  # as a launcher does
                    self.moments = {r: min(m, now + 0.2) for r, m in self.moments.items()}
            time.sleep(0.003)
        self.seconds = time.monotonic() - self.begin

    @property
    def died(self) -> bool:
        """Whether one of its processes was killed."""
        return -signal.SIGKILL in self.codes.values()

    @property
    def failure(self) -> str:
        """How it failed, if it neither ended nor was killed."""
        if self.seconds > HANGS_AFTER:
            return "it hangs"
        codes = [*self.codes.values()]
        if self.job.as_one and self.died:  # the others miss the one
            return ""
        refused = USAGE if len(codes) > 1 else 0  # by the other of two
        wrong = [r for r, code in self.codes.items() if code not in (0, refused, -signal.SIGKILL)]
        if not wrong and (self.died or 0 in codes):
            return ""
        return "; ".join(self.logs[rank].read_text()[-2000:] for rank in wrong or self.codes)


class Alone(NamedTuple):
    """A command that nobody disturbed."""

    outcome: dict[str, Any]
    seconds: float
    operations: int


def undisturbed(job: Job, folder: Path) -> Alone:
    """Run a command to its end.

    Raises:
        AssertionError: it fails.
    """
    launch = Launch(job, folder)
    launch.wait()
    assert not launch.failure, launch.failure
    assert not launch.died
    for name in launch.logs[0].with_suffix(".modules").read_text().split():
        with suppress(Exception):  # what the next ones need not import
            import_module(name)
    gc.collect()
    gc.freeze()  # nor look at when they collect garbage
    return Alone(job.outcome(folder), launch.seconds, operations.value)


def dies_and_goes_on(job: Job, folder: Path, alone: Alone, draw: random.Random) -> Counter[str]:
    """Kill a command up to `MOST_DEATHS` times, let it end, and compare with the one left alone.

    Returns:
        How often it died, and what went wrong, by kind: "lost", "failed", "wrong".
    """
    counts, before = Counter(runs=1, deaths=0, lost=0, failed=0, wrong=0), 0
    for _ in range(MOST_DEATHS):
        early = [draw.random() ** 2 for _ in range(job.processes)]  # soon, so that many fit in
        if draw.random() < 0.5:
            launch = Launch(job, folder, point=1 + int(early[0] * alone.operations))
        else:
            shares = early[:1] * job.processes if job.as_one else early
            launch = Launch(job, folder, moments=[alone.seconds * share for share in shares])
        launch.wait()
        if not launch.died:
            break
        counts["deaths"] += 1
        if launch.failure:
            counts["failed"] += 1
            print(f"failed: {launch.failure}", flush=True)
        now = job.progress(folder)
        if now < before:
            counts["lost"] += 1
            print(f"lost: {before} before, {now} now, in {folder}", flush=True)
        before = now
    else:
        launch = Launch(job, folder)
        launch.wait()
    if launch.failure or launch.died:
        counts["failed"] += 1
        print(f"failed: {launch.failure}", flush=True)
    elif (outcome := job.outcome(folder)) != alone.outcome:
        counts["wrong"] += 1
        for key in outcome:
            if outcome[key] != alone.outcome.get(key):
                print(f"wrong: {key}: {outcome[key]}"[:500], f"not: {alone.outcome.get(key)}"[:500])
        print(*(log.read_text() for log in launch.logs), flush=True)
    return counts


def _names(folder: Path) -> list[str]:
    """All files but the lock: nothing is missing or left behind."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != LOCK]
    return sorted(str(path.relative_to(folder)) for path in files)


def training(inputs: Path, *, processes: int = 1, **changes: Any) -> Job:
    """Four updates of LNSR and L2-SP, a checkpoint after each."""

    def run(folder: Path, console: Console) -> None:
        config = RunConfig(
            task="quality",
            data=str(inputs / "data"),
            text_columns=["text"],
            model=str(inputs / "model"),
            methods={"lnsr": {"weight": 1.0}, "l2_sp": {}},
            output_dir=str(folder),
            max_steps=4,
            learning_rate=3e-2,
            lr_scheduler_type="constant",
            cost_steps=0,
            **changes,
        )
        resume = not (folder / RESULT).exists() and newest_checkpoint(folder).folder is not None
        train(config, resume=resume, console=console)

    def outcome(folder: Path) -> dict[str, Any]:
        result = read_json(folder / RESULT) or {}
        files = {name: sha for name, sha in result["files"].items() if name != "README.md"}
        keys = ("metrics", "train_metrics", "kept_step", "best")  # the card tells the time
        weights = (folder / "model.safetensors").read_bytes()
        return {key: result.get(key) for key in keys} | {
            "files": files,
            "names": _names(folder),
            "weights": weights,
        }

    def progress(folder: Path) -> int:
        if (folder / RESULT).exists():
            return FINISHED
        newest = newest_checkpoint(folder).folder
        return int(newest.name.split("-")[-1]) if newest else 0

    return Job(run, outcome, progress, processes, as_one=processes > 1)


def evaluation(model: Path) -> Job:
    """Parts of an evaluation of a trained model, each kept when it is done."""

    def run(folder: Path, console: Console) -> None:
        settings = Settings(
            model=str(model),
            output_dir=str(folder),
            num_resamples=50,
            max_diagnostic_samples=8,
            parts=("calibration", "drift", "robustness"),
        )
        evaluate(settings, console=console)

    def parts(folder: Path) -> dict[str, Any]:
        return (read_json(folder / EVALUATION) or {"parts": {}})["parts"]

    def outcome(folder: Path) -> dict[str, Any]:
        return {name: {**part, "seconds": 0} for name, part in parts(folder).items()} | {
            "names": _names(folder)
        }

    return Job(run, outcome, lambda folder: len(parts(folder)))


STUDY = """
data: {inputs}/data
model: {inputs}/model
task: quality
text_columns: [text]
learning_rate: 1e-2
max_steps: 2
per_device_train_batch_size: 8
eval_strategy: "no"
logging_steps: 1
title: chaos
seeds: [0, 1]
more_epochs: null
"""
PAGE = """
layout:
  - table: "1"
    rows: [{name: plain, method: plain}, {name: LNSR, method: lnsr}]
    columns: [{name: quality, task: quality}]
"""


@contextmanager
def _cells_forked_here() -> Iterator[None]:
    """Fork cells from the command itself: a server would import everything after every death."""

    def fork(self: pool.Pool, cell: Any, gpu: str | None) -> Any:
        arguments = (cell, self.folder, self.keep_models, gpu)
        context = multiprocessing.get_context("fork")
        process = context.Process(target=run_here, args=arguments, daemon=True)
        process.start()
        return process

    pool.Pool._fork = fork  # type: ignore[method-assign]
    pool.start_server = tune_run.start_server = lambda: None
    yield


def _records(folder: Path) -> int:
    """Finished runs whose records verify."""
    records = Records(folder)
    return sum(records.read(path.stem) is not None for path in folder.glob(f"{CELLS}/[!.]*"))


def _of_cells(folder: Path) -> dict[str, Any]:
    """Files and records of a study or a search, and runs that were done and began again."""
    ended: set[str] = set()
    again = []
    for line in Records(folder).log():
        if line["event"] == "start" and line["cell"] in ended:
            again.append(line["cell"])
        if line["event"] == "done":
            ended.add(line["cell"])
    return {"names": _names(folder), "records": _records(folder), "again": again}


def _table(folder: Path) -> list[dict[str, str]]:
    """results.csv without the times."""
    with (folder / "results.csv").open(newline="") as lines:
        rows = list(csv.DictReader(lines))
    return [{name: text for name, text in row.items() if "seconds" not in name} for row in rows]


def study(inputs: Path, text: str, *, processes: int = 1) -> Job:
    """A study of four runs; with a layout it is drawn as `smoothtune reproduce` does."""

    def run(folder: Path, console: Console) -> None:
        file = folder.with_suffix(".yaml")
        if not file.exists():
            file.write_text(STUDY.format(inputs=inputs) + text)
        with _cells_forked_here():
            command = reproduce if "layout" in text else run_study
            command(load_study(file), folder, jobs=2, console=console)

    def outcome(folder: Path) -> dict[str, Any]:
        page = read_json(folder / CONTENT) or {}
        page["findings"] = [f for f in page.get("findings", []) if "second" not in str(f)]
        return {"table": _table(folder), "page": page | {"name": ""}, **_of_cells(folder)}

    return Job(run, outcome, _records, processes)


def search(inputs: Path) -> Job:
    """A search among eight trials and confirming runs."""

    def run(folder: Path, console: Console) -> None:
        options = {
            "task": "quality",
            "text_columns": ["text"],
            "data": str(inputs / "data"),
            "model": str(inputs / "model"),
            "output_dir": str(folder),
            "budget": 2,
            "folds": 1,
            "confirm_runs": 3,
            "epochs": (1.0,),
            "learning_rates": (1e-3, 3e-2),
        }
        with _cells_forked_here():
            tune_run.run_tune(load_tune(options=options, methods=["lnsr"]), jobs=2, console=console)

    def outcome(folder: Path) -> dict[str, Any]:
        content = read_json(folder / "tune.json") or {}
        keys = ("pick", "gain", "runs", "trials")
        return {key: content[key] for key in keys} | _of_cells(folder)

    return Job(run, outcome, _records)


SAVES: dict[str, Any] = {"save_strategy": "steps", "save_steps": 1}
BEST: dict[str, Any] = {
    "load_best_model_at_end": True,
    "eval_strategy": "steps",
    "eval_steps": 1,
    "metric_for_best_model": "nll",
}
ACCUMULATED = {"gradient_accumulation_steps": 2, "per_device_train_batch_size": 4}


def jobs(inputs: Path, trained: Path) -> dict[str, Job]:
    """All commands that die.

    Args:
        inputs: holds ``model`` and ``data``.
        trained: the output folder of one of the trainings, for the evaluation.
    """
    return {
        "train": training(inputs, **SAVES),
        "train, best model": training(inputs, **BEST),
        "train, accumulated": training(inputs, **SAVES, **ACCUMULATED),
        "train, best model, accumulated": training(inputs, **BEST, **ACCUMULATED),
        "train, two processes": training(inputs, processes=2, **SAVES),
        "train, two processes, best model": training(inputs, processes=2, **BEST),
        "evaluate": evaluation(trained),
        "study": study(inputs, "methods: [lnsr, mixout]\n"),
        "study with checkpoints": study(
            inputs, "methods: [lnsr, mixout]\nsave_strategy: steps\nsave_steps: 1\n"
        ),
        "two studies in one folder": study(inputs, "methods: [lnsr, mixout]\n", processes=2),
        "reproduce": study(inputs, "methods: [plain, lnsr]\n" + PAGE),
        "tune": search(inputs),
    }


def clean(folder: Path) -> None:
    """Remove a folder and what lies beside it."""
    shutil.rmtree(folder, ignore_errors=True)
    for path in folder.parent.glob(f"{folder.name}.*"):
        path.unlink()
