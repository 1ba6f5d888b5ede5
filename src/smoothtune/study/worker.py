"""One cell in a process of its own: train, measure, write the record."""

import contextlib
import gc
import itertools
import os
import shutil
import sys
import threading
import traceback
from multiprocessing.connection import wait
from multiprocessing.process import parent_process
from pathlib import Path

from rich.console import Console
from tqdm import tqdm

from smoothtune.config.evaluation import OOD, Settings, further_title
from smoothtune.console import say
from smoothtune.errors import (
    CheckpointError,
    DataError,
    ModelError,
    NonFiniteLoss,
    NotSupported,
    Stopped,
    is_out_of_memory,
)
from smoothtune.evaluation.calibration import judged_error
from smoothtune.evaluation.parts import PARTS, evaluate_part, further_data, other_data
from smoothtune.evaluation.predictor import Predictor
from smoothtune.evaluation.robustness import FURTHER_NOISE, noise_curve
from smoothtune.evaluation.subject import Subject
from smoothtune.methods.find import find_method
from smoothtune.results import CellContent, Measured
from smoothtune.run.output import CHECKPOINTS
from smoothtune.run.train import Trained, fit, naming_memory
from smoothtune.study.files import portable, portable_fields
from smoothtune.study.inputs import fingerprints_of
from smoothtune.study.records import (
    NOT_SUPPORTED,
    RESULTS,
    STOPPED,
    Cell,
    Extras,
    Records,
    Status,
    forget,
)

WORK, MODELS = "work", "models"
NOISE_ROWS = 256
RESAMPLES = 100
"""Behind the intervals over examples of other data sets; seeds are what a study judges by."""


def run_here(cell: Cell, folder: Path, keep_model: bool, gpu: str | None = None) -> None:
    """Run a cell in this process, on a GPU of several; what it prints goes into a file."""
    if gpu is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpu  # read when the first tensor goes there
    gc.freeze()  # the trainer collects garbage: what was imported before the fork stays out of it
    threading.Thread(target=_end_with_parent, daemon=True).start()
    tqdm.set_lock(threading.RLock())  # its own is a semaphore, which the end of a cell would leak
    records, checkpoints = Records(folder), folder / CHECKPOINTS
    work = folder / WORK / f"{cell.id}-{os.getpid()}"
    work.mkdir(parents=True)
    log = (work / "output.txt").open("w", encoding="utf-8", buffering=1)
    records.note("start", cell.id)
    with contextlib.redirect_stdout(log), contextlib.redirect_stderr(log):
        try:
            models = folder / MODELS if keep_model else None
            status, content = attempt(cell, work, checkpoints, models)
        except Stopped:  # a signal that the study got as well
            os._exit(STOPPED)
    records.end(cell, status, content)
    forget(cell, status, checkpoints)
    log.close()
    shutil.rmtree(work, ignore_errors=True)
    os._exit(0 if status in RESULTS else 1)  # all is written; tearing down takes a second


def _end_with_parent() -> None:
    """A cell whose study was killed would otherwise go on, and be started again beside it."""
    parent = parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(STOPPED)


def attempt(
    cell: Cell, work: Path, checkpoints: Path | None = None, models: Path | None = None
) -> tuple[Status, CellContent | str]:
    """How `compute` ended, with the record's content, or with the message of an error."""
    try:
        return "done", compute(cell, work, checkpoints, models)
    except Stopped:
        raise
    except Exception as error:
        traceback.print_exc()
        if isinstance(error.__cause__, NotSupported):
            return NOT_SUPPORTED, "; ".join(error.__cause__.refusals)
        message = f"{type(error).__name__}: {error}".removesuffix(": ")
        if isinstance(error, NonFiniteLoss) or "is not finite" in str(error):
            return "nan", message
        if is_out_of_memory(error):
            return "out of memory", f"{message}; or --jobs 1"
        return "error", message


def compute(
    cell: Cell, work: Path, checkpoints: Path | None = None, models: Path | None = None
) -> CellContent:
    """Train as ``smoothtune train`` does, with one thread, and measure.

    Args:
        cell: the run.
        work: an empty folder, to be thrown away.
        checkpoints: where those of a cell with a `save_strategy` are, from which it goes on.
        models: where its model is kept.
    """
    import torch

    torch.set_num_threads(1)
    console = Console(file=sys.stdout, width=200)
    check_inputs(cell)
    with naming_memory(cell.config):
        trained = _fit(cell, work, checkpoints, console)
    if models is not None:
        models.mkdir(exist_ok=True)
        trained.save(work / "model")
        shutil.rmtree(models / cell.id, ignore_errors=True)  # of the same cell, its record lost
        os.replace(work / "model", models / cell.id)
    with naming_memory(cell.config):
        extras = measure(trained, cell)
    check_inputs(cell)
    fields = portable_fields(trained.result.config)
    places = {"model": portable(cell.config.model), "config": fields}
    result = trained.result.model_copy(update=places)
    return CellContent(status="done", result=result, extras=extras)


def check_inputs(cell: Cell) -> None:
    """Check that a run reads what the study read when it was planned.

    Raises:
        DataError: something has another content.
    """
    planned, now = cell.identity, fingerprints_of(cell.config, cell.extras)
    others = planned.get("extras", {}).get("ood", {})
    contents = {
        "data": (planned["data"], now.data),
        "base weights": (planned["base_weights"], now.base_weights),
        "unlabeled data": (planned.get("unlabeled"), now.unlabeled),
        **{f"other data {name}": (others[name]["source"], content) for name, content in now.ood},
    }
    if changed := [name for name, (before, after) in contents.items() if before != after]:
        raise DataError(
            f"{' and '.join(changed)} changed since the study began, so this run is none of it: "
            "put back what was there, or run the command again, which makes all runs again on what "
            "is there now"
        )


def _fit(cell: Cell, work: Path, checkpoints: Path | None, console: Console) -> Trained:
    """Train, from the newest checkpoint where there is one."""
    if checkpoints is None or cell.config.save_strategy == "no":
        return fit(cell.config, work, resumable=False, console=console)
    own = checkpoints / cell.id
    try:
        return fit(cell.config, own, resume=True, console=console)
    except CheckpointError as error:  # of other versions of what it stands on
        say(console, f"{error}; the run begins again")
        shutil.rmtree(own)
        return fit(cell.config, own, console=console)


def measure(trained: Trained, cell: Cell) -> Measured:
    """Calibration, and what the study asks for."""
    prepared, extras = trained.prepared, cell.extras
    ece = judged_error(prepared.task, trained.predictions, prepared.validation)
    measured = Measured(ece=ece)
    if extras == Extras():
        return measured
    subject = _subject(trained, cell)
    if extras.noise_curve:
        rows = subject.rows(NOISE_ROWS)  # every seed draws again, so one sample is enough
        curve = noise_curve(subject.predictor, rows, num_samples=1, further=FURTHER_NOISE)
        points = itertools.chain.from_iterable(curve.series.values())
        measured.noise = curve.numbers | {f"{point.x:g}": point.y for point in points}
    for name in extras.evaluate:
        try:
            measured.parts[name] = evaluate_part(name, PARTS[name], subject)
        except ModelError as error:  # the training and its scores are not to be lost by it
            print(f"{name} is not measured: {error}")
    if extras.evaluate:
        lowered = {name: find_method(name).declared.lowers for name in cell.config.methods}
        measured.claims = {name: list(quantities) for name, quantities in lowered.items()}
    for name, other in extras.ood:
        results = {OOD + name: other_data(subject, other)}
        for share in extras.further_share:
            results[further_title(name, share)] = further_data(subject, other, share)
        for result in results.values():
            if read_as := result.numbers.get("read_as"):
                read_as["source"] = portable(read_as["source"])
        measured.parts |= results
    return measured


def _subject(trained: Trained, cell: Cell) -> Subject:
    """The trained model as an evaluation sees it."""
    config = cell.config
    settings = Settings(
        model=config.model,
        output_dir="unset",
        data=config.data,
        base_model=config.model,
        max_diagnostic_samples=NOISE_ROWS,
        num_resamples=RESAMPLES,
        trust_remote_code=config.trust_remote_code,
    )
    model = trained.model.eval()
    predictor = Predictor(model, trained.base.tokenizer, trained.prepared.task, seed=config.seed)
    return Subject(settings, predictor, trained.prepared)
